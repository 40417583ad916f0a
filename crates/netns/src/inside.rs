//! The proof that the calling thread is where it says.

use std::marker::PhantomData;

/// The calling thread is inside the namespace that it works on, for as long as the work lasts that was handed this: not
/// `Send`, so that it cannot be carried to a thread that is elsewhere.
#[derive(Debug)]
pub struct Inside(PhantomData<*const ()>);

impl Inside {
    /// The namespace that this thread is in already.
    pub fn here() -> Self {
        Self(PhantomData)
    }
}
