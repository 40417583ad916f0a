//! The words of the CNI specification: configuration, result, error codes, versions and the conversions between them.
//!
//! Two rules hold throughout. *Reading is tolerant*, as runtimes need it: keys match in any case, `null` is absent, the
//! last duplicate wins, unknown keys are ignored. *Writing is strict*: one shape per version, nothing in it that the
//! version does not know, but for unknown keys of others, which are passed on as they came.
//!
//! There is one type for a result, [`CniResult`], in the shape of the newest version. An older document is converted up when
//! it is read and down when it is written, so nothing but the private `compat` module knows an old shape.
//! Numbers and unknown keys travel as [`serde_json::Value`] with arbitrary precision: nothing is rounded on the way.
//!
//! This crate does no input or output and knows nothing of the operating system.

mod address;
mod answer;
mod args;
mod attachment;
mod capability;
mod compat;
mod conf;
mod dns;
pub mod document;
mod error;
pub mod limit;
mod member;
mod names;
mod printable;
mod read;
mod release;
mod route;
mod version;

pub use address::{parse_cidr, parse_ip};
pub use answer::{CniResult, Interface, Ip};
pub use args::Args;
pub use attachment::ValidAttachment;
pub use capability::{Bandwidth, Capabilities, IpRange, PortMapping, Protocol, RuntimeDns};
pub use conf::{NetConf, ParseError};
pub use dns::Dns;
pub use error::{CniError, code};
pub use member::is_key;
pub use names::{check_container_id, check_ifname, check_network_name, check_plugin_name};
pub use printable::printable;
pub use read::{ReadError, Wrong, read};
pub use release::Release;
pub use route::Route;
pub use serde_json::{Map, Value};
pub use version::Version;
