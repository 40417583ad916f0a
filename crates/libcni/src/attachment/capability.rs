//! Sets capabilities in the specification's form, and the arguments of a pod.

use cnikit_types::{Bandwidth, IpRange, PortMapping, RuntimeDns};
use serde_json::{Map, Value, json};

use crate::Attachment;

/// The pod of a container, as Kubernetes passes it to plugins in `CNI_ARGS`.
#[doc(alias = "K8S_POD_NAME")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// `K8S_POD_NAMESPACE`.
    pub namespace: String,
    /// `K8S_POD_NAME`.
    pub name: String,
    /// `K8S_POD_INFRA_CONTAINER_ID`.
    pub infra_container_id: String,
    /// `K8S_POD_UID`.
    pub uid: String,
}

impl Attachment {
    /// The attachment of a container, by its id and the path of its namespace. The interface is `eth0`;
    /// [`Networks`](crate::Networks) gives each network its own.
    pub fn new(container_id: impl Into<String>, netns: impl Into<String>) -> Self {
        Self { container_id: container_id.into(), netns: netns.into(), ifname: "eth0".to_owned(), ..Self::default() }
    }

    /// Sets the interface.
    #[must_use]
    pub fn on(self, ifname: impl Into<String>) -> Self {
        Self { ifname: ifname.into(), ..self }
    }

    /// Adds one of `CNI_ARGS` at the end. An earlier one with its key is removed.
    #[must_use]
    pub fn with_arg(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        let key = key.into();
        self.args.retain(|(earlier, _)| *earlier != key);
        self.args.push((key, value.into()));
        self
    }

    /// Adds the arguments of a pod, and `IgnoreUnknown`, with which a plugin ignores arguments that it does not support.
    #[must_use]
    pub fn with_pod(self, pod: &Pod) -> Self {
        self.with_arg("IgnoreUnknown", "1")
            .with_arg("K8S_POD_NAMESPACE", &pod.namespace)
            .with_arg("K8S_POD_NAME", &pod.name)
            .with_arg("K8S_POD_INFRA_CONTAINER_ID", &pod.infra_container_id)
            .with_arg("K8S_POD_UID", &pod.uid)
    }

    /// Sets a capability by its name; a plugin gets it if its configuration declares it.
    #[must_use]
    pub fn with_capability(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.capabilities.insert(name.into(), value.into());
        self
    }

    /// Sets `portMappings`: ports of the host that are forwarded to the container.
    #[must_use]
    pub fn with_port_mappings(self, ports: &[PortMapping]) -> Self {
        self.with_capability("portMappings", ports.iter().map(port_mapping).collect::<Vec<Value>>())
    }

    /// Sets `ipRanges`: sets of ranges, one address from each set.
    #[must_use]
    pub fn with_ip_ranges(self, sets: &[Vec<IpRange>]) -> Self {
        let set = |ranges: &Vec<IpRange>| ranges.iter().map(ip_range).collect::<Vec<Value>>().into();
        self.with_capability("ipRanges", sets.iter().map(set).collect::<Vec<Value>>())
    }

    /// Sets `bandwidth`: limits of traffic.
    #[must_use]
    pub fn with_bandwidth(self, limits: &Bandwidth) -> Self {
        let value = json!({
            "ingressRate": limits.ingress_rate, "ingressBurst": limits.ingress_burst,
            "egressRate": limits.egress_rate, "egressBurst": limits.egress_burst,
        });
        self.with_capability("bandwidth", value)
    }

    /// Sets `dns`: the DNS settings of the container.
    #[must_use]
    pub fn with_dns(self, dns: &RuntimeDns) -> Self {
        let value = json!({"servers": dns.servers, "searches": dns.searches, "options": dns.options});
        self.with_capability("dns", value)
    }

    /// Sets `ips`: addresses for the container, with or without a prefix length.
    #[must_use]
    pub fn with_ips(self, ips: &[&str]) -> Self {
        self.with_capability("ips", ips.to_vec())
    }

    /// Sets `mac`: the hardware address of the container's interface.
    #[must_use]
    pub fn with_mac(self, mac: &str) -> Self {
        self.with_capability("mac", mac)
    }

    /// Sets `infinibandGUID`.
    #[must_use]
    pub fn with_infiniband_guid(self, guid: &str) -> Self {
        self.with_capability("infinibandGUID", guid)
    }

    /// Sets `deviceID`: the device, usually a PCI address.
    #[must_use]
    pub fn with_device_id(self, device: &str) -> Self {
        self.with_capability("deviceID", device)
    }

