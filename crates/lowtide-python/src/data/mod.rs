//! Data that crosses the border between Python and Rust: receipts, ledgers, readings.

pub(crate) mod classes;
pub(crate) mod json;
pub(crate) mod ledger;
pub(crate) mod receipt;
pub(crate) mod report;
pub(crate) mod values;
