//! The attachment of one container to one network by one interface.

pub(crate) mod capability;

use cnikit_types::{check_container_id, check_ifname, check_network_name};
use serde_json::{Map, Value};

use crate::Error;

/// The container of a call, and the parameters for its plugins.
#[doc(alias = "RuntimeConf")]
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`: the path of the namespace; may be empty or gone on DEL.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`, in their order.
    pub args: Vec<(String, String)>,
    /// Values by capability; a plugin gets those that its configuration declares.
    pub capabilities: Map<String, Value>,
}

impl Attachment {
    /// `CNI_ARGS` as one text.
    pub(crate) fn args_text(&self) -> String {
        let pairs: Vec<String> = self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(";")
    }

    /// Checks the three names by the specification (section "Parameters"), and that no argument has a separator in it.
    pub(crate) fn check_names(&self, network: &str) -> Result<(), Error> {
        check_container_id(&self.container_id).map_err(|why| name_error(&self.container_id, why))?;
        check_network_name(network).map_err(|why| name_error(network, why))?;
        check_ifname(&self.ifname).map_err(|why| name_error(&self.ifname, why))?;
        for (key, value) in &self.args {
            if key.contains(['=', ';']) || value.contains(['=', ';']) {
                return Err(Error::Name(format!("CNI_ARGS cannot hold '=' or ';': {key:?}, {value:?}")));
            }
        }
        Ok(())
    }
}

fn name_error(name: &str, why: String) -> Error {
    Error::Name(if name.is_empty() { why } else { format!("{why}: {name:?}") })
}
