//! The data types of the CNI specification: configuration, result, error codes, versions and the conversions between them.
//!
//! Reading is tolerant, as runtimes need it: keys match in any letter case, `null` is absent, the last duplicate counts, unknown
//! keys are ignored. Writing is strict: one shape per version, without keys that the version does not have, except unknown keys of
//! other programs, which are passed on unchanged.
//!
//! There is one type for a result, [`CniResult`], in the shape of the newest version. An older document is converted when it is
//! read and when it is written, so that only the private module `compat` contains the old shapes. Numbers and unknown keys are
//! [`serde_json::Value`]s with arbitrary precision, so nothing is rounded.
//!
//! This crate does no input or output and makes no system calls.
//!
//! # Example
//!
//! Read a configuration, and convert a result of an old version:
//!
//! ```
//! use cnikit_types::{CniResult, NetConf, Version};
//!
//! let conf = NetConf::parse(br#"{"cniVersion": "1.1.0", "name": "pods", "type": "bridge", "MTU": 1400}"#)?;
//! assert_eq!(conf.name(), Some("pods"));
//! assert_eq!(conf.read_at::<u32>(&["mtu"])?, Some(1400));
//!
//! let old = br#"{"cniVersion": "0.2.0", "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1"}}"#;
//! let (version, result) = CniResult::read(&cnikit_types::document::parse(old)?, Version::NEWEST)?;
//! assert_eq!(version, Version::V0_2_0);
//! assert_eq!(result.write(Version::NEWEST)["ips"][0]["address"], "10.1.0.5/16");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod address;
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
mod number;
mod printable;
mod read;
mod release;
mod result;
mod route;
mod version;

pub use address::{parse_cidr, parse_ip};
pub use args::Args;
pub use attachment::ValidAttachment;
pub use capability::{Bandwidth, Capabilities, IpRange, PortMapping, PortProtocol, RuntimeDns};
pub use conf::{NetConf, ParseError};
pub use dns::Dns;
pub use error::{CniError, code};
#[doc(hidden)]
pub use member::is_key;
pub use names::{check_container_id, check_ifname, check_network_name, check_plugin_name};
#[doc(hidden)]
pub use printable::printable;
pub use read::{ReadError, Wrong, field_names, read};
pub use release::Release;
pub use result::{CniResult, Interface, Ip};
pub use route::Route;
pub use serde_json::{Map, Value};
pub use version::Version;
