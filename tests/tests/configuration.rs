//! A configuration in, a plan in words out: nothing here touches the kernel.

use cnikit::types::{Ip, NetConf, Route};
use cnikit::{Addresses, Attachment, Input, Interface, InterfacePlugin, Tag, Version, input::Stdin, serve};
use bridge::Bridge;
use ptp::Ptp;
use serde_json::{Value, json};

fn conf(mut keys: Value) -> NetConf {
    keys["cniVersion"] = json!("1.1.0");
    keys["name"] = json!("n");
    NetConf::parse(keys.to_string().as_bytes()).unwrap()
}

fn attachment(conf: &NetConf) -> Attachment {
    Attachment {
        tag: Tag { network: "n".into(), container: "c".into(), ifname: "eth0".into() },
        sandbox: "/run/netns/c".into(),
        conf: conf.clone(),
        version: Version::NEWEST,
        args: Default::default(),
    }
}

/// `ADDRESS/PREFIX` or `ADDRESS/PREFIX via GATEWAY`, as an IPAM plugin might give them.
fn addresses(texts: &[&str]) -> Addresses {
    let ip = |text: &&str| {
        let (address, gateway) = text.split_once(" via ").map_or((*text, None), |(address, via)| (address, Some(via)));
        let gateway = gateway.map(|via| via.parse().unwrap());
        Ip { address: address.parse().unwrap(), gateway, interface: None, extra: Default::default() }
    };
    Addresses { ips: texts.iter().map(ip).collect(), ..Addresses::default() }
}

/// Both plans of a plugin, one line a resource.
fn planned<P: InterfacePlugin>(keys: Value, mut addresses: Addresses) -> Result<String, String> {
    let conf = conf(keys);
    let (plugin, at) = (conf.read::<P>().map_err(|error| error.to_string())?, attachment(&conf));
    let link = plugin.link(&at);
    plugin.complete(&mut addresses).map_err(|error| error.to_string())?;
    Ok(format!("{link}{}", plugin.layer3(&at, &addresses)))
}

#[test]
fn dump() {
    let two = || addresses(&["10.77.0.2/24", "fd00:77::2/64"]);
    for keys in [
        json!({}), json!({"mtu": 1400}), json!({"bridge":"br1","hairpinMode":true,"portIsolation":true}), json!({"promiscMode":true,"slaac":false}),
        json!({"disableContainerInterface":true}),
    ] {
        println!("{keys}\n{}", planned::<Bridge>(keys.clone(), Addresses::default()).unwrap());
    }
    for keys in [ json!({"ipam":{"type":"x"}}), json!({"ipam":{"type":"x"},"isGateway":true, "forceAddress": true}), json!({"ipam":{"type":"x"},"isDefaultGateway":true, "ipMasq": true,"enabledad":true,}),
    ] {
        println!("{keys}\n{}", planned::<Bridge>(keys.clone(), two()).unwrap());
    }
    println!("{:?}", planned::<Ptp>(json!({"ipam":{"type":"x"}}), two()));
    println!("{}", planned::<Ptp>(json!({"ipam":{"type":"x"},"ipMasq":true,"mtu":1400}), addresses(&["10.77.0.2/24 via 10.77.0.1","fd00:77::2/64 via fd00:77::1"])).unwrap());
}
