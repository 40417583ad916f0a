//! Chains as the kernel has them, and their hooks.

use std::fmt;

use cnikit_netlink::attribute::{number, text, value};

use crate::ruleset::layout::{Hook, TableLayout};
use crate::ruleset::message::describe_chain;
use crate::wire::attribute::object::{CHAIN_HOOK, CHAIN_TYPE, CHAIN_USE, HOOK_NUMBER, HOOK_PRIORITY};
use crate::{Error, Result};

/// A chain as the kernel has it; a regular one has no hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledChain {
    pub(crate) hook: Option<InstalledHook>,
    /// How many rules it has, and how many jump to it, in sum.
    pub(crate) uses: usize,
}

impl InstalledChain {
    /// Whether it is a base chain: packets enter it at a hook.
    pub fn is_base(&self) -> bool {
        self.hook.is_some()
    }

    /// How many rules it has, and how many jump to it, in sum.
    pub fn uses(&self) -> usize {
        self.uses
    }

    /// Reads a chain from its attributes.
    pub(crate) fn read(list: &[u8]) -> Self {
        let uses = number(list, CHAIN_USE).and_then(|uses| usize::try_from(uses).ok());
        Self { hook: InstalledHook::read(list), uses: uses.unwrap_or(usize::MAX) }
    }
}

/// The type, hook and priority of a base chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InstalledHook {
    kind: String,
    number: u32,
    priority: i32,
}

impl InstalledHook {
    fn read(list: &[u8]) -> Option<Self> {
        let hook = value(list, CHAIN_HOOK)?;
        Some(Self {
            kind: text(list, CHAIN_TYPE)?.to_owned(),
            number: number(hook, HOOK_NUMBER)?,
            priority: number(hook, HOOK_PRIORITY)?.cast_signed(),
        })
    }
}

impl From<Hook> for InstalledHook {
    fn from(hook: Hook) -> Self {
        Self { kind: hook.kind.name().to_owned(), number: hook.hook.number(), priority: hook.priority }
    }
}

/// As nft(8) shows it, with the priority as a number.
impl fmt::Display for InstalledHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name =
            ["prerouting", "input", "forward", "output", "postrouting"].get(self.number as usize).unwrap_or(&"?");
        write!(f, "type {} hook {name} priority {}", self.kind, self.priority)
    }
}

/// Refuses a chain that has another hook than the layout: a hook cannot be changed, and the chain is not ours to remove.
pub(crate) fn refuse_other_hook(
    layout: &TableLayout,
    chain: &str,
    hook: Option<Hook>,
    installed: &InstalledChain,
) -> Result<()> {
    let wanted = hook.map(InstalledHook::from);
    if wanted == installed.hook {
        return Ok(());
    }
    let why = format!("it has {}, wanted {}", shown(installed.hook.as_ref()), shown(wanted.as_ref()));
    Err(Error::ours("use", describe_chain(layout, chain), why))
}

fn shown(hook: Option<&InstalledHook>) -> String {
    match hook {
        Some(hook) => format!("`{hook}`"),
        None => "no hook".to_owned(),
    }
}
