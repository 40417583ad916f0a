//! Chains as a runtime calls them: our plugin first, then plugins of upstream, or more of ours.

use cnikit_testkit::life::SHARED;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use serde_json::{Value, json};

use crate::mixed::UpstreamRelease;
use crate::{dual_stack, subject};

fn routes() -> Value {
    json!([{"dst": "10.9.0.0/16"}, {"dst": "10.8.0.0/16", "gw": "10.77.0.1", "priority": 7}, {"dst": "fd09::/64"}])
}

/// Our plugin, the first of the chain, in the newest version that the release supports.
fn first(plugin: &str, release: UpstreamRelease) -> Subject {
    let mut ipam = dual_stack();
    ipam["routes"] = routes();
    let keys = json!({"cniVersion": release.speaks(), "isDefaultGateway": true, "ipMasq": true, "ipam": ipam});
    subject(plugin, keys)
}

/// A plugin after it: upstream's, or ours if its name begins with `our `.
fn next(plugin: &str, release: UpstreamRelease, mut keys: Value, host: &Host) -> Subject {
    keys["cniVersion"] = json!(release.speaks());
    if plugin.ends_with("tuning") {
        keys["dataDir"] = json!("$DIR/tuning");
    }
    let ours = plugin.strip_prefix("our ").map(|plugin| subject(plugin, keys.clone()));
    ours.unwrap_or_else(|| Subject::new(&release.bin(), plugin, keys)).at(host.dir())
}

/// One chain on a host of its own.
struct Chain {
    host: Host,
    container: Container,
    /// Ours first.
    plugins: Vec<Subject>,
    result: Value,
    before: HostSnapshot,
}

impl Chain {
    /// Runs ADD of all plugins. Each gets the result of the one before it, as from a runtime.
    fn add(plugin: &str, release: UpstreamRelease, nexts: &[(&str, Value)]) -> Chain {
        let host = Host::new();
        let container = Host::new().container();
        let before = HostSnapshot::of(&host);
        let mut plugins = vec![first(plugin, release).at(host.dir())];
        plugins.extend(nexts.iter().map(|(plugin, keys)| next(plugin, release, keys.clone(), &host)));
        let mut result = plugins[0].add(&host, "c-one", &container);
        for plugin in &plugins[1..] {
            result = plugin.call(&host, "ADD", "c-one", &container.path(), &[("prevResult", result)]).ok();
        }
        Chain { host, container, plugins, result, before }
    }

    /// CHECK of all passes.
    fn passes(&self) {
        for plugin in &self.plugins {
            plugin.check(&self.host, "c-one", &self.container, &self.result).ok();
        }
    }

    /// CHECK of our plugin reports a change that this shell line makes in the container.
    fn names(&self, line: &str, text: &str) {
        self.container.sh(line);
        let (_, output) = self.plugins[0].check(&self.host, "c-one", &self.container, &self.result).refused();
        assert!(output.contains(text), "{line}: CHECK said {output}");
    }

    /// DEL of all, the last first, leaves nothing.
    fn del(self) {
        for plugin in self.plugins.iter().rev() {
            plugin.del(&self.host, "c-one", &self.container, &self.result);
        }
        let left = HostSnapshot::of(&self.host).added_since(&self.before, &SHARED);
        assert!(left.is_empty(), "{left:#?}");
    }
}

/// The releases with which a chain is tested.
pub const RELEASES: &[UpstreamRelease] = &[UpstreamRelease::Packaged, UpstreamRelease::Newest];

/// For each of our plugins followed by `nexts` (upstream's unless they are called `our …`): every CHECK passes; CHECK of ours
/// reports each tampering, given as a shell line and a text; and DEL of all leaves nothing.
pub fn stays_true(firsts: &[&str], releases: &[UpstreamRelease], nexts: &[(&str, Value)], tamperings: &[(&str, &str)]) {
    for (release, first) in releases.iter().flat_map(|release| firsts.iter().map(move |first| (*release, first))) {
        let chain = Chain::add(first, release, nexts);
        chain.passes();
        tamperings.iter().for_each(|(line, text)| chain.names(line, text));
        chain.del();
    }
}
