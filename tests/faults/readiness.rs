//! `/readyz`: a rollout of an agent whose sandbox keeps it from checking stops; one on broken nodes goes on.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::support::standins::Node;

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
    let mut agent =
        node.free(&["run", "--node-name", "n1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(30);
    let answer = loop {
        assert!(Instant::now() < end, "no check ends");
        thread::sleep(Duration::from_millis(50));
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { continue };
        write!(stream, "GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        if !answer.contains("no check has finished yet") {
            break answer;
        }
    };
    agent.kill().unwrap();
    agent.wait().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
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
