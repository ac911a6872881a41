//! The configuration: one YAML file, overridden by the environment, checked as a whole.

mod load;
mod units;
mod validate;

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use load::{ConfigError, DEFAULT_PATH, load};
pub use units::{ByteSize, Interval, Span};
pub use validate::validate_prefix;

use crate::report::Method;

/// The whole file. Every key has a default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Config {
    /// `gdr-agent/v1`.
    pub api_version: String,
    /// `Configuration`.
    pub kind: String,
    /// How and when to check.
    #[serde(default)]
    pub check: Check,
    /// What a check means for the node.
    #[serde(default)]
    pub policy: Policy,
    /// What the node shows.
    #[serde(default)]
    pub publish: Publish,
    /// What the kubelet gets.
    #[serde(default = "default_resources")]
    pub resources: Vec<Resource>,
    /// Container Device Interface.
    #[serde(default)]
    pub cdi: Cdi,
    /// Where the kubelet's sockets are.
    #[serde(default)]
    pub kubelet: Kubelet,
    /// What replaces the kernel's view of the hardware.
    #[serde(default)]
    pub hardware: Hardware,
    /// Where the GPU driver's libraries are.
    #[serde(default)]
    pub driver: Driver,
    /// What is remembered on the host.
    #[serde(default)]
    pub store: Store,
    /// Health and metrics.
    #[serde(default)]
    pub http: Http,
    /// Logging.
    #[serde(default)]
    pub log: Log,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_version: crate::report::API_VERSION.to_owned(),
            kind: "Configuration".to_owned(),
            check: Check::default(),
            policy: Policy::default(),
            publish: Publish::default(),
            resources: default_resources(),
            cdi: Cdi::default(),
            kubelet: Kubelet::default(),
            hardware: Hardware::default(),
            driver: Driver::default(),
            store: Store::default(),
            http: Http::default(),
            log: Log::default(),
        }
    }
}

