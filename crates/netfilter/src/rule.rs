//! A rule as a value.

use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::Mac;
use ipnetwork::IpNetwork;

/// A rule: all `matches` must hold, then the verdict falls.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    /// What a packet must be like; none: every packet.
    pub matches: Vec<Match>,
    /// What happens to it.
    pub verdict: Verdict,
    /// By which the rule is found again: at most 128 bytes, no quotation mark, no control character.
    #[doc(alias = "NFTNL_UDATA_RULE_COMMENT")]
    pub comment: Option<String>,
}

/// One thing to look at in a packet. In a table of several families, a match brings the check of its family with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Match {
    /// It came in by the interface of this name, which need not be there yet. On a bridge that is the port.
    #[doc(alias = "iifname")]
    From(String),
    /// Its frame bears this source address. In a table of family bridge only.
    #[doc(alias = "ether saddr")]
    SourceMac(Mac),
    /// It comes from this address.
    #[doc(alias = "saddr")]
    Source(IpAddr),
    /// It goes into this network. The host part of the address does not count.
    #[doc(alias = "daddr")]
    DestinationIn(IpNetwork),
    /// It goes elsewhere, within the same family.
    DestinationNotIn(IpNetwork),
}

/// What happens to a packet that matches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Its source address becomes that of the interface by which it leaves.
    #[doc(alias = "masq")]
    Masquerade,
    /// Back to the chain that jumped here; in a base chain, its policy.
    Return,
    /// On to another chain, and back here from its end.
    Jump(String),
    /// On to another chain, and from its end to where this one would have gone.
    Goto(String),
    /// It passes this base chain.
    Accept,
    /// It is gone.
    Drop,
}

/// As nft(8) writes it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.matches.iter().try_for_each(|one| write!(f, "{one} "))?;
        write!(f, "{}", self.verdict)?;
        match &self.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

/// As nft(8) writes it.
impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Match::From(name) => write!(f, "iifname \"{name}\""),
            Match::SourceMac(mac) => write!(f, "ether saddr {mac}"),
            Match::Source(address) => write!(f, "{} saddr {address}", family(address)),
            Match::DestinationIn(network) => write!(f, "{} daddr {}", family(&network.ip()), Network(network)),
            Match::DestinationNotIn(network) => write!(f, "{} daddr != {}", family(&network.ip()), Network(network)),
        }
    }
}

fn family(address: &IpAddr) -> &'static str {
    match address {
        IpAddr::V4(_) => "ip",
        IpAddr::V6(_) => "ip6",
    }
}

/// A network as nft(8) writes it: without host part, and without the length where that is the whole address.
struct Network<'a>(&'a IpNetwork);

impl fmt::Display for Network<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, length) = (self.0.network(), self.0.prefix());
        match address {
            IpAddr::V4(address) if length == 32 => write!(f, "{address}"),
            IpAddr::V6(address) if length == 128 => write!(f, "{address}"),
            _ => write!(f, "{address}/{length}"),
        }
    }
}

/// As nft(8) writes it.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Masquerade => f.write_str("masquerade"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
        }
    }
}
