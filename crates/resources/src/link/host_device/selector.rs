//! Finding a device of the host by one of its names, addresses or places.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cnikit_netlink::{HardwareAddress, Link, Netlink, ParentDevice};
use cnikit_skel::{Error, Result};
use cnikit_types::limit;

/// Where sysfs lists the devices of a bus. See sysfs(5).
const PCI: &str = "/sys/bus/pci/devices";
const VIRTIO: &str = "/sys/bus/virtio/devices";
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
/// Where sysfs has all devices.
const DEVICES: &str = "/sys/devices";
/// Where sysfs lists the links of the namespace that it was mounted in.
const LINKS: &str = "/sys/class/net";
/// The drivers that give a PCI device to a program, so that it has no link.
const USERSPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];
/// The longest name of a device on a bus, in bytes. The kernel has no limit of its own; this is more than any bus needs.
const LONGEST: usize = 64;

/// What selects a device of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceSelector {
    /// The link with this name or alternative name.
    Name(String),
    /// The link with this hardware address. Its permanent address counts first.
    HardwareAddress(HardwareAddress),
    /// The device at this path below `/sys/devices`.
    KernelPath(PathBuf),
    /// The device with this address on the PCI bus.
    Pci(String),
    /// The device with this name on the auxiliary bus.
    Auxiliary(String),
    /// A device that a runtime passed, and that is on neither bus.
    Unknown(String),
}

/// A bus on which devices are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceBus {
    /// `/sys/bus/pci`.
    Pci,
    /// `/sys/bus/auxiliary`.
    Auxiliary,
}

/// The bus on which the host has a device with this name; `None` if it has none.
///
/// # Errors
/// The text cannot be the name of a device.
pub fn bus_of(device: &str) -> Result<Option<DeviceBus>, String> {
    check_bus_name(device)?;
    for (bus, directory) in [(DeviceBus::Pci, PCI), (DeviceBus::Auxiliary, AUXILIARY)] {
        if Path::new(directory).join(device).exists() {
            return Ok(Some(bus));
        }
    }
    Ok(None)
}

/// Checks that a text can be the name of a device on a bus, which is the name of a directory.
///
/// # Errors
/// It is empty or too long, or has characters that no such name has.
pub fn check_bus_name(name: &str) -> Result<(), String> {
    let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:-".contains(&byte);
    if name.is_empty() || name.len() > LONGEST || name.starts_with('.') || !name.bytes().all(is_usual) {
        return Err(format!("{name:?} cannot be the name of a device; hint: write one such as 0000:00:03.0"));
    }
    Ok(())
}

/// Checks the path of a device.
///
/// # Errors
/// It does not begin with `/sys/devices/`, or has a part `..`.
pub fn check_kernel_path(path: &str) -> Result<PathBuf, String> {
    let is_below =
        path.starts_with("/sys/devices/") && !path.split('/').any(|part| part == "..") && !path.contains('\0');
    if !is_below {
        return Err(format!("kernel device path {path:?} must be absolute and begin with /sys/devices/"));
    }
    Ok(path.into())
}

/// Whether a program has the PCI device, so that it has no link (DPDK). A device that does not exist is in no program.
///
/// # Errors
/// sysfs cannot be read.
pub fn is_in_userspace(pci: &str) -> Result<bool> {
    match fs::read_link(Path::new(PCI).join(pci).join("driver")) {
        Ok(driver) => Ok(driver.file_name().is_some_and(|name| USERSPACE_DRIVERS.iter().any(|known| name == *known))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::from(error).context(format_args!("read the driver of PCI device {pci}"))),
    }
}

impl DeviceSelector {
    /// The link of the device on the host; `None` if the host does not have it.
    ///
    /// # Errors
    /// Several links have the hardware address, or the kernel or sysfs cannot be asked.
    pub(crate) fn find(&self, host: &Netlink) -> Result<Option<Link>> {
        let found = match self {
            DeviceSelector::Name(name) => host.find_link(name)?,
            DeviceSelector::HardwareAddress(address) => by_address(host, address)?,
            DeviceSelector::KernelPath(path) => by_directory(host, &resolved(path)?)?,
            DeviceSelector::Pci(name) => by_directory(host, &Path::new(PCI).join(name))?,
            DeviceSelector::Auxiliary(name) => by_directory(host, &Path::new(AUXILIARY).join(name))?,
            DeviceSelector::Unknown(_) => None,
        };
        Ok(found.map(with_parent))
    }

