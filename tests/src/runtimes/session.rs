//! A login session of a user who is not root, on a node: what rootless container runtimes are started in.

use std::path::Path;
use std::process::Command;

use super::{IMAGE, Maker, Node, image};

/// The user's number. The machine's own users have others.
const UID: &str = "61234";

/// What a machine gives such a user: a name, subordinate ids, a home, a runtime directory, and the TAP device for slirp4netns.
/// Mounts are shared with the namespaces that begin in this one, as systemd has it.
const MORE: &str = r#"mount --make-rshared /
mount -t tmpfs -o mode=755 tmpfs /home
mount -t tmpfs -o mode=755 tmpfs /dev/net
mknod -m 666 /dev/net/tun c 10 200
echo "someone:x:$SOMEONE:$SOMEONE::/home/someone:/bin/sh" >>/etc/passwd
echo "someone:x:$SOMEONE:" >>/etc/group
echo someone:200000:65536 >/etc/subuid
echo someone:200000:65536 >/etc/subgid
mkdir -p /run/user/$SOMEONE /home/someone
chown $SOMEONE:$SOMEONE /run/user/$SOMEONE /home/someone
chmod 700 /run/user/$SOMEONE /home/someone
"#;

/// The session, and the node that it is on.
pub struct Session {
    /// The node; its own shell lines are run by root.
    pub node: Node,
}

impl Session {
    /// On a new node with these plugins.
    pub fn new(maker: Maker) -> Session {
        Session { node: Node::with(maker, &format!("SOMEONE={UID}\n{MORE}")) }
    }

    /// What this machine lacks for it, if anything.
    pub fn unmet() -> Option<&'static str> {
        let mut unshare = Command::new("setpriv");
        unshare.args(["--reuid", UID, "--regid", UID, "--clear-groups", "unshare", "--user", "true"]);
        if !unshare.output().unwrap().status.success() {
            return Some("user namespaces of other users than root");
        }
        (!Path::new("/dev/net/tun").exists()).then_some("/dev/net/tun")
    }

    /// The beginning of a shell line of root that goes on as the user.
    fn as_user(line: &str) -> String {
        let quoted = line.replace('\'', r"'\''");
        let env = format!(
            "HOME=/home/someone USER=someone LOGNAME=someone XDG_RUNTIME_DIR=/run/user/{UID} STORAGE_DRIVER=vfs \
             PATH=/usr/local/bin:/usr/bin:/bin"
        );
        format!(
            "cd /home/someone; exec setpriv --reuid {UID} --regid {UID} --clear-groups env -i {env} sh -ec '{quoted}'"
        )
    }

    /// Runs a shell line as the user. It has to succeed. Returns its standard output.
    pub fn sh(&self, line: &str) -> String {
        self.node.sh(&Session::as_user(line))
    }

    /// Runs a shell line as the user. Returns whether it succeeded, and all its output.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        self.node.try_sh(&Session::as_user(line))
    }

    /// Writes a file of the user's, with this path below the home.
    pub fn write(&self, path: &str, text: &str) {
        let written = format!("/home/someone/{path}");
        self.node.write(&written, text);
        self.node.sh(&format!("chown -R {UID}:{UID} /home/someone/{}", path.split('/').next().unwrap()));
    }

    /// Loads the image with busybox into the user's Podman. Returns the image's id.
    pub fn load_image(&self) -> String {
        let archive = self.node.scratch().join("image.tar");
        image::archive(Path::new(&self.node.rootfs()), IMAGE, &archive);
        // Only root can open the archive.
        self.node.sh(&format!("exec <{}; {}", archive.display(), Session::as_user("podman load --quiet")));
        self.sh("podman images --quiet").trim().to_owned()
    }

    /// Ends the session as a logout does: every process of the user is killed, and the runtime directory is new.
    pub fn log_out_and_in(&self) {
        let ours = format!("find /proc -maxdepth 1 -name '[0-9]*' -uid {UID} -printf '%f\\n' 2>/dev/null");
        self.node.wait_for(&format!("pids=$({ours}); test -z \"$pids\" || ! kill -KILL $pids"));
        let dir = format!("/run/user/{UID}");
        self.node.sh(&format!("umount -l {dir}/netns || :; rm -rf {dir}; mkdir -m 700 {dir}; chown {UID}:{UID} {dir}"));
    }
}
