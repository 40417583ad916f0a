//! Which links are on top of another, wherever they are.

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{Found, Netns, find, mounted};
use cnikit_plan::Scene;
use cnikit_skel::{Error, Result};

use crate::master::Master;

/// Whether a link of the namespace `place` is on that of this number in `home`, `None` being `place` itself. The number alone is
/// no proof, for numbers are alike in all namespaces.
pub(crate) fn is_on(place: &Netlink, link: &Link, lower: u32, home: Option<&Netns>) -> Result<bool> {
    Ok(link.lower == Some(lower)
        && match (home, link.lower_netns) {
            (None, id) => id.is_none(),
            (Some(_), None) => false,
            (Some(home), id) => place.namespace_id(home)? == id,
        })
}

/// One of the links of a kind that are on a master, the first that is found: on the host, in the container, and in the namespaces
/// that are mounted somewhere. No other is known.
pub(crate) fn any_on(link: &Link, kind: &str, master: &Master, scene: &Scene) -> Result<Option<Link>> {
    let own = Netns::own()?;
    let home = if master.in_container { &scene.netns } else { &own };
    let look = |place: &Netlink, home: Option<&Netns>| -> Result<Option<Link>> {
        for one in place.links_of_kind(kind)? {
            if is_on(place, &one, link.index, home)? {
                return Ok(Some(one));
            }
        }
        Ok(None)
    };
    let known = [(scene.host()?, !master.in_container), (scene.container()?, master.in_container)];
    for (place, is_home) in known {
        if let Some(found) = look(place, (!is_home).then_some(home))? {
            return Ok(Some(found));
        }
    }
    for path in mounted().map_err(|error| Error::from(error).while_doing("look for mounted namespaces"))? {
        // What cannot be entered, or is gone by now, has no say.
        let Found::Present(netns) = find(&path.to_string_lossy()) else { continue };
        if let Some(found) = look(&Netlink::inside(&netns)?, Some(home))? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}
