//! The runtime side of CNI: network lists, chains of plugins, results kept between ADD and DEL.
//!
//! [`load()`] finds a [`NetworkList`] by its name, a [`Runtime`] carries out ADD, CHECK and DEL of an [`Attachment`] with it,
//! and its [`Cache`] keeps what ADD answered, in the place and the form in which the reference keeps it, so that either
//! can delete what the other added.
//!
//! Three things differ from the reference on purpose. A plugin reads its configuration as it stands in the file: order,
//! unknown keys and long numbers included. A file that cannot be read is passed over with a warning unless it is the one
//! that is wanted. DEL goes on after a plugin failed, so that one broken plugin strands nothing of the others, and the
//! kept result stays until all have succeeded.
#![forbid(unsafe_code)]

mod attachment;
mod base64;
mod cache;
mod error;
mod list;
mod load;
mod runtime;

pub use attachment::Attachment;
pub use cache::Cache;
pub use error::{Error, Failure, Why};
pub use list::{Listed, NetworkList};
pub use load::load;
pub use runtime::{Planned, Runtime};
