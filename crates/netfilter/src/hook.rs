//! Where a chain that stands in the kernel hangs.

use std::fmt;

use crate::attribute::{number, text, value};
use crate::layout::Hook;
use crate::message::object::{CHAIN_HOOK, CHAIN_TYPE, CHAIN_USE, HOOK_NUMBER, HOOK_PRIORITY};

/// What the kernel says of a chain; a regular one has no hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundChain {
    pub(crate) hook: Option<FoundHook>,
    /// How many rules stand in it or lead to it.
    pub(crate) uses: usize,
}

impl FoundChain {
    /// The chain in its attributes.
    pub(crate) fn read(list: &[u8]) -> Self {
        let uses = number(list, CHAIN_USE).and_then(|uses| usize::try_from(uses).ok());
        Self { hook: FoundHook::read(list), uses: uses.unwrap_or(usize::MAX) }
    }
}

/// What the kernel says of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundHook {
    kind: String,
    number: u32,
    priority: i32,
}

impl FoundHook {
    fn read(list: &[u8]) -> Option<Self> {
        let place = value(list, CHAIN_HOOK)?;
        let (number, priority) = (number(place, HOOK_NUMBER)?, number(place, HOOK_PRIORITY)?.cast_signed());
        Some(Self { kind: text(list, CHAIN_TYPE)?.to_owned(), number, priority })
    }
}

impl From<Hook> for FoundHook {
    fn from(hook: Hook) -> Self {
        Self { kind: hook.kind.name().to_owned(), number: hook.hook.number(), priority: hook.priority }
    }
}

/// As nft(8) writes it, with the number of the priority.
impl fmt::Display for FoundHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            ["prerouting", "input", "forward", "output", "postrouting"].get(self.number as usize).unwrap_or(&"?");
        write!(f, "type {} hook {name} priority {}", self.kind, self.priority)
    }
}
