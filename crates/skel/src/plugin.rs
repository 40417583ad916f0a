//! The contract of a plugin.

use serde::de::DeserializeOwned;

use crate::about;
use crate::entry::Role;
use crate::error::{Error, Result, code};
use crate::journal::{Journal, each_by_itself};
use crate::request::{Add, Check, Del, DryRun, Gc, Status};
use crate::sources::Sources;
use cnikit_types::CniResult;

/// The result of a dry run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DryRunReport {
    /// The steps of ADD as texts, in order.
    pub steps: Vec<String>,
    /// An example of ADD's result, for the next plugin in a list or the plugin that runs this one. It contains the previous result;
    /// an IPAM plugin adds the addresses that it would assign if none were assigned yet.
    pub example: CniResult,
}

/// What becomes of a key that a plugin does not know, see [`Plugin::UNKNOWN_KEYS`]. Keys of the specification are known to all.
/// DEL, GC and VERSION never look at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownKeys {
    /// It has no effect, as the specification has it.
    Ignored,
    /// The log has a warning.
    Warned,
    /// ADD, CHECK, STATUS and the dry run fail with code 7.
    Refused,
}

/// A CNI plugin: its configuration, and a method or function per verb.
///
/// Two methods are required, [`Plugin::add`] and [`Plugin::del`]. A value of the type is a configuration that was read and
/// validated: ADD, CHECK, STATUS, RESTORE and PLAN are its methods. DEL and GC are functions of the type and get no value, because
/// the configuration may be invalid or gone by then.
///
/// Keys are matched in any letter case, and `null` counts as absent, because runtimes rely on both. A value that a field's type
/// refuses is an error that names the key (code 6 for a wrong JSON type, 7 for a wrong value).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a plugin",
    note = "implement `Plugin`, or one of the shapes and wrap it: `InterfaceShape<{Self}>` for an `InterfacePlugin`, `Chained<{Self}>` for a `ChainedPlugin`, `Ipam<{Self}>` for an `IpamPlugin`, `Delegating<{Self}>` for a `DelegatingPlugin`"
)]
pub trait Plugin: DeserializeOwned {
    /// The sources of keys other than the configuration, in their precedence.
    const SOURCES: Sources = &[];
    /// The keys of `CNI_ARGS` that the plugin supports. Any other key fails ADD and CHECK unless `IgnoreUnknown` is true, but never
    /// DEL. With `None` the keys are not validated.
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;
    /// The plugin works in the container's namespace. One that does not, such as an IPAM plugin that keeps files, takes any
    /// `CNI_NETNS` on ADD and CHECK but the host's own; to enter it then fails.
    const ENTERS_NETNS: bool = true;
    /// Members of the configuration in the example of the help. The example can be run as it is. JSON of at most 96 columns per
    /// line, without `'`, which would end the shell's string.
    const EXAMPLE: &'static str = about::EXAMPLE;
    /// The name and version of the release that the plugin is of, for its help: `concat!("mine-", env!("CARGO_PKG_VERSION"))`.
    const RELEASE: &'static str = about::RELEASE;
    /// What becomes of a key of the configuration that no field of this type has. CNI lets a plugin choose; runtimes and operators
    /// put keys into configurations that a plugin need not know.
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Ignored;
    /// What the plugin's binary does besides serving calls.
    const ROLE: Option<Role> = None;

    /// Attaches the container and returns the result. Everything that is made gets an undo step in the journal.
    /// [Specification](https://www.cni.dev/docs/spec/#add-add-container-to-network-or-apply-modifications).
    ///
    /// # Errors
    /// Anything that prevents the attachment. The journal is rolled back before the error is reported.
    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult>;

    /// Removes what [`Plugin::add`] made, as far as it exists: the namespace, prevResult and half of the attachment may be
    /// gone, and being called twice is normal.
    /// [Specification](https://www.cni.dev/docs/spec/#del-remove-container-from-network-or-un-apply-modifications).
    ///
    /// # Errors
    /// Something could not be removed. Its absence is not an error.
    fn del(del: &Del) -> Result<()>;

    /// Compares the expected state with the actual state and names every difference.
    /// [Specification](https://www.cni.dev/docs/spec/#check-check-containers-networking-is-as-expected).
    ///
    /// # Errors
    /// There is a difference (code 102), or the state could not be read.
    fn check(&self, _check: &Check) -> Result<()> {
        Ok(())
    }

    /// Removes the resources of attachments of this network that are no longer valid.
    /// [Specification](https://www.cni.dev/docs/spec/#gc-clean-up-any-stale-resources).
    ///
    /// # Errors
    /// Something could not be removed; everything else is removed.
    fn gc(_gc: &Gc) -> Result<()> {
        Ok(())
    }

    /// Checks whether an ADD could be served.
    /// [Specification](https://www.cni.dev/docs/spec/#status-check-plugin-status).
    ///
    /// # Errors
    /// An ADD would fail: code 50, or 51 if running containers may have lost connectivity too.
    fn status(&self, _status: &Status) -> Result<()> {
        Ok(())
    }

    /// Makes again the packet filter rules that another program flushed. Links, addresses and routes are left as they are, and
    /// a plugin without rules has nothing to do. Rules that exist stay.
    ///
    /// # Errors
    /// A rule could not be made. The journal is rolled back then.
    fn restore(&self, _restore: &Check, _journal: &mut Journal) -> Result<()> {
        Ok(())
    }

    /// [`Plugin::restore`] of many attachments of one network. Returns the outcome of each, in their order. An attachment that
    /// fails is undone separately and does not stop the others.
    fn restore_all(all: Vec<(Self, Check)>) -> Vec<Result<()>> {
        all.iter().map(|(plugin, check)| each_by_itself(|journal| plugin.restore(check, journal))).collect()
    }

    /// The steps that ADD would take, as text and in order; it changes nothing and needs no privilege.
    ///
    /// # Errors
    /// The plugin has no dry run (code 4), or its ADD would refuse the configuration or the request.
    fn plan(&self, _preview: &DryRun) -> Result<DryRunReport> {
        Err(Error::new(code::INVALID_ENVIRONMENT, "this plugin has no plan that could be shown")
            .hint("try an ADD in a network namespace of its own, and DEL it again"))
    }
}
