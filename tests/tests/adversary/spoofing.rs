//! A container sends frames under the MAC or the address of another one.
