//! Receipts of releases that were refused before anything was asked, and why a busy gate refuses.

use lowtide_types::{Reading, Receipt, Verdict};

use super::request::Request;
use crate::fork;
use crate::gate::Busy;

/// Creates the receipt of a release in a forked child. Nothing of the parent's is asked for it, and it is
/// not logged: a subscriber may have a lock of its own.
pub(crate) fn refuse_inherited(request: &Request) -> Receipt {
    refuse(request, Verdict::Failed, fork::refusal("releaser"))
}

/// Creates the receipt of a release that code asked for while it was asked for its own number. It is not
/// asked again.
pub(crate) fn refuse_asked(request: &Request) -> Receipt {
    let why = "nothing was touched: the gauge, an allocator or an account of this releaser asked for a \
               release while it was asked for its number; ask outside of that";
    refuse(request, Verdict::Busy, why.to_owned())
}

fn refuse(request: &Request, verdict: Verdict, why: String) -> Receipt {
    let nothing = Reading::default();
    let mut receipt = Receipt::new(&request.name, None, verdict, (nothing, nothing));
    receipt.target = request.to;
    receipt.advice.push(why);
    receipt
}

/// Says why a release could not close the gate, and what to do.
pub(crate) fn why_busy(busy: &Busy) -> String {
    let next = if busy.own {
        "ask on a thread that does not, or end that work first"
    } else {
        "try again when that has ended, or wait longer"
    };
    format!("nothing was touched: {busy}; {next}")
}
