//! Which chains of iptables the kernel has. No program is started to find that out.

use cnikit_nftables::{Nftables, TableFamily, TableLayout};

use crate::error::Result;
use crate::table::Table;
use crate::variant::{IpVersion, Variant};

/// Which chains of a table a caller looks for.
#[derive(Clone, Copy, Debug)]
pub enum Chains<'a> {
    /// The chain of this name.
    Named(&'a str),
    /// The chain of the first name. All lines of its table that contain the second text are read.
    Among(&'a str, &'a str),
    /// The chains whose names contain this text and for which the function returns true.
    Like(&'a str, fn(&str) -> bool),
}

impl<'a> Chains<'a> {
    /// The text that every line about these chains contains.
    pub fn line_text(self) -> &'a str {
        match self {
            Self::Named(text) | Self::Among(_, text) | Self::Like(text, _) => text,
        }
    }

    /// Whether a table has any of them.
    pub fn any_of(self, table: &Table) -> bool {
        match self {
            Self::Named(name) | Self::Among(name, _) => table.has_chain(name),
            Self::Like(_, is_such) => table.chains().any(is_such),
        }
    }
}

/// Chains of one table that `nf_tables` has, as the kernel reports them: `iptables-save` omits chains that it could not read, and
/// succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledChains {
    version: IpVersion,
    table: &'static str,
    names: Vec<String>,
}

impl InstalledChains {
    /// The chains of one variant in the namespace of the calling thread, or `None` if there are none. The kernel does not report
    /// chains of the legacy variant: there the list is empty, and `None` means that the table was never used.
    pub(crate) fn of(
        nftables: Option<&Nftables>,
        variant: Variant,
        version: IpVersion,
        table: &'static str,
        chains: Chains,
    ) -> Result<Option<Self>> {
        let names = match variant {
            Variant::Legacy => {
                if !is_used_in_legacy(version, table) {
                    return Ok(None);
                }
                Vec::new()
            }
            Variant::NfTables => {
                let Some(nftables) = nftables else { return Ok(None) };
                let names = names_in_nf_tables(nftables, &layout(version, table), chains)?;
                if names.is_empty() {
                    return Ok(None);
                }
                names
            }
        };
        Ok(Some(Self { version, table, names }))
    }

    /// The chains of these names. They need not exist.
    pub(crate) fn named(version: IpVersion, table: &'static str, chains: &[&str]) -> Self {
        Self { version, table, names: chains.iter().map(|&chain| chain.to_owned()).collect() }
    }

    /// Those that the kernel still has and `printed` lacks, or has without their rules; `None` if there are none.
    pub(crate) fn hidden_from(&self, printed: &Table) -> Result<Option<Self>> {
        let layout = layout(self.version, self.table);
        let mut names = Vec::new();
        for chain in &self.names {
            if printed.has_rules(chain) {
                continue;
            }
            let Some(nftables) = Nftables::if_any()? else { return Ok(None) };
            let is_hidden = if printed.has_chain(chain) {
                nftables.has_rules(&layout, chain)?
            } else {
                nftables.has(&layout, chain)?
            };
            if is_hidden {
                names.push(chain.clone());
            }
        }
        if names.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self { names, ..self.clone() }))
    }

    /// The name of one of them, for messages.
    pub(crate) fn first(&self) -> String {
        self.names.first().cloned().unwrap_or_default()
    }
}

/// Whether the legacy variant has this table. Without the file the kernel has no such variant, or no table of it was ever used.
#[doc(alias = "ip_tables_names")]
fn is_used_in_legacy(version: IpVersion, table: &str) -> bool {
    let file = match version {
        IpVersion::V4 => "ip_tables_names",
        IpVersion::V6 => "ip6_tables_names",
    };
    let tables = std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    tables.lines().any(|line| line == table)
}

fn names_in_nf_tables(nftables: &Nftables, table: &TableLayout, chains: Chains) -> cnikit_netlink::Result<Vec<String>> {
    let mut names = Vec::new();
    match chains {
        Chains::Named(name) | Chains::Among(name, _) => {
            if nftables.has(table, name)? {
                names.push(name.to_owned());
            }
        }
        Chains::Like(_, is_such) => {
            for (name, _) in nftables.chains(table)? {
                if is_such(&name) {
                    names.push(name);
                }
            }
        }
    }
    Ok(names)
}

/// A table of iptables in `nf_tables`, by its name alone.
pub(crate) fn layout(version: IpVersion, table: &'static str) -> TableLayout {
    let family = match version {
        IpVersion::V4 => TableFamily::Ip,
        IpVersion::V6 => TableFamily::Ip6,
    };
    TableLayout::of(family, table)
}
