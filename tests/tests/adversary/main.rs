//! An adversary on the node: what each party that is not root can choose, hold, name or send, and what comes of it.
//!
//! | file | who attacks, and how |
//! |---|---|
//! | `locks` | another user of the node holds locks |
//! | `dbus` | what answers in the place of the system's bus |
//! | `files` | another user of the node puts FIFOs and symbolic links where root opens files |
//! | `conditions` | whoever writes a network configuration gives iptables options that are no matches |
//! | `host_loopback` | a container sends to the host's 127.0.0.0/8 |
//! | `spoofing` | a container sends under the MAC of another one |
//! | `ip_spoofing` | a container sends under the address of another one, or as a router |
//! | `tenant` | a tenant writes runtimeConfig, `args` and `CNI_ARGS` |
//! | `calls` | what a call is given, what it may enter, and what programs get from it |
//! | `names` | names that are more than names, and words that would be rules |
//! | `namespaces` | what a container's own root makes of its namespace |
//! | `programs` | what a plugin starts, where it is looked up, and what reaches a terminal |
//! | `requests` | MACs and addresses that a tenant asks for |
//! | `size` | large input |
//! | `state` | files on a full disk, under umask 0, and with something else in their place |
//! | `traffic` | packets to published ports |
//!
//! `rows` is the table of experiments: who tries what, which tests hold it, and which plugins it is about.
//! `actor` runs commands as each of these parties, sends raw frames and listens.
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
