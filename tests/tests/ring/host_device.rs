//! host-device with network cards on the PCI bus, and with a device on the auxiliary bus: they have a bus, a driver and a permanent
//! address.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cnikit_process::Deadline;
use cnikit_testkit::need::Need;
use cnikit_testkit::{Container, Host, Subject};
use cnikit_tests::subject;
use serde_json::{Value, json};

use crate::test::{Test, test};

pub(crate) const TESTS: &[Test] = &[
    test!(a_card_is_selected_by_names_addresses_and_places needs Need::PCI_CARDS),
    test!(a_nested_host_selects_its_card_alike needs Need::PCI_CARDS, Need::LINK_PARENT),
    test!(a_nested_host_selects_its_card_by_place_or_the_kernel_is_named needs Need::PCI_CARDS),
    test!(two_containers_talk_over_two_cards needs Need::PCI_CARDS),
    test!(whatever_the_container_did_the_host_has_its_card_back needs Need::PCI_CARDS),
    test!(whatever_the_container_did_a_nested_host_has_its_card_back needs Need::PCI_CARDS, Need::LINK_PARENT),
    test!(the_kernel_returns_a_card_and_we_give_it_its_settings_back needs Need::PCI_CARDS),
    test!(a_nested_host_gives_a_card_that_the_kernel_returns_its_settings_back needs Need::PCI_CARDS, Need::LINK_PARENT),
    test!(a_card_that_was_moved_on_comes_back_when_that_namespace_ends needs Need::PCI_CARDS),
    test!(a_card_that_was_moved_on_comes_back_to_a_nested_host needs Need::PCI_CARDS, Need::LINK_PARENT),
    test!(an_unplugged_card_stops_no_del needs Need::PCI_CARDS),
    test!(a_card_of_a_program_is_only_reported needs Need::PCI_CARDS),
    test!(a_device_of_the_auxiliary_bus_is_selected_by_its_id needs Need::AUXILIARY_DEVICE),
    test!(a_device_of_the_auxiliary_bus_comes_back_whatever_the_container_did needs Need::AUXILIARY_DEVICE),
    test!(the_kernel_returns_a_device_of_the_auxiliary_bus needs Need::AUXILIARY_DEVICE),
    test!(a_device_without_its_driver_stops_no_del needs Need::AUXILIARY_DEVICE),
];

/// The devices are few, and their tests take turns.
static TURN: Mutex<()> = Mutex::new(());
/// The time that the kernel gets to bring a card back, or to describe it as it was. The machine is emulated.
const PATIENCE: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(100);

/// A card, which is called `card0` or `card1` on the host, or the device on the auxiliary bus, which is called `port0`.
struct Card {
    bus: &'static str,
    id: String,
    name: &'static str,
    altname: &'static str,
    permanent: &'static str,
    /// The one that it has on the host: another one, as a port of a bond has, or the permanent one.
    mac: &'static str,
}

impl Card {
    fn directory(&self) -> String {
        format!("/sys/bus/{}/devices/{}", self.bus, self.id)
    }

    /// What a container does, as [`CHANGED`] has it for the first card, with this one.
    fn changed(&self, line: &str) -> String {
        line.replace("the-card-in-front", self.altname).replace("52:54:00:c0:de:00", self.permanent)
    }
}

/// Which namespace the host of a test is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HostPlace {
    /// That of the first process, which the kernel returns cards to, and whose links sysfs shows.
    Machine,
    /// One of its own, as where a runtime runs in a container itself. Before Linux 5.14 nothing tells there which device a link
    /// has.
    Nested,
}

const PLACES: [HostPlace; 2] = [HostPlace::Machine, HostPlace::Nested];

struct Scene {
    host: Host,
    machine: Host,
    container: Container,
    cards: Vec<Card>,
    before: String,
    _turn: MutexGuard<'static, ()>,
}

impl Scene {
    /// Both cards.
    fn new(place: HostPlace) -> Scene {
        Scene::with(place, cards())
    }

