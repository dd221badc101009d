//! What lowtide must do, by number (`REQUIREMENTS.md`, `docs/requirements.md`), proved by the device's
//! own numbers. Written once, run for `host`, for the driver double and for a real GPU.
//!
//! A proof names the rungs it needs. The suite runs it once as it is, and once more for each of
//! these with a rung in its place that does nothing: then it has to fail. So no proof passes because
//! it looks at nothing. (`LOWTIDE_TELL=1` prints with what each of them failed.)

mod claims;
mod docs;
mod ground;
mod idle;
mod pause;
mod pieces;
mod proof;
mod shutdown;
mod stages;
mod steps;
mod tasks;
mod told;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use lowtide_release::{Ladder, RungName};
use lowtide_testing::suite::{self, Case, Suite, Target};

use ground::{Ground, quietly};

fn main() -> ExitCode {
    suite::main(&[Suite::new("requirements", TARGETS, cases)])
}

const TARGETS: &[Target] = &[Target::Host, Target::Double, Target::Cuda];

/// One requirement, or a part of it.
#[derive(Clone, Copy)]
pub(crate) struct Proof {
    /// Begins with the requirement's number.
    name: &'static str,
    /// The rungs without which it fails.
    needs: &'static [&'static str],
    prove: fn(&Ground),
}

/// The proofs of a file: each is the function of this name, and the rungs it needs.
macro_rules! proofs {
    ($( $name:ident needs [$($rung:literal),*]; )*) => {
        pub(crate) const PROOFS: &[$crate::Proof] = &[$(
            $crate::Proof {
                name: stringify!($name),
                needs: &[$($rung),*],
                prove: $name,
            }
        ),*];
    };
}
pub(crate) use proofs;

/// All of them, by the file they are in.
fn files() -> [(&'static str, &'static [Proof]); 9] {
    [
        ("stages", stages::PROOFS),
        ("tasks", tasks::PROOFS),
        ("shutdown", shutdown::PROOFS),
        ("idle", idle::PROOFS),
        ("steps", steps::PROOFS),
        ("told", told::PROOFS),
        ("pause", pause::PROOFS),
        ("proof", proof::PROOFS),
        ("claims", claims::PROOFS),
    ]
}

fn all() -> impl Iterator<Item = &'static Proof> {
    files().into_iter().flat_map(|(_, proofs)| proofs)
}

/// The cases for a kind of device.
fn cases(target: Target) -> Vec<Case> {
    let mut cases = Vec::new();
    for proof in all() {
        let prove = |target| (proof.prove)(&Ground::new(target, None));
        cases.push(Case::new(proof.name, prove));
        for rung in proof.needs {
            let name = format!("{}::fails_without_{rung}", proof.name).leak();
            cases.push(Case::new(name, |target| fails_without(target, proof, rung)));
        }
    }
    cases.push(Case::new("every_rung_is_needed_by_a_proof", every_rung_is_needed));
    if target == Target::Host {
        cases.push(Case::new("the_table_in_the_docs_is_whole", |_| docs::check()));
    }
    cases
}

fn fails_without(target: Target, proof: &Proof, rung: &'static str) {
    // Made outside: a device that is missing proves nothing about a rung.
    let ground = Ground::new(target, Some(rung));
    let outcome = quietly(|| catch_unwind(AssertUnwindSafe(|| (proof.prove)(&ground))));
    let name = proof.name;
    let panic = outcome.expect_err(&format!("{name} passes though `{rung}` does nothing"));
    if std::env::var_os("LOWTIDE_TELL").is_some() {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.and_then(|text| text.lines().next());
        println!("without `{rung}`: {}", text.unwrap_or("it panicked"));
    }
}

fn every_rung_is_needed(_: Target) {
    let needed: BTreeSet<&str> = all().flat_map(|proof| proof.needs).copied().collect();
    let ladder = Ladder::whole();
    let names = ladder.names();
    let there: BTreeSet<&str> = names.iter().map(RungName::as_str).collect();
    assert_eq!(needed, there, "rungs that proofs need, and rungs there are");
}
