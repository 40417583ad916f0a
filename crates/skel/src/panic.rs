//! Turning a panic into an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result, code};

/// Runs `work`. A panic becomes its error, so that an error object is still written and the journal is still rolled back.
///
/// Values that `work` left in an inconsistent state are not used again, except for the journal, whose entries are independent.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let text = format!("panic: {}", message.unwrap_or("no message"));
        Err(Error::new(code::DEFECT, text).hint("this is a defect in the plugin: please report it with this text"))
    })
}
