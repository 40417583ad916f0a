//! bandwidth: the rates that traffic really has, and who owns the ifb.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cnikit_netns::Netns;
use cnikit_process::Deadline;
use cnikit_testkit::{CallOutput, Container, Host, HostSnapshot, Subject};
use cnikit_tests::bin;
use cnikit_tests::campaign_subjects::shaped;
use cnikit_tests::mixed::UpstreamRelease;
use cnikit_tests::state_files::changes_nothing_in_a_dry_run;
use cnikit_tests::world::UNTIL_DETECTED;
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::gettid;
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

/// A host with a container whose veth pair another plugin made, and bandwidth after that.
struct Scene {
    host: Host,
    container: Container,
    subject: Subject,
}

impl Scene {
    fn new(keys: Value) -> Scene {
        let host = Host::new();
        let subject = with_keys(&shaped(bin()), keys);
        let container = subject.container(&host);
        Scene { host, container, subject }
    }

    /// The host end of the container's interface.
    fn host_end(&self) -> String {
        self.host.sh("ip -o link show type veth").split([' ', '@']).nth(1).unwrap().to_owned()
    }

    fn add(&self) -> Value {
        self.subject.add(&self.host, "c-one", &self.container)
    }

    fn refused(&self) -> (u64, String) {
        self.subject.call(&self.host, "ADD", "c-one", &self.container.path(), &[]).refused()
    }

    fn check(&self, result: &Value) -> CallOutput {
        self.subject.check(&self.host, "c-one", &self.container, result)
    }

    /// The names of all ifbs.
    fn ifbs(&self) -> Vec<String> {
        let shown = self.host.sh("ip -o link show type ifb");
        shown.lines().map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect()
    }

    fn qdiscs(&self) -> String {
        self.host.sh("tc qdisc show")
    }
}

/// The subject with these keys instead of its own rates.
fn with_keys(subject: &Subject, keys: Value) -> Subject {
    let mut subject = subject.clone();
    let conf = subject.conf.as_object_mut().unwrap();
    conf.retain(|key, _| !key.starts_with("ingress") && !key.starts_with("egress"));
    let Value::Object(keys) = keys else { panic!("{keys} is not an object") };
    conf.extend(keys);
    subject
}

fn both(rate: u64, burst: u64) -> Value {
    json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst})
}

/// How long a queue lasts that is full: the latency and the burst.
const QUEUE: Duration = Duration::from_millis(25 + 20);

/// Sends datagrams as fast as the link takes them until it is to stop. At most `queued` bytes wait in queues, so that none is
/// dropped there. Returns for how long nothing can have been in the queue, because this thread had no processor for longer than
/// the queue lasts. So that other tests do not cause that, the thread has a real-time priority.
fn send(host: &Host, from: &Netns, to: &str, queued: u64, stop: &AtomicBool) -> Duration {
    let work = |_: &cnikit_netns::Inside| {
        let _ = host.try_sh(&format!("chrt --fifo --pid 1 {}", gettid()));
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // The kernel counts 2304 bytes for a datagram of 1442 with its headers, against twice this size.
        let size = usize::try_from(queued * 3 / 4).unwrap();
        setsockopt(&socket.as_fd(), sockopt::SndBufForce, &size).unwrap();
        socket.set_write_timeout(Some(SECOND)).unwrap();
        let mut idle = Duration::ZERO;
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let _ = socket.send_to(&[7; 1400], to);
            let now = Instant::now();
            idle += now.duration_since(last).saturating_sub(QUEUE);
            last = now;
        }
        idle
    };
    from.enter(work).unwrap()
}

/// The bytes that a link has sent, and the time of this reading.
fn sent(host: &Host, link: &str) -> (u64, Instant) {
    host.enter(|| {
        let counters = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let now = Instant::now();
        let line = counters.lines().find_map(|line| line.trim().strip_prefix(link)?.strip_prefix(':'));
        (line.unwrap().split_whitespace().nth(8).unwrap().parse().unwrap(), now)
    })
}

/// The bytes that a link had sent before the first packet, after it, a second later, and ten seconds after that; and the times of
/// these readings.
type Readings = [(u64, Instant); 4];

fn measured(host: &Host, link: &str) -> Readings {
    let mut before = sent(host, link);
    let deadline = Deadline::after(10 * SECOND);
    let mut first = sent(host, link);
    while first.0 == before.0 && deadline.pause(Duration::from_millis(1)) {
        before = first;
        first = sent(host, link);
    }
    Deadline::after(60 * SECOND).pause(SECOND);
    let second = sent(host, link);
    Deadline::after(60 * SECOND).pause(10 * SECOND);
    [before, first, second, sent(host, link)]
}

/// The bits between two readings, and the seconds.
fn between(earlier: (u64, Instant), later: (u64, Instant)) -> (f64, f64) {
    #[expect(clippy::cast_precision_loss, reason = "fewer bytes than 2^52")]
    let bits = ((later.0 - earlier.0) * 8) as f64;
    (bits, later.1.duration_since(earlier.1).as_secs_f64())
}