    /// The error of a device that the host does not have, if more is known than that.
    pub(crate) fn explain_missing(&self) -> Option<Error> {
        match self {
            DeviceSelector::Pci(name) => {
                let device = Path::new(PCI).join(name);
                let has_no_driver = device.exists() && !device.join("driver").exists();
                let text = format!("error with host device: PCI device {name} has no driver");
                let hint = "bind it to its driver, or to vfio-pci for a program in user space";
                has_no_driver.then(|| Error::conflict(text).hint(hint))
            }
            DeviceSelector::Unknown(name) => {
                let text = format!("runtime config DeviceID {name} not found or unsupported");
                Some(Error::config(text).hint("the device plugin has to name a device of this node"))
            }
            _ => None,
        }
    }

    /// The error of a device that exists, where nothing tells which links of the host are links of a device.
    pub(crate) fn explain_untold(&self, host: &Netlink) -> Option<Error> {
        let directory = match self {
            DeviceSelector::KernelPath(path) => path.clone(),
            DeviceSelector::Pci(name) => Path::new(PCI).join(name),
            DeviceSelector::Auxiliary(name) => Path::new(AUXILIARY).join(name),
            DeviceSelector::Name(_) | DeviceSelector::HardwareAddress(_) | DeviceSelector::Unknown(_) => return None,
        };
        let mut links = host.links().ok()?;
        links.retain(|link| link.kind.is_none() && link.permanent_address.is_some());
        let is_told = links.into_iter().map(with_parent).all(|link| link.parent.is_some());
        if is_told || !directory.exists() {
            return None;
        }
        let text = "failed to find host device: the kernel does not tell the devices of links (IFLA_PARENT_DEV_NAME, since \
                    Linux 5.14), and /sys shows the links of another network namespace";
        Some(Error::conflict(text).hint("select the device by `device` or `hwaddr`"))
    }

    /// Whether this selected the device that is described so.
    pub(crate) fn is_about(&self, name: &str, altnames: &[String], link: &Link) -> bool {
        match self {
            DeviceSelector::Name(wanted) => wanted == name || altnames.contains(wanted),
            DeviceSelector::HardwareAddress(address) => {
                let mac = link.mac.and_then(|mac| HardwareAddress::new(&mac.0));
                link.permanent_address.as_ref() == Some(address) || mac.as_ref() == Some(address)
            }
            DeviceSelector::KernelPath(path) => is_of(link, path),
            DeviceSelector::Pci(name) => is_of(link, &Path::new(PCI).join(name)),
            DeviceSelector::Auxiliary(name) => is_of(link, &Path::new(AUXILIARY).join(name)),
            DeviceSelector::Unknown(_) => false,
        }
    }
}

/// The link whose permanent address this is, otherwise the one that has it now. A link on top of another one has the address of
/// that one, and does not count if anything else has it.
fn by_address(host: &Netlink, address: &HardwareAddress) -> Result<Option<Link>> {
    let links = host.links()?;
    let permanent = |link: &&Link| link.permanent_address.as_ref() == Some(address);
    let current = |link: &&Link| link.hardware_address.as_ref() == Some(address) && link.upper.is_none();
    let any = |link: &&Link| link.hardware_address.as_ref() == Some(address);
    for is_it in [&permanent as &dyn Fn(&&Link) -> bool, &current, &any] {
        let found: Vec<&Link> = links.iter().filter(|link| is_it(link)).collect();
        match found[..] {
            [] => {}
            [one] => return Ok(Some(one.clone())),
            _ => {
                let names: Vec<String> = found.iter().map(|link| link.name.clone()).collect();
                let text = format!("several links have the address {address}: {}", limit::first(&names, ", "));
                return Err(Error::conflict(text).hint("select the device by `device` or `pciBusID`"));
            }
        }
    }
    Ok(None)
}

