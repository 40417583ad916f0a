//! The proof that the calling thread is inside the namespace that it works on.

use std::marker::PhantomData;

/// Proof that the calling thread is inside the namespace that it works on, valid while the closure runs that received it. It is not
/// `Send`, so that it cannot be moved to a thread in another namespace.
#[derive(Debug)]
pub struct Inside(PhantomData<*const ()>);

impl Inside {
    /// A proof for the namespace that this thread is already in.
    pub fn here() -> Self {
        Self(PhantomData)
    }
}
