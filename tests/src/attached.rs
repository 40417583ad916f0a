//! A container that a bridge attached, for the plugins after it in a chain.

use cnikit_testkit::{CallOutput, Container, Host, Subject};
use serde_json::Value;

/// A container, and the result of the plugin that attached it.
pub struct Attached {
    /// Its namespace.
    pub container: Container,
    /// Its id.
    pub id: String,
    /// The result, which the next plugin gets as `prevResult`.
    pub prev: Value,
}

impl Attached {
    /// Attaches a new container by this plugin.
    pub fn by(plugin: &Subject, host: &Host, id: &str) -> Attached {
        let container = host.container();
        let prev = plugin.add(host, id, &container);
        Attached { container, id: id.to_owned(), prev }
    }

    /// Calls a plugin after it, with the result.
    pub fn call(&self, plugin: &Subject, host: &Host, verb: &str) -> CallOutput {
        plugin.call(host, verb, &self.id, &self.container.path(), &[("prevResult", self.prev.clone())])
    }
}
