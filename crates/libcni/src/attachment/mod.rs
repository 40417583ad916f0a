//! One container on one network by one interface.

pub(crate) mod capability;

use cnikit_types::{check_container_id, check_ifname, check_network_name};
use serde_json::{Map, Value};

use crate::Error;

/// Whom a call is about, and what the caller wants to tell the plugins.
#[doc(alias = "RuntimeConf")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`: the path of the namespace; may be empty or gone on DEL.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`, in their order.
    pub args: Vec<(String, String)>,
    /// Values by capability; a plugin is given those that its configuration declares.
    pub capabilities: Map<String, Value>,
}

impl Attachment {
    /// `CNI_ARGS` as one text.
    pub(crate) fn args_text(&self) -> String {
        let pairs: Vec<String> = self.args.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(";")
    }

    /// The three names as the specification wants them (section "Parameters"), and arguments that can be told apart.
    pub(crate) fn check_names(&self, network: &str) -> Result<(), Error> {
        let said = |name: &str, checked: Result<(), String>| {
            checked.map_err(|why| Error::Name(if name.is_empty() { why } else { format!("{why}: {name:?}") }))
        };
        said(&self.container_id, check_container_id(&self.container_id))?;
        said(network, check_network_name(network))?;
        said(&self.ifname, check_ifname(&self.ifname))?;
        let is_pair = |(key, value): &&(String, String)| !key.contains(['=', ';']) && !value.contains(['=', ';']);
        match self.args.iter().find(|pair| !is_pair(pair)) {
            Some((key, value)) => Err(Error::Name(format!("CNI_ARGS cannot hold '=' or ';': {key:?}, {value:?}"))),
            None => Ok(()),
        }
    }
}
