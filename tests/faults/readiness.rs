//! `/readyz`: a rollout of an agent whose sandbox keeps it from checking stops; one on broken nodes goes on.

use std::{
    fs,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

use crate::support::{free_port, get, standins::Node};

/// A node whose agent answers at this port.
fn node() -> (Node, u16) {
    let node = Node::new(1, 1);
    let plugins = node.home.path("device-plugins");
    fs::create_dir_all(&plugins).unwrap();
    let port = free_port();
    node.home.configure(&format!(
        "kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: \"127.0.0.1:{port}\" }}\n",
        plugins.display()
    ));
    (node, port)
}

/// What it answers once its own check has ended; until then it is not ready.
fn readyz(node: &mut Node, port: u16, faults: &str) -> (u16, String) {
    node.order(faults);
    let _agent = node.run();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < end, "no check ends");
        thread::sleep(Duration::from_millis(10));
        let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        let (status, body) = get(stream, "/readyz");
        if !body.contains("no check has finished yet") {
            return (status, body);
        }
        assert_eq!(status, 503);
    }
}

#[test]
fn a_sandbox_that_keeps_it_from_checking_is_not_ready() {
    let (mut node, port) = node();
    let (status, why) = readyz(&mut node, port, "ibv_open_device=code:1");
    assert_eq!(status, 503, "{why}");
    assert!(why.starts_with("UverbsPermission: "), "{why}");
}

/// As in a rollout: what the agent before it found keeps the Node's label, and says nothing of this one.
#[test]
fn an_earlier_agents_check_is_not_its_own() {
    let (mut node, port) = node();
    assert_eq!(readyz(&mut node, port, "").0, 200);
    let (status, why) = readyz(&mut node, port, "ibv_open_device=code:1");
    assert_eq!(status, 503, "{why}");
    assert_eq!(readyz(&mut node, port, "").0, 200);
}

#[test]
fn broken_hardware_stops_no_rollout() {
    for faults in ["", "cuInit=code:999", "ibv_reg_mr=code:14;ibv_reg_dmabuf_mr=code:14", "ibv_reg_mr=hang"] {
        let (mut node, port) = node();
        let (status, why) = readyz(&mut node, port, faults);
        assert_eq!(status, 200, "{faults}: {why}");
    }
}
