//! bandwidth with `fq_codel` below its limits, and on another kernel.

use cnikit_testkit::need::Need;
use cnikit_testkit::{Host, HostSnapshot, Subject, life};
use cnikit_tests::bin;
use cnikit_tests::campaign_subjects::shaped;
use serde_json::json;

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(an_attachment_leaves_no_trace needs Need::IFB, Need::TBF, Need::HTB, Need::FQ_CODEL),
    test!(fq_codel_is_below_both_limits_until_a_repeated_add needs Need::IFB, Need::TBF, Need::HTB, Need::FQ_CODEL),
    test!(a_kernel_without_fq_codel_is_named needs Need::IFB, Need::TBF),
];

fn fair() -> Subject {
    shaped(bin()).with("fq_codel", json!(true))
}

fn an_attachment_leaves_no_trace() {
    let some = json!(["10.77.0.0/16", "fd00::/8"]);
    for subject in [shaped(bin()), fair(), fair().with("shapedSubnets", some.clone())] {
        life::leaves_no_trace(&subject);
    }
    life::leaves_no_trace(&shaped(bin()).with("unshapedSubnets", some));
}

fn fq_codel_is_below_both_limits_until_a_repeated_add() {
    for key in ["latency", "shapedSubnets"] {
        let value = if key == "latency" { json!(25) } else { json!(["::/0"]) };
        let host = Host::new();
        let with =
            |is_fair: bool| shaped(bin()).with("fq_codel", json!(is_fair)).with(key, value.clone()).at(host.dir());
        let container = with(true).container(&host);
        let before = HostSnapshot::of(&host);
        for is_fair in [true, false, true] {
            let subject = with(is_fair);
            let result = subject.add(&host, "c-one", &container);
            let shown = host.sh("tc qdisc show");
            let below =
                shown.lines().filter(|line| line.contains("qdisc fq_codel") && line.contains("parent 1:1")).count();
            assert_eq!(below, if is_fair { 2 } else { 0 }, "{key}: {shown}");
            subject.check(&host, "c-one", &container, &result).ok();
            let (code, text) = with(!is_fair).check(&host, "c-one", &container, &result).refused();
            let wanted = format!("wanted {}, found {is_fair}", !is_fair);
            assert!(code == 102 && text.contains("fq_codel of ") && text.contains(&wanted), "{key}: {code} {text}");
        }
        with(true).call(&host, "DEL", "c-one", &container.path(), &[]).ok();
        HostSnapshot::of(&host).assert_unchanged_since(&before, &[], key);
    }
}

fn a_kernel_without_fq_codel_is_named() {
    if Need::FQ_CODEL.unmet().is_none() {
        return;
    }
    let host = Host::new();
    let subject = fair().at(host.dir());
    let container = subject.container(&host);
    let before = HostSnapshot::of(&host);
    let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
    let is_named = text.contains("this kernel has no tbf or no fq_codel") && text.contains("modprobe sch_fq_codel");
    assert!(code == 100 && is_named, "{code} {text}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "after a failed ADD");
}
