//! Sessions: how one ends without a lease, and that an API server which is away ends none.

use std::time::{Duration, Instant};

use cnikit_agent::AgentFailure;
use cnikit_agent::engine::Engine;
use cnikit_pool::BlockState;

use crate::cluster::Cluster;
use crate::node::Node;
use crate::running::eventually;

const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28}"#;

#[test]
fn a_session_ends_when_it_was_not_renewed_for_its_length_by_the_clock_of_the_one_who_looks() {
    let cluster = Cluster::start();
    cluster.host.enter(|| {
        let mut node = Node::new("a", cluster.host.dir(), cluster.settings());
        node.define(POOL);
        node.want("pods", 1).unwrap();
        // The time in the heartbeat, which people read, decides nothing.
        let hour = r#"{"spec":{"at":"2000-01-01T00:00:00Z"}}"#;
        cluster.kubectl(&format!("patch nodeheartbeats.pool.cnikit a --type=merge -p '{hour}'"));
        assert!(
            node.runtime.block_on(node.engine.keep_session()).unwrap(),
            "it is renewed over what another has written"
        );
        let mut booted = Node::booted("a", cluster.host.dir(), cluster.settings(), "boot-2", Duration::from_mins(5));
        let keeper = node.keep();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            booted.reconcile().unwrap();
            assert!(!booted.agent.may_claim());
            cnikit_process::Deadline::never().pause(Duration::from_millis(200));
        }
        drop(keeper);
        let ended = Instant::now();
        eventually("the session never ends", || {
            booted.reconcile().unwrap();
            booted.agent.may_claim()
        });
        assert!(ended.elapsed() >= Duration::from_millis(2_500), "{:?}", ended.elapsed());
        assert_eq!(booted.blocks("pods", BlockState::Active).len(), 1);
        assert!(!node.runtime.block_on(node.engine.keep_session()).unwrap(), "it was taken over");
        let refused = node.want("pods", 30).unwrap_err();
        assert!(refused.to_string().contains("another machine"), "{refused}");
        assert_eq!(booted.owners().len(), 1);
    });
}

#[test]
fn without_an_api_server_blocks_serve_on_and_claims_fail() {
    let mut cluster = Cluster::start();
    let (settings, dir) = (cluster.settings(), cluster.host.dir().to_owned());
    let netns = cluster.host.netns().clone();
    netns
        .enter(|_| {
            let mut node = Node::new("a", &dir, settings);
            node.define(POOL);
            node.want("pods", 1).unwrap();
            cluster.kill_api_server();
            let failed = node.want("more", 1).unwrap_err();
            assert!(matches!(failed, AgentFailure::Engine(_)), "{failed}");
            assert_eq!(failed.reply().code, 11);
            assert_eq!(node.blocks("pods", BlockState::Active).len(), 1);
        })
        .unwrap();
}