    /// They are on the host, up, with settings that are not their drivers' own.
    fn with(place: HostPlace, cards: Vec<Card>) -> Scene {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let machine = Host::machine();
        let host = if place == HostPlace::Machine { Host::machine() } else { Host::new() };
        for (number, card) in cards.iter().enumerate() {
            let Card { id, name, altname, mac, .. } = card;
            reset(&machine, card);
            if place == HostPlace::Nested {
                machine.sh(&format!("ip link set {name} netns {}", host.path()));
            }
            host.sh(&format!(
                "ip link set {name} alias 'the one at {id}' address {mac} mtu 1400 txqueuelen 500 group 3 promisc on &&
                 ip link property add dev {name} altname {altname} && ip link set {name} up &&
                 ip address add 192.0.2.1{number}/24 dev {name} &&
                 ip address add 2001:db8::1{number}/64 dev {name} nodad",
            ));
        }
        fs::create_dir(host.dir().join("devices")).unwrap();
        let container = host.container();
        let mut scene = Scene { before: String::new(), host, machine, container, cards, _turn: turn };
        scene.before = scene.shown();
        scene
    }

    fn subject(&self, selection: &Value) -> Subject {
        let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
        let ipam = json!({"type": "static", "addresses": addresses});
        let keys = json!({"dataDir": "$DIR/devices", "ipam": ipam, "enabledad": false,
                          "capabilities": {"deviceID": true}});
        let mut subject = subject("host-device", keys).at(self.host.dir());
        for (key, value) in selection.as_object().unwrap() {
            subject = subject.with(key, value.clone());
        }
        subject
    }

    fn at(&self, card: &Card) -> Subject {
        match card.bus {
            "pci" => self.subject(&json!({"pciBusID": card.id})),
            _ => self.subject(&json!({"runtimeConfig": {"deviceID": card.id}})),
        }
    }

    fn del(&self, subject: &Subject, path: &str) {
        subject.call(&self.host, "DEL", "c-one", path, &[]).ok();
    }

    fn gc(&self, subject: &Subject) {
        subject.call(&self.host, "GC", "", "", &[("cni.dev/valid-attachments", json!([]))]).ok();
    }

    /// The cards as the host has them, without what a carrier changes.
    fn shown(&self) -> String {
        let script = "s/^[0-9]+: //; s/,?(NO-CARRIER|LOWER_UP)//g; s/<,/</; s/ state [A-Z]+ / /; s/ qdisc [a-z_]+ / /";
        let line = |name| {
            format!(
                "ip -d -o link show dev {name} | sed -E '{script}'; ip -o address show dev {name} | sed -E '{script}'"
            )
        };
        let lines: Vec<String> = self.cards.iter().map(|card| line(card.name)).collect();
        let (_, text) = self.host.try_sh(&lines.join("; "));
        text.lines().filter(|line| !line.contains(" fe80::")).collect::<Vec<_>>().join("\n")
    }

    fn assert_given_back(&self, when: &str) {
        let deadline = Deadline::after(PATIENCE);
        while self.shown() != self.before && deadline.pause(TICK) {}
        assert_eq!(self.shown(), self.before, "{when}");
        assert_eq!(self.files(), 0, "{when}");
    }

    fn files(&self) -> usize {
        fs::read_dir(self.host.dir().join("devices")).unwrap().count()
    }

    fn assert_absent(&self, name: &str) {
        assert!(!self.host.try_sh(&format!("ip link show {name}")).0, "{name}");
    }
}

impl Drop for Scene {
    /// What a failed test left: the cards come back to the machine with the end of the namespaces.
    fn drop(&mut self) {
        for card in &self.cards {
            let _ = self.host.try_sh(&format!("ip link set {} netns {}", card.name, self.machine.path()));
        }
    }
}

/// The cards whose places the machine's kernel was told.
fn cards() -> Vec<Card> {
    let line = fs::read_to_string("/proc/cmdline").unwrap();
    let places = line.split_whitespace().find_map(|word| word.strip_prefix("cnikit.cards=")).unwrap();
    let (one, other) = places.split_once(',').unwrap();
    let card =
        |id: &str, name, altname, permanent, mac| Card { bus: "pci", id: id.to_owned(), name, altname, permanent, mac };
    vec![
        card(one, "card0", "the-card-in-front", "52:54:00:c0:de:00", "52:54:00:c0:de:00"),
        card(other, "card1", "the-card-behind-it", "52:54:00:c0:de:01", "02:00:5e:10:00:07"),
    ]
}

