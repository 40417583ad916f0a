//! Fuzz target: the configuration of host-local.

use cnikit::Ipam;
use cnikit::types::{CniResult, Version};
use host_local::HostLocalPlugin;

use crate::plugin_call::{call, plan};

/// Plans an ADD with `CNI_ARGS`, a NUL, and the configuration. A dry run reads and writes no files.
pub(crate) fn run(data: &[u8]) {
    let mut fields = data.splitn(2, |byte| *byte == 0);
    let args = String::from_utf8_lossy(fields.next().unwrap_or_default());
    let reply = call::<Ipam<HostLocalPlugin>>(plan(&args, fields.next().unwrap_or_default()), &[]);
    let (true, Some(document)) = (reply.success, reply.document) else { return };
    let steps = document["plan"].as_array().expect("a plan is a list");
    assert!(
        !steps.is_empty() && steps.iter().all(|step| step.as_str().is_some_and(|step| step.starts_with("reserve ")))
    );
    let (_, answer) = CniResult::read(&document["example"], Version::NEWEST).expect("the example is a result");
    assert!(answer.ips.len() <= steps.len(), "an address a set at most: {document}");
    for (n, ip) in answer.ips.iter().enumerate() {
        let gateway = ip.gateway.expect("every address has a gateway");
        assert_ne!(gateway, ip.address.ip(), "no gateway is given away: {document}");
        let others = answer.ips[n + 1..].iter().map(|other| other.address.ip());
        assert!(others.into_iter().all(|other| other != ip.address.ip()), "no address is given twice: {document}");
    }
}
