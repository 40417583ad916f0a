//! Finding the links that are on top of another, in every namespace.

use std::path::PathBuf;

use cnikit_netlink::{Link, Netlink};
use cnikit_netns::{Netns, NetnsLookup, find, mounted, of_processes};
use cnikit_plan::ApplyContext;
use cnikit_skel::{Error, Result};

use crate::link::parent::{Master, is_on};

/// The wanted links of a kind on top of one link.
struct Stacked<'a> {
    kind: &'a str,
    is_wanted: &'a dyn Fn(&Link) -> bool,
    lower: u32,
}

/// The first link of a kind on a master for which `is_wanted` is true, and where it is. The host is searched, then the container,
/// the namespaces that are mounted, and those of processes. There is no path to any other namespace.
pub(crate) fn first_on(
    link: &Link,
    kind: &str,
    is_wanted: &dyn Fn(&Link) -> bool,
    master: &Master,
    context: &ApplyContext,
) -> Result<Option<(Link, String)>> {
    let wanted = Stacked { kind, is_wanted, lower: link.index };
    let container = format!("in {}", context.netns.path().display());
    let mut places = [(context.host()?, "on the host".to_owned()), (context.container()?, container)];
    if master.in_container {
        places.reverse();
    }
    let [(here, near), (there, far)] = places;
    if let Some(found) = wanted.first_in(here, None)? {
        return Ok(Some((found, near)));
    }
    let home = &master.home(context)?;
    if let Some(found) = wanted.first_in(there, Some(home))? {
        return Ok(Some((found, far)));
    }
    for list in [mounted, of_processes] {
        let paths = list().map_err(|error| Error::from(error).context("search for network namespaces"))?;
        if let Some(found) = wanted.first_among(paths, home)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

impl Stacked<'_> {
    fn first_among(&self, paths: Vec<PathBuf>, home: &Netns) -> Result<Option<(Link, String)>> {
        for path in paths {
            // A namespace that cannot be entered, or is gone by now, is skipped.
            let NetnsLookup::Present(netns) = find(&path.to_string_lossy()) else { continue };
            if let Some(found) = self.first_in(&Netlink::inside(&netns)?, Some(home))? {
                return Ok(Some((found, format!("in {}", path.display()))));
            }
        }
        Ok(None)
    }

    fn first_in(&self, place: &Netlink, home: Option<&Netns>) -> Result<Option<Link>> {
        for one in place.links_of_kind(self.kind)? {
            if (self.is_wanted)(&one) && is_on(place, &one, self.lower, home)? {
                return Ok(Some(one));
            }
        }
        Ok(None)
    }
}
