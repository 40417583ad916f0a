//! Identifies a boot of a machine.

/// The kernel's boot id, and the id of the machine.
///
/// An address that was reserved in another boot of the same machine is free now, because no container survives a reboot. No clock
/// is compared, because clocks can be set back.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    pub(crate) id: u128,
    machine: Machine,
}

/// The id of the machine.
#[derive(Clone, Copy, Debug)]
enum Machine {
    Named(Option<u128>),
    /// The id of this machine. It is read only when it is needed, which is when an index is built.
    This,
}

/// Boots are equal if their boot ids are: the kernel draws a random one at each boot.
impl PartialEq for Boot {
    fn eq(&self, other: &Boot) -> bool {
        self.id == other.id
    }
}

impl Eq for Boot {}

impl Boot {
    /// Parses the boot id (random(4)) and the machine id (machine-id(5)); `None` without a boot id, and then no index is used.
    pub fn new(boot_id: &str, machine_id: Option<&str>) -> Option<Boot> {
        Some(Boot::of(hex(boot_id)?, machine_id.and_then(hex)))
    }

    /// The present boot; see random(4) and machine-id(5).
    pub fn now() -> Option<Boot> {
        Some(Boot { id: hex(&cnikit_netns::boot_id().ok()?)?, machine: Machine::This })
    }

    pub(crate) const fn of(id: u128, machine: Option<u128>) -> Boot {
        Boot { id, machine: Machine::Named(machine) }
    }

    /// The id of the machine, if it has one.
    pub(crate) fn machine(&self) -> Option<u128> {
        match self.machine {
            Machine::Named(machine) => machine,
            Machine::This => hex(&cnikit_netns::machine_id()?),
        }
    }

    /// Whether this is *another* boot of the *same* machine. False if that is not certain.
    pub(crate) fn follows(&self, that: &Boot) -> bool {
        self.id != that.id && self.machine().is_some_and(|machine| that.machine() == Some(machine))
    }
}

/// The number of 32 hexadecimal digits, in which dashes are ignored; `None` if it is zero, which means an unknown id.
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
        let now = Boot::now().unwrap();
        assert_eq!(now, Boot::now().unwrap());
        assert!(!now.follows(&now));
    }
}
