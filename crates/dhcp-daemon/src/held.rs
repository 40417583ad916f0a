//! What the event loop does with a lease, of whichever family it is.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use ipnetwork::IpNetwork;

use crate::protocol::{LeaseOwner, LeaseReply, LeaseReport};
use crate::record::{LeaseRecords, Place};

/// How long a reply to a renewal is listened for. A socket keeps a deleted namespace alive, and the next request may be hours away.
pub(crate) const LISTENING: Duration = Duration::from_secs(10);
/// How often a client may have something to do at one time; more would be a defect, and the loop goes on with the others.
pub(crate) const STEPS: usize = 16;

/// What came of a step.
#[derive(Debug, Default)]
pub(crate) struct Step {
    /// The reply to those who wait.
    pub(crate) reply: Option<LeaseReply>,
    /// Nothing is left to do: the attachment is to be forgotten.
    pub(crate) is_over: bool,
}

/// An owner's lease of one family, or the attempt to get one.
pub(crate) trait HeldLease {
    fn owner(&self) -> &LeaseOwner;

    /// Where its interface is.
    fn place(&self) -> &Place;

    /// Its namespace is at this path too.
    fn set_path(&mut self, netns: String);

    /// Until when an order waits for its first lease; `None` once that was reported.
    fn ordered(&self) -> Option<Duration>;

    /// An order waits for it, until this time.
    fn await_until(&mut self, until: Duration);

    /// Asks the server about the lease of before a restart, unless it was asked already.
    fn confirm(&mut self, now: Duration);

    /// Whether the server is asked about it.
    fn is_confirming(&self) -> bool;

    /// The reply to an order, if the client has a lease now.
    fn current(&self) -> Option<LeaseReply>;

    /// The address of the last lease of IPv4, whether that still is one or not.
    fn last_address(&self) -> Option<Ipv4Addr> {
        None
    }

    fn report(&self, now: Duration) -> LeaseReport;

    /// Each difference between the lease, the interface, and the addresses that its ADD reported, if they are known.
    fn differences(&self, reported: Option<&[IpNetwork]>, now: Duration) -> Result<Vec<String>, String>;

    /// When the next step is due.
    fn deadline(&self, now: Duration) -> Option<Duration>;

    /// The sockets to wait for: none while packets are ignored because there were too many.
    fn sockets(&self, now: Duration) -> Vec<BorrowedFd<'_>>;

    /// Passes what the sockets have received to the client.
    fn receive(&mut self, now: Duration);

    /// Does what is due.
    fn step(&mut self, now: Duration, records: &LeaseRecords) -> Step;

    /// Gives the lease back, if there is one. Returns whether the server's confirmation is awaited.
    fn release(&mut self, now: Duration) -> bool;
}