    /// Sets `aliases`: other names of the container.
    #[must_use]
    pub fn with_aliases(self, names: &[&str]) -> Self {
        self.with_capability("aliases", names.to_vec())
    }

    /// Sets `cgroupPath`: the container's control group.
    #[must_use]
    pub fn with_cgroup_path(self, path: &str) -> Self {
        self.with_capability("cgroupPath", path)
    }

    /// Sets `io.kubernetes.cri.pod-annotations`.
    #[must_use]
    pub fn with_pod_annotations(self, annotations: &[(&str, &str)]) -> Self {
        let members = annotations.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        self.with_capability("io.kubernetes.cri.pod-annotations", members.collect::<Map<String, Value>>())
    }
}

fn port_mapping(port: &PortMapping) -> Value {
    let mut value = json!({
        "hostPort": port.host_port, "containerPort": port.container_port, "protocol": port.protocol.as_str(),
    });
    if let Some(ip) = port.host_ip {
        value["hostIP"] = ip.to_string().into();
    }
    value
}

fn ip_range(range: &IpRange) -> Value {
    let members = [
        ("subnet", range.subnet.map(|subnet| subnet.to_string())),
        ("rangeStart", range.range_start.map(|ip| ip.to_string())),
        ("rangeEnd", range.range_end.map(|ip| ip.to_string())),
        ("gateway", range.gateway.map(|ip| ip.to_string())),
    ];
    let mut object = Map::new();
    for (key, member) in members {
        if let Some(text) = member {
            object.insert(key.to_owned(), text.into());
        }
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_types::{NetConf, PortProtocol, parse_cidr};

    #[test]
    fn a_plugin_reads_the_values_that_were_set() {
        let ports = [PortMapping {
            host_port: 8080,
            container_port: 80,
            protocol: PortProtocol::Udp,
            host_ip: Some("127.0.0.1".parse().unwrap()),
        }];
        let limits = Bandwidth { ingress_rate: 1, ingress_burst: 2, egress_rate: 3, egress_burst: u64::MAX };
        let range = |gateway| IpRange {
            subnet: parse_cidr("10.1.0.0/16").ok(),
            range_start: "10.1.0.7".parse().ok(),
            range_end: None,
            gateway,
        };
        let sets = [vec![range(None), range("10.1.0.1".parse().ok())]];
        let dns = RuntimeDns { servers: vec!["10.0.0.53".into()], searches: vec!["x".into()], options: Vec::new() };
        let at = Attachment::new("c1", "/ns")
            .with_port_mappings(&ports)
            .with_bandwidth(&limits)
            .with_ip_ranges(&sets)
            .with_dns(&dns)
            .with_ips(&["10.1.0.9/16", "10.1.0.10"])
            .with_mac("02:00:00:00:00:01")
            .with_infiniband_guid("c2:11:22:33:44:55:66:77")
            .with_device_id("0000:00:05.0")
            .with_aliases(&["web"])
            .with_cgroup_path("/pod")
            .with_pod_annotations(&[("a/b", "c")]);
        let conf = NetConf(Map::from_iter([("runtimeConfig".to_owned(), Value::Object(at.capabilities))]));
        let read = conf.capabilities();
        assert_eq!(read.port_mappings().unwrap(), ports);
        assert_eq!(read.bandwidth().unwrap(), Some(limits));
        assert_eq!(read.ip_ranges().unwrap(), sets);
        assert_eq!(read.dns().unwrap(), Some(dns));
        assert_eq!(read.ips().unwrap(), ["10.1.0.9/16", "10.1.0.10"]);
        assert_eq!(read.mac().unwrap().unwrap(), "02:00:00:00:00:01");
        assert_eq!(read.infiniband_guid().unwrap().unwrap(), "c2:11:22:33:44:55:66:77");
        assert_eq!(read.device_id().unwrap().unwrap(), "0000:00:05.0");
        assert_eq!(read.aliases().unwrap(), ["web"]);
        assert_eq!(read.cgroup_path().unwrap().unwrap(), "/pod");
        assert_eq!(conf.at(&["runtimeConfig", "io.kubernetes.cri.pod-annotations", "a/b"]).unwrap(), "c");
    }

    #[test]
    fn a_pod_has_five_arguments_with_each_key_once() {
        let pod = Pod { namespace: "n".into(), name: "p".into(), infra_container_id: "c".into(), uid: "u".into() };
        let at = Attachment::new("c", "").with_arg("K8S_POD_NAME", "old").with_pod(&pod);
        assert_eq!(
            at.args_text(),
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=n;K8S_POD_NAME=p;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=u"
        );
    }
}
