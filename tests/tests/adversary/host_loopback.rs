//! A container sends to the loopback addresses of the host.
