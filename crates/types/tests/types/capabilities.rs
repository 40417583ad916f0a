//! Capability arguments in the forms that runtimes send.

use cnikit_types::{Bandwidth, NetConf, PortMapping, PortProtocol, RuntimeDns, Wrong};

use crate::golden::text;

fn runtime(name: &str) -> NetConf {
    NetConf::parse(&text(&format!("runtime-{name}"))).unwrap()
}

fn conf(runtime_config: &str) -> NetConf {
    NetConf::parse(format!(r#"{{"name":"net","runtimeConfig":{runtime_config}}}"#).as_bytes()).unwrap()
}

#[test]
fn containerd_is_understood_with_its_go_names_nulls_and_empty_texts() {
    let conf = runtime("containerd");
    let asked = conf.capabilities();
    let port = |host_port, container_port, protocol, host_ip: Option<&str>| PortMapping {
        host_port,
        container_port,
        protocol,
        host_ip: host_ip.map(|text| text.parse().unwrap()),
    };
    let ports = [port(8080, 80, PortProtocol::Tcp, None), port(8081, 81, PortProtocol::Sctp, Some("::1"))];
    assert_eq!(asked.port_mappings().unwrap(), ports);
    let limits = Bandwidth { ingress_rate: 1_000_000, ingress_burst: 4_294_967_295, egress_rate: 0, egress_burst: 0 };
    assert_eq!(asked.bandwidth().unwrap(), Some(limits));
    let searches = vec!["tr.svc.cluster.local".to_owned()];
    let dns = RuntimeDns { servers: vec!["10.96.0.10".into()], searches, options: Vec::new() };
    assert_eq!(asked.dns().unwrap(), Some(dns));
    assert_eq!(asked.cgroup_path().unwrap().as_deref(), Some("/tr"));
    assert!(asked.aliases().unwrap().is_empty());
}

#[test]
fn a_flat_list_of_ranges_is_one_set_a_family_ipv4_first() {
    let conf = runtime("containerd");
    let sets = conf.capabilities().ip_ranges().unwrap();
    assert_eq!((sets.len(), sets[0].len()), (1, 2));
    assert_eq!(sets[0][0].subnet, "10.1.0.0/16".parse().ok());
    assert_eq!((sets[0][0].range_start, sets[0][0].gateway), (None, None));
    assert_eq!(sets[0][0].range_end, "10.1.0.99".parse().ok());
    assert_eq!(sets[0][1].gateway, "10.2.0.1".parse().ok());
    let flat = r#"{"ipRanges":[{"subnet":"fd00::/64"},{"subnet":"10.1.0.0/16"},{"gateway":"fd00::1"},{"subnet":"fd01::/64"}]}"#;
    let sets = self::conf(flat).capabilities().ip_ranges().unwrap();
    let subnets: Vec<Vec<String>> = sets
        .iter()
        .map(|set| set.iter().map(|range| format!("{:?}", range.subnet.map(|s| s.prefix()))).collect())
        .collect();
    assert_eq!(subnets, [["Some(16)", "None"], ["Some(64)", "Some(64)"]]);
}

#[test]
fn cri_o_is_understood_with_the_conventional_names() {
    let conf = runtime("crio");
    let asked = conf.capabilities();
    assert_eq!(asked.aliases().unwrap(), ["web", "www"]);
    assert_eq!(asked.ips().unwrap(), ["10.1.0.5/16", "fd00::5"]);
    assert_eq!(asked.mac().unwrap().as_deref(), Some("02:00:00:00:00:01"));
    assert_eq!(asked.device_id().unwrap().as_deref(), Some("0000:03:00.1"));
    assert_eq!(asked.infiniband_guid().unwrap().as_deref(), Some("c2:11:22:33:44:55:66:77"));
    assert_eq!(asked.ip_ranges().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [2, 1]);
    let ports = asked.port_mappings().unwrap();
    assert_eq!((ports[0].protocol, ports[1].protocol), (PortProtocol::Udp, PortProtocol::Tcp));
    assert_eq!(asked.bandwidth().unwrap().map(|limits| limits.egress_rate), Some(0));
    assert_eq!(asked.cgroup_path().unwrap(), None);
}

#[test]
fn absent_and_empty_capability_arguments_are_none() {
    for conf in
        [NetConf::default(), conf("null"), conf("{}"), conf(r#"{"mac":"","ips":null,"ipRanges":[],"dns":null}"#)]
    {
        let asked = conf.capabilities();
        assert_eq!((asked.mac().unwrap(), asked.dns().unwrap()), (None, None));
        assert!(asked.ips().unwrap().is_empty() && asked.ip_ranges().unwrap().is_empty());
        assert!(asked.port_mappings().unwrap().is_empty() && asked.aliases().unwrap().is_empty());
    }
}

#[test]
fn aliases_come_as_a_list_or_by_network() {
    assert_eq!(conf(r#"{"Aliases":["a"]}"#).capabilities().aliases().unwrap(), ["a"]);
    assert!(conf(r#"{"aliases":{"net":null}}"#).capabilities().aliases().unwrap().is_empty());
    assert!(conf(r#"{"aliases":{"other":["a"]}}"#).capabilities().aliases().unwrap().is_empty());
    let error = conf(r#"{"aliases":{"net":["a",1]}}"#).capabilities().aliases().unwrap_err();
    assert_eq!(error.path, "runtimeConfig.aliases.net[1]");
}

#[test]
fn a_wrong_argument_is_an_error_with_its_path_and_kind() {
    let port = conf(r#"{"portMappings":[{"HostPort":70000}]}"#).capabilities().port_mappings().unwrap_err();
    assert_eq!((port.what, port.path.as_str()), (Wrong::Value, "runtimeConfig.portMappings[0].HostPort"));
    let protocol = conf(r#"{"portMappings":[{"protocol":"icmp"}]}"#).capabilities().port_mappings().unwrap_err();
    assert_eq!(protocol.to_string(), "runtimeConfig.portMappings[0].protocol: \"icmp\" is not tcp, udp or sctp");
    let mac = conf(r#"{"MAC":7}"#).capabilities().mac().unwrap_err();
    assert_eq!((mac.what, mac.path.as_str()), (Wrong::Type, "runtimeConfig.MAC"));
    let section = conf("[]").capabilities().mac().unwrap_err();
    assert_eq!((section.what, section.path.as_str()), (Wrong::Type, "runtimeConfig"));
    let mixed = conf(r#"{"ipRanges":[[{"subnet":"10.0.0.0/8"}],{"subnet":"10.0.0.0/8"}]}"#)
        .capabilities()
        .ip_ranges()
        .unwrap_err();
    assert_eq!((mixed.what, mixed.path.as_str()), (Wrong::Type, "runtimeConfig.ipRanges[1]"));
}
