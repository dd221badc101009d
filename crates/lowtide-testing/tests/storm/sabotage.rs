//! Sabotage: faults of the storm's own making, with which it must fail. A test that cannot fail proves
//! nothing.

use std::str::FromStr;
use std::sync::OnceLock;

/// What a child does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// Writes a wrong byte now and then.
    Byte,
    /// Forgets to free a block at the end of a world.
    Leak,
    /// Says `released` in a receipt that did not free its claim.
    Receipt,
    /// Panics where nothing may.
    Panic,
    /// Ends a forked child with another code.
    Fork,
    /// Leaves a file behind.
    File,
    /// Leaves a process behind.
    Process,
}

impl Sabotage {
    /// All of them, with a part of the message that the supervisor must end with.
    pub(crate) const ALL: [(Sabotage, &str); 7] = [
        (Sabotage::Byte, "bytes are wrong"),
        (Sabotage::Leak, "without a holder has memory"),
        (Sabotage::Receipt, "a receipt is wrong"),
        (Sabotage::Panic, "a panic at"),
        (Sabotage::Fork, "a forked child"),
        (Sabotage::File, "has ended and left"),
        (Sabotage::Process, "has ended, and its process"),
    ];

    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

impl FromStr for Sabotage {
    type Err = String;

    fn from_str(text: &str) -> Result<Sabotage, String> {
        let known = Sabotage::ALL.into_iter().find(|(sabotage, _)| sabotage.name() == text);
        known.map(|(sabotage, _)| sabotage).ok_or_else(|| format!("there is no sabotage {text:?}"))
    }
}

static CHOSEN: OnceLock<Sabotage> = OnceLock::new();

/// Chooses the sabotage of this process.
pub(crate) fn choose(sabotage: Option<Sabotage>) {
    if let Some(sabotage) = sabotage {
        CHOSEN.get_or_init(|| sabotage);
    }
}

/// Returns whether this process does this wrong.
pub(crate) fn is(sabotage: Sabotage) -> bool {
    CHOSEN.get() == Some(&sabotage)
}
