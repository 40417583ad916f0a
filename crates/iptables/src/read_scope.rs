//! Which part of a table is of interest.

/// A part of one table: lines that hold some text, in some chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadScope<'a> {
    /// The table.
    pub table: &'static str,
    /// What every line of interest holds.
    pub mention: &'a str,
    /// What the names of the chains hold that are of interest, beside those that packets come to first.
    pub named: &'a str,
    /// And these chains.
    pub beside: &'static [&'static str],
}

impl ReadScope<'_> {
    /// Whether a chain is of interest that packets do not come to first.
    pub(crate) fn is_near(&self, chain: &str) -> bool {
        chain.contains(self.named) || self.beside.contains(&chain)
    }
}

/// Chains that the programs are to list.
pub(crate) struct Listed {
    pub(crate) chains: Vec<String>,
    /// With those that they are not to list.
    pub(crate) all: Vec<String>,
}