/// The rate between two readings in bits per second.
fn rate(earlier: (u64, Instant), later: (u64, Instant)) -> f64 {
    let (bits, seconds) = between(earlier, later);
    bits / seconds
}

/// Both directions at once, each with a rate of its own, and a burst of 2 % of a second.
fn keeps_to(ingress: u64, egress: u64) {
    for (limit, readings, idle) in filled(ingress, egress, |rate| rate / 50) {
        let [_, first, second, last] = readings;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let shares = [rate(first, second), rate(second, last)].map(|rate| rate / limit as f64);
        let wanted = [1.0, 10.0].map(|seconds| 0.95 - idle.as_secs_f64() / seconds);
        let is_kept = shares.iter().zip(wanted).all(|(share, least)| *share >= least && *share <= 1.05);
        assert!(is_kept, "of {limit} bit/s: {shares:.3?}, at least {wanted:.3?}; the sender was idle for {idle:?}");
    }
}

/// The burst is what the rate lets pass in one second. It passes at once, in the first second with what the rate lets pass; then
/// the rate is kept to.
fn keeps_to_after_a_burst_of_one_second(ingress: u64, egress: u64) {
    for (limit, readings, idle) in filled(ingress, egress, |rate| rate) {
        let [before, first, second, last] = readings;
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let limit = limit as f64;
        let idle = idle.as_secs_f64();
        // The first packet was sent between the first two readings.
        let (passed, most) = between(before, second);
        let (_, least) = between(first, second);
        let bounds = [0.95 * (1.0 + least) - idle, 1.05 * (1.0 + most)];
        let passed = passed / limit;
        assert!(
            passed >= bounds[0] && passed <= bounds[1],
            "in the first second of {limit} bit/s: {passed:.3}, not {bounds:.3?}"
        );
        let share = rate(second, last) / limit;
        assert!(
            share >= 0.95 - idle / 10.0 && share <= 1.05,
            "of {limit} bit/s: {share:.3}; the sender was idle for {idle} s"
        );
    }
}

/// Sends in both directions as fast as possible. Returns for each its rate, the readings, and for how long the sender was idle.
fn filled(ingress: u64, egress: u64, burst: fn(u64) -> u64) -> [(u64, Readings, Duration); 2] {
    let scene = Scene::new(json!({"ingressRate": ingress, "ingressBurst": burst(ingress),
        "egressRate": egress, "egressBurst": burst(egress)}));
    let result = scene.add();
    let host_end = scene.host_end();
    scene.host.sh(&format!("ip address add 10.77.0.1/24 dev {host_end}"));
    scene.container.sh("ip address add 10.77.0.2/24 dev eth0");
    let ifb = result["interfaces"][2]["name"].as_str().unwrap();
    // Sockets that nothing reads: what arrives is dropped without an answer.
    let _inside = scene.container.netns().enter(|_| UdpSocket::bind("0.0.0.0:9").unwrap()).unwrap();
    let _outside = scene.host.enter(|| UdpSocket::bind("0.0.0.0:9").unwrap());
    let (readings, idle) = both_directions(&scene, &host_end, ifb, ingress, egress);
    [(ingress, readings[0], idle[0]), (egress, readings[1], idle[1])]
}

/// Sends in both directions, and measures the host end and the ifb. Returns the readings, and for how long each sender was idle.
fn both_directions(
    scene: &Scene,
    host_end: &str,
    ifb: &str,
    ingress: u64,
    egress: u64,
) -> ([Readings; 2], [Duration; 2]) {
    let stop = AtomicBool::new(false);
    // What waits at most, by the formula of the queue's length: 25 ms and the smaller burst.
    let queued = |rate: u64| rate / 8 / 40 + rate / 8 / 50;
    thread::scope(|scope| {
        let directions = [host_end, ifb].map(|link| scope.spawn(move || measured(&scene.host, link)));
        let inward = scope.spawn(|| send(&scene.host, scene.host.netns(), "10.77.0.2:9", queued(ingress), &stop));
        let outward = scope.spawn(|| send(&scene.host, scene.container.netns(), "10.77.0.1:9", queued(egress), &stop));
        let readings = directions.map(thread::ScopedJoinHandle::join);
        stop.store(true, Ordering::Relaxed);
        (readings.map(Result::unwrap), [inward, outward].map(|sender| sender.join().unwrap()))
    })
}

#[test]
fn eight_and_eighty_megabits_are_kept_to_within_five_percent_from_the_first_second() {
    thread::scope(|scope| {
        scope.spawn(|| keeps_to(8_000_000, 80_000_000));
        scope.spawn(|| keeps_to(80_000_000, 8_000_000));
    });
}

#[test]
fn after_a_burst_of_one_second_the_rate_is_kept_to_within_five_percent() {
    keeps_to_after_a_burst_of_one_second(8_000_000, 80_000_000);
}

