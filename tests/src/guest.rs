//! The other end of a TAP device, as a virtual machine monitor has it: a program that reads and writes frames.

use cnikit_testkit::Container;

/// `IFF_TAP`, `IFF_NO_PI`, `IFF_VNET_HDR`, `IFF_MULTI_QUEUE` of `linux/if_tun.h`: an Ethernet device.
pub const TAP: u32 = 0x0002;
/// Frames have no packet information in front of them.
pub const NO_PI: u32 = 0x1000;
/// Frames have a `virtio_net_hdr` in front of them.
pub const VNET_HDR: u32 = 0x4000;
/// Several files are attached to the device.
pub const MULTI_QUEUE: u32 = 0x0100;

/// A program that attaches to devices, as `NAME:FLAGS`, and then reads orders. It opens `/dev/net/tun` as root, because that file
/// is root's on many nodes, and attaches under the uid and gid that it is given.
///
/// `exchange N M HEX` writes a frame to one device until it is read from another one (`N` and `M` are the first, the second, …).
/// `ping4` and `ping6` let the guest behind the first device ask the container for an echo. `ioctl NUMBER VALUE` is for the first
/// device. `hold FILE` makes a file and reads until the device is gone. Each order prints one line.
const GUEST: &str = r"
import errno, fcntl, os, select, socket, struct, sys, time
uid, gid, attached = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
files = [os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK) for _ in attached]
if uid:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
heads = []
for file, one in zip(files, attached):
    name, flags = one.split(':')
    try:
        fcntl.ioctl(file, 0x400454ca, struct.pack('16sH22x', name.encode(), int(flags)))
    except OSError as error:
        print('attach: ' + errno.errorcode[error.errno])
        sys.exit(0)
    heads.append(bytes(10 if int(flags) & 0x4000 else 0))
OWN = bytes.fromhex('0200000000aa')

def frames(n, seconds):
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if select.select([files[n]], [], [], left)[0]:
            try: frame = os.read(files[n], 70000)
            except BlockingIOError: continue # while the device is removed, it is ready, and has nothing yet
            yield frame[len(heads[n]):]

def write(n, frame):
    try:
        os.write(files[n], heads[n] + frame)
    except OSError as error:
        if error.errno != errno.EIO: raise # the device is down

def until_heard(n, write_once, is_it):
    for _ in range(100):
        write_once()
        for frame in frames(n, 0.1):
            if is_it(frame): return frame
    sys.exit(print('nothing was heard'))

def summed(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total > 0xffff: total = (total & 0xffff) + (total >> 16)
    return struct.pack('!H', total ^ 0xffff)

def ping4(own, peer):
    own, peer = socket.inet_aton(own), socket.inet_aton(peer)
    ask = b'\xff' * 6 + OWN + bytes.fromhex('0806000108000604' '0001') + OWN + own + bytes(6) + peer
    answer = until_heard(0, lambda: write(0, ask), lambda f: f[12:14] == b'\x08\x06' and f[20:22] == b'\0\2' and f[28:32] == peer)
    echo = b'\x08\0\0\0\0\7\0\1guest-frame!'
    echo = echo[:2] + summed(echo) + echo[4:]
    head = bytes.fromhex('4500') + struct.pack('!H', 20 + len(echo)) + bytes.fromhex('000000004001' '0000') + own + peer
    head = head[:10] + summed(head) + head[12:]
    packet = answer[6:12] + OWN + b'\x08\0' + head + echo
    until_heard(0, lambda: write(0, packet), lambda f: f[12:14] == b'\x08\0' and f[34:35] == b'\0' and b'guest-frame!' in f)
    print('pong')

def icmp6(own, peer, body):
    pseudo = own + peer + struct.pack('!II', len(body), 58)
    body = body[:2] + summed(pseudo + body) + body[4:]
    return b'\x86\xdd' + bytes.fromhex('60000000') + struct.pack('!HBB', len(body), 58, 255) + own + peer + body

def ping6(own, peer, mac):
    own, peer, mac = socket.inet_pton(10, own), socket.inet_pton(10, peer), bytes.fromhex(mac.replace(':', ''))
    packet = mac + OWN + icmp6(own, peer, b'\x80\0\0\0\0\7\0\1guest-frame!')
    advert = mac + OWN + icmp6(own, peer, b'\x88\0\0\0\x60\0\0\0' + own + b'\2\1' + OWN)
    def once():
        write(0, advert)
        write(0, packet)
    def is_it(frame):
        if frame[12:14] == b'\x86\xdd' and frame[54:55] == b'\x87': write(0, advert)
        return frame[12:14] == b'\x86\xdd' and frame[54:55] == b'\x81' and b'guest-frame!' in frame
    until_heard(0, once, is_it)
    print('pong')

for line in sys.stdin:
    order, *words = line.split()
    if order == 'ping4': ping4(*words)
    elif order == 'ping6': ping6(*words)
    elif order == 'say': print(*words)
    elif order == 'exchange':
        n, m, frame = int(words[0]), int(words[1]), bytes.fromhex(words[2])
        until_heard(m, lambda: write(n, frame), lambda heard: heard == frame)
        print('exchanged')
    elif order == 'ioctl':
        try:
            fcntl.ioctl(files[0], int(words[0], 0), int(words[1]))
            print('done')
        except OSError as error:
            print(errno.errorcode[error.errno])
    elif order == 'hold':
        open(words[0], 'w').close()
        try:
            for _ in frames(0, 60): pass
            print('it is still there')
        except OSError as error:
            print(errno.errorcode[error.errno])
";

/// A guest with a user and devices, each as `NAME:FLAGS`.
pub struct Guest<'a> {
    /// Its container.
    pub container: &'a Container,
    /// The user, who is root if it is 0.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The names and flags of the devices.
    pub devices: &'a [(&'a str, u32)],
}

impl Guest<'_> {
    /// Carries out the orders of these lines, and returns what was printed.
    pub fn obeys(&self, orders: &str) -> String {
        let named: Vec<String> = self.devices.iter().map(|(name, flags)| format!("{name}:{flags}")).collect();
        let script = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(script.path(), GUEST).unwrap();
        let Guest { uid, gid, .. } = self;
        let path = script.path().display();
        self.container.sh(&format!("echo '{orders}' | python3 -u {path} {uid} {gid} {}", named.join(" ")))
    }
}

impl Guest<'_> {
    /// `attached`, or the name of the error number.
    pub fn attaches(&self) -> String {
        let said = self.obeys("say attached");
        said.trim().trim_start_matches("attach: ").to_owned()
    }
}

/// The device `eth0` of a container with packet information off, for root.
pub fn behind_eth0(container: &Container) -> Guest<'_> {
    Guest { container, uid: 0, gid: 0, devices: &[("eth0", TAP | NO_PI)] }
}
