//! A batch of what many attachments need, to be made at once.

use std::any::Any;

use cnikit_skel::Result;

/// What many attachments need, collected in parts. Each part makes its entries in a few steps.
#[derive(Default)]
pub struct RestoreBatch {
    parts: Vec<Part>,
    /// For each entry the index of its part, and its index among the entries of that part.
    entries: Vec<(usize, usize)>,
}

struct Part {
    made_by: Box<dyn BatchPart>,
    entries: usize,
}

/// One way to make many entries at once, such as a transaction of nftables. Entries are added with [`RestoreBatch::add`].
pub trait BatchPart: Any {
    /// Makes the entries. The outcomes are in the order of the entries; a missing outcome counts as [`RestoreOutcome::Left`].
    fn make(self: Box<Self>) -> Vec<RestoreOutcome>;
}

/// The outcome of one entry of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestoreOutcome {
    /// It exists already.
    Unchanged,
    /// It was made.
    Made,
    /// It was not made. The resource is restored separately, which may report the reason.
    #[default]
    Left,
}

impl RestoreBatch {
    /// Adds one entry to the part of this type.
    ///
    /// # Errors
    /// Those of `add`; in that case nothing is added.
    pub fn add<P: BatchPart + Default>(&mut self, add: impl FnOnce(&mut P) -> Result<()>) -> Result<()> {
        let known = self.parts.iter().position(|part| (&*part.made_by as &dyn Any).is::<P>());
        let place = known.unwrap_or_else(|| {
            self.parts.push(Part { made_by: Box::new(P::default()), entries: 0 });
            self.parts.len() - 1
        });
        let part = &mut self.parts[place];
        if let Some(made_by) = (&mut *part.made_by as &mut dyn Any).downcast_mut::<P>() {
            add(made_by)?;
            self.entries.push((place, part.entries));
            part.entries += 1;
        }
        Ok(())
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Makes all parts. Returns the outcome of each entry, in their order.
    pub(crate) fn make(self) -> Vec<RestoreOutcome> {
        let made: Vec<Vec<RestoreOutcome>> = self.parts.into_iter().map(|part| part.made_by.make()).collect();
        let outcome = |(part, place): &(usize, usize)| made[*part].get(*place).copied().unwrap_or_default();
        self.entries.iter().map(outcome).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Even(Vec<u32>);

    #[derive(Default)]
    struct Silent;

    impl BatchPart for Even {
        fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
            let outcome = |n: &u32| if n.is_multiple_of(2) { RestoreOutcome::Made } else { RestoreOutcome::Unchanged };
            self.0.iter().map(outcome).collect()
        }
    }

    impl BatchPart for Silent {
        fn make(self: Box<Self>) -> Vec<RestoreOutcome> {
            Vec::new()
        }
    }

    #[test]
    fn outcomes_have_the_order_of_the_requests_across_all_parts() {
        let mut batch = RestoreBatch::default();
        let mut add = |n| {
            batch.add(|even: &mut Even| {
                even.0.push(n);
                Ok(())
            })
        };
        add(1).unwrap();
        add(2).unwrap();
        batch.add(|_: &mut Silent| Ok(())).unwrap();
        let refused = batch.add(|_: &mut Even| Err(cnikit_skel::Error::new(1, "no")));
        assert!(refused.is_err());
        batch
            .add(|even: &mut Even| {
                even.0.push(4);
                Ok(())
            })
            .unwrap();
        assert_eq!(batch.len(), 4);
        assert_eq!(
            batch.make(),
            [RestoreOutcome::Unchanged, RestoreOutcome::Made, RestoreOutcome::Left, RestoreOutcome::Made]
        );
    }
}
