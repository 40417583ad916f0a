//! Tables, chains and rules of `nf_tables`.

use arbitrary::{Result, Unstructured};
use cnikit_netfilter::{Family, Found, Frame, Mac, Match, Rule, Verdict, wire};
use ipnetwork::IpNetwork;

use crate::values::{again_and_again, ip, network};

const FAMILIES: [Family; 4] = [Family::Inet, Family::Ip, Family::Ip6, Family::Bridge];

/// The chain that is asked for, of table `t`.
const CHAIN: &str = "c";
/// A rule's user data are no longer; what is read of them is less.
const HEADERS: usize = 20;

fn frame(family: Family) -> Frame {
    let (chains, fixed, own) = (Vec::new(), Vec::new(), Vec::new());
    Frame { family, table: "t", table_comment: None, chains, fixed, holds: CHAIN, own }
}

/// A message as the kernel might send it, read as everything that it could be.
pub(crate) fn replies(message: &[u8]) {
    if let Some((hook, _)) = wire::chain(message) {
        assert!(hook.is_none_or(|hook| hook.contains("hook")));
    }
    wire::works(message);
    for family in FAMILIES {
        let frame = frame(family);
        if let Some(found) = wire::rule(message, &frame, CHAIN) {
            rule(&found, &frame, message.len());
        }
    }
}

/// A rule that somebody wrote: it can be shown, and where there are words for it, they mean the same rule.
fn rule(found: &Found, frame: &Frame, length: usize) {
    assert_eq!(found.chain(), CHAIN);
    assert!(!found.to_string().is_empty());
    // What is not UTF-8 is replaced, by three bytes each.
    let text = [found.comment(), found.owner()].into_iter().flatten().map(str::len).sum::<usize>();
    assert!(text <= 3 * length.saturating_sub(HEADERS));
    let Some(meant) = found.rule() else { return };
    assert_eq!(meant.comment.as_deref(), found.comment());
    let Ok(message) = wire::sent_back(meant, frame, CHAIN, found.owner(), found.handle()) else {
        let quiet =
            |text: &str| text.len() <= 128 && !text.contains(|letter: char| letter == '"' || letter.is_control());
        let short = |text: &str| text.len() <= 123;
        assert!(!found.comment().is_none_or(quiet) || !found.owner().is_none_or(short), "{found} can be written");
        return;
    };
    let again = wire::rule(&message, frame, CHAIN).expect("what we write is a rule");
    assert_eq!((again.rule(), again.comment(), again.owner()), (Some(meant), found.comment(), found.owner()));
    assert_eq!((again.handle(), again.to_string()), (found.handle(), found.to_string()));
}

/// A rule at random: as the kernel sends it back, it is the rule that was meant, and whose it is.
pub(crate) fn sent(data: &[u8]) {
    again_and_again(data, sent_once);
}

fn sent_once(bytes: &mut Unstructured<'_>) -> Result<()> {
    let frame = frame(*bytes.choose(&FAMILIES)?);
    let (rule, handle) = (a_rule(bytes)?, bytes.arbitrary()?);
    let owner: Option<String> = bytes.arbitrary()?;
    let Ok(message) = wire::sent_back(&rule, &frame, CHAIN, owner.as_deref(), handle) else { return Ok(()) };
    let found = wire::rule(&message, &frame, CHAIN).expect("what we write is a rule");
    assert_eq!((found.handle(), found.comment(), found.owner()), (handle, rule.comment.as_deref(), owner.as_deref()));
    assert_eq!(wire::is(&found, &rule, &frame, owner.as_deref()).ok(), Some(true), "{rule}");
    assert_eq!(found.rule(), Some(&without_host_parts(&rule)), "{rule}");
    assert_eq!(found.to_string(), rule.to_string());
    let other = wire::rule(&message, &frame, "d");
    assert!(other.is_none(), "a rule of one chain is none of another");
    assert_eq!(wire::is(&found, &rule, &frame, Some("other")).ok(), Some(owner.as_deref() == Some("other")), "{rule}");
    Ok(())
}

fn without_host_parts(rule: &Rule) -> Rule {
    let network = |network: &IpNetwork| IpNetwork::new(network.network(), network.prefix()).expect("as long as it was");
    let matches = rule.matches.iter().map(|one| match one {
        Match::DestinationIn(to) => Match::DestinationIn(network(to)),
        Match::DestinationNotIn(to) => Match::DestinationNotIn(network(to)),
        other => other.clone(),
    });
    Rule { matches: matches.collect(), ..rule.clone() }
}

fn a_rule(bytes: &mut Unstructured<'_>) -> Result<Rule> {
    let count = bytes.int_in_range(0..=4)?;
    let matches = (0..count).map(|_| a_match(bytes)).collect::<Result<_>>()?;
    let verdict = match bytes.int_in_range(0..=5)? {
        0 => Verdict::Masquerade,
        1 => Verdict::Return,
        2 => Verdict::Jump(bytes.arbitrary::<String>()?.replace('\0', "")),
        3 => Verdict::Goto(bytes.arbitrary::<String>()?.replace('\0', "")),
        4 => Verdict::Accept,
        _ => Verdict::Drop,
    };
    Ok(Rule { matches, verdict, comment: bytes.arbitrary()? })
}

fn a_match(bytes: &mut Unstructured<'_>) -> Result<Match> {
    Ok(match bytes.int_in_range(0..=4)? {
        0 => Match::From(bytes.arbitrary::<String>()?.replace('\0', "")),
        1 => Match::SourceMac(Mac(bytes.arbitrary()?)),
        2 => Match::Source(ip(bytes)?),
        3 => Match::DestinationIn(network(bytes)?),
        _ => Match::DestinationNotIn(network(bytes)?),
    })
}
