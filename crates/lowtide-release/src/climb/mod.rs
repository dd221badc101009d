//! A release, from its request to its receipt.

mod advice;
mod by_need;
mod claims;
mod climber;
mod collected;
mod log;
mod releaser;
mod request;
mod restore;
mod same;
mod verdict;

pub(crate) use claims::outside_growth;
pub(crate) use climber::untouched;
pub use log::{LogLevel, log_text};
pub use releaser::Releaser;
pub(crate) use request::{Claiming, Thrift};
pub use request::{Request, WhenBusy};
pub use restore::{RestoreError, Restored};
