//! What the crates of the shapes have each of their own.

use crate::cli::Shape;

/// The parts of a crate that depend on its shape.
pub(super) struct ShapeParts {
    /// What the plugin does, for the README.
    pub(super) about: &'static str,
    /// What the methods in `src/lib.rs` are, for the README.
    pub(super) methods: &'static str,
    /// The type that is the plugin; `{{lib}}` is the crate.
    pub(super) plugin: &'static str,
    /// `src/lib.rs`.
    pub(super) library: &'static str,
    /// The network list.
    pub(super) network: &'static str,
    /// The subject of `tests/kernel.rs`.
    pub(super) subject: &'static str,
    /// What CHECK has to notice is in the subject.
    pub(super) tampering: bool,
    /// The test of faults between the steps of a plan: its name and its line.
    pub(super) faults: Option<(&'static str, &'static str)>,
    /// What `tests/kernel.rs` imports for these.
    pub(super) imports: &'static str,
    /// Dependencies besides cnikit, the allocator and serde.
    pub(super) dependencies: &'static [&'static str],
    /// The plugins of cnikit that the tests need beside it.
    pub(super) beside: &'static [&'static str],
}

/// The parts of a shape.
pub(super) fn parts(shape: Shape) -> ShapeParts {
    match shape {
        Shape::Interface => INTERFACE,
        Shape::Chained => CHAINED,
        Shape::Ipam => IPAM,
        Shape::Delegating => DELEGATING,
        Shape::Plain => PLAIN,
    }
}

const INTERFACE: ShapeParts = ShapeParts {
    about: "it gives each container one end of a veth pair, and routes everything by the other end",
    methods: "and the plans of the link and of its addresses",
    plugin: "cnikit::InterfaceShape<{{lib}}::Config>",
    library: include_str!("../../../templates/interface/lib.rs.in"),
    network: include_str!("../../../templates/interface/network.conflist"),
    subject: include_str!("../../../templates/interface/subject.rs.in"),
    tampering: true,
    faults: Some((
        "a_fault_before_any_step_leaves_nothing",
        "assert!(fault::leaves_nothing::<Config>(&subject(), BESIDE) > 1)",
    )),
    imports: "use cnikit::{Entry, Ipam};\n",
    dependencies: &["ipnetwork"],
    beside: &["host-local"],
};

const CHAINED: ShapeParts = ShapeParts {
    about: "it sets the MTU of an interface that another plugin made",
    methods: "and the plan of the changes",
    plugin: "cnikit::Chained<{{lib}}::Config>",
    library: include_str!("../../../templates/chained/lib.rs.in"),
    network: include_str!("../../../templates/chained/network.conflist"),
    subject: include_str!("../../../templates/chained/subject.rs.in"),
    tampering: true,
    faults: Some((
        "a_fault_before_any_step_changes_nothing",
        "assert!(fault::changes_nothing::<Config>(&subject()) > 1)",
    )),
    imports: "",
    dependencies: &[],
    beside: &["ptp", "host-local"],
};

const IPAM: ShapeParts = ShapeParts {
    about: "it assigns addresses, each recorded in a file",
    methods: "and how addresses are assigned, released and compared",
    plugin: "cnikit::Ipam<{{lib}}::Config>",
    library: include_str!("../../../templates/ipam/lib.rs.in"),
    network: include_str!("../../../templates/ipam/network.conflist"),
    subject: include_str!("../../../templates/ipam/subject.rs.in"),
    tampering: true,
    faults: None,
    imports: "",
    dependencies: &["cnikit-store", "ipnetwork"],
    beside: &["ptp"],
};

const DELEGATING: ShapeParts = ShapeParts {
    about: "from one key it makes the configuration of another plugin, and runs that",
    methods: "and the configuration of the delegate",
    plugin: "cnikit::Delegating<{{lib}}::Config>",
    library: include_str!("../../../templates/delegating/lib.rs.in"),
    network: include_str!("../../../templates/delegating/network.conflist"),
    subject: include_str!("../../../templates/delegating/subject.rs.in"),
    tampering: true,
    faults: None,
    imports: "",
    dependencies: &["ipnetwork", "serde_json"],
    beside: &["ptp", "host-local"],
};

const PLAIN: ShapeParts = ShapeParts {
    about: "it adds a search domain to the result of other plugins",
    methods: "and a method per verb",
    plugin: "{{lib}}::Config",
    library: include_str!("../../../templates/plain/lib.rs.in"),
    network: include_str!("../../../templates/plain/network.conflist"),
    subject: include_str!("../../../templates/plain/subject.rs.in"),
    tampering: false,
    faults: None,
    imports: "",
    dependencies: &[],
    beside: &["ptp", "host-local"],
};
