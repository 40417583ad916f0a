//! Moves a device of the host into the container, and gives it back as it was.
//!
//! The keys are those of [`HostDeviceKeys`].
#![forbid(unsafe_code)]

use std::cell::OnceCell;
use std::path::PathBuf;

use cnikit::keys::{DnsOverride, IpamType, On};
use cnikit::plan::{Kind, Plan};
use cnikit::resources::host_device::{self, DeviceBus, DeviceSelector, HostDevice};
use cnikit::resources::userspace_device::UserspaceDevice;
use cnikit::resources::{HardwareAddress, layer3};
use cnikit::{Addresses, AttachmentSpec, Error, InterfacePlugin, KeySource, Result, Sources};
use serde::Deserialize;

/// host-device's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "HostDeviceKeys")]
pub struct HostDevicePlugin {
    keys: HostDeviceKeys,
    /// The device that the keys select, without a device of the runtime.
    configured: Option<DeviceSelector>,
    selected: OnceCell<SelectedDevice>,
}

/// The device, as it is on this node.
#[derive(Clone, Debug)]
enum SelectedDevice {
    /// It has a link, or should have one.
    Link(DeviceSelector),
    /// A program in user space has it. Its address on the PCI bus; empty if it is not configured.
    Userspace(String),
}

/// The keys of the configuration. The first of `device`, `hwaddr`, `kernelpath` and `pciBusID` counts, and one is required unless
/// the runtime passes a device.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HostDeviceKeys {
    /// The name or an alternative name of the device. Default: none.
    pub device: String,
    /// Its hardware address; the permanent one counts first. Default: none.
    pub hwaddr: String,
    /// Its path below `/sys/devices/`. Default: none.
    pub kernelpath: String,
    /// Its address on the PCI bus. Default: none.
    #[serde(rename = "pciBusID")]
    pub pci_bus_id: String,
    /// An address on the PCI bus, in place of `pciBusID`, or a name on the auxiliary bus, from the capability `deviceID` of a
    /// runtime. Default: none.
    #[serde(rename = "deviceID")]
    pub device_id: String,
    /// A program in user space has the device: nothing is moved. With `pciBusID` its driver decides. Default: false.
    pub dpdk_mode: bool,
    /// The directory in which is stored what the device was. Default: `/run/cni/host-device`.
    pub data_dir: String,
    /// The container detects duplicate IPv6 addresses, and ADD waits for it. Default: true.
    pub enabledad: On,
    /// The container may also configure itself from router advertisements. Default: true.
    pub slaac: On,
    /// Replaces the IPAM plugin's DNS as a whole. Default: nothing is replaced.
    pub dns: DnsOverride,
    /// The IPAM plugin. Default: none.
    pub ipam: IpamType,
}

impl TryFrom<HostDeviceKeys> for HostDevicePlugin {
    type Error = String;

    fn try_from(mut keys: HostDeviceKeys) -> Result<HostDevicePlugin, String> {
        if keys.data_dir.is_empty() {
            host_device::DEFAULT_DIR.clone_into(&mut keys.data_dir);
        }
        if !keys.pci_bus_id.is_empty() {
            host_device::check_bus_name(&keys.pci_bus_id)?;
        }
        if !keys.device_id.is_empty() {
            host_device::check_bus_name(&keys.device_id)?;
        }
        let mut configured = None;
        if !keys.device.is_empty() {
            configured = Some(DeviceSelector::Name(keys.device.clone()));
        } else if !keys.hwaddr.is_empty() {
            let address: HardwareAddress = keys.hwaddr.parse()?;
            configured = Some(DeviceSelector::HardwareAddress(address));
        } else if !keys.kernelpath.is_empty() {
            configured = Some(DeviceSelector::KernelPath(host_device::check_kernel_path(&keys.kernelpath)?));
        }
        Ok(HostDevicePlugin { keys, configured, selected: OnceCell::new() })
    }
}

impl InterfacePlugin for HostDevicePlugin {
    const LINK: Kind = host_device::KIND;
    const SOURCES: Sources = &[("deviceID", &[KeySource::Runtime("deviceID")])];
    const EXAMPLE: &'static str = r#""device":"eth1","ipam":{"type":"host-local","subnet":"10.99.0.0/24"}"#;

    fn resolve(&self) -> Result<()> {
        let selected = self.select()?;
        // A second call selects the same device.
        let _ = self.selected.set(selected);
        Ok(())
    }

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let ifname = at.tag.ifname.clone();
        match self.selected.get() {
            None => Plan::default(),
            Some(SelectedDevice::Userspace(pci)) => Plan::of(UserspaceDevice { ifname, pci: pci.clone() }),
            Some(SelectedDevice::Link(device)) => {
                Plan::of(HostDevice { ifname, device: device.clone(), data_dir: self.data_dir() })
            }
        }
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        if !self.keys.ipam.name.is_empty() {
            self.keys.dns.replace(&mut addresses.dns);
        }
        Ok(())
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        match self.selected.get() {
            Some(SelectedDevice::Link(_)) => {
                let dad = self.keys.enabledad.0;
                let slaac = self.keys.slaac.0 || cnikit::keys::needs_router_adverts(&at.conf);
                layer3::on_master(&at.tag.ifname, &addresses.ips, &addresses.routes, dad, slaac, false)
            }
            _ => Plan::default(),
        }
    }

    fn status(&self) -> Result<()> {
        host_device::available(&self.data_dir())
    }
}

impl HostDevicePlugin {
    /// The device on this node. A device of the runtime replaces `pciBusID`; the other keys count before it.
    fn select(&self) -> Result<SelectedDevice> {
        let mut pci = self.keys.pci_bus_id.clone();
        let mut device = self.configured.clone();
        if !self.keys.device_id.is_empty() {
            let id = &self.keys.device_id;
            match host_device::bus_of(id).map_err(Error::config)? {
                Some(DeviceBus::Pci) => pci.clone_from(id),
                Some(DeviceBus::Auxiliary) => {
                    pci.clear();
                    device = device.or_else(|| Some(DeviceSelector::Auxiliary(id.clone())));
                }
                None => device = Some(DeviceSelector::Unknown(id.clone())),
            }
        }
        let is_in_userspace = if pci.is_empty() { self.keys.dpdk_mode } else { host_device::is_in_userspace(&pci)? };
        if device.is_none() && !pci.is_empty() {
            device = Some(DeviceSelector::Pci(pci.clone()));
        }
        match device {
            Some(_) if is_in_userspace => Ok(SelectedDevice::Userspace(pci)),
            Some(device) => Ok(SelectedDevice::Link(device)),
            None => {
                let text = "specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"";
                Err(Error::config(text)
                    .hint("or let the runtime pass a device: \"capabilities\": {\"deviceID\": true}"))
            }
        }
    }

    fn data_dir(&self) -> PathBuf {
        PathBuf::from(&self.keys.data_dir)
    }
}
