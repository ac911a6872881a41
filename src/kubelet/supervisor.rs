//! The life of one resource, `Serving → Registered → Streaming`: serve, dial yourself, register, and see that
//! the kubelet opens its stream; and again whenever it ends.
//!
//! The kubelet calls back before it answers Register, opens `ListAndWatch` once and never again, and
//! deletes every socket in its folder when it starts. A resource whose stream has ended is at zero
//! until somebody registers again; that is this supervisor's work.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::UnixListener,
    sync::{Semaphore, watch},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint, Server};

use super::{
    retry::Retry,
    server::{Plugin, Streams, options},
    socket::{self, Identity},
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
/// After Register the stream must open; and a stream that outlives its kubelet's socket must end.
const STREAM_DEADLINE: Duration = Duration::from_secs(3);
/// Between two looks at our own socket while the kubelet is about to answer.
const LOOK: Duration = Duration::from_millis(500);
/// A stream that ends sooner counts as a try that failed: a kubelet that closes each one is not to be
/// registered with as fast as it can answer.
const STEADY: Duration = Duration::from_secs(2);

/// What a supervisor needs.
#[derive(Clone)]
pub struct Supervised {
    /// The resource.
    pub resource: Resource,
    /// The configuration, with all resources.
    pub config: Arc<Config>,
    /// The kubelet's device-plugin folder.
    pub folder: PathBuf,
    /// Changes in it.
    pub changes: watch::Receiver<u64>,
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
    /// Looks at the hardware that may be under way at once, of all resources.
    pub looks: Arc<Semaphore>,
    /// Ends everything.
    pub end: CancellationToken,
}

/// Keeps one resource registered until it is told to end.
pub async fn supervise(supervised: Supervised) {
    socket::remove_old(&supervised.folder, &supervised.resource.name);
    let end = supervised.end.clone();
    tokio::select! {
        () = end.cancelled() => {}
        () = live(supervised) => {}
    }
}

async fn live(mut supervised: Supervised) {
    let mut retry = Retry::new();
    loop {
        match Serving::start(&supervised).await {
            Ok(serving) => serving.live(&mut supervised, &mut retry).await,
            Err(error) => {
                let (resource, folder) = (&supervised.resource.name, supervised.folder.display());
                retry.warn(&format!("can't serve {resource} in {folder}: {error}"));
                let kubelet = Identity::of(&socket::kubelet(&supervised.folder));
                retry.wait(&supervised.folder, &mut supervised.changes, kubelet.as_ref()).await;
            }
        }
    }
}

/// Why a registration came to nothing.
enum Unregistered {
    /// Our socket is gone: the kubelet that starts has deleted it, maybe while we registered.
    SocketGone,
    /// This kubelet can't be reached, or says no.
    Refused(Identity, io::Error),
    /// It said yes, and opened no stream.
    Silent,
}

/// A bound socket with its server.
struct Serving {
    socket: PathBuf,
    identity: Identity,
    streams: watch::Receiver<Streams>,
    end: CancellationToken,
    server: JoinHandle<()>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end.cancel();
        self.server.abort();
        if self.is_ours() {
            let _ = fs::remove_file(&self.socket); // the kubelet may have been faster
        }
    }
}

