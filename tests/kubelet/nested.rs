//! What takes limits of one's own: each test runs itself again in a user and mount namespace that is thrown away.

use std::{
    env, fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use crate::{
    Agent, HCA,
    fake::{Kubelet, Mood},
};

const INSIDE: &str = "GDR_AGENT_TEST_INSIDE";

/// Runs this test by its name in namespaces of its own, where `prepare` was done first.
fn nested(name: &str, prepare: &str, test: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return test();
    }
    let test = env::current_exe().unwrap();
    let script = format!("{prepare} && exec \"$0\" --exact \"$1\" --nocapture");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .arg(test)
        .arg(name)
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A tmpfs over a folder.
fn mount(folder: &Path, options: &str) {
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", options, "none"]).arg(folder).status();
    assert!(mount.unwrap().success());
}

/// As where `fs.inotify.max_user_instances` is used up: looking alone does it.
#[test]
fn p09_without_inotify_every_restart_is_noticed() {
    nested(
        "nested::p09_without_inotify_every_restart_is_noticed",
        "echo 0 >/proc/sys/user/max_inotify_instances",
        || {
            let agent = Agent::running("");
            let mut kubelet = Kubelet::start(&agent.folder());
            agent.says("no inotify");
            kubelet.offers(HCA, 8);
            for _ in 0..3 {
                kubelet.stop();
                kubelet = Kubelet::start(&agent.folder());
                let took = kubelet.offers(HCA, 8) - kubelet.began;
                assert!(took < Duration::from_secs(5), "{took:?}");
            }
            // Our socket is deleted while a kubelet still thinks about it, and another kubelet is there.
            let slow = Kubelet::with(&agent.folder(), Mood::Slow(Duration::from_secs(30)), false);
            slow.is_asked();
            let next = Kubelet::start(&agent.folder());
            let took = next.offers(HCA, 8) - next.began;
            assert!(took < Duration::from_secs(5), "{took:?}");
        },
    );
}

/// Not a socket can be made: it is said, and made when there is room again.
#[test]
fn a_disk_that_is_full_is_waited_for() {
    nested("nested::a_disk_that_is_full_is_waited_for", "true", || {
        let mut agent = Agent::new("");
        let folder = agent.folder();
        mount(&folder, "nr_inodes=8");
        let kubelet = Kubelet::start(&folder);
        let fill: Vec<_> =
            (0..8).map(|n| folder.join(format!("file-{n}"))).take_while(|f| fs::write(f, "").is_ok()).collect();
        assert!(!fill.is_empty() && fill.len() < 8);
        agent.start();
        agent.says("No space left on device");
        assert_eq!(kubelet.allocatable(HCA), 0);
        let begin = Instant::now();
        for file in fill {
            fs::remove_file(file).unwrap();
        }
        let took = kubelet.offers(HCA, 8) - begin;
        assert!(took < Duration::from_secs(15), "{took:?}");
    });
}

/// The store is on the node's disk, which others fill or lose: the check and the devices go on, and it is written
/// again when it can be.
#[test]
fn a_store_that_cannot_be_written_is_a_warning() {
    nested("nested::a_store_that_cannot_be_written_is_a_warning", "true", || {
        for (trouble, healed, why) in [
            ("ro", "remount,rw", "Read-only file system"),
            ("nr_inodes=1", "remount,nr_inodes=64", "No space left on device"),
        ] {
            let mut agent = Agent::new("");
            let store = agent.home.path("store");
            fs::create_dir_all(&store).unwrap();
            mount(&store, trouble);
            let kubelet = Kubelet::start(&agent.folder());
            agent.start();
            kubelet.offers(HCA, 8);
            agent.says("can't write the store");
            agent.says(why);
            agent.faults("{ hca: mlx5_4, port: DOWN }");
            kubelet.offers(HCA, 7);
            assert_eq!(fs::read_dir(&store).unwrap().count(), 0, "nothing half is left");
            mount(&store, healed);
            agent.faults("");
            kubelet.offers(HCA, 8);
            agent.recheck();
            let end = Instant::now() + Duration::from_secs(15);
            while !store.join("simulated.json").exists() {
                assert!(Instant::now() < end, "never written: {}", agent.log());
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    });
}
