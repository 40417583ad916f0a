//! One file per command or group of commands.

pub(crate) mod check;
pub(crate) mod config;
pub(crate) mod container;
pub(crate) mod doctor;
pub(crate) mod gc;
pub(crate) mod init;
pub(crate) mod ipam;
pub(crate) mod list;
pub(crate) mod netns;
pub(crate) mod netns_scan;
pub(crate) mod new_plugin;
pub(crate) mod restore;
pub(crate) mod rules;
pub(crate) mod schema;
pub(crate) mod shell;
pub(crate) mod show;
pub(crate) mod verbs;