/// The device that the module of `tests/auxiliary` makes.
fn auxiliary_device() -> Card {
    Card {
        bus: "auxiliary",
        id: "cnikit_auxiliary.port.0".to_owned(),
        name: "port0",
        altname: "the-port-of-a-card",
        permanent: "52:54:00:c0:de:0a",
        mac: "02:00:5e:10:00:08",
    }
}

/// Waits until the machine has the card, and makes it as its driver made it, under its name here.
fn reset(machine: &Host, card: &Card) {
    let Card { id, name, permanent, .. } = card;
    let directory = card.directory();
    let line = format!(
        "for file in {directory}/net/* {directory}/virtio*/net/*; do
             [ ! -e $file ] || found=${{file##*/}}
         done
         [ -n \"$found\" ] || exit 1
         ip link set $found down; ip address flush dev $found
         [ $found = {name} ] || ip link set $found name {name}
         for altname in $(ip link show {name} | sed -n 's/ *altname //p'); do
             ip link property del dev {name} altname $altname
         done
         ip link set {name} alias '' mtu 1500 address {permanent} promisc off txqueuelen 1000 group 0"
    );
    let deadline = Deadline::after(PATIENCE);
    loop {
        let (succeeded, output) = machine.try_sh(&line);
        if succeeded {
            return;
        }
        assert!(deadline.pause(TICK), "{id}: {output}");
    }
}

fn a_card_is_selected_by_names_addresses_and_places() {
    assert_selected(HostPlace::Machine);
}

fn a_nested_host_selects_its_card_alike() {
    assert_selected(HostPlace::Nested);
}

fn assert_selected(place: HostPlace) {
    let scene = Scene::new(place);
    for card in &scene.cards {
        let path = scene.machine.sh(&format!("readlink -f {}", card.directory()));
        for selection in [
            json!({"device": card.name}),
            json!({"device": card.altname}),
            json!({"hwaddr": card.permanent}),
            json!({"kernelpath": path.trim()}),
            json!({"pciBusID": card.id}),
            json!({"runtimeConfig": {"deviceID": card.id}}),
            // The runtime's device replaces `pciBusID`.
            json!({"pciBusID": "0000:00:1f.0", "runtimeConfig": {"deviceID": card.id}}),
        ] {
            let subject = scene.subject(&selection);
            let result = subject.add(&scene.host, "c-one", &scene.container);
            let interface = &result["interfaces"][0];
            assert_eq!(interface["mac"], card.mac, "{place:?} {selection}");
            assert_eq!((&interface["pciID"], &interface["mtu"]), (&json!(card.id), &json!(1400)), "{selection}");
            subject.check(&scene.host, "c-one", &scene.container, &result).ok();
            scene.assert_absent(card.name);
            subject.del(&scene.host, "c-one", &scene.container, &result);
            scene.assert_given_back(&format!("{place:?} {selection}"));
        }
    }
    // The bus is not a card, and the card's second function does not exist.
    for (selection, wanted, says) in [
        (json!({"kernelpath": "/sys/devices/pci0000:00"}), 7, "/sys/devices/pci0000:00 is not a device"),
        (json!({"pciBusID": scene.cards[0].id.replace(".0", ".1")}), 101, "the host has no PCI device"),
    ] {
        let subject = scene.subject(&selection);
        let (code, text) = subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
        assert!(code == wanted && text.contains(says), "{code} {text}");
    }
}

fn a_nested_host_selects_its_card_by_place_or_the_kernel_is_named() {
    let scene = Scene::new(HostPlace::Nested);
    let card = &scene.cards[1];
    let mut subject = scene.at(card);
    if Need::LINK_PARENT.unmet().is_some() {
        let (code, text) = subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
        assert!(code == 101 && text.contains("(IFLA_PARENT_DEV_NAME, since Linux 5.14)"), "{code} {text}");
        subject = scene.subject(&json!({"hwaddr": card.permanent}));
    }
    let result = subject.add(&scene.host, "c-one", &scene.container);
    subject.check(&scene.host, "c-one", &scene.container, &result).ok();
    subject.del(&scene.host, "c-one", &scene.container, &result);
    scene.assert_given_back("after DEL");
    subject.add(&scene.host, "c-one", &scene.container);
    scene.gc(&subject);
    scene.assert_given_back("after GC");
}

/// The machine's cards are on one segment.
fn two_containers_talk_over_two_cards() {
    let scene = Scene::new(HostPlace::Machine);
    let other = scene.host.container();
    let (one, two) = (&scene.cards[0], &scene.cards[1]);
    let result = scene.at(one).add(&scene.host, "c-one", &scene.container);
    let addresses = json!([{"address": "10.77.0.6/24"}, {"address": "fd00:77::6/64"}]);
    let second = scene.at(two).with("ipam", json!({"type": "static", "addresses": addresses}));
    let second_result = second.add(&scene.host, "c-two", &other);
    // One whose card another container has.
    let third = scene.host.container();
    let (code, text) = scene.at(one).call(&scene.host, "ADD", "c-three", &third.path(), &[]).refused();
    assert!(code == 101 && text.contains("testnet/c-one/eth0 has it"), "{code} {text}");
    for address in ["10.77.0.6", "fd00:77::6"] {
        scene.container.sh(&format!("ping -n -q -c 1 -w 30 {address}"));
    }
    for address in ["10.77.0.5", "fd00:77::5"] {
        other.sh(&format!("ping -n -q -c 1 -w 30 {address}"));
    }
    second.del(&scene.host, "c-two", &other, &second_result);
    scene.at(one).del(&scene.host, "c-one", &scene.container, &result);
    scene.assert_given_back("after DEL");
}

const CHANGED: [&str; 5] = [
    "ip link set eth0 down; ip link set eth0 name away alias 'the other one'",
    "ip link set eth0 down; ip link set eth0 address 0a:00:00:00:00:01 mtu 1300 up",
    "ip link set eth0 promisc off txqueuelen 7 group 9 allmulticast on; ip link property add dev eth0 altname card0", // ends with GIVES_ALTNAME
    "ip link property del dev eth0 altname the-card-in-front; ip link add v type vlan id 5 link eth0 2>/dev/null; true",
    "ip link set eth0 down; ip link set eth0 name away; ip link add eth0 address 52:54:00:c0:de:00 type dummy",
];

/// Where the kernel leaves alternative names behind, it also refuses to remove one that the container gave.
const GIVES_ALTNAME: &str = "; ip link property add dev eth0 altname card0";

fn whatever_the_container_did_the_host_has_its_card_back() {
    assert_del_gives_back(HostPlace::Machine, cards());
}

fn whatever_the_container_did_a_nested_host_has_its_card_back() {
    assert_del_gives_back(HostPlace::Nested, cards());
}

fn a_device_of_the_auxiliary_bus_comes_back_whatever_the_container_did() {
    PLACES.into_iter().for_each(|place| assert_del_gives_back(place, vec![auxiliary_device()]));
}

fn assert_del_gives_back(place: HostPlace, cards: Vec<Card>) {
    let scene = Scene::with(place, cards);
    for line in CHANGED {
        for card in &scene.cards {
            let container = scene.host.container();
            let subject = scene.at(card);
            subject.add(&scene.host, "c-one", &container);
            container.sh(&card.changed(line));
            scene.del(&subject, &container.path());
            scene.assert_given_back(&format!("{place:?} {} {line}", card.name));
        }
    }
}

fn the_kernel_returns_a_card_and_we_give_it_its_settings_back() {
    assert_returned_cards_are_restored(HostPlace::Machine, cards());
}

fn a_nested_host_gives_a_card_that_the_kernel_returns_its_settings_back() {
    assert_returned_cards_are_restored(HostPlace::Nested, cards());
}

fn the_kernel_returns_a_device_of_the_auxiliary_bus() {
    PLACES.into_iter().for_each(|place| assert_returned_cards_are_restored(place, vec![auxiliary_device()]));
}

/// The namespace has died, with whatever the container did before. DEL, GC and the next ADD find the card on the host.
fn assert_returned_cards_are_restored(place: HostPlace, cards: Vec<Card>) {
    let scene = Scene::with(place, cards);
    let moves_altnames = Need::MOVED_ALTNAMES.unmet().is_none();
    for (number, line) in CHANGED.into_iter().enumerate() {
        let line = if moves_altnames { line } else { line.trim_end_matches(GIVES_ALTNAME) };
        let card = &scene.cards[number % scene.cards.len()];
        let subject = scene.at(card);
        let container = scene.host.container();
        subject.add(&scene.host, "c-one", &container);
        container.sh(&card.changed(line));
        let path = container.path();
        drop(container);
        match number {
            0 => scene.del(&subject, &path),
            1 => scene.del(&subject, ""),
            2 => scene.gc(&subject),
            _ => {
                let container = scene.host.container();
                subject.call(&scene.host, "ADD", "c-two", &container.path(), &[]).ok();
                subject.call(&scene.host, "DEL", "c-two", &container.path(), &[]).ok();
                scene.del(&subject, "");
            }
        }
        scene.assert_given_back(&format!("{place:?} {} {line}", card.name));
    }
}

fn a_card_that_was_moved_on_comes_back_when_that_namespace_ends() {
    assert_moved_on_card_comes_back(HostPlace::Machine);
}

fn a_card_that_was_moved_on_comes_back_to_a_nested_host() {
    assert_moved_on_card_comes_back(HostPlace::Nested);
}

fn assert_moved_on_card_comes_back(place: HostPlace) {
    let scene = Scene::new(place);
    let card = &scene.cards[1];
    let subject = scene.at(card);
    subject.add(&scene.host, "c-one", &scene.container);
    let nested = scene.host.container();
    scene.container.sh(&format!("ip link set eth0 netns {}", nested.path()));
    scene.del(&subject, &scene.container.path());
    assert_eq!(scene.files(), 1, "what it was is stored");
    nested.sh("ip link set eth0 down; ip link set eth0 address 0a:00:00:00:00:01 name mine0");
    drop(nested);
    scene.gc(&subject);
    scene.assert_given_back(&format!("{place:?}"));
}

fn an_unplugged_card_stops_no_del() {
    let scene = Scene::new(HostPlace::Machine);
    for card in &scene.cards {
        let subject = scene.at(card);
        subject.add(&scene.host, "c-one", &scene.container);
        scene.machine.sh(&format!("echo 1 >/sys/bus/pci/devices/{}/remove", card.id));
        assert_eq!(scene.container.links(), [""; 0]);
        let (code, text) = subject.call(&scene.host, "ADD", "c-two", &scene.host.container().path(), &[]).refused();
        assert!(code == 101 && text.contains("the host has no PCI device"), "{code} {text}");
        scene.del(&subject, &scene.container.path());
        assert_eq!(scene.files(), 0, "{}", card.name);
        scene.machine.sh("echo 1 >/sys/bus/pci/rescan");
        reset(&scene.machine, card);
    }
}

/// The driver is one of those that give a card to a program. Another one has none.
fn a_card_of_a_program_is_only_reported() {
    let scene = Scene::new(HostPlace::Machine);
    let card = &scene.cards[1];
    let pci = &card.id;
    let path = scene.machine.sh(&format!("readlink -f /sys/bus/pci/devices/{pci}"));
    let unbind = format!("echo {pci} >/sys/bus/pci/devices/{pci}/driver/unbind");
    let bind = |driver: &str| {
        let bus = "/sys/bus/pci";
        let line = format!("echo {driver} >{bus}/devices/{pci}/driver_override && echo {pci} >{bus}/drivers_probe");
        scene.machine.sh(&line);
    };
    scene.machine.sh(&unbind);
    let subject = scene.at(card);
    let (code, text) = subject.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
    assert!(code == 101 && text.contains(&format!("PCI device {pci} has no driver")), "{code} {text}");
    scene.del(&subject, &scene.container.path());
    scene.machine.sh("modprobe uio_pci_generic");
    bind("uio_pci_generic");
    for selection in [
        json!({"pciBusID": pci}),
        json!({"runtimeConfig": {"deviceID": pci}}),
        json!({"kernelpath": path.trim(), "pciBusID": pci}),
    ] {
        let subject = scene.subject(&selection);
        let result = subject.add(&scene.host, "c-one", &scene.container);
        let interface = json!({"name": "eth0", "sandbox": scene.container.path(), "pciID": pci});
        assert_eq!(result["interfaces"], json!([interface]), "{selection}");
        assert_eq!(result["ips"][0]["address"], "10.77.0.5/24");
        assert_eq!(scene.container.links(), [""; 0]);
        subject.check(&scene.host, "c-one", &scene.container, &result).ok();
        scene.del(&subject, &scene.container.path());
        assert_eq!(scene.files(), 0);
    }
    scene.machine.sh(&unbind);
    bind("''");
    reset(&scene.machine, card);
}

fn a_device_of_the_auxiliary_bus_is_selected_by_its_id() {
    for place in PLACES {
        let scene = Scene::with(place, vec![auxiliary_device()]);
        let card = &scene.cards[0];
        let path = scene.machine.sh(&format!("readlink -f {}", card.directory()));
        for selection in [
            json!({"runtimeConfig": {"deviceID": card.id}}),
            // The runtime's device replaces `pciBusID` on this bus, too.
            json!({"pciBusID": "0000:00:1f.0", "runtimeConfig": {"deviceID": card.id}}),
            json!({"hwaddr": card.permanent}),
            json!({"kernelpath": path.trim()}),
        ] {
            let subject = scene.subject(&selection);
            let result = subject.add(&scene.host, "c-one", &scene.container);
            let interface = &result["interfaces"][0];
            assert_eq!((&interface["mac"], &interface["mtu"]), (&json!(card.mac), &json!(1400)), "{selection}");
            assert_eq!(interface["pciID"], Value::Null, "{place:?} {selection}");
            subject.check(&scene.host, "c-one", &scene.container, &result).ok();
            scene.assert_absent(card.name);
            assert!(scene.container.links().contains(&"eth0".to_owned()), "{place:?} {selection}");
            let second = scene.host.container();
            let (code, text) = subject.call(&scene.host, "ADD", "c-two", &second.path(), &[]).refused();
            assert!(code == 101 && text.contains("testnet/c-one/eth0 has it"), "{selection}: {code} {text}");
            subject.del(&scene.host, "c-one", &scene.container, &result);
            scene.assert_given_back(&format!("{place:?} {selection}"));
        }
        let subject = scene.at(card);
        subject.add(&scene.host, "c-one", &scene.container);
        scene.gc(&subject);
        scene.assert_given_back(&format!("{place:?} after GC"));
        let unknown = scene.subject(&json!({"runtimeConfig": {"deviceID": "cnikit_auxiliary.port.1"}}));
        let (code, text) = unknown.call(&scene.host, "ADD", "c-one", &scene.container.path(), &[]).refused();
        assert!(code == 7 && text.contains("not found or unsupported"), "{code} {text}");
    }
}

/// Without its driver a device has no link: the kernel takes it from the container.
fn a_device_without_its_driver_stops_no_del() {
    let scene = Scene::with(HostPlace::Machine, vec![auxiliary_device()]);
    let card = &scene.cards[0];
    let subject = scene.at(card);
    subject.add(&scene.host, "c-one", &scene.container);
    let driver = scene.machine.sh(&format!("readlink -f {}/driver", card.directory()));
    scene.machine.sh(&format!("echo {} >{}/unbind", card.id, driver.trim()));
    assert_eq!(scene.container.links(), [""; 0]);
    let (code, text) = subject.call(&scene.host, "ADD", "c-two", &scene.host.container().path(), &[]).refused();
    assert!(code == 101 && text.contains("failed to find host device"), "{code} {text}");
    scene.machine.sh(&format!("echo {} >{}/bind", card.id, driver.trim()));
    scene.del(&subject, &scene.container.path());
    scene.assert_given_back("after its driver took it again");
}
