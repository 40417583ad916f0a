//! TUN and TAP devices, as the kernel describes them.

use netlink_packet_core::parse_u32;

use crate::attribute::attributes;

// The attributes of `linux/if_link.h`.
const OWNER: u16 = 1;
const GROUP: u16 = 2;
const TYPE: u16 = 3;
const PI: u16 = 4;
const VNET_HDR: u16 = 5;
const PERSIST: u16 = 6;
const MULTI_QUEUE: u16 = 7;

/// The settings of a TUN or TAP device. See ip-tuntap(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "tuntap")]
#[non_exhaustive]
pub struct TunSettings {
    /// Whether it carries Ethernet frames (TAP), not IP packets (TUN).
    #[doc(alias = "IFLA_TUN_TYPE")]
    pub tap: bool,
    /// The user that may attach to it without `CAP_NET_ADMIN`.
    #[doc(alias = "IFLA_TUN_OWNER")]
    pub owner: Option<u32>,
    /// The group whose members may attach to it without `CAP_NET_ADMIN`.
    #[doc(alias = "IFLA_TUN_GROUP")]
    pub group: Option<u32>,
    /// Whether frames have packet information in front of them. The program that attaches to the device chooses this.
    #[doc(alias = "IFF_NO_PI")]
    pub packet_info: bool,
    /// Whether frames have a `virtio_net_hdr` in front of them. The program that attaches to the device chooses this.
    #[doc(alias = "IFF_VNET_HDR")]
    pub vnet_hdr: bool,
    /// Whether it stays when no file is attached to it any more.
    #[doc(alias = "TUNSETPERSIST")]
    pub persistent: bool,
    /// Whether several files may attach to it at the same time.
    #[doc(alias = "IFF_MULTI_QUEUE")]
    pub multi_queue: bool,
}

/// `IFF_TAP`, as the kernel reports the type.
const TAP: u8 = 2;

impl TunSettings {
    /// Parses the data of a link of the kind `tun`. `None` from a kernel before 4.18, which reports none.
    pub(crate) fn parse(data: &[u8]) -> Option<Self> {
        let mut is_reported = false;
        let mut settings = Self::default();
        for (kind, value) in attributes(data) {
            match kind {
                OWNER => settings.owner = parse_u32(value).ok(),
                GROUP => settings.group = parse_u32(value).ok(),
                TYPE => {
                    is_reported = true;
                    settings.tap = value == [TAP];
                }
                PI => settings.packet_info = flag(value),
                VNET_HDR => settings.vnet_hdr = flag(value),
                PERSIST => settings.persistent = flag(value),
                MULTI_QUEUE => settings.multi_queue = flag(value),
                _ => {}
            }
        }
        if is_reported { Some(settings) } else { None }
    }
}

fn flag(value: &[u8]) -> bool {
    value.first().is_some_and(|byte| *byte != 0)
}
