//! A socket at the address of the system bus that is not a bus, or a hostile one: firewall works without it.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use cnikit_tests::bin;
use cnikit_tests::campaign_subjects::firewall;
use serde_json::json;

use crate::names::Scene;

/// How the socket treats a client.
#[derive(Clone, Copy, Debug)]
enum Bus {
    /// Accepts the connection and sends nothing.
    Silent,
    /// A line without an end, where the handshake is.
    Flood,
    /// Ends the connection in the midst of the handshake.
    CutOff,
    /// After the handshake, sends a message with a length of 4 GiB.
    HugeLength,
    /// After the handshake, sends signals to which nothing is subscribed, without end.
    Signals,
    /// After the handshake half of a message, and the end.
    HalfAMessage,
}

/// A signal: little-endian, no body, its path, interface and member.
fn signal() -> Vec<u8> {
    let mut fields = Vec::new();
    for (code, kind, text) in [(1_u8, b'o', "/a"), (2, b's', "a.b"), (3, b's', "C")] {
        fields.resize(fields.len().next_multiple_of(8), 0);
        fields.extend([code, 1, kind, 0]);
        fields.extend(u32::try_from(text.len()).unwrap().to_le_bytes());
        fields.extend(text.as_bytes());
        fields.push(0);
    }
    let mut message = vec![b'l', 4, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0];
    message.extend(u32::try_from(fields.len()).unwrap().to_le_bytes());
    message.extend(fields);
    message.resize(message.len().next_multiple_of(8), 0);
    message
}

fn serve(mut stream: UnixStream, bus: Bus) -> std::io::Result<()> {
    match bus {
        Bus::Silent => return stream.read_to_end(&mut Vec::new()).map(drop),
        Bus::Flood => loop {
            stream.write_all(&[b'A'; 4096])?;
        },
        _ => {}
    }
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    lines.read_line(&mut line)?;
    if matches!(bus, Bus::CutOff) {
        return stream.write_all(b"OK 0123");
    }
    stream.write_all(b"OK 0123456789abcdef0123456789abcdef\r\n")?;
    while !line.contains("BEGIN") {
        line.clear();
        lines.read_line(&mut line)?;
        if line.contains("NEGOTIATE") {
            stream.write_all(b"AGREE_UNIX_FD\r\n")?;
        }
        if line.is_empty() {
            return Ok(());
        }
    }
    match bus {
        Bus::HugeLength => {
            stream.write_all(&[b'l', 2, 0, 1, 0xf0, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xf0, 0xff, 0xff, 0xff])?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        Bus::HalfAMessage => stream.write_all(&signal()[..20]),
        _ => loop {
            stream.write_all(&signal())?;
        },
    }
}

#[test]
fn a_hostile_bus_costs_a_few_seconds_and_the_rules_are_there() {
    std::thread::scope(|scope| {
        for bus in [Bus::Silent, Bus::Flood, Bus::CutOff, Bus::HugeLength, Bus::Signals, Bus::HalfAMessage] {
            scope.spawn(move || goes_on_beside(bus));
        }
    });
}

fn goes_on_beside(bus: Bus) {
    let scene = Scene::of(&firewall(bin(), "iptables").with("backend", json!("")));
    let address = scene.host.dir().join("bus");
    let listener = UnixListener::bind(&address).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, bus));
        }
    });
    let address = format!("unix:path={}", address.display());
    let env = [("DBUS_SYSTEM_BUS_ADDRESS", address.as_str())];
    let begun = Instant::now();
    let result = scene.call("ADD", &scene.conf(), &env).ok();
    let took = begun.elapsed();
    // 3.2 s at most on an idle machine.
    assert!(took < Duration::from_secs(30), "{bus:?}: {took:?}");
    let rules = || scene.host.sh("iptables-save; ip6tables-save");
    assert!(rules().contains("10.77.0.2"), "{bus:?}: {}", rules());
    let mut conf = scene.conf();
    conf["prevResult"] = result;
    scene.call("CHECK", &conf, &env).ok();
    scene.call("DEL", &conf, &env).ok();
    assert!(!rules().contains("10.77.0.2"), "{bus:?}: {}", rules());
}
