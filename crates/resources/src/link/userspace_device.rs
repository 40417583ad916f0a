//! A PCI device that a program in user space has (DPDK).

use std::fmt;

use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Journal, Result};
use cnikit_types::Interface;

/// A PCI device that a program in user space has: nothing is moved, and the result names it.
#[derive(Clone, Debug)]
pub struct UserspaceDevice {
    /// The container's interface, which does not exist in the kernel.
    pub ifname: String,
    /// The device's address on the PCI bus; empty if it is not known.
    pub pci: String,
}

/// The kind of [`UserspaceDevice`], of which nothing has to be removed.
pub const KIND: Kind = Kind::goes_with_link("device in user space");

impl Resource for UserspaceDevice {
    fn kind(&self) -> Kind {
        KIND
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let name = self.ifname.clone();
        let sandbox = context.sandbox.clone();
        let interface = Interface { name, sandbox, pci_id: self.pci.clone(), ..Interface::default() };
        Ok(Made { without_link: vec![interface], ..Made::default() })
    }

    /// The kernel has no link that could differ.
    fn verify(&self, _context: &ApplyContext, _drifts: &mut Drifts) -> Result<()> {
        Ok(())
    }
}

impl fmt::Display for UserspaceDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ifname, pci } = self;
        let device = if pci.is_empty() { "a device".to_owned() } else { format!("PCI device {pci}") };
        write!(f, "{device} as {ifname}, which a program in user space has: nothing is moved")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_says_that_nothing_is_moved() {
        let device = |pci: &str| UserspaceDevice { ifname: "net1".into(), pci: pci.into() }.to_string();
        let rest = "as net1, which a program in user space has: nothing is moved";
        assert_eq!(device("0000:00:05.0"), format!("PCI device 0000:00:05.0 {rest}"));
        assert_eq!(device(""), format!("a device {rest}"));
    }
}