impl Serving {
    async fn start(supervised: &Supervised) -> io::Result<Self> {
        let socket = supervised.folder.join(socket::name(&supervised.resource.name));
        let listener = UnixListener::bind(&socket)?;
        let identity = Identity::of(&socket).ok_or(io::ErrorKind::NotFound)?;
        let (streams, receiver) = watch::channel(Streams::default());
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
            looks: Arc::clone(&supervised.looks),
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

    /// Registers, and again whenever the stream has ended; returns when the socket is gone and no
    /// stream is left that could be harmed by a new one.
    async fn live(mut self, supervised: &mut Supervised, retry: &mut Retry) {
        let resource = supervised.resource.name.clone();
        loop {
            match self.register(supervised).await {
                Ok((kubelet, stream)) => {
                    tracing::info!(%resource, "registered with the kubelet, and its stream is open");
                    supervised.metrics.stream(&resource, true);
                    let since = Instant::now();
                    self.while_streaming(supervised, &kubelet, stream).await;
                    supervised.metrics.stream(&resource, false);
                    if since.elapsed() >= STEADY {
                        retry.reset();
                    } else {
                        retry.wait(&supervised.folder, &mut supervised.changes, Some(&kubelet)).await;
                    }
                }
                Err(Unregistered::SocketGone) => {
                    tracing::info!(%resource, "our socket is gone; serving on a new one");
                    return;
                }
                Err(Unregistered::Silent) => {
                    retry.warn(&format!("the kubelet took the registration of {resource} and opened no stream"));
                }
                Err(Unregistered::Refused(kubelet, error)) => {
                    retry.warn(&format!("can't register {resource} with the kubelet: {error}"));
                    retry.wait(&supervised.folder, &mut supervised.changes, Some(&kubelet)).await;
                }
            }
        }
    }

    /// Register, and a stream that opens because of it; answers whose it is, and which. Nothing is tried while
    /// there is no kubelet.
    async fn register(&mut self, supervised: &mut Supervised) -> Result<(Identity, u64), Unregistered> {
        let path = socket::kubelet(&supervised.folder);
        let kubelet = loop {
            supervised.changes.mark_unchanged();
            if !self.is_ours() {
                return Err(Unregistered::SocketGone);
            }
            if let Some(kubelet) = Identity::of(&path) {
                break kubelet;
            }
            change(&mut supervised.changes).await;
        };
        let before = self.streams.borrow().opened;
        let request = RegisterRequest {
            version: "v1beta1".to_owned(),
            endpoint: self.socket.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            resource_name: supervised.resource.name.clone(),
            options: Some(options(&supervised.resource)),
        };
        let asked = timeout(REGISTER_DEADLINE, register(&path, &kubelet, request));
        tokio::select! {
            asked = asked => match asked {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return Err(Unregistered::Refused(kubelet, error)),
                Err(_) => return Err(Unregistered::Refused(kubelet, io::ErrorKind::TimedOut.into())),
            },
            () = self.lost(&mut supervised.changes) => return Err(Unregistered::SocketGone),
        }
        let mut streams = self.streams.clone();
        let opens = timeout(STREAM_DEADLINE, streams.wait_for(|streams| streams.opened > before));
        tokio::select! {
            opened = opens => match opened {
                Ok(Ok(streams)) => Ok((kubelet, streams.opened)),
                _ => Err(Unregistered::Silent),
            },
            () = self.lost(&mut supervised.changes) => Err(Unregistered::SocketGone),
        }
    }

    /// Ends when our socket's file is not ours any more. Without inotify only the kubelet's socket is watched:
    /// so it is looked at too.
    async fn lost(&self, changes: &mut watch::Receiver<u64>) {
        while self.is_ours() {
            let _ = timeout(LOOK, change(changes)).await;
        }
    }

    /// An open stream carries health whatever happens to files. But a kubelet whose own socket was replaced
    /// is another one, as a rule, and the stream that is still open is nobody's: it gets a moment to end.
    async fn while_streaming(&mut self, supervised: &mut Supervised, kubelet: &Identity, stream: u64) {
        let resource = &supervised.resource.name;
        let path = socket::kubelet(&supervised.folder);
        let mut told = false;
        loop {
            // Looked at before each wait: what has changed while it registered was noticed then.
            if !self.is_ours() && !std::mem::replace(&mut told, true) {
                tracing::warn!(%resource, "our socket is gone; the open stream goes on");
            }
            if Identity::of(&path).is_some_and(|now| now != *kubelet) {
                let end = Instant::now() + STREAM_DEADLINE;
                let ended = self.streams.wait_for(|streams| !streams.open.contains(&stream));
                if timeout_at(end, ended).await.is_err() {
                    tracing::warn!(%resource, "there is another kubelet, and the old one's stream is still open");
                }
                return;
            }
            tokio::select! {
                ended = self.streams.wait_for(|streams| !streams.open.contains(&stream)) => {
                    drop(ended);
                    tracing::info!(%resource, "the kubelet's stream ended");
                    return;
                }
                Ok(()) = supervised.changes.changed() => {}
            }
        }
    }
}

/// Waits for a change in the folder; for ever where nobody watches it any more, because the agent ends.
async fn change(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Registers with this kubelet and no other: the file is the same before and after the connection was made.
async fn register(socket: &Path, kubelet: &Identity, request: RegisterRequest) -> io::Result<()> {
    let channel = dial(socket).await?;
    if Identity::of(socket).as_ref() != Some(kubelet) {
        return Err(io::Error::other("its socket was replaced"));
    }
    let answer = RegistrationClient::new(channel).register(request).await;
    answer.map(drop).map_err(|status| io::Error::other(status.message().to_owned()))
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