#[test]
fn a_dry_run_changes_nothing() {
    changes_nothing_in_a_dry_run(&shaped(bin()));
}

#[test]
fn the_result_has_the_ifb_with_its_mac() {
    let scene = Scene::new(both(8_000_000, 80_000));
    let ifb = &scene.add()["interfaces"][2];
    let shown = scene.host.sh("ip -o link show type ifb");
    let [name, mac] = ["name", "mac"].map(|key| ifb[key].as_str().unwrap());
    assert!(shown.contains(&format!(" {name}: ")) && shown.contains(&format!("link/ether {mac} ")), "{ifb} {shown}");
}

#[test]
fn a_burst_smaller_than_a_frame_lets_frames_pass() {
    let scene = Scene::new(both(8_000_000, 8));
    let result = scene.add();
    scene.check(&result).ok();
    scene.host.sh(&format!("ip address add 10.77.0.1/24 dev {}", scene.host_end()));
    scene.container.sh("ip address add 10.77.0.2/24 dev eth0; ping -q -M do -s 1472 -c 3 -i 0.2 -W 2 10.77.0.1");
}

#[test]
fn rates_of_every_size_are_served_or_refused() {
    // A tenant's annotation reaches the plugin by runtimeConfig.
    for (rate, burst, says) in [
        (7, 80, Some("7 bit/s is too low")),
        (8, 0, Some("if rate is set, burst must also be set")),
        (0, 8, Some("if burst is set, rate must also be set")),
        (8_000, u64::from(u32::MAX) * 8, Some("burst cannot be more than 4GB")),
        (8_000, u64::MAX, Some("burst cannot be more than 4GB")),
        (8, 8, None),
        (1_000, u64::from(u32::MAX), None),
        (40_000_000_000, 80_000, None),
        (u64::MAX, u64::from(u32::MAX), None),
        (u64::MAX, 8, None),
    ] {
        let scene = Scene::new(json!({"runtimeConfig": {"bandwidth": both(rate, burst)}}));
        let before = HostSnapshot::of(&scene.host);
        if let Some(says) = says {
            let (code, text) = scene.refused();
            assert!(code == 7 && text.contains(says), "{rate} {burst}: {code} {text}");
        } else {
            let result = scene.add();
            scene.check(&result).ok();
            scene.subject.del(&scene.host, "c-one", &scene.container, &result);
        }
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], &format!("{rate} {burst}"));
    }
}

#[test]
fn what_is_not_a_number_of_bits_is_refused_before_anything_is_made() {
    // JSON has numbers that 64 bits do not have. An integer out of range is an invalid value, anything else of the wrong type.
    for (value, wanted) in [
        (json!(-1), 7),
        (json!(i64::MIN), 7),
        (json!(0.5), 6),
        (json!(18_446_744_073_709_551_616.0), 6),
        (json!(1e300), 6),
        (json!("8M"), 6),
        (json!([8]), 6),
    ] {
        for key in ["ingressRate", "ingressBurst", "egressRate", "egressBurst"] {
            let mut rates = both(8_000_000, 80_000);
            rates[key] = value.clone();
            let scene = Scene::new(json!({"runtimeConfig": {"bandwidth": rates}}));
            let before = HostSnapshot::of(&scene.host);
            let (code, text) = scene.refused();
            let pointer = format!("runtimeConfig.bandwidth.{key}");
            assert!(code == wanted && text.contains(&pointer), "{key} {value}: {code} {text}");
            HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], &format!("{key} {value}"));
        }
    }
}

#[test]
fn rates_of_the_configuration_come_before_those_of_the_runtime_as_a_block() {
    let runtime = both(16_000_000, 160_000);
    for (keys, shows) in [
        (json!({"ingressRate": 8_000_000, "ingressBurst": 80_000}), ["8Mbit", ""]),
        (json!({"ingressRate": 0}), ["16Mbit", "16Mbit"]),
        (json!({}), ["16Mbit", "16Mbit"]),
    ] {
        let mut keys = keys;
        keys["runtimeConfig"] = json!({"bandwidth": runtime});
        let scene = Scene::new(keys.clone());
        scene.add();
        let shown = scene.qdiscs();
        let rates: Vec<&str> =
            shown.lines().filter_map(|line| line.split(" rate ").nth(1)?.split(' ').next()).collect();
        let wanted: Vec<&str> = shows.into_iter().filter(|rate| !rate.is_empty()).collect();
        assert_eq!(rates, wanted, "{keys}: {shown}");
    }
}

#[test]
fn without_a_limit_nothing_is_made_and_any_interface_will_do() {
    let scene = Scene::new(json!({"ingressRate": 0, "runtimeConfig": {"bandwidth": both(0, 0)}}));
    scene.container.sh("ip link del eth0");
    let before = HostSnapshot::of(&scene.host);
    let result = scene.add();
    assert_eq!(result["interfaces"].as_array().unwrap().len(), 2);
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "no limit");
}

