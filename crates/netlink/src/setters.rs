//! Methods that set a field in an expression.

/// Defines, for each field, a method of its name that sets it and returns the value. A field of the second list is an `Option`: its
/// method takes a value or an `Option`.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($changed:ident { $($field:ident: $kind:ty),* } { $($option:ident: $inner:ty),* }) => {
        impl $changed {
            $(
                #[doc = concat!("Sets the field `", stringify!($field), "`.")]
                #[must_use]
                pub fn $field(mut self, $field: $kind) -> Self {
                    self.$field = $field;
                    self
                }
            )*
            $(
                #[doc = concat!("Sets the field `", stringify!($option), "`: a value, or an `Option`.")]
                #[must_use]
                pub fn $option(mut self, $option: impl Into<Option<$inner>>) -> Self {
                    self.$option = $option.into();
                    self
                }
            )*
        }
    };
}
