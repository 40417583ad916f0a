//! Tests of the public API, in one program so that it is linked only once.
#![expect(clippy::unwrap_used, reason = "a test that cannot set its scene has failed")]

mod arbitrary;
mod args;
mod attachments;
mod capabilities;
mod conf;
mod conversion;
mod document;
mod errors;
mod golden;
mod names;
mod read;
mod version;