#[test]
fn a_repeated_add_changes_the_rates_in_place() {
    let mut scene = Scene::new(both(8_000_000, 80_000));
    let first = scene.add();
    let link = |scene: &Scene| scene.host.sh("ip -o link show type ifb | cut -d : -f 1,2");
    let before = link(&scene);
    scene.host.sh(&format!("ip address add 10.77.0.1/24 dev {}", scene.host_end()));
    scene.container.sh("ip address add 10.77.0.2/24 dev eth0; ping -q -s 1400 -c 3 -i 0.01 -W 5 10.77.0.1");
    scene.subject = with_keys(&scene.subject, both(16_000_000, 160_000));
    let (_, text) = scene.check(&first).refused();
    for name in [&scene.host_end(), &scene.ifbs()[0]] {
        assert!(text.contains(&format!("rate of {name} in bytes per second: wanted 2000000, found 1000000")), "{text}");
    }
    let second = scene.add();
    assert_eq!(second, first);
    assert_eq!(link(&scene), before, "it is the same ifb");
    for name in [&scene.host_end(), &scene.ifbs()[0]] {
        let shown = scene.host.sh(&format!("tc -s qdisc show dev {name} root"));
        let sent = shown.lines().find_map(|line| line.trim().strip_prefix("Sent ")?.split(' ').next()).unwrap();
        let sent: u64 = sent.parse().unwrap();
        assert!(sent > 3 * 1400, "what waits in {name} is not dropped: it still counts what it has sent: {shown}");
    }
    assert_eq!(scene.qdiscs().matches(" tbf 1: ").count(), 2);
    assert_eq!(scene.qdiscs().matches("rate 16Mbit burst 20000b lat 25ms").count(), 2, "{}", scene.qdiscs());
    scene.check(&second).ok();
}

#[test]
fn a_repeated_add_lifts_the_limit_of_a_direction_that_has_none_any_more() {
    for subnets in [json!([]), json!(["10.0.0.0/8"])] {
        let mut scene = Scene::new(both(8_000_000, 80_000));
        let before = HostSnapshot::of(&scene.host);
        scene.subject = scene.subject.with("unshapedSubnets", subnets);
        scene.add();
        let both_limited = scene.subject.clone();
        let only = |rate: &str, burst: &str| with_keys(&both_limited, json!({rate: 8_000_000, burst: 80_000}));
        scene.subject = only("ingressRate", "ingressBurst");
        let result = scene.add();
        assert_eq!(result["interfaces"].as_array().unwrap().len(), 2, "{result}");
        assert_eq!(scene.ifbs(), [""; 0], "no limit of what the container sends");
        assert!(!scene.qdiscs().contains("ingress"), "{}", scene.qdiscs());
        scene.check(&result).ok();

        scene.subject = both_limited.clone();
        scene.add();
        scene.subject = only("egressRate", "egressBurst");
        let result = scene.add();
        assert_eq!(scene.ifbs().len(), 1);
        assert!(scene.qdiscs().contains(&format!("noqueue 0: dev {} root", scene.host_end())), "{}", scene.qdiscs());
        scene.check(&result).ok();

        scene.subject = with_keys(&both_limited, json!({}));
        scene.add();
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "no limit any more");
    }
}

#[test]
fn subnets_are_changed_and_lifted_by_a_repeated_add_and_removed_by_del() {
    let mut scene = Scene::new(both(8_000_000, 80_000));
    let before = HostSnapshot::of(&scene.host);
    let plain = scene.subject.clone();
    for (key, subnets) in [
        ("shapedSubnets", json!(["10.0.0.0/8", "fd00::/8"])),
        ("shapedSubnets", json!(["10.0.0.0/8", "2001:db8:1::/48", "192.0.2.1/32"])),
        ("unshapedSubnets", json!(["::/0"])),
        ("unshapedSubnets", json!(["10.1.2.3/8", "2001:db8::1/128"])),
        ("shapedSubnets", json!([])),
    ] {
        scene.subject = plain.with(key, subnets.clone());
        let result = scene.add();
        scene.check(&result).ok();
        let repeated = scene.add();
        assert_eq!(result, repeated, "{subnets}");
        let kind = if subnets == json!([]) { " tbf 1: " } else { " htb 1: " };
        assert!(scene.qdiscs().contains(&format!("{kind}dev {} root", scene.host_end())), "{}", scene.qdiscs());
    }
    scene.subject = plain.with("unshapedSubnets", json!(["10.0.0.0/8"]));
    let result = scene.add();
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[("prevResult", result)]).ok();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after DEL");
}