/// The first link, by name, of the device that has this directory in sysfs.
///
/// sysfs shows the links of the namespace that it was mounted in, which may be another one: what it says is compared with what the
/// kernel says of the links here.
fn by_directory(host: &Netlink, directory: &Path) -> Result<Option<Link>> {
    for one in with_virtio(directory) {
        for name in listed(&one.join("net"))? {
            if let Some(link) = host.find_link(&name)?.map(with_parent)
                && is_of(&link, directory)
            {
                return Ok(Some(link));
            }
        }
    }
    let mut links = host.links()?;
    links.retain(|link| is_of(link, directory));
    links.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(links.into_iter().next())
}

/// The link with its device, which Linux before 5.14 does not tell of a link: there it is as sysfs has it, if that shows this link.
fn with_parent(mut link: Link) -> Link {
    if link.parent.is_none() && link.kind.is_none() {
        link.parent = parent_in_sysfs(&link, Path::new(LINKS));
    }
    link
}

/// The device of a link in a directory like `/sys/class/net`; `None` if the link there is another one with the same name, of
/// another namespace, or has no device.
fn parent_in_sysfs(link: &Link, links: &Path) -> Option<ParentDevice> {
    let shown = links.join(&link.name);
    let text = |file: &str| fs::read_to_string(shown.join(file)).ok();
    let target = |file: &str| fs::canonicalize(shown.join(file)).ok()?.file_name()?.to_str().map(str::to_owned);
    let index: u32 = text("ifindex")?.trim().parse().ok()?;
    let address: HardwareAddress = text("address")?.trim().parse().ok()?;
    if index != link.index || Some(address) != link.hardware_address {
        return None;
    }
    let mut parent = ParentDevice::default();
    parent.name = target("device")?;
    parent.bus = target("device/subsystem").unwrap_or_default();
    Some(parent)
}

/// Whether the link is one of the device that has this directory, as the kernel describes the link.
fn is_of(link: &Link, directory: &Path) -> bool {
    let Some(parent) = &link.parent else { return false };
    let is_named = |one: &PathBuf| one.file_name().is_some_and(|name| name == parent.name.as_str());
    with_virtio(directory).iter().any(is_named)
}

/// The directory of a device, and those of its devices on the virtio bus: there a virtio card has its link.
fn with_virtio(directory: &Path) -> Vec<PathBuf> {
    let mut all = vec![directory.to_owned()];
    for name in listed(directory).unwrap_or_default() {
        if name.starts_with("virtio") {
            all.push(directory.join(name));
        }
    }
    all
}

/// The names in a directory, sorted; none if there is no such directory.
fn listed(directory: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| unreadable(directory, error))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| unreadable(directory, error))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// The path without symbolic links, which must still be that of a device.
fn resolved(path: &Path) -> Result<PathBuf> {
    let resolved = fs::canonicalize(path).map_err(|error| unreadable(path, error))?;
    let is_device = resolved.strip_prefix(DEVICES).is_ok_and(|rest| rest.components().count() > 1);
    if is_device {
        return Ok(resolved);
    }
    let text = format!("{} is not a device: it is {}", path.display(), resolved.display());
    Err(Error::config(text).hint("`readlink -f /sys/class/net/NAME/device` prints the path of a device"))
}

fn unreadable(path: &Path, error: io::Error) -> Error {
    Error::from(error).context(format_args!("failed to read directory {}", path.display()))
}

/// The address on the PCI bus of a link's device; `None` if it is on another bus or none.
pub(crate) fn pci_address(link: &Link) -> Option<String> {
    let parent = link.parent.as_ref()?;
    match parent.bus.as_str() {
        "pci" => Some(parent.name.clone()),
        "virtio" => {
            let device = fs::canonicalize(Path::new(VIRTIO).join(&parent.name)).ok()?;
            let above = device.parent()?.file_name()?.to_str()?.to_owned();
            Path::new(PCI).join(&above).exists().then_some(above)
        }
        _ => None,
    }
}

/// Whether the device is still on its bus. A link without a device has none that could be removed.
pub(crate) fn is_on_bus(bus: &str, name: &str) -> bool {
    check_bus_name(bus).is_err() || Path::new("/sys/bus").join(bus).join("devices").join(name).exists()
}

