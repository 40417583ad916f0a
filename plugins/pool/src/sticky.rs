//! Addresses that stay with a name: the agent is asked for them at each ADD, because the name may come from another node.

use std::net::IpAddr;

use cnikit::types::{Args, NetConf};
use cnikit::{Error, KeySource, Result, code};
use cnikit_pool::{AgentReply, AgentRequest, StickyWant};
use cnikit_process::Deadline;
use serde::Deserialize;

use crate::agent::ask_for_name;
use crate::allocation::PoolRequest;
use crate::refused::{unreadable, with_hint};

/// A name in a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct StickyName {
    namespace: String,
    name: String,
}

impl std::fmt::Display for StickyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The name that the addresses of a request stay with: that of the pod, as Kubernetes' runtimes send it, otherwise
/// `args.cni.sticky`. A tenant may be able to write the latter, so it never replaces the former.
///
/// # Errors
/// Sticky addresses are configured, and the request has no name; or `args.cni.sticky` is not one.
pub(crate) fn name_of(is_sticky: bool, conf: &NetConf, args: &Args) -> Result<Option<StickyName>> {
    if !is_sticky {
        return Ok(None);
    }
    let of_pod = |key: &str| args.get(key).filter(|text| !text.is_empty()).map(str::to_owned);
    if let (Some(namespace), Some(name)) = (of_pod("K8S_POD_NAMESPACE"), of_pod("K8S_POD_NAME")) {
        return Ok(Some(StickyName { namespace, name }));
    }
    if let Some(name) = conf.read_at::<StickyName>(&["args", "cni", "sticky"])? {
        return Ok(Some(name));
    }
    let source = KeySource::ArgsCni("sticky");
    Err(Error::config(format!("sticky: the request has neither K8S_POD_NAMESPACE and K8S_POD_NAME nor {source}"))
        .hint("call it with one of them, or remove `ipam.sticky`"))
}

impl PoolRequest<'_> {
    /// The addresses of the name. The node has them then, as static ones.
    pub(crate) fn addresses_of(&self, name: &StickyName) -> Result<Vec<IpAddr>> {
        if !self.requested.is_empty() {
            return Err(Error::config("sticky: an address is requested, and addresses stay with a name")
                .hint("request no address, or remove `ipam.sticky`"));
        }
        let files = self.files.open().map_err(unreadable)?;
        let pools = files.pools().map_err(unreadable)?;
        let pool = self.plugin.select(self.requested_pool, self.args, pools.as_ref())?;
        let want = StickyWant {
            network: self.network.name().to_owned(),
            pool: pool.clone(),
            namespace: name.namespace.clone(),
            name: name.name.clone(),
            families: self.plugin.families.clone(),
            attachment: self.owner.to_string(),
        };
        let failed =
            |code: u32, why: &str| Error::new(code, format!("pool {pool} gives name {name} no address: {why}"));
        let deadline = Deadline::after(self.plugin.timeout);
        match ask_for_name(self, &AgentRequest::Sticky(want), deadline) {
            Ok(AgentReply::Addresses(addresses)) => Ok(addresses),
            Ok(AgentReply::Done(_)) => {
                Err(failed(code::TRY_AGAIN, "the agent's reply has no addresses").hint("look at the agent's log"))
            }
            Ok(AgentReply::Error(error)) => {
                let code = if error.code == 0 { code::TRY_AGAIN } else { error.code };
                Err(with_hint(failed(code, &error.msg), error.hint))
            }
            Err((reason, hint)) => Err(failed(code::TRY_AGAIN, &reason).hint(hint)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(conf: &str, args: &str) -> Result<Option<StickyName>> {
        name_of(true, &NetConf::parse(conf.as_bytes()).unwrap(), &Args::parse(args).unwrap())
    }

    #[test]
    fn the_name_of_the_pod_precedes_what_a_tenant_can_write() {
        let args = r#"{"args":{"cni":{"sticky":{"namespace":"db","name":"x"}}}}"#;
        let named = |namespace: &str, name: &str| Some(StickyName { namespace: namespace.into(), name: name.into() });
        let of_pod = "K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-0";
        assert_eq!(name(args, of_pod).unwrap(), named("team-a", "web-0"));
        assert_eq!(name(args, "").unwrap(), named("db", "x"));
        assert_eq!(name_of(false, &NetConf::parse(b"{}").unwrap(), &Args::parse(of_pod).unwrap()).unwrap(), None);
        let error = name("{}", "K8S_POD_NAMESPACE=team-a").unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("sticky: the request has neither"), "{error}");
        assert!(name(r#"{"args":{"cni":{"sticky":"x"}}}"#, "").is_err());
    }
}
