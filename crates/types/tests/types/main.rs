//! The crate as its users see it: one program, so that it links once.
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