impl fmt::Display for DeviceSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceSelector::Name(name) | DeviceSelector::Unknown(name) => write!(f, "device {name}"),
            DeviceSelector::HardwareAddress(address) => write!(f, "device with the address {address}"),
            DeviceSelector::KernelPath(path) => write!(f, "device at {}", path.display()),
            DeviceSelector::Pci(name) => write!(f, "PCI device {name}"),
            DeviceSelector::Auxiliary(name) => write!(f, "auxiliary device {name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_that_lead_elsewhere_are_refused() {
        for name in ["", ".", "..", "../../net", "a/b", "0000:00:03.0\n", &"a".repeat(65)] {
            assert!(check_bus_name(name).is_err(), "{name:?}");
            assert!(bus_of(name).is_err(), "{name:?}");
        }
        for name in ["0000:00:03.0", "mlx5_core.sf.4", "virtio0", &"a".repeat(64)] {
            assert_eq!(check_bus_name(name), Ok(()));
        }
        for path in
            ["", "/sys/devices", "sys/devices/x", "/sys/devices/../class", "/sys/devicesx/y", "/sys/devices/a\0b"]
        {
            assert!(check_kernel_path(path).is_err(), "{path:?}");
        }
        assert!(check_kernel_path("/sys/devices/pci0000:00/0000:00:19.0").is_ok());
    }

    #[test]
    fn a_directory_that_holds_several_devices_is_not_one() {
        for path in ["/sys/devices/virtual", "/sys/devices/."] {
            let error = resolved(Path::new(path)).unwrap_err();
            assert!(error.msg.contains("is not a device"), "{error}");
        }
        assert!(resolved(Path::new("/sys/devices/virtual/net")).is_ok());
        assert!(resolved(Path::new("/sys/devices/no/such")).unwrap_err().msg.contains("failed to read directory"));
    }

    #[test]
    fn a_device_that_the_host_lacks_is_on_no_bus() {
        assert_eq!(bus_of("ffff:ff:1f.7"), Ok(None));
        assert!(!is_on_bus("pci", "ffff:ff:1f.7"));
        assert_eq!(is_in_userspace("ffff:ff:1f.7"), Ok(false));
        assert!(DeviceSelector::Pci("ffff:ff:1f.7".to_owned()).explain_missing().is_none());
    }

    #[test]
    fn a_device_that_the_host_has_is_on_its_bus_and_one_without_a_bus_cannot_be_removed_from_it() {
        let devices = |bus: &str| listed(&Path::new("/sys/bus").join(bus).join("devices")).unwrap();
        let buses = listed(Path::new("/sys/bus")).unwrap();
        let bus = buses.iter().find(|bus| !devices(bus).is_empty()).unwrap();
        let name = &devices(bus)[0];
        assert!(is_on_bus(bus, name) && is_on_bus("", "any"));
        assert!(!is_on_bus("no-such", name) && !is_on_bus(bus, "no-such"));
    }

    #[test]
    fn sysfs_tells_the_device_of_the_link_that_it_shows_and_of_no_other() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("devices/pci0000:00/0000:00:03.0");
        let shown = device.join("net/eth0");
        fs::create_dir_all(&shown).unwrap();
        fs::create_dir_all(sys.path().join("bus/pci")).unwrap();
        fs::create_dir_all(sys.path().join("class")).unwrap();
        std::os::unix::fs::symlink("../../../bus/pci", device.join("subsystem")).unwrap();
        std::os::unix::fs::symlink("../..", shown.join("device")).unwrap();
        fs::write(shown.join("ifindex"), "2\n").unwrap();
        fs::write(shown.join("address"), "52:54:00:c0:de:00\n").unwrap();
        let links = device.join("net");
        let mut link = Link::default();
        link.name = "eth0".to_owned();
        link.index = 2;
        link.hardware_address = Some("52:54:00:c0:de:00".parse().unwrap());
        let parent = parent_in_sysfs(&link, &links).unwrap();
        assert_eq!((&*parent.bus, &*parent.name), ("pci", "0000:00:03.0"));
        for (name, index, address) in
            [("eth1", 2, "52:54:00:c0:de:00"), ("eth0", 3, "52:54:00:c0:de:00"), ("eth0", 2, "52:54:00:c0:de:01")]
        {
            let mut other = link.clone();
            other.name = name.to_owned();
            other.index = index;
            other.hardware_address = Some(address.parse().unwrap());
            assert_eq!(parent_in_sysfs(&other, &links), None, "{name} {index} {address}");
        }
        fs::remove_file(shown.join("device")).unwrap();
        assert_eq!(parent_in_sysfs(&link, &links), None, "it has no device");
    }
    #[test]
    fn a_selector_is_about_a_device_by_what_it_selects() {
        let mut link = Link::default();
        link.mac = "02:00:00:00:00:01".parse().ok();
        link.permanent_address = "02:00:00:00:00:02".parse().ok();
        let mut parent = ParentDevice::default();
        parent.name = "0000:00:03.0".to_owned();
        link.parent = Some(parent);
        let altnames = ["enp0s3".to_owned()];
        let address = |text: &str| DeviceSelector::HardwareAddress(text.parse().unwrap());
        for (selector, is_about) in [
            (DeviceSelector::Name("eth7".into()), true),
            (DeviceSelector::Name("enp0s3".into()), true),
            (DeviceSelector::Name("eth8".into()), false),
            (address("02:00:00:00:00:01"), true),
            (address("02:00:00:00:00:02"), true),
            (address("02:00:00:00:00:03"), false),
            (DeviceSelector::KernelPath("/sys/devices/pci0000:00/0000:00:03.0".into()), true),
            (DeviceSelector::KernelPath("/sys/devices/pci0000:00/0000:00:04.0".into()), false),
            (DeviceSelector::Pci("0000:00:03.0".into()), true),
            (DeviceSelector::Pci("0000:00:04.0".into()), false),
            (DeviceSelector::Auxiliary("0000:00:03.0".into()), true),
            (DeviceSelector::Auxiliary("mlx5_core.sf.4".into()), false),
            (DeviceSelector::Unknown("eth7".into()), false),
        ] {
            assert_eq!(selector.is_about("eth7", &altnames, &link), is_about, "{selector}");
        }
        assert!(!DeviceSelector::Pci("0000:00:03.0".into()).is_about("eth7", &altnames, &Link::default()));
        assert_eq!(pci_address(&link), None, "nothing tells the bus");
        link.parent.as_mut().unwrap().bus = "pci".to_owned();
        assert_eq!(pci_address(&link).as_deref(), Some("0000:00:03.0"));
        assert_eq!(pci_address(&Link::default()), None);
    }

    #[test]
    fn a_selector_is_printed_with_the_kind_of_its_device() {
        for (selector, text) in [
            (DeviceSelector::Name("eth7".into()), "device eth7"),
            (DeviceSelector::Unknown("dev-1".into()), "device dev-1"),
            (
                DeviceSelector::HardwareAddress("02:00:00:00:00:01".parse().unwrap()),
                "device with the address 02:00:00:00:00:01",
            ),
            (DeviceSelector::KernelPath("/sys/devices/a/b".into()), "device at /sys/devices/a/b"),
            (DeviceSelector::Pci("0000:00:03.0".into()), "PCI device 0000:00:03.0"),
            (DeviceSelector::Auxiliary("mlx5_core.sf.4".into()), "auxiliary device mlx5_core.sf.4"),
        ] {
            assert_eq!(selector.to_string(), text);
        }
        let unknown = DeviceSelector::Unknown("dev-1".into()).explain_missing().unwrap().to_string();
        assert!(unknown.contains("runtime config DeviceID dev-1 not found or unsupported"), "{unknown}");
        assert!(DeviceSelector::Name("eth7".into()).explain_missing().is_none());
    }

    #[test]
    fn a_device_includes_its_devices_on_the_virtio_bus_and_names_are_sorted() {
        let device = tempfile::tempdir().unwrap();
        ["virtio1", "virtio0", "net"].iter().for_each(|name| fs::create_dir(device.path().join(name)).unwrap());
        let all = [device.path().to_owned(), device.path().join("virtio0"), device.path().join("virtio1")];
        assert_eq!(with_virtio(device.path()), all);
        assert_eq!(listed(device.path()).unwrap(), ["net", "virtio0", "virtio1"]);
        assert_eq!(listed(&device.path().join("absent")).unwrap(), Vec::<String>::new());
    }
}
