//! Which links are on top of another, wherever they are.

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{Netns, NetnsLookup, find, mounted, of_processes};
use cnikit_plan::ApplyContext;
use cnikit_skel::{Error, Result};

use crate::link::parent::Master;

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

/// One of the links of a kind that are on a master, the first that is found, and where: on the host, in the container, in the
/// namespaces that are mounted somewhere, and in those of processes. What is in any other, nothing leads to.
pub(crate) fn any_on(
    link: &Link,
    kind: &str,
    master: &Master,
    context: &ApplyContext,
) -> Result<Option<(Link, String)>> {
    let look = |place: &Netlink, home: Option<&Netns>| -> Result<Option<Link>> {
        for one in place.links_of_kind(kind)? {
            if is_on(place, &one, link.index, home)? {
                return Ok(Some(one));
            }
        }
        Ok(None)
    };
    let container = format!("in {}", context.netns.path().display());
    let mut places = [(context.host()?, "on the host".to_owned()), (context.container()?, container)];
    if master.in_container {
        places.reverse();
    }
    let [(here, near), (there, far)] = places;
    if let Some(found) = look(here, None)? {
        return Ok(Some((found, near)));
    }
    let home = &master.home(context)?;
    if let Some(found) = look(there, Some(home))? {
        return Ok(Some((found, far)));
    }
    let failed = |error| Error::from(error).context("look for network namespaces");
    for list in [mounted, of_processes] {
        for path in list().map_err(failed)? {
            // What cannot be entered, or is gone by now, has no say.
            let NetnsLookup::Present(netns) = find(&path.to_string_lossy()) else { continue };
            if let Some(found) = look(&Netlink::inside(&netns)?, Some(home))? {
                return Ok(Some((found, format!("in {}", path.display()))));
            }
        }
    }
    Ok(None)
}