#[test]
fn invalid_subnets_are_refused_before_anything_is_made() {
    for (keys, says) in [
        (json!({"shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["::/0"]}), "exclude each other"),
        (json!({"shapedSubnets": ["10.0.0.0"]}), "shapedSubnets: \"10.0.0.0\" is not an address with a prefix length"),
        (json!({"unshapedSubnets": ["10.0.0.0/33"]}), "unshapedSubnets: \"10.0.0.0/33\" is not an address"),
        (json!({"shapedSubnets": vec!["::/0"; 257]}), "257 subnets are too many, at most 256 are possible"),
    ] {
        let scene = Scene::new(both(8_000_000, 80_000));
        let before = HostSnapshot::of(&scene.host);
        let mut subject = scene.subject.clone();
        subject.conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let (code, text) = subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
        assert!(code == 7 && text.contains(says), "{keys}: {code} {text}");
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], says);
    }
    let most = Scene::new(both(8_000_000, 80_000));
    let subnets: Vec<String> = (0..256).map(|n| format!("fd00:{n:x}::/32")).collect();
    let most = Scene { subject: most.subject.with("unshapedSubnets", json!(subnets)), ..most };
    let result = most.add();
    most.check(&result).ok();
}

#[test]
fn check_names_filters_and_classes_that_were_changed() {
    for (line, says) in [
        (
            "tc filter del dev $END parent 1: pref 2",
            "filters of $END: wanted [from 10.0.0.0/8 class 1:1, from fd00::/8",
        ),
        ("tc filter del dev $END ingress pref 1", "filters of $END: wanted [to 10.0.0.0/8 redirected to link"),
        ("tc class change dev $END parent 1: classid 1:1 htb rate 9mbit burst 10000", "wanted 1000000, found 1125000"),
        (
            "tc qdisc replace dev $END parent 1:1 bfifo limit 5000",
            "limit of the queue of $END in bytes: wanted 70000, found 5000",
        ),
        ("tc qdisc del dev $END root", "qdisc of $END: wanted htb, found none"),
    ] {
        let mut scene = Scene::new(both(8_000_000, 80_000));
        scene.subject = scene.subject.with("shapedSubnets", json!(["10.0.0.0/8", "fd00::/8"]));
        let result = scene.add();
        let filled = |text: &str| text.replace("$END", &scene.host_end());
        scene.host.sh(&filled(line));
        let (code, text) = scene.check(&result).refused();
        assert!(code == 102 && text.contains(&filled(says)), "{line}: {code} {text}");
        let result = scene.add();
        scene.check(&result).ok();
    }
}

/// How long it takes to send this much over TCP, and to have it acknowledged.
fn duration_of(from: &Netns, to: &Netns, address: &str, bytes: usize) -> Duration {
    let server = to.enter(|_| TcpListener::bind((address, 0)).unwrap()).unwrap();
    let port = server.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| io::copy(&mut server.accept().unwrap().0, &mut io::sink()).unwrap());
        let began = Instant::now();
        let send = |_: &cnikit_netns::Inside| {
            let mut stream = TcpStream::connect(port).unwrap();
            stream.write_all(&vec![7; bytes]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            // The other side closes once it has read everything.
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        };
        from.enter(send).unwrap();
        began.elapsed()
    })
}

/// At 1 Mbit/s, 250 kB take two seconds, and half a second less if the last packet, of 64 kB, is sent before there are tokens for
/// it: an `htb` sends whole packets as long as its bucket is not empty.
#[test]
fn only_the_traffic_of_the_configured_subnets_is_limited_in_both_directions_and_families() {
    const BOUND: Duration = Duration::from_millis(1450);
    let limited = ["10.77.1", "fd00:77:1:"];
    let free = ["10.77.2", "fd00:77:2:"];
    let all = ["10.77.1.0/24", "fd00:77:1::/64"];
    let others = ["10.77.2.0/24", "fd00:77:2::/64"];
    thread::scope(|scope| {
        for (key, subnets) in [("shapedSubnets", all), ("unshapedSubnets", others)] {
            scope.spawn(move || {
                let mut scene = Scene::new(both(1_000_000, 20_000));
                scene.subject = scene.subject.with(key, json!(subnets)).with("latency", json!(200));
                scene.add();
                let host_end = scene.host_end();
                for net in [limited, free] {
                    scene.host.sh(&format!(
                        "ip address add {0}.1/24 dev {host_end}; ip address add {1}:1/64 dev {host_end} nodad",
                        net[0], net[1]
                    ));
                    scene.container.sh(&format!(
                        "ip address add {0}.2/24 dev eth0; ip address add {1}:2/64 dev eth0 nodad",
                        net[0], net[1]
                    ));
                }
                scene.host.sh(UNTIL_DETECTED);
                scene.container.sh(UNTIL_DETECTED);
                let ends = [(scene.host.netns(), "1"), (scene.container.netns(), "2")];
                for [(from, _), (to, last)] in [[ends[0], ends[1]], [ends[1], ends[0]]] {
                    for (nets, is_limited) in [(limited, true), (free, false)] {
                        for address in [format!("{}.{last}", nets[0]), format!("{}:{last}", nets[1])] {
                            let took = duration_of(from, to, &address, 250_000);
                            assert_eq!(took > BOUND, is_limited, "{key}: to {address}: {took:?}");
                        }
                    }
                }
            });
        }
    });
}

