//! host-local gives each attachment an address of this host's own ranges, and remembers it in files.
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
//! | `ranges` | a list of *sets*, each a list of ranges of one family; an attachment is given one address of each set | – |
//! | `subnet` | of a range: its network, at most /30 or /126 | required |
//! | `rangeStart`, `rangeEnd` | the first and last address that are given | all but network and broadcast address |
//! | `gateway` | goes into the result and is never given to anybody | the first address of the subnet |
//! | the same four beside `ranges` | one range, the old way: a set of its own before those of `ranges` | – |
//! | `routes` | go into the result as they are: `dst`, `gw`, `mtu`, `advmss`, `priority`, `table`, `scope` | none |
//! | `resolvConf` | a file whose content becomes the result's `dns` | none |
//! | `dataDir` | where the networks' directories are | `/var/lib/cni/networks` |
//!
//! The capability `ipRanges` (`runtimeConfig.ipRanges`) adds sets before the configured ones; a flat list of ranges, as some
//! runtimes send it, is one set a family. Addresses can be requested with `IP=` in `CNI_ARGS`, with `args.cni.ips` and with
//! the capability `ips`; the requests of all three add up, and each is served by the set that contains it.
//!
//! # What is kept
//!
//! `<dataDir>/<name>/` has a file for each address that is taken, named after it, with the container's id and, after CR LF,
//! the interface's name; `last_reserved_ip.N` with the last address of the N-th set; and `lock`. These are the reference
//! implementation's files, so both can work in one directory at the same time.
//!
//! `<dataDir>/.idx/<name>` is an index of them. It makes ADD and DEL take as long among 65,000 addresses as alone. It can be
//! deleted at any time: what is found in it is checked against the files, and when anybody else changed the directory, or
//! on any doubt, it is built again.
//!
//! # After a crash
//!
//! An empty file, or one of NULs, is what a kill or a power cut can leave of a reservation: it is moved to
//! `<dataDir>/.aside/<name>/`, and its address is free. Any other file that names no container counts as taken; STATUS says
//! which. A reservation that the index proves to have been made before this boot, by boot id and machine id and not by any
//! clock, is given again when its container comes back, when it is requested, or when the range is full; without proof
//! it stays until DEL or GC.
//!
//! # Codes
//!
//! 4 `CNI_ARGS`; 6 wrong JSON type; 7 wrong value; 11 no address is free, the requested one is taken, or others held the
//! lock for a minute; 50 STATUS: nothing could be written; 100 a file could not be read or written; 102 CHECK: an address is
//! not held any more; 104 the attachment holds an address already, nothing was changed.
#![forbid(unsafe_code)]

mod configuration;
mod plugin;
mod refused;
mod resolv_conf;
mod text;

pub use configuration::{DATA_DIR, HostLocalPlugin, data_dir, ranges};