/// A section with its defaults: each field is written once, with its type and its default.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident : $ty:ty = $default:expr,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase", deny_unknown_fields, default)]
        pub struct $name { $($(#[$field_meta])* pub $field: $ty,)+ }

        impl Default for $name {
            fn default() -> Self { Self { $($field: $default,)+ } }
        }
    };
}

section! {
    /// How and when to check.
    Check {
        /// Time between checks, ± 10 %; `never`: look, but do not register.
        interval: Interval = Interval::Every(Span::minutes(15)),
        /// Methods that make a pair good.
        methods: Vec<Method> = Method::ALL.to_vec(),
        /// GPU memory to register.
        size: ByteSize = ByteSize::mib(2),
        /// Proof by transfer.
        loopback: Loopback = Loopback::Never,
        /// What loopback moves over.
        deep_size: ByteSize = ByteSize::mib(64),
        /// For one GPU.
        timeout: Span = Span::seconds(60),
        /// GPUs at a time.
        parallelism: usize = 4,
        /// What to do with a GPU in use.
        busy_gpus: BusyGpus = BusyGpus::Skip,
        /// What to check.
        select: Select = Select::default(),
    }
}

section! {
    /// What to check; empty lists take the defaults.
    Select {
        /// GPUs.
        gpus: Vec<Selector> = Vec::new(),
        /// HCAs.
        hcas: Vec<Selector> = Vec::new(),
    }
}

section! {
    /// What a check means for the node.
    Policy {
        /// Which pairs count.
        pairs: Pairs = Pairs::Nearest,
        /// What hardware must be there; the first entry that matches the node.
        expect: Vec<Expect> = Vec::new(),
        /// How long after boot a missing driver is not held against the node.
        settle: Span = Span::minutes(20),
        /// How long a port may be down.
        port_grace: Span = Span::seconds(60),
        /// How many checks it takes to change the state.
        damping: Damping = Damping::default(),
    }
}

section! {
    /// How many checks it takes to change the state.
    Damping {
        /// Failed checks in a row to fall.
        fall: u32 = 2,
        /// Good checks in a row to rise after a fall.
        rise: u32 = 3,
        /// Time after a fall before a rise.
        hold: Span = Span::minutes(5),
    }
}

section! {
    /// What hardware must be there.
    Expect {
        /// Glob over the GPU's model.
        gpu_model: Option<String> = None,
        /// Glob over the machine's DMI product name.
        product: Option<String> = None,
        /// Labels that the node must have.
        node_labels: std::collections::BTreeMap<String, String> = std::collections::BTreeMap::new(),
        /// Number of GPUs.
        gpus: Option<u32> = None,
        /// Number of rails.
        rails: Option<u32> = None,
    }
}

section! {
    /// What the node shows.
    Publish {
        /// Where it goes.
        mode: PublishMode = PublishMode::Node,
        /// Report, metrics and log only.
        dry_run: bool = false,
        /// Prefix of all keys.
        prefix: String = "gpudirect-rdma".to_owned(),
        /// The bare label in place of `PREFIX/state`.
        short_label: bool = true,
        /// Time between confirmations, plus 0–10 %.
        heartbeat: Span = Span::minutes(5),
        /// Agents that are installed together tell for the first time within this time; 12m keeps a thousand of
        /// them below 5 requests/s.
        spread: Span = Span::seconds(3),
        /// Kubernetes events.
        events: bool = true,
        /// Where NFD reads feature files.
        nfd_dir: PathBuf = "/etc/kubernetes/node-feature-discovery/features.d".into(),
    }
}

section! {
    /// One extended resource.
    Resource {
        /// Its name, `domain/name`.
        name: String = "gpudirect-rdma/hca".to_owned(),
        /// What a device of it is.
        kind: ResourceKind = ResourceKind::Hca,
        /// Which HCAs.
        select: Vec<Selector> = vec![Selector { nearest: Some(true), ..Selector::default() }],
        /// Shares of each device.
        replicas: u32 = 1,
        /// Hand out `umad` and `issm` too.
        mad: bool = false,
        /// Another plugin may offer the same HCAs.
        shared: bool = false,
        /// Set NCCL's variables.
        nccl_env: bool = false,
        /// Register again before a container starts.
        pre_start: bool = false,
    }
}

section! {
    /// One selector: everything in it must hold (AND); one of a list must (OR).
    Selector {
        /// Is a rail.
        nearest: Option<bool> = None,
        /// Kernel driver, `mlx5_core`.
        driver: Option<String> = None,
        /// PCI vendor id, `0x15b3`.
        vendor: Option<String> = None,
        /// PCI device id, `0x1021`.
        device: Option<String> = None,
        /// Glob over the name.
        name: Option<String> = None,
        /// `infiniband`, `roce`, `efa`.
        link_layer: Option<String> = None,
        /// Rate of its fastest port, Gb/s.
        min_rate_gbps: Option<f64> = None,
        /// PCI address.
        pci: Option<crate::hardware::PciAddress> = None,
        /// Physical or virtual function.
        function: Option<Function> = None,
    }
}

section! {
    /// Container Device Interface.
    Cdi {
        /// Write specs and answer with names.
        enabled: bool = false,
        /// Where specs go.
        dir: PathBuf = "/var/run/cdi".into(),
    }
}

section! {
    /// Where the kubelet's sockets are.
    Kubelet {
        /// The device-plugin folder.
        device_plugins: PathBuf = "/var/lib/kubelet/device-plugins".into(),
        /// The PodResources folder.
        pod_resources: PathBuf = "/var/lib/kubelet/pod-resources".into(),
    }
}

section! {
    /// What replaces the kernel's view of the hardware.
    Hardware {
        /// NCCL's topology XML, a path on the node.
        topology_file: Option<PathBuf> = None,
    }
}

section! {
    /// Where the GPU driver's libraries are.
    Driver {
        /// Where to look.
        mode: DriverMode = DriverMode::Auto,
        /// The node's root as the agent sees it.
        root: PathBuf = "/host".into(),
    }
}

section! {
    /// What is remembered on the host.
    Store {
        /// Folder.
        dir: PathBuf = "/var/lib/gdr-agent".into(),
    }
}

section! {
    /// Health and metrics.
    Http {
        /// Address and port; `null`: none.
        listen: Option<String> = Some("[::]:9477".to_owned()),
    }
}

section! {
    /// Logging.
    Log {
        /// `error`, `warn`, `info`, `debug`, `trace`, or a filter of tracing's.
        level: String = "info".to_owned(),
        /// Form of a line.
        format: LogFormat = LogFormat::Json,
    }
}

fn default_resources() -> Vec<Resource> {
    vec![Resource::default()]
}

/// A closed choice, written in kebab-case.
macro_rules! choice {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "kebab-case")]
        pub enum $name { $($(#[$variant_meta])* $variant,)+ }
    };
}

choice! { /// When to prove by transfer.
Loopback { /// Never.
    Never, /// At the first check.
    Start, /// At every check.
    Always, } }
choice! { /// What to do with a GPU in use.
BusyGpus { /// Leave it alone.
    Skip, /// Register where there is memory to spare.
    Check, } }
choice! { /// Which pairs count.
Pairs { /// Each GPU with its nearest HCAs.
    Nearest, /// All eligible ones.
    All, } }
choice! { /// Where the verdict goes.
PublishMode { /// Labels, condition, annotation of the Node.
    Node, /// A feature file for Node Feature Discovery.
    Nfd, /// Nowhere.
    None, } }
choice! { /// What a device is.
ResourceKind { /// One HCA.
    Hca, /// One GPU with its HCA.
    Pair, } }
choice! { /// Which kind of PCI function.
Function { /// Physical.
    Pf, /// Virtual.
    Vf, } }
choice! { /// Where the GPU driver's libraries come from.
DriverMode { /// The node's root, else what was injected.
    Auto, /// The node's root.
    Host, /// What a runtime class or CDI injected.
    Runtime, } }
choice! { /// Form of a log line.
LogFormat { /// For machines.
    Json, /// For people.
    Text, } }
