//! The keys of our plugins, from the tables of their pages in `docs/`. Tests compare these tables with the plugins.

use cnikit_libcni::{PluginKey, PluginKeys};

use crate::failure::Result;

/// A plugin, and its page.
pub(crate) struct PluginPage {
    pub(crate) plugin: &'static str,
    /// It assigns addresses: its keys are in the object `ipam`.
    pub(crate) is_ipam: bool,
    /// Another plugin reads what is in its objects, so that its keys and capabilities are not all known.
    pub(crate) delegates: bool,
    text: &'static str,
}

/// A row of a table of keys.
pub(crate) struct KeyRow {
    pub(crate) key: PluginKey,
    /// JSON, or empty.
    pub(crate) default: &'static str,
    /// What the key does, with the markup of the page.
    pub(crate) meaning: &'static str,
}

const fn page(plugin: &'static str, text: &'static str) -> PluginPage {
    PluginPage { plugin, is_ipam: false, delegates: false, text }
}

const fn ipam(plugin: &'static str, text: &'static str) -> PluginPage {
    PluginPage { plugin, is_ipam: true, delegates: false, text }
}

/// Every plugin of ours.
pub(crate) const PAGES: [PluginPage; 20] = [
    page("bandwidth", include_str!("../../../docs/bandwidth.md")),
    page("bridge", include_str!("../../../docs/bridge.md")),
    ipam("dhcp", include_str!("../../../docs/dhcp.md")),
    page("dummy", include_str!("../../../docs/dummy.md")),
    page("firewall", include_str!("../../../docs/firewall.md")),
    PluginPage { plugin: "flannel", is_ipam: false, delegates: true, text: include_str!("../../../docs/flannel.md") },
    page("host-device", include_str!("../../../docs/host-device.md")),
    ipam("host-local", include_str!("../../../docs/host-local.md")),
    page("ipvlan", include_str!("../../../docs/ipvlan.md")),
    page("loopback", include_str!("../../../docs/loopback.md")),
    page("macvlan", include_str!("../../../docs/macvlan.md")),
    ipam("pool", include_str!("../../../docs/pool.md")),
    page("portmap", include_str!("../../../docs/portmap.md")),
    page("ptp", include_str!("../../../docs/ptp.md")),
    page("sbr", include_str!("../../../docs/sbr.md")),
    ipam("static", include_str!("../../../docs/static.md")),
    page("tap", include_str!("../../../docs/tap.md")),
    page("tuning", include_str!("../../../docs/tuning.md")),
    page("vlan", include_str!("../../../docs/vlan.md")),
    page("vrf", include_str!("../../../docs/vrf.md")),
];

/// The keys of every plugin whose keys are all known.
pub(crate) fn plugin_keys() -> Result<Vec<PluginKeys>> {
    let mut plugins = Vec::new();
    for page in PAGES.iter().filter(|page| !page.delegates) {
        let keys = page.rows()?.into_iter().map(|row| row.key).collect();
        plugins.push(PluginKeys { plugin: page.plugin.to_owned(), keys });
    }
    Ok(plugins)
}

impl PluginPage {
    /// The rows of each table whose first column has the title `key`, without those of `CNI_ARGS`.
    pub(crate) fn rows(&self) -> Result<Vec<KeyRow>> {
        let mut rows = Vec::new();
        let mut is_table = false;
        for line in self.text.lines() {
            let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix('|')) else {
                is_table &= line.starts_with('|');
                continue;
            };
            let cells: Vec<&'static str> = cells.split('|').map(str::trim).collect();
            if cells[0] == "key" {
                is_table = true;
            } else if is_table && let [key, value, default, _example, meaning] = cells[..] {
                let path = key.trim_matches('`');
                if path.starts_with("CNI_ARGS ") {
                    continue;
                }
                let is_required = default == "required";
                let value = value.parse().map_err(|error| format!("the page of {}, {path}: {error}", self.plugin))?;
                let default = if default.starts_with('`') { default.trim_matches('`') } else { "" };
                rows.push(KeyRow { key: PluginKey { path: path.to_owned(), value, is_required }, default, meaning });
            }
        }
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plugin_of_ours_has_its_page_here() {
        let mut plugins: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins"))
            .unwrap()
            .map(|plugin| plugin.unwrap().file_name().into_string().unwrap())
            .filter(|plugin| plugin != "all" && plugin != "examples")
            .collect();
        plugins.sort();
        assert_eq!(plugins, PAGES.map(|page| page.plugin));
    }

    #[test]
    fn the_keys_of_every_page_are_found() {
        for page in PAGES.iter().filter(|page| page.plugin != "loopback") {
            let keys = page.rows().unwrap_or_else(|failure| panic!("{}", failure.text));
            let least = match page.plugin {
                "dummy" => 1,
                "vrf" => 3,
                "firewall" | "flannel" | "sbr" => 4,
                _ => 6,
            };
            assert!(keys.len() >= least, "{}: {} keys", page.plugin, keys.len());
            for KeyRow { key, .. } in keys {
                assert!(!key.path.is_empty() && !key.path.contains([' ', '`']), "{}: {}", page.plugin, key.path);
            }
        }
        let of_bridge = PAGES[1].rows().unwrap_or_else(|failure| panic!("{}", failure.text));
        assert!(of_bridge.iter().any(|row| row.key.path == "isGateway"));
    }
}
