//! End-to-end tests of the tool in namespaces and directories of their own.

#[cfg(test)]
mod bench;
#[cfg(test)]
mod chain;
#[cfg(test)]
mod check;
#[cfg(test)]
mod configurations;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod drop_in;
#[cfg(test)]
mod gc;
#[cfg(test)]
mod help;
#[cfg(test)]
mod new_plugin;
#[cfg(test)]
mod reclaim;
#[cfg(test)]
mod reference;
#[cfg(test)]
mod restore;
#[cfg(test)]
mod sight;
