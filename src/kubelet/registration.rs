//! The life of one resource: serve, dial yourself, register, and see that the kubelet opens its
//! stream; and again whenever it ends.
//!
//! The kubelet calls back before it answers Register, opens `ListAndWatch` once and never again, and
//! deletes every socket in its folder when it starts. A resource whose stream has ended is at zero
//! until somebody registers again; that is this supervisor's work.

use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::{net::UnixListener, sync::watch, task::JoinHandle, time::Instant};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};

use super::{
    server::{Plugin, options},
    v1beta1::{
        Empty, RegisterRequest, device_plugin_client::DevicePluginClient, device_plugin_server::DevicePluginServer,
        registration_client::RegistrationClient,
    },
};
use crate::{
    agent::Published,
    config::{Config, Resource},
    probe::Machine,
    telemetry::metrics::Metrics,
};

/// The kubelet dials back and asks for options before it answers, up to 10 s.
const REGISTER_DEADLINE: Duration = Duration::from_secs(15);
/// After Register the stream must open.
const STREAM_DEADLINE: Duration = Duration::from_secs(3);
/// Tries follow each other at this pace for [`EAGER`], then ever slower.
const PACE: Duration = Duration::from_millis(20);
const EAGER: Duration = Duration::from_secs(2);
const SLOWEST: Duration = Duration::from_secs(30);
/// How often a working resource looks whether its socket is still there.
const WATCH: Duration = Duration::from_secs(1);

/// What a supervisor needs.
#[derive(Clone)]
pub struct Supervised {
    /// The resource.
    pub resource: Resource,
    /// The configuration, with all resources.
    pub config: Arc<Config>,
    /// The kubelet's device-plugin folder.
    pub folder: PathBuf,
    /// The agent's state.
    pub state: watch::Receiver<Arc<Published>>,
    /// The machine, to look at when a pod gets a device.
    pub machine: Arc<dyn Machine>,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Where the report and the socket are.
    pub run_dir: PathBuf,
    /// Where device nodes are.
    pub dev_root: PathBuf,
    /// Ends everything.
    pub end: CancellationToken,
}

/// Keeps one resource registered until it is told to end.
pub async fn supervise(supervised: Supervised) {
    let resource = supervised.resource.name.clone();
    remove_old_sockets(&supervised.folder, &resource);
    let end = supervised.end.clone();
    tokio::select! {
        () = end.cancelled() => {}
        () = live(supervised) => {}
    }
}

async fn live(supervised: Supervised) {
    let mut retry = Retry::new();
    loop {
        match Serving::start(&supervised).await {
            Ok(serving) => {
                serving.keep_registered(&supervised, &mut retry).await;
                tracing::info!(resource = %supervised.resource.name, "serving the kubelet on a new socket");
            }
            Err(error) => {
                retry.warn(&format!(
                    "can't serve {} in {}: {error}",
                    supervised.resource.name,
                    supervised.folder.display()
                ));
                retry.wait(&supervised.folder).await;
            }
        }
    }
}

/// A bound socket with its server.
struct Serving {
    socket: PathBuf,
    identity: Identity,
    streams: watch::Receiver<usize>,
    end: CancellationToken,
    server: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.cancel();
        self.server.abort();
        if Identity::of(&self.socket).as_ref() == Some(&self.identity) {
            let _ = fs::remove_file(&self.socket); // the kubelet may have been faster
        }
    }
}

impl Serving {
    async fn start(supervised: &Supervised) -> io::Result<Self> {
        let socket = supervised.folder.join(socket_name(&supervised.resource.name));
        let listener = UnixListener::bind(&socket)?;
        let identity = Identity::of(&socket).ok_or(io::ErrorKind::NotFound)?;
        let (streams, receiver) = watch::channel(0);
        let end = supervised.end.child_token();
        let plugin = Plugin {
            resource: supervised.resource.clone(),
            config: Arc::clone(&supervised.config),
            state: supervised.state.clone(),
            machine: Arc::clone(&supervised.machine),
            metrics: Arc::clone(&supervised.metrics),
            run_dir: supervised.run_dir.clone(),
            dev_root: supervised.dev_root.clone(),
            streams: Arc::new(streams),
            end: end.clone(),
        };
        let server = Server::builder().add_service(DevicePluginServer::new(plugin));
        let ended = end.clone().cancelled_owned();
        let server = tokio::spawn(async move {
            if let Err(error) = server.serve_with_incoming_shutdown(UnixListenerStream::new(listener), ended).await {
                tracing::warn!(%error, "the device plugin's server ended");
            }
        });
        let serving = Self { socket, identity, streams: receiver, end, server };
        serving.dial_yourself().await?;
        Ok(serving)
    }

    /// A server that does not answer us would not answer the kubelet either.
    async fn dial_yourself(&self) -> io::Result<()> {
        let channel = dial(&self.socket).await?;
        DevicePluginClient::new(channel).get_device_plugin_options(Empty {}).await.map_err(io::Error::other)?;
        Ok(())
    }

