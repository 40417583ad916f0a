//! The part of a table that a caller reads.

/// The part of one table that a caller reads: lines with some text, in some chains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadScope<'a> {
    /// The table.
    pub table: &'static str,
    /// The text that lines contain. Rules on other lines are only counted.
    pub line_text: &'a str,
    /// The text that the names of the caller's own chains contain. Base chains are always read.
    pub chain_text: &'a str,
    /// Chains that are read in addition, by name.
    pub shared_chains: &'static [&'static str],
}

impl ReadScope<'_> {
    /// Whether a chain that is not a base chain is to be read.
    pub(crate) fn includes(&self, chain: &str) -> bool {
        chain.contains(self.chain_text) || self.shared_chains.contains(&chain)
    }
}

/// The chains that a program is to print.
pub(crate) struct ListedChains {
    pub(crate) names: Vec<String>,
    /// All chains of the table, those included that are not to be printed.
    pub(crate) all: Vec<String>,
}
