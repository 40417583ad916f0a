//! Whose addresses are whose, where rules of the reference name no interface.

use std::net::IpAddr;

use cnikit_plan::ReleaseContext;
use cnikit_skel::Result;

/// Of addresses that rules are for and no attachment is named by, those of this one: what it was given, where that is
/// recorded; else what its link has; else all but what other links of the container have.
pub(crate) fn attribute_unclaimed(context: &ReleaseContext, unclaimed: &[IpAddr]) -> Result<Vec<IpAddr>> {
    if unclaimed.is_empty() {
        return Ok(Vec::new());
    }
    let among = |wanted: &dyn Fn(&IpAddr) -> bool| unclaimed.iter().copied().filter(wanted).collect::<Vec<_>>();
    let recorded: Vec<IpAddr> = context.prev.iter().flat_map(|prev| &prev.ips).map(|ip| ip.address.ip()).collect();
    if !recorded.is_empty() {
        return Ok(among(&|address| recorded.contains(address)));
    }
    let (own, others) = on_links(context)?;
    let going = among(&|address| own.contains(address));
    Ok(if going.is_empty() { among(&|address| !others.contains(address)) } else { going })
}

/// The addresses of the attachment's link in the container, and those of all other links there.
fn on_links(context: &ReleaseContext) -> Result<(Vec<IpAddr>, Vec<IpAddr>)> {
    let Some(container) = context.container()? else { return Ok(Default::default()) };
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for link in container.links()? {
        let addresses = container.addresses(link.index)?.into_iter().map(|address| address.address.ip());
        if link.name == context.tag.ifname { &mut own } else { &mut others }.extend(addresses);
    }
    Ok((own, others))
}
