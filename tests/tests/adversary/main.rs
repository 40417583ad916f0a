//! An adversary on the node: what each party without root privileges can choose, hold, name or send, and the consequences.
//!
//! | file | attacker and attack |
//! |---|---|
//! | `locks` | another user of the node holds locks |
//! | `dbus` | a program that answers at the address of the system bus |
//! | `files` | another user of the node puts FIFOs and symbolic links where root opens files |
//! | `conditions` | the author of a network configuration sets iptables options that are not matches |
//! | `host_loopback` | a container sends to the host's 127.0.0.0/8 |
//! | `spoofing` | a container sends under the MAC of another one |
//! | `ip_spoofing` | a container sends under the address of another one, or as a router |
//! | `tenant` | a tenant writes runtimeConfig, `args` and `CNI_ARGS` |
//! | `calls` | the input of a call, the namespaces that it may enter, and the environment of its programs |
//! | `names` | names that are more than names, and words that would be rules |
//! | `namespaces` | the root user of a container changes its namespace |
//! | `programs` | the programs that a plugin starts, their search path, and output that reaches a terminal |
//! | `requests` | MACs and addresses that a tenant asks for |
//! | `size` | large input |
//! | `state` | files on a full disk, under umask 0, and with something else in their place |
//! | `traffic` | packets to published ports |
//!
//! `rows` is the table of experiments: the attacker, the attack, the tests, and the plugins. `actor` runs commands as each of these
//! parties, sends raw frames and receives them.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

mod actor;
mod calls;
mod conditions;
mod dbus;
mod files;
mod host_loopback;
mod ip_spoofing;
mod locks;
mod names;
mod namespaces;
mod programs;
mod requests;
mod rows;
mod size;
mod spoofing;
mod state;
mod tenant;
mod traffic;
