//! Messages as lines of JSON.

use serde::Serialize;

/// Returns a message as a line.
pub(crate) fn line_of(data: &impl Serialize) -> String {
    // Plain data with names for keys: there is nothing that JSON could not hold.
    let mut line = serde_json::to_string(data).unwrap_or_default();
    line.push('\n');
    line
}