#[test]
fn the_queue_is_as_long_as_the_latency_says() {
    let mut keys = both(8_000_000, 80_000);
    keys["latency"] = json!(100);
    let scene = Scene::new(keys);
    let result = scene.add();
    assert_eq!(scene.qdiscs().matches("rate 8Mbit burst 10000b lat 100ms").count(), 2, "{}", scene.qdiscs());
    scene.check(&result).ok();
}

/// Sends datagrams of 1442 bytes with their headers at 16 Mbit/s or somewhat less, until it is to stop.
fn send_twice_the_rate(from: &Netns, to: &str, stop: &AtomicBool) {
    let work = |_: &cnikit_netns::Inside| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..4 {
                let _ = socket.send_to(&[7; 1400], to);
            }
            Deadline::after(SECOND).pause(Duration::from_micros(2_800));
        }
    };
    from.enter(work).unwrap();
}

/// The mean time of pings through the queue toward the container, which is full.
fn mean_round_trip(scene: &Scene) -> f64 {
    scene.host.sh(&format!("ip address add 10.77.0.1/24 dev {}", scene.host_end()));
    scene.container.sh("ip address add 10.77.0.2/24 dev eth0");
    let _sink = scene.container.netns().enter(|_| UdpSocket::bind("0.0.0.0:9").unwrap()).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send_twice_the_rate(scene.host.netns(), "10.77.0.2:9", &stop));
        // Those that find no place in the queue are lost.
        let (_, shown) = scene.host.try_sh("sleep 0.3; ping -n -q -c 300 -i 0.01 -W 1 10.77.0.2");
        stop.store(true, Ordering::Relaxed);
        let times = shown.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
        let mean = times.unwrap_or_else(|| panic!("{shown}")).split('/').nth(1).unwrap();
        mean.parse().unwrap()
    })
}

/// At 8 Mbit/s with a burst of 10 kB upstream's queue holds 35 ms. With `latency` 5 it holds 15 ms.
#[test]
fn a_packet_waits_in_a_full_queue_as_long_as_upstreams_or_as_configured() {
    let [theirs, ours, short] = thread::scope(|scope| {
        let round_trip = |latency: Option<u64>, release: Option<UpstreamRelease>| {
            let mut scene = Scene::new(json!({"ingressRate": 8_000_000, "ingressBurst": 80_000}));
            if let Some(latency) = latency {
                scene.subject = scene.subject.with("latency", json!(latency));
            }
            if let Some(release) = release {
                scene.subject = upstreams(&scene.subject, release);
            }
            scene.add();
            mean_round_trip(&scene)
        };
        [(None, Some(UpstreamRelease::Newest)), (None, None), (Some(5), None)]
            .map(|(latency, release)| scope.spawn(move || round_trip(latency, release)))
            .map(|thread| thread.join().unwrap())
    });
    println!(
        "round trip through a full queue in ms: upstream {theirs:.1}, ours {ours:.1}, with a latency of 5 {short:.1}"
    );
    assert!((theirs - ours).abs() < 10.0, "upstream {theirs} ms, ours {ours} ms");
    assert!(short < theirs / 1.5, "upstream {theirs} ms, with a latency of 5 {short} ms");
}

#[test]
fn qdiscs_and_filters_of_other_programs_are_refused_before_anything_is_made() {
    for (line, says) in [
        ("tc qdisc add dev $END root handle 1: pfifo limit 9", "has a root qdisc of another program: pfifo 1:"),
        ("tc qdisc add dev $END root handle 7: tbf rate 1mbit burst 10000 latency 5ms", "another program: tbf 7:"),
        ("tc qdisc add dev $END clsact", "has an ingress qdisc or filters of another program"),
        (
            "tc qdisc add dev $END ingress && tc filter add dev $END ingress u32 match ip dst 10.0.0.1 flowid 1:1",
            "has an ingress qdisc or filters of another program",
        ),
        (
            "ip link add theirs type ifb && ip link set theirs up && tc qdisc add dev $END ingress && \
             tc filter add dev $END ingress protocol all u32 match u32 0 0 flowid 1:1 \
                 action mirred egress redirect dev theirs",
            "has an ingress qdisc or filters of another program",
        ),
    ] {
        let scene = Scene::new(both(8_000_000, 80_000));
        let line = line.replace("$END", &scene.host_end());
        scene.host.sh(&line);
        let before = HostSnapshot::of(&scene.host);
        let (code, text) = scene.refused();
        assert!(code == 101 && text.contains(says), "{line}: {code} {text}");
        scene.subject.call(&scene.host, "DEL", "c-one", &scene.container.path(), &[]).ok();
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], &line);
    }
}

