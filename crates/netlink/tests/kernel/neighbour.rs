//! Neighbours.

use crate::scene::{address, inside, ip, pair_up};

#[test]
fn neighbours_are_read_and_forgotten() {
    let (netns, netlink) = inside();
    let (near, far) = pair_up(&netns, &netlink);
    netlink.add_address(near.index, &address("10.1.0.2/24")).unwrap();
    for entry in ["10.1.0.9 lladdr 0a:00:00:00:00:09 dev near", "fd00::9 lladdr 0a:00:00:00:00:06 dev near"] {
        ip(&netns, &format!("neighbour add {entry}"));
    }
    ip(&netns, "neighbour add 10.1.0.9 lladdr 0a:00:00:00:00:01 dev far");

    let neighbours = netlink.neighbours(near.index).unwrap();
    let permanent: Vec<_> = neighbours.iter().filter(|neighbour| neighbour.state == 128).collect();
    assert_eq!(permanent.len(), 2, "{neighbours:?}");
    let v4 = permanent.iter().find(|neighbour| neighbour.address.is_ipv4()).unwrap();
    assert_eq!((v4.address.to_string(), v4.mac.unwrap().to_string()), ("10.1.0.9".into(), "0a:00:00:00:00:09".into()));

    for text in ["10.1.0.9", "fd00::9"] {
        netlink.delete_neighbour(near.index, text.parse().unwrap()).unwrap();
    }
    let left = netlink.neighbours(near.index).unwrap();
    assert!(left.iter().all(|neighbour| neighbour.state != 128), "{left:?}");
    assert_eq!(netlink.neighbours(far.index).unwrap().iter().filter(|neighbour| neighbour.state == 128).count(), 1);
}

#[test]
fn deleting_an_absent_neighbour_succeeds() {
    let (netns, netlink) = inside();
    let (near, _) = pair_up(&netns, &netlink);
    netlink.delete_neighbour(near.index, "10.1.0.9".parse().unwrap()).unwrap();
    netlink.delete_neighbour(near.index, "fd00::9".parse().unwrap()).unwrap();
    netlink.delete_neighbour(99, "10.1.0.9".parse().unwrap()).unwrap();
}
