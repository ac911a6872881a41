//! `/readyz`: a rollout of an agent whose sandbox keeps it from checking stops; one on broken nodes goes on.

use std::{
    fs,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use crate::support::{get, standins::Node};

/// What it answers once a check has ended.
fn readyz(faults: &str) -> (u16, String) {
    let mut node = Node::new(1, 1);
    node.order(faults);
    let plugins = node.home.path("device-plugins");
    fs::create_dir_all(&plugins).unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    node.home.configure(&format!(
        "kubelet: {{ devicePlugins: '{}' }}\npublish: {{ mode: none }}\nhttp: {{ listen: \"127.0.0.1:{port}\" }}\n",
        plugins.display()
    ));
    let _agent = node.run();
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        assert!(Instant::now() < end, "no check ends");
        thread::sleep(Duration::from_millis(50));
        let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        let (status, body) = get(stream, "/readyz");
        if !body.contains("no check has finished yet") {
            return (status, body);
        }
    }
}

#[test]
fn a_sandbox_that_keeps_it_from_checking_is_not_ready() {
    let (status, why) = readyz("ibv_open_device=code:1");
    assert_eq!(status, 503, "{why}");
    assert!(why.starts_with("UverbsPermission: "), "{why}");
}

#[test]
fn broken_hardware_stops_no_rollout() {
    for faults in ["", "cuInit=code:999", "ibv_reg_mr=code:14;ibv_reg_dmabuf_mr=code:14", "ibv_reg_mr=hang"] {
        let (status, why) = readyz(faults);
        assert_eq!(status, 200, "{faults}: {why}");
    }
}