#[test]
fn an_interface_without_a_host_end_is_refused_by_its_kind() {
    for (line, says) in [
        ("ip link del eth0", "there is no such interface in"),
        (
            "ip link del eth0; ip link add eth0 type bridge",
            "it is a bridge without another end in the host's namespace",
        ),
        ("ip link del eth0; ip link add eth0 type veth peer name peer0", "it is a veth without another end"),
    ] {
        let scene = Scene::new(both(8_000_000, 80_000));
        scene.container.sh(line);
        let before = HostSnapshot::of(&scene.host);
        let (code, text) = scene.refused();
        assert!(code == 101 && text.contains("has no veth peer") && text.contains(says), "{line}: {code} {text}");
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], line);
    }
}

/// The other end of the interface is in the container, and has the number of a host end: of another container, whose interface
/// has the number of this one, or of another interface of this container.
#[test]
fn the_host_end_of_another_interface_with_the_same_number_is_not_limited() {
    for is_of_another_container in [true, false] {
        let scene = Scene::new(both(8_000_000, 80_000));
        scene.container.sh("ip link del eth0");
        let other = scene.subject.container(&scene.host);
        let shown = if is_of_another_container {
            other.sh("ip -o link show eth0")
        } else {
            second_interface(&scene);
            scene.container.sh("ip -o link show eth1")
        };
        let (inside, rest) = shown.split_once(": ").unwrap();
        let (outside, _) = rest.split_once("@if").unwrap().1.split_once(':').unwrap();
        let index = if is_of_another_container { inside } else { "4000" };
        scene.container.sh(&format!("ip link add eth0 index {index} type veth peer name peer0 index {outside}"));
        let before = HostSnapshot::of(&scene.host);
        let (code, text) = scene.refused();
        assert!(code == 101 && text.contains("it is a veth without another end"), "{shown}: {code} {text}");
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], &shown);
    }
}

/// A second interface of the container, with a pair of its own.
fn second_interface(scene: &Scene) -> Subject {
    scene.host.sh("ip link add second0 type veth peer name second1 && ip link set second0 up");
    let pid = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        std::os::fd::AsRawFd::as_raw_fd(&scene.container.netns().as_fd())
    );
    scene.host.sh(&format!("ip link set second1 netns {pid}"));
    scene.container.sh("ip link set second1 name eth1 && ip link set eth1 up");
    let mut subject = scene.subject.clone();
    subject.env.push(("CNI_IFNAME".to_owned(), "eth1".to_owned()));
    subject
}

#[test]
fn two_interfaces_of_one_container_have_an_ifb_each() {
    let scene = Scene::new(both(8_000_000, 80_000));
    let before = HostSnapshot::of(&scene.host);
    let second = second_interface(&scene);
    let result = scene.add();
    let between = HostSnapshot::of(&scene.host);
    let other = second.add(&scene.host, "c-one", &scene.container);
    assert_ne!(result["interfaces"][2], other["interfaces"][2]);
    assert_eq!(scene.ifbs().len(), 2);
    scene.check(&result).ok();
    second.check(&scene.host, "c-one", &scene.container, &other).ok();
    second.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&between, &[], "after DEL of the second");
    second.add(&scene.host, "c-one", &scene.container);
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    second.check(&scene.host, "c-one", &scene.container, &other).ok();
    second.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    scene.host.sh("ip link del second0");
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after DEL of both");
}

/// It was there before the ADD, which takes a name of its own.
#[test]
fn a_link_of_another_kind_that_has_the_name_of_the_ifb_stays() {
    let scene = Scene::new(both(8_000_000, 80_000));
    scene.add();
    let taken = scene.ifbs().remove(0);
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    scene.host.sh(&format!("ip link add {taken} type bridge"));
    let before = HostSnapshot::of(&scene.host);
    scene.add();
    assert!(scene.ifbs().len() == 1 && scene.ifbs() != [taken], "{:?}", scene.ifbs());
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after DEL");
}

/// A runtime starts a container anew under its id, and its former namespace is still there.
#[test]
fn del_without_anything_removes_the_limits_of_both_namespaces_of_a_container() {
    let scene = Scene::new(both(8_000_000, 80_000));
    scene.add();
    let anew = scene.subject.container(&scene.host);
    let before = HostSnapshot::of(&scene.host);
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    let without = HostSnapshot::of(&scene.host);
    scene.add();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &["link: bwp"], "ADD again");
    scene.subject.add(&scene.host, "c-one", &anew);
    assert_eq!(scene.ifbs().len(), 1);
    scene.subject.call(&scene.host, "DEL", "c-one", "", &[]).ok();
    HostSnapshot::of(&scene.host).assert_unchanged_since(&without, &[], "DEL of both");
}

/// The same configuration for upstream's plugin.
fn upstreams(subject: &Subject, release: UpstreamRelease) -> Subject {
    let subject = subject.with("cniVersion", json!(release.speaks()));
    subject.in_directory(release.bin())
}

