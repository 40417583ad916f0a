//! The tool's binary, tried on namespaces and directories of its own.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod chain;
#[cfg(test)]
mod reference;
