//! The layout and the rules of most tests, and the same as scripts for nft.

use cnikit_nftables::*;

pub(crate) fn frame() -> TableLayout {
    let hook = Hook { kind: HookKind::Nat, hook: HookPoint::Postrouting, priority: 100 };
    TableLayout {
        table_comment: Some("Masquerading for plugins"),
        chains: vec![
            Chain { name: "masq_checks", comment: Some("Masquerade traffic from certain IPs"), hook: None },
            Chain { name: "postrouting", comment: None, hook: Some(hook) },
        ],
        prologue: vec![("postrouting", fixed())],
        rule_chains: vec!["masq_checks"],
        ..TableLayout::of(TableFamily::Inet, "plugins_masquerade")
    }
}

fn fixed() -> Vec<Rule> {
    let uncommented = |matches, verdict| Rule { matches, verdict, comment: None };
    vec![
        uncommented(vec![Match::DestinationIn("224.0.0.0/4".parse().unwrap())], Verdict::Return),
        uncommented(vec![Match::DestinationIn("ff00::/8".parse().unwrap())], Verdict::Return),
        uncommented(vec![], Verdict::Goto("masq_checks".into())),
    ]
}

/// The layout as a script for nft, as another program makes it.
pub(crate) const FRAME: &str = r#"
    add table inet plugins_masquerade { comment "Masquerading for plugins"; }
    add chain inet plugins_masquerade masq_checks { comment "Masquerade traffic from certain IPs"; }
    add chain inet plugins_masquerade postrouting { type nat hook postrouting priority 100; }
    flush chain inet plugins_masquerade postrouting
    add rule inet plugins_masquerade postrouting ip daddr == 224.0.0.0/4 return
    add rule inet plugins_masquerade postrouting ip6 daddr == ff00::/8 return
    add rule inet plugins_masquerade postrouting goto masq_checks
"#;

/// The same for an nft that does not support comments of tables and chains.
pub(crate) fn frame_without_comments() -> String {
    let lines = FRAME.replace(r#"{ comment "Masquerading for plugins"; }"#, "");
    lines.replace(r#"{ comment "Masquerade traffic from certain IPs"; }"#, "")
}

/// The masquerade rule of one container.
pub(crate) fn masquerade(address: &str, network: &str, comment: &str) -> Rule {
    Rule {
        matches: vec![Match::Source(address.parse().unwrap()), Match::DestinationNotIn(network.parse().unwrap())],
        verdict: Verdict::Masquerade,
        comment: Some(comment.to_owned()),
    }
}

/// The nft command that adds a rule to the chain of our rules.
pub(crate) fn added(rule: &Rule) -> String {
    format!("add rule inet plugins_masquerade masq_checks {rule}\n")
}

/// Replaces an owner's rules, and inspects what there is before each attempt.
pub(crate) fn replace_inspected<E: From<Error>>(
    nftables: &Nftables,
    layout: &TableLayout,
    filter: impl Into<OwnerFilter>,
    rules: impl Into<Rules>,
    mut inspect: impl FnMut(&Snapshot<'_>) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut replacement = nftables.begin_replace(layout, filter, rules)?;
    while !replacement.is_done() {
        let snapshot = replacement.read()?;
        inspect(&snapshot).inspect_err(|_| replacement.abandon())?;
        replacement.commit(snapshot)?;
    }
    Ok(())
}
