//! What stands of iptables in the kernel, asked of the kernel: no program is started for it.

use cnikit_nftables::{Nftables, TableFamily, TableLayout};

use crate::Result;
use crate::table::Table;
use crate::variant::{IpVersion, Variant};

/// Which chains of a table are meant.
#[derive(Clone, Copy, Debug)]
pub enum Chains<'a> {
    /// The one of this name.
    Named(&'a str),
    /// The one of the first name, whose table is read for all that holds the second.
    Among(&'a str, &'a str),
    /// Those whose names hold this text and are of this kind.
    Like(&'a str, fn(&str) -> bool),
}

impl<'a> Chains<'a> {
    /// What every line about them holds.
    pub fn mention(self) -> &'a str {
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

/// Chains of one table that stand in `nf_tables`, as the kernel says: its programs leave out what they could not read, and
/// take that for no failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledChains {
    version: IpVersion,
    table: &'static str,
    chains: Vec<String>,
}

impl InstalledChains {
    /// What stands in one half of the calling thread's namespace; none if nothing does. The legacy half tells no more than
    /// whether the table was ever used.
    pub(crate) fn of(
        nftables: Option<&Nftables>,
        half: Variant,
        version: IpVersion,
        table: &'static str,
        meant: Chains,
    ) -> Result<Option<Self>> {
        let chains = match half {
            Variant::Legacy if !in_legacy(version, table) => return Ok(None),
            Variant::Legacy => Vec::new(),
            Variant::NfTables => match in_nf_tables(nftables, version, table, meant)? {
                chains if chains.is_empty() => return Ok(None),
                chains => chains,
            },
        };
        Ok(Some(Self { version, table, chains }))
    }

    /// These, as far as they stand.
    pub(crate) fn among(version: IpVersion, table: &'static str, chains: &[&str]) -> Self {
        Self { version, table, chains: chains.iter().map(|&chain| chain.to_owned()).collect() }
    }

    /// Those that still stand and are not in what the program showed, or without their rules; none if all are shown.
    pub(crate) fn hidden_from(&self, shown: &Table) -> Result<Option<Self>> {
        let bare = |chain: &&String| !shown.shows_rules_of(chain);
        let (mut chains, table) = (Vec::new(), layout(self.version, self.table));
        for chain in self.chains.iter().filter(bare) {
            let Some(nftables) = Nftables::if_any()? else { return Ok(None) };
            let without_rules = shown.has_chain(chain);
            if if without_rules { nftables.has_rules(&table, chain)? } else { nftables.has(&table, chain)? } {
                chains.push(chain.clone());
            }
        }
        Ok((!chains.is_empty()).then(|| Self { chains, ..self.clone() }))
    }

    /// One of them, to name it.
    pub(crate) fn first(&self) -> String {
        self.chains.first().cloned().unwrap_or_default()
    }
}

/// Without the file the kernel has no such half, or no table of it was ever used.
#[doc(alias = "ip_tables_names")]
fn in_legacy(version: IpVersion, table: &str) -> bool {
    let name = match version {
        IpVersion::V4 => "ip_tables_names",
        IpVersion::V6 => "ip6_tables_names",
    };
    let names = std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    names.lines().any(|line| line == table)
}

fn in_nf_tables(
    nftables: Option<&Nftables>,
    version: IpVersion,
    table: &'static str,
    meant: Chains,
) -> cnikit_netlink::Result<Vec<String>> {
    let (table, Some(nftables)) = (layout(version, table), nftables) else { return Ok(Vec::new()) };
    Ok(match meant {
        Chains::Named(name) | Chains::Among(name, _) if nftables.has(&table, name)? => vec![name.to_owned()],
        Chains::Named(_) | Chains::Among(..) => Vec::new(),
        Chains::Like(_, is_such) => {
            nftables.chains(&table)?.into_iter().map(|(name, _)| name).filter(|name| is_such(name)).collect()
        }
    })
}

/// A table of iptables in `nf_tables`, of which only the name is needed.
pub(crate) fn layout(version: IpVersion, table: &'static str) -> TableLayout {
    let family = match version {
        IpVersion::V4 => TableFamily::Ip,
        IpVersion::V6 => TableFamily::Ip6,
    };
    TableLayout::of(family, table)
}
