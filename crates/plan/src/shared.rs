//! Values that several kinds use while one verb runs.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;

use cnikit_skel::Result;

/// Values that several kinds use while one verb runs, such as a socket; at most one of each type.
///
/// A value exists until the verb has ended. That matters for a socket of nftables: the kernel frees deleted rules when such a
/// socket is closed, which takes as long as the removal of a link.
#[derive(Default)]
pub struct Shared(RefCell<Vec<Rc<dyn Any>>>);

impl Shared {
    /// The value of this type, made at its first use.
    ///
    /// # Errors
    /// Those of `make`, which the next call runs again.
    pub fn get<T: Any>(&self, make: impl FnOnce() -> Result<T>) -> Result<Rc<T>> {
        let known = self.0.borrow().iter().find_map(|value| Rc::clone(value).downcast::<T>().ok());
        if let Some(known) = known {
            return Ok(known);
        }
        let made = Rc::new(make()?);
        self.0.borrow_mut().push(Rc::clone(&made) as Rc<dyn Any>);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once_per_type_and_again_only_after_an_error() {
        let shared = Shared::default();
        assert!(shared.get::<u8>(|| Err(cnikit_skel::Error::new(1, "not yet"))).is_err());
        assert_eq!(*shared.get(|| Ok(1_u8)).unwrap(), 1);
        assert_eq!(*shared.get(|| Ok(2_u8)).unwrap(), 1);
        assert_eq!(*shared.get(|| Ok(3_u16)).unwrap(), 3);
    }
}
