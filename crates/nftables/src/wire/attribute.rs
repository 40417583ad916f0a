//! Types of attributes of `nf_tables` that are both written and read: `linux/netfilter/nf_tables.h`.

/// Attributes of a rule.
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

/// Attributes of tables, chains, sets and generations.
pub(crate) mod object {
    pub(crate) const GENERATION_ID: u16 = 1;
    pub(crate) const TABLE_FLAGS: u16 = 2;
    pub(crate) const CHAIN_TABLE: u16 = 1;
    pub(crate) const CHAIN_NAME: u16 = 3;
    pub(crate) const CHAIN_HOOK: u16 = 4;
    pub(crate) const CHAIN_USE: u16 = 6;
    pub(crate) const CHAIN_TYPE: u16 = 7;
    pub(crate) const SET_KEY_TYPE: u16 = 4;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}
