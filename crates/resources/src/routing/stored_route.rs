//! Routes in state files.

use cnikit_netlink::RouteCopy;
use serde::{Deserialize, Serialize, Serializer};

use crate::address::layer3;
use crate::identity::alias::hex;
use crate::stored_file::unhex;

/// A route with all its properties.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "RouteTexts")]
pub(crate) struct StoredRoute(pub(crate) RouteCopy);

impl StoredRoute {
    /// The routes as they are stored.
    pub(crate) fn all(copies: impl IntoIterator<Item = RouteCopy>) -> Vec<StoredRoute> {
        copies.into_iter().map(StoredRoute).collect()
    }
}

/// A route as it is stored.
#[derive(Serialize, Deserialize)]
struct RouteTexts {
    /// For readers only.
    #[serde(default)]
    route: String,
    /// The kernel's message, in hexadecimal digits.
    message: String,
}

impl Serialize for StoredRoute {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let StoredRoute(copy) = self;
        RouteTexts { route: layer3::text(copy.route()), message: hex(&copy.to_bytes()) }.serialize(serializer)
    }
}

impl TryFrom<RouteTexts> for StoredRoute {
    type Error = String;

    fn try_from(texts: RouteTexts) -> Result<StoredRoute, String> {
        let copy = unhex(&texts.message).and_then(|bytes| RouteCopy::from_bytes(&bytes));
        match copy {
            Some(copy) => Ok(StoredRoute(copy)),
            None => Err(format!("{:?} is not a route", texts.message)),
        }
    }
}
