//! Which boot of which machine this is.

/// The kernel's name for this boot, and the installation's own.
///
/// An address that is known to have been held in another boot of the same machine is free now: no container
/// outlives its kernel. No clock is asked, for clocks are set back.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    pub(crate) id: u128,
    machine: Machine,
}

/// The installation.
#[derive(Clone, Copy, Debug)]
enum Machine {
    Named(Option<u128>),
    /// The one we are on: asked for when it is needed, which is when an index is built.
    This,
}

/// The kernel's name alone tells boots apart: it is random, and every kernel draws it anew.
impl PartialEq for Boot {
    fn eq(&self, other: &Boot) -> bool {
        self.id == other.id
    }
}

impl Eq for Boot {}

impl Boot {
    /// From the texts of the boot id (random(4)) and of machine-id(5); `None` without a boot id, and then no index is used.
    pub fn new(boot_id: &str, machine_id: Option<&str>) -> Option<Boot> {
        Some(Boot::of(hex(boot_id)?, machine_id.and_then(hex)))
    }

    /// The present boot; see random(4) and machine-id(5).
    pub fn now() -> Option<Boot> {
        Some(Boot { id: hex(&cnikit_netns::boot_id().ok()?)?, machine: Machine::This })
    }

    pub(crate) fn of(id: u128, machine: Option<u128>) -> Boot {
        Boot { id, machine: Machine::Named(machine) }
    }

    /// The installation's name, if it has one.
    pub(crate) fn machine(&self) -> Option<u128> {
        match self.machine {
            Machine::Named(machine) => machine,
            Machine::This => hex(&cnikit_netns::machine_id()?),
        }
    }

    /// Is this *another* boot of the *same* machine than that one? `false` on any doubt.
    pub(crate) fn follows(&self, that: &Boot) -> bool {
        self.id != that.id && self.machine().is_some_and(|machine| that.machine() == Some(machine))
    }
}

/// 32 hexadecimal digits, dashes apart. Zero is what is written for "unknown".
fn hex(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|letter| *letter != '-').collect();
    let number = if digits.len() == 32 { u128::from_str_radix(&digits, 16).ok() } else { None };
    number.filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "11111111-1111-1111-1111-111111111111";
    const TWO: &str = "22222222-2222-2222-2222-222222222222";
    const MACHINE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn only_another_boot_of_the_same_machine_proves_anything() {
        let boot = |id, machine| Boot::new(id, machine).unwrap();
        assert!(boot(TWO, Some(MACHINE)).follows(&boot(ONE, Some(MACHINE))));
        assert!(!boot(ONE, Some(MACHINE)).follows(&boot(ONE, Some(MACHINE))), "the same boot");
        assert!(!boot(TWO, None).follows(&boot(ONE, None)), "no machine is known");
        assert!(!boot(TWO, Some(MACHINE)).follows(&boot(ONE, Some(TWO))), "another machine");
        assert_eq!(boot(ONE, Some("uninitialized")).machine(), None);
        assert_eq!(Boot::new("", None), None);
    }
}