#[test]
fn either_implementation_removes_what_the_other_made() {
    for release in [UpstreamRelease::Packaged, UpstreamRelease::Newest] {
        let scene = Scene::new(both(8_000_000, 80_000));
        let theirs = upstreams(&scene.subject, release);
        let ours = scene.subject.with("cniVersion", json!(release.speaks()));
        let before = HostSnapshot::of(&scene.host);
        let result = theirs.add(&scene.host, "c-one", &scene.container);
        ours.check(&scene.host, "c-one", &scene.container, &result).ok();
        let again = ours.add(&scene.host, "c-one", &scene.container);
        assert_eq!(again["interfaces"], result["interfaces"], "upstream's ifb is used");
        ours.del(&scene.host, "c-one", &scene.container, &again);
        HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "ADD by upstream and by us, DEL by us");

        for netns in [scene.container.path(), String::new()] {
            let result = theirs.add(&scene.host, "c-one", &scene.container);
            ours.call(&scene.host, "DEL", "c-one", &netns, &[("prevResult", result)]).ok();
            assert_eq!(scene.ifbs(), [""; 0], "ADD by upstream, DEL by us with {netns:?}");
            scene.host.sh(&format!("tc qdisc del dev {0} root; tc qdisc del dev {0} ingress || :", scene.host_end()));
        }

        let result = ours.add(&scene.host, "c-one", &scene.container);
        theirs.check(&scene.host, "c-one", &scene.container, &result).ok();
        theirs.del(&scene.host, "c-one", &scene.container, &result);
        assert_eq!(scene.ifbs(), [""; 0], "ADD by us, DEL by upstream");
        ours.del(&scene.host, "c-one", &scene.container, &result);
    }
}

#[test]
fn the_ifb_that_upstream_made_for_another_interface_of_the_container_stays() {
    let scene = Scene::new(both(8_000_000, 80_000));
    let second = second_interface(&scene);
    let theirs = upstreams(&scene.subject, UpstreamRelease::Newest);
    let result = theirs.add(&scene.host, "c-one", &scene.container);
    let between = HostSnapshot::of(&scene.host);
    let other = second.add(&scene.host, "c-one", &scene.container);
    assert_eq!(scene.ifbs().len(), 2);
    second.del(&scene.host, "c-one", &scene.container, &other);
    HostSnapshot::of(&scene.host).assert_unchanged_since(&between, &[], "after DEL of the second");
    theirs.check(&scene.host, "c-one", &scene.container, &result).ok();
}

#[test]
fn gc_removes_the_ifbs_of_what_is_not_valid() {
    let scene = Scene::new(both(8_000_000, 80_000));
    let other = scene.subject.container(&scene.host);
    let third = scene.subject.container(&scene.host);
    scene.subject.add(&scene.host, "c-valid", &other);
    let of_another_network = scene.subject.with("name", json!("other"));
    of_another_network.add(&scene.host, "c-one", &third);
    let before = HostSnapshot::of(&scene.host);
    scene.add();
    assert_eq!(scene.ifbs().len(), 3);
    scene.subject.gc(&scene.host, &["c-valid"]).ok();
    // What a host end redirects to an ifb that is gone would be dropped.
    HostSnapshot::of(&scene.host).assert_unchanged_since(&before, &[], "after GC");
}

#[test]
fn check_names_each_thing_that_was_changed() {
    for (line, says) in [
        ("tc qdisc del dev $END root", "qdisc of $END: wanted tbf, found none"),
        (
            "tc qdisc change dev $END root handle 1: tbf rate 9mbit burst 10000 latency 25ms",
            "rate of $END in bytes per second: wanted 1000000, found 1125000",
        ),
        ("tc qdisc change dev $IFB root handle 1: tbf rate 8mbit burst 20000 latency 25ms", "burst of $IFB in ticks"),
        (
            "tc qdisc change dev $IFB root handle 1: tbf rate 8mbit burst 10000 latency 50ms",
            "limit of the queue of $IFB in bytes: wanted 35000, found 60000",
        ),
        ("tc qdisc del dev $IFB root", "qdisc of $IFB: wanted tbf, found none"),
        ("ip link set $IFB down", "$IFB: wanted up, found down"),
        ("ip link del $IFB", "limit of traffic from eth0: wanted an ifb of its own, found none"),
        ("tc qdisc del dev $END ingress", "filters of $END: wanted first one that redirects all to $IFB, found []"),
        ("tc filter del dev $END ingress", "filters of $END: wanted first one that redirects all to $IFB, found []"),
    ] {
        let scene = Scene::new(both(8_000_000, 80_000));
        let result = scene.add();
        let filled = |text: &str| text.replace("$END", &scene.host_end()).replace("$IFB", &scene.ifbs()[0]);
        let says = filled(says);
        scene.host.sh(&filled(line));
        let (code, text) = scene.check(&result).refused();
        assert!(code == 102 && text.contains(&says), "{line}: {code} {text}");
    }
}
