//! Allocates addresses of this host's ranges, and records them in files.
//!
//! ```json
//! {
//!   "cniVersion": "1.1.0",
//!   "name": "pods",
//!   "type": "bridge",
//!   "ipam": {
//!     "type": "host-local",
//!     "ranges": [
//!       [{ "subnet": "10.1.2.0/24", "rangeStart": "10.1.2.10", "rangeEnd": "10.1.2.99", "gateway": "10.1.2.1" }],
//!       [{ "subnet": "2001:db8:1::/64" }]
//!     ],
//!     "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }],
//!     "resolvConf": "/etc/resolv.conf",
//!     "dataDir": "/var/lib/cni/networks"
//!   }
//! }
//! ```
//!
//! # Keys
//!
//! | key | meaning | default |
//! |---|---|---|
//! | `ranges` | a list of *sets*, each a list of ranges of one family; an attachment gets one address of each set | – |
//! | `subnet` | of a range: its network, at most /30 or /126 | required |
//! | `rangeStart`, `rangeEnd` | the first and last address that are allocated | all but network and broadcast address |
//! | `gateway` | is in the result, and never allocated | the first address of the subnet |
//! | the same four beside `ranges` | one range, in the old form: a set of its own before those of `ranges` | – |
//! | `routes` | are in the result unchanged: `dst`, `gw`, `mtu`, `advmss`, `priority`, `table`, `scope` | none |
//! | `resolvConf` | a file whose content becomes the result's `dns` | none |
//! | `dataDir` | the directory of the networks' directories | `/var/lib/cni/networks` |
//!
//! The capability `ipRanges` (`runtimeConfig.ipRanges`) adds sets before the configured ones; a flat list of ranges, as some
//! runtimes send it, is one set per family. Addresses can be requested with `IP=` in `CNI_ARGS`, with `args.cni.ips` and with
//! the capability `ips`; the requests of all three add up, and each is served by the set that contains it.
//!
//! # Files
//!
//! `<dataDir>/<name>/` has a file for each allocated address, named after it, with the container's id and, after CR LF, the
//! interface's name; `last_reserved_ip.N` with the last address of the N-th set; and `lock`. These are the files of upstream's
//! host-local, so both can work in one directory at the same time.
//!
//! `<dataDir>/.idx/<name>` is an index of them. With it ADD and DEL take as long among 65,000 addresses as alone. It can be deleted
//! at any time: its entries are checked against the files, and it is built again when another program has changed the directory, or
//! its state is unclear.
//!
//! # After a crash
//!
//! A kill or a power cut can leave an empty file, or one of NULs. It is moved to `<dataDir>/.aside/<name>/`, and its address is
//! free. The address of any other file that names no container counts as allocated; STATUS lists these files. A reservation that
//! the index proves to be older than this boot, by boot id and machine id and not by any clock, is allocated again when its
//! container comes back, when it is requested, or when the range is full. Without that proof it stays until DEL or GC.
//!
//! # Codes
//!
//! 4 `CNI_ARGS`; 6 wrong JSON type; 7 wrong value; 11 no address is free, the requested one is allocated, or another process held
//! the lock for a minute; 50 STATUS: nothing could be written; 100 a file could not be read or written; 102 CHECK: an address is
//! not reserved any more; 104 the attachment holds an address already, nothing was changed.
#![forbid(unsafe_code)]

mod configuration;
mod plugin;
mod refused;
mod resolv_conf;
mod text;

pub use configuration::{DATA_DIR, HostLocalPlugin, data_dir, ranges};
