//! Delete links without waiting until the kernel has freed them.

use std::os::fd::AsFd;

use cnikit_process::{Deadline, SlowSend};
use nix::errno::Errno;

use crate::links::{deletion, deletion_of_group};
use crate::netlink::Request;
use crate::socket::{Heard, TIMEOUT};
use crate::watch::{Subject, Subscription};
use crate::{Error, Netlink, Result, Socket};

impl Netlink {
    /// Deletes a link as [`Netlink::delete_link`] does, and returns as soon as the kernel has unregistered it: no process can find
    /// the link or its peer any more, their names, addresses and routes are free, and no packet reaches them.
    ///
    /// Then the kernel waits 10 to 30 ms for its own readers before it frees the memory. Deleting a link means to wait for that, so
    /// a child process does it, which is returned if there is one. The child needs somebody who reaps it: this process, or after
    /// its end init. If there can be no child, the call waits.
    ///
    /// # Errors
    /// The kernel refuses it, as it does for `lo`. It is not an error if there is no such link: the child may have deleted it.
    #[doc(alias = "RTM_DELLINK")]
    pub fn unregister_link(&self, index: u32) -> Result<Option<SlowSend>> {
        self.unregister(deletion(index), index)
    }

    /// Deletes all links of a group as [`Netlink::delete_group`] does, and returns as [`Netlink::unregister_link`] does. `index` is
    /// that of any link in the group.
    ///
    /// # Errors
    /// As [`Netlink::unregister_link`].
    pub fn unregister_group(&self, group: u32, index: u32) -> Result<Option<SlowSend>> {
        self.unregister(deletion_of_group(group), index)
    }

    /// The kernel tells that a link is gone before it waits. All links of one request are unregistered before it releases the lock
    /// (`rtnl_mutex`) that it needs to answer a question about a link: so one answer is enough.
    fn unregister(&self, request: Request, index: u32) -> Result<Option<SlowSend>> {
        let subject = Subject::deletion(index);
        let subscription = Subscription::new(self, &subject)?;
        let datagram = request.pack(self.with_socket(Socket::next_sequence));
        let Ok(Some(child)) = self.with_socket(|socket| SlowSend::start(socket.as_fd(), &datagram)) else {
            drop(subscription);
            return self.ask(request).map(|_| None);
        };
        self.forget_links();
        let deadline = Deadline::after(TIMEOUT);
        loop {
            let heard = self.with_socket(|socket| socket.listen_while(child.exit_notice(), deadline))?;
            match &heard {
                Some(Heard::Nothing) => {
                    return Err(Error::new(request.operation, request.object.to_string(), Errno::ETIMEDOUT));
                }
                Some(Heard::Events(events)) if !subject.is_meant(events) => continue,
                Some(Heard::Events(_) | Heard::Lost) | None => {}
            }
            if self.find_link_at(index)?.is_none() {
                return Ok(Some(child));
            }
            // The kernel refused the request, or the child was killed before it sent it.
            if heard.is_none() {
                return self.ask(request).map(|_| None);
            }
        }
    }
}
