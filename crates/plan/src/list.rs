//! Resources in the order in which they are made.

use std::fmt;

use crate::resource::Resource;

/// Resources in the order in which they are made. A plan is pure data: it reads nothing and changes nothing. Its `Display` is one
/// line per resource.
#[derive(Default)]
pub struct Plan(Vec<Box<dyn Resource>>);

impl Plan {
    /// A plan of one resource.
    pub fn of(resource: impl Resource + 'static) -> Plan {
        Plan::default().and(resource)
    }

    /// The same plan with one more resource at the end.
    #[must_use]
    pub fn and(mut self, resource: impl Resource + 'static) -> Plan {
        self.0.push(Box::new(resource));
        self
    }

    /// The same plan with each of these resources at the end: a list, or an `Option`.
    #[must_use]
    pub fn and_each<R: Resource + 'static>(self, resources: impl IntoIterator<Item = R>) -> Plan {
        resources.into_iter().fold(self, Plan::and)
    }

    /// The same plan with one more resource at this index; at the end if the plan is shorter.
    #[must_use]
    pub fn with_at(mut self, place: usize, resource: impl Resource + 'static) -> Plan {
        self.0.insert(place.min(self.0.len()), Box::new(resource));
        self
    }

    /// The resources, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn Resource> {
        self.0.iter().map(AsRef::as_ref)
    }

    /// The number of resources.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no resources.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each resource as text.
    pub fn lines(&self) -> Vec<String> {
        self.iter().map(ToString::to_string).collect()
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|resource| writeln!(f, "{resource}"))
    }
}
