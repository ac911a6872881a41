//! The cluster's network, for a thread of the test; from the host's the API server can't be reached.

use std::fs::{File, read_to_string};
use std::os::fd::AsFd;
use std::thread::{self, JoinHandle};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::cluster::Cluster;

/// Runs it to its end on a thread of its own, whose sockets are in the cluster.
pub(crate) fn inside<T, F>(cluster: &Cluster, work: impl FnOnce() -> F + Send + 'static) -> JoinHandle<T>
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let unshare = read_to_string(cluster.state().join("unshare.pid")).expect("the cluster's process");
    let unshare = unshare.trim();
    let children = read_to_string(format!("/proc/{unshare}/task/{unshare}/children")).expect("the cluster runs");
    let first = children.split_whitespace().next().expect("the cluster's pid 1");
    let network = File::open(format!("/proc/{first}/ns/net")).expect("the cluster's network");
    thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).expect("into its network");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work())
    })
}
