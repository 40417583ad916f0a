//! A panic is a defect of the plugin, and an error like any other.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result, code};

/// Runs `work`; a panic in it becomes its error, so that the answer still gets out and what was made is still undone.
///
/// What `work` left half done is not looked at again but for the journal, each entry of which stands for itself.
pub(crate) fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let text = format!("panic: {}", said.unwrap_or("no message"));
        Err(Error::new(code::DEFECT, text).hint("this is a defect in the plugin: please report it with this text"))
    })
}
