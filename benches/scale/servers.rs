//! What the API server, etcd and this process use, by procfs.

use std::fs;

/// Their process ids.
pub(crate) struct Servers([u32; 3]);

/// Of one process.
pub(crate) struct Usage {
    cpu_seconds: f64,
    megabytes: u64,
}

impl Servers {
    pub(crate) fn find() -> Self {
        Self([called("kube-apiserver"), called("etcd"), std::process::id()])
    }

    pub(crate) fn usage(&self) -> [Usage; 3] {
        self.0.map(usage)
    }
}

impl Usage {
    /// The cores that it used in the meantime, and its memory.
    pub(crate) fn since(&self, before: &Self, seconds: f64) -> String {
        format!("{:.2} cores, {} MiB", (self.cpu_seconds - before.cpu_seconds) / seconds, self.megabytes)
    }
}

fn called(name: &str) -> u32 {
    let processes = fs::read_dir("/proc").expect("there is procfs").flatten();
    let mut ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.find(|pid: &u32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name))
        .unwrap_or_else(|| panic!("no process is called {name}"))
}

fn usage(pid: u32) -> Usage {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = |field: usize| fields[field].parse::<f64>().expect("a number");
    #[allow(clippy::cast_precision_loss, reason = "it is 100")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Usage { cpu_seconds: (ticks(11) + ticks(12)) / per_second, megabytes: memory(pid, "VmRSS:") }
}

/// The most memory that a process has had, in MiB; 0 when it is gone.
pub(crate) fn most_memory(pid: u32) -> u64 {
    memory(pid, "VmHWM:")
}

fn memory(pid: u32, key: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
