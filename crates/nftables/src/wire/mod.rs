//! The wire format: expressions of rules, user data, transactions.

pub(crate) mod attribute;
pub(crate) mod batch;
pub(crate) mod expression;
pub(crate) mod userdata;
