//! The arguments of the storm and of its children.

use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lowtide_testing::suite::Target;

use crate::sabotage::Sabotage;

pub(crate) const USAGE: &str =
    "usage: storm --minutes N [--seed N] [--on host|double|both] [--json]
       storm --seconds N …

A failure prints its seed and the last operations of each thread; the exit code is 1.
--sabotage byte|leak|receipt|panic|fork|file|process makes it fail, to see that it can.";

/// What the supervisor is asked for.
pub(crate) struct Arguments {
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) on: Vec<Target>,
    pub(crate) json: bool,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What a child is asked for.
pub(crate) struct ChildArguments {
    pub(crate) seed: u64,
    pub(crate) time: Duration,
    pub(crate) on: Target,
    pub(crate) sabotage: Option<Sabotage>,
}

pub(crate) enum Role {
    /// A test program, with the arguments of one.
    Test,
    Supervisor(Arguments),
    Child(ChildArguments),
}

/// Reads the arguments. The program is a test program unless a duration is given.
pub(crate) fn parse(arguments: impl Iterator<Item = String>) -> Result<Role, String> {
    let arguments: Vec<String> = arguments.collect();
    if !arguments.iter().any(|it| it == "--minutes" || it == "--seconds" || it == "--child") {
        return Ok(Role::Test);
    }
    let (mut seed, mut time, mut sabotage) = (None, None, None);
    let (mut json, mut is_child) = (false, false);
    let mut on = vec![Target::Host, Target::Double];
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--minutes" => {
                time = Some(Duration::from_secs_f64(60.0 * number::<f64>(value()?)?.max(0.0)));
            }
            "--seconds" => time = Some(Duration::from_secs_f64(number::<f64>(value()?)?.max(0.0))),
            "--seed" => seed = Some(number(value()?)?),
            "--on" => on = targets(value()?)?,
            "--json" => json = true,
            "--sabotage" => sabotage = Some(value()?.parse()?),
            "--child" => is_child = true,
            _ => return Err(format!("{word} is not an argument of the storm")),
        }
    }
    let time = time.ok_or("a duration is needed")?;
    let seed = seed.unwrap_or_else(seed_of_now);
    Ok(match (is_child, &on[..]) {
        (true, [on]) => Role::Child(ChildArguments { seed, time, on: *on, sabotage }),
        (true, _) => return Err("a child is on one device".to_owned()),
        (false, _) => Role::Supervisor(Arguments { seed, time, on, json, sabotage }),
    })
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn targets(text: &str) -> Result<Vec<Target>, String> {
    match text {
        "host" => Ok(vec![Target::Host]),
        "double" => Ok(vec![Target::Double]),
        "both" => Ok(vec![Target::Host, Target::Double]),
        _ => Err(format!("{text:?} is not host, double or both")),
    }
}

/// Another seed each second. It is printed, so a run can be repeated.
fn seed_of_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs())
}
