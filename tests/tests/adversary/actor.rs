//! Commands as an unprivileged party runs them: shell prefixes that drop privileges by setpriv(1).

/// Another user of the node: uid 65534, no capability.
pub(crate) fn as_another_user(line: &str) -> String {
    dropped(&["--reuid=65534", "--regid=65534", "--clear-groups"], line)
}

/// A container with `CAP_NET_RAW` only, as many runtimes start them.
pub(crate) fn with_net_raw(line: &str) -> String {
    dropped(&["--bounding-set=-all,+net_raw", "--inh-caps=-all"], line)
}

fn dropped(options: &[&str], line: &str) -> String {
    format!("setpriv {} sh -c '{}'", options.join(" "), line.replace('\'', r"'\''"))
}

#[test]
fn privileges_are_dropped() {
    let host = cnikit_testkit::Host::new();
    let status = |line: String| host.sh(&line);
    assert!(
        status(as_another_user("id -u; grep CapEff /proc/self/status")).starts_with("65534\nCapEff:\t0000000000000000")
    );
    assert!(status(with_net_raw("grep CapEff /proc/self/status")).contains("0000000000002000"));
}
