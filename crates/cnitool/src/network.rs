//! The network and the attachment that a call is about.

use cnikit_libcni::{Attachment, NetworkList, Runtime, load};
use serde_json::Value;

use crate::{container, environment};

/// A list, an attachment, and who carries out what is wanted of them.
pub(crate) struct Network {
    runtime: Runtime,
    list: NetworkList,
    at: Attachment,
}

impl Network {
    /// From arguments and environment. An empty interface name counts as not given.
    pub(crate) fn of_process(network: &str, netns: &str, ifname: Option<&str>) -> Result<Network, String> {
        let list = load(&environment::configurations(), network).map_err(|error| error.to_string())?;
        let capabilities = environment::capabilities()?;
        let args = environment::args()?;
        let here = std::env::current_dir().map_err(|error| format!("working directory: {error}"))?;
        let netns = container::absolute(netns, &here).to_string_lossy().into_owned();
        let ifname = ifname.filter(|name| !name.is_empty()).map_or_else(environment::ifname, str::to_owned);
        let at = Attachment { container_id: container::id_of(&netns), netns, ifname, args, capabilities };
        Ok(Network { runtime: environment::runtime(), list, at })
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.list.warnings
    }

    pub(crate) fn add(&self) -> Result<Value, String> {
        self.runtime.add(&self.list, &self.at).map_err(|error| error.to_string())
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        self.runtime.check(&self.list, &self.at).map_err(|error| error.to_string())
    }

    pub(crate) fn del(&self) -> Result<(), String> {
        self.runtime.del(&self.list, &self.at).map_err(|error| error.to_string())
    }

    /// What the plugins would do, each step below its plugin, and the failures of those that do not say.
    pub(crate) fn plan(&self) -> (String, String) {
        let (mut words, mut failures) = (Vec::new(), Vec::new());
        for planned in self.runtime.plan(&self.list, &self.at) {
            match planned.steps {
                Ok(steps) => {
                    words.push(format!("{}:\n", planned.plugin));
                    words.extend(steps.iter().map(|step| format!("  {step}\n")));
                }
                Err(failure) => failures.push(failure.to_string()),
            }
        }
        (words.concat(), failures.join("\n"))
    }
}