    fn is_ours(&self) -> bool {
        Identity::of(&self.socket).as_ref() == Some(&self.identity)
    }

    fn is_streaming(&self) -> bool {
        *self.streams.borrow() > 0
    }

    /// Registers, and again whenever the stream has ended; returns when the socket is gone and no
    /// stream is left that could be harmed by a new one.
    async fn keep_registered(mut self, supervised: &Supervised, retry: &mut Retry) {
        let resource = &supervised.resource.name;
        let kubelet = supervised.folder.join("kubelet.sock");
        loop {
            if !self.is_ours() {
                return;
            }
            match self.register(supervised, &kubelet).await {
                Ok(()) if self.stream_opens().await => {
                    tracing::info!(%resource, "registered with the kubelet, and its stream is open");
                    supervised.metrics.stream(resource, true);
                    retry.reset();
                    self.while_streaming(supervised).await;
                    supervised.metrics.stream(resource, false);
                    tracing::info!(%resource, "the kubelet's stream ended");
                }
                Ok(()) => retry.warn(&format!("the kubelet took the registration of {resource} and opened no stream")),
                Err(error) => {
                    retry.warn(&format!("can't register {resource} with the kubelet: {error}"));
                    retry.wait(&supervised.folder).await;
                }
            }
        }
    }

    async fn register(&self, supervised: &Supervised, kubelet: &Path) -> io::Result<()> {
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: supervised.resource.name.clone(),
            options: Some(options(&supervised.resource)),
        };
        let register = async {
            RegistrationClient::new(dial(kubelet).await?)
                .register(request)
                .await
                .map_err(|status| io::Error::other(status.message().to_owned()))
        };
        tokio::time::timeout(REGISTER_DEADLINE, register)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        Ok(())
    }

    async fn stream_opens(&mut self) -> bool {
        let opened = self.streams.wait_for(|n| *n > 0);
        tokio::time::timeout(STREAM_DEADLINE, opened).await.is_ok_and(|r| r.is_ok())
    }

    /// An open stream carries health whatever happens to files; a socket that is gone is bound
    /// again only when the stream has ended.
    async fn while_streaming(&mut self, supervised: &Supervised) {
        let mut told = false;
        while self.is_streaming() {
            tokio::select! {
                _ = self.streams.changed() => {}
                () = tokio::time::sleep(WATCH) => {}
            }
            if !self.is_ours() && !std::mem::replace(&mut told, true) {
                tracing::warn!(resource = %supervised.resource.name, "our socket is gone; the open stream goes on");
            }
        }
    }
}

/// A new channel each time: gRPC's own reconnection waits a full second.
pub(crate) async fn dial(socket: &Path) -> io::Result<Channel> {
    Endpoint::try_from(format!("unix://{}", socket.display()))
        .map_err(io::Error::other)?
        .connect_timeout(Duration::from_secs(5))
        .connect()
        .await
        .map_err(|e| {
            std::error::Error::source(&e)
                .map_or_else(|| io::Error::other(e.to_string()), |s| io::Error::other(s.to_string()))
        })
}

/// Which file it is: an inode alone is used again.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Identity(u64, i64, i64);

impl Identity {
    fn of(path: &Path) -> Option<Self> {
        let meta = fs::metadata(path).ok()?;
        Some(Self(meta.ino(), meta.ctime(), meta.ctime_nsec()))
    }
}

/// Our own clock for tries: eager at first, and whenever the kubelet's socket is a new one.
struct Retry {
    since: Option<Instant>,
    pause: Duration,
    warned: Option<String>,
}

impl Retry {
    fn new() -> Self {
        Self { since: None, pause: PACE, warned: None }
    }

    fn reset(&mut self) {
        *self = Self::new();
    }

    /// Says a trouble once, not at each try.
    fn warn(&mut self, text: &str) {
        if self.warned.as_deref() != Some(text) {
            tracing::warn!("{text}");
            self.warned = Some(text.to_owned());
        }
    }

    async fn wait(&mut self, folder: &Path) {
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() > EAGER {
            self.pause = (self.pause * 2).min(SLOWEST);
        }
        let before = Identity::of(&folder.join("kubelet.sock"));
        let until = Instant::now() + self.pause;
        while Instant::now() < until {
            tokio::time::sleep(PACE).await;
            if Identity::of(&folder.join("kubelet.sock")) != before {
                self.since = None;
                self.pause = PACE;
                return;
            }
        }
    }
}

/// Unique for each bind: kubelets before 1.36 know a plugin by its resource's name alone, newer ones
/// by its socket's path too.
fn socket_name(resource: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}{}-{}.sock", socket_prefix(resource), std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Short: a socket's path has 107 bytes at most.
fn socket_prefix(resource: &str) -> String {
    let hash =
        resource.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("gdr-agent-{:08x}-", hash & 0xffff_ffff)
}

/// Sockets of an agent that was killed.
fn remove_old_sockets(folder: &Path, resource: &str) {
    let prefix = socket_prefix(resource);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = fs::remove_file(entry.path()); // the next start tries again
        }
    }
}
