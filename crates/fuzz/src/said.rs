//! The words of each language that is read.

pub(crate) const PROTOCOL: &[&str] = &[
    "ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION", "PLAN", "own", "eth0", "IgnoreUnknown=1;", "MAC=", "IP=",
    "\"cniVersion\":\"1.1.0\"", "\"name\":\"n\"", "\"type\"", "\"prevResult\":{}", "\"runtimeConfig\":{}",
    "\"capabilities\":{}", "\"args\":{\"cni\":{}}", "\"cni.dev/valid-attachments\":[]", "\"cni.dev/attachments\":[]",
    "\"containerID\":\"c\"", "\"ifname\":\"eth0\"", "null", "\"\"", "1e999", "-0", "\u{0}", "\"ips\":[]",
];

pub(crate) const RESULT: &[&str] = &[
    "\"cniVersion\":\"0.2.0\"", "\"cniVersion\":\"0.4.0\"", "\"cniVersion\":\"1.1.0\"", "\"ip4\":{}", "\"ip6\":{}",
    "\"ip\":\"10.0.0.2/24\"", "\"interfaces\":[{}]", "\"ips\":[]", "\"routes\":[]", "\"dns\":{}", "\"mac\"", "\"mtu\":",
    "\"sandbox\"", "\"socketPath\"", "\"pciID\"", "\"version\":\"4\"", "\"interface\":-1", "\"address\":\"::1/128\"",
    "\"gateway\"", "\"dst\":\"::/0\"", "\"gw\"", "\"advmss\":1", "\"priority\":0", "\"table\":0", "\"scope\":255",
    "\"nameservers\":[]", "\"domain\"", "\"search\"", "\"options\"", "\"code\":7", "\"msg\"", "\"details\"", "null",
    "::ffff:10.0.0.1", "\"$serde_json::private::Number\":\"1\"", "1e99999", "\"IPS\"", "\"DNS\"", "\"*\"",
];

pub(crate) const ARGUMENTS: &[&str] =
    &["IgnoreUnknown=", "IP=", "MAC=", ";", "=", "true", "FALSE", "1", "0", "K8S_POD_NAME=c1", "\u{fffd}"];

pub(crate) const IPAM: &[&str] = &[
    "\"ipam\":{}", "\"ranges\":[[]]", "\"subnet\":\"10.0.0.0/30\"", "\"subnet\":\"::/0\"", "\"rangeStart\":\"10.0.0.1\"",
    "\"rangeEnd\":\"\"", "\"gateway\":\"10.0.0.1\"", "\"routes\":[]", "\"dst\":\"0.0.0.0/0\"", "\"resolvConf\"",
    "\"dataDir\"", "\"runtimeConfig\":{\"ipRanges\":[]}", "\"ips\":[\"10.0.0.2\"]", "\"args\":{\"cni\":{\"ips\":[]}}",
    "IP=10.0.0.2", "/31", "/127", "255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "null", "\"name\":\"n\"",
];

pub(crate) const KEYS: &[&str] = &[
    "\"bridge\":\"cni0\"", "\"isGateway\":true", "\"isDefaultGateway\":true", "\"forceAddress\":true", "\"ipMasq\":true",
    "\"ipMasqBackend\":\"nftables\"", "\"mtu\":0", "\"mtu\":-1", "\"hairpinMode\":true", "\"promiscMode\":true",
    "\"vlan\":4095", "\"vlanTrunk\":[{\"minID\":1,\"maxID\":2},{\"id\":3}]", "\"preserveDefaultVlan\":false",
    "\"macspoofchk\":true", "\"enabledad\":true", "\"portIsolation\":true", "\"disableContainerInterface\":true",
    "\"runtimeConfig\":{\"mac\":\"02:00:00:00:00:01\"}", "\"args\":{\"cni\":{\"mac\":\"x\"}}", "MAC=02:00:00:00:00:01",
    "\"ipam\":{\"type\":\"host-local\"}", "\"ipam\":{}", "\"dns\":{}", "null", "\"type\":\"\"",
    "\"prevResult\":{\"cniVersion\":\"1.1.0\"}",
];

pub(crate) const NUMBERS: &[&str] = &[
    "\u{0}\u{0}\u{0}\u{0}", "\u{10}\u{0}\u{0}\u{0}", "\u{2}\u{0}", "\u{3}\u{0}", "\u{4}\u{0}", "\u{1}\u{0}", "\u{8}\u{0}",
    "\u{8}\u{0}\u{1}\u{0}", "\u{14}\u{0}\u{2}\u{0}", "bridge", "veth", "eth0\u{0}",
];

pub(crate) const NFTABLES: &[&str] = &[
    "meta\u{0}", "payload\u{0}", "bitwise\u{0}", "cmp\u{0}", "masq\u{0}", "immediate\u{0}", "counter\u{0}", "t\u{0}",
    "c\u{0}", "\u{8}\u{0}\u{1}\u{0}", "\u{c}\u{0}\u{3}\u{0}", "nat\u{0}", "filter\u{0}",
];

pub(crate) const IPTABLES: &[&str] = &[
    "*nat\n", ":OWN - [0:0]\n", "-A OWN ", "-s 10.0.0.2/32", "! -d 224.0.0.0/4", "-m comment --comment ", "\"a \\\" b\"",
    "-j MASQUERADE", "-g ", "\\", "\"", "\n", "COMMIT\n", "::10.0.0.2/128", "-s", "#",
];

pub(crate) const LIST: &[&str] = &[
    "\"cniVersion\":\"1.0.0\"", "\"cniVersions\":[\"0.4.0\",\"1.1.0\"]", "\"name\":\"net\"", "\"plugins\":[]",
    "{\"type\":\"bridge\"}", "\"disableCheck\":\"TRUE\"", "\"loadOnlyInlinedPlugins\":true", "\"capabilities\":{\"ips\":true}",
    "\"prevResult\":{}", "\"runtimeConfig\":{}", "null", "\"Name\":\"net\"", "9999999999999999999",
];

pub(crate) const KEPT: &[&str] = &[
    "\"kind\":\"cniCacheV1\"", "\"containerId\":\"c\"", "\"ifName\":\"eth0\"", "\"networkName\":\"net\"",
    "\"result\":{\"cniVersion\":\"0.4.0\"}", "\"config\":\"e30=\"", "\"ips\":[]", "null",
];
