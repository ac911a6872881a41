//! A kubelet of a test's own, as the real one's device manager behaves, with its quirks by version: it asks
//! for options before it answers Register, opens one `ListAndWatch` and never another, deletes every socket
//! when it starts, and knows a plugin by its resource's name alone (before 1.36) or by its socket too.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status,
    transport::{Channel, Endpoint, Server},
};
use v1beta1::{
    Device, DevicePluginOptions, Empty, RegisterRequest,
    device_plugin_client::DevicePluginClient,
    registration_server::{Registration, RegistrationServer},
};

/// The kubelet's contract.
pub(crate) mod v1beta1 {
    #![allow(clippy::pedantic, missing_docs, unreachable_pub, dead_code)] // generated code
    tonic::include_proto!("v1beta1");
}

/// How the next registrations are met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As they should be.
    Fair,
    /// Answered with an error, so often.
    Refuse(u32),
    /// Answered with yes, and no stream, so often.
    Forget(u32),
    /// So slow that a second kubelet can start and delete the plugin's socket meanwhile.
    Slow(Duration),
}

/// What one message of a stream said.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) resource: String,
    pub(crate) devices: Vec<Device>,
}

#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) requests: Vec<RegisterRequest>,
    pub(crate) options: Vec<DevicePluginOptions>,
    pub(crate) messages: Vec<Message>,
    /// By resource: the present client, while its stream is open.
    clients: HashMap<String, Client>,
    serial: u64,
}

struct Client {
    key: String,
    serial: u64,
    channel: Channel,
    end: CancellationToken,
    devices: Vec<Device>,
}

/// One process of it.
pub(crate) struct Kubelet {
    folder: PathBuf,
    shared: Shared,
    runtime: Option<tokio::runtime::Runtime>,
    server: JoinHandle<()>,
    end: CancellationToken,
    pub(crate) began: Instant,
}

#[derive(Clone)]
struct Shared {
    seen: Arc<Mutex<Seen>>,
    mood: Arc<Mutex<Mood>>,
    folder: PathBuf,
    by_name_alone: bool,
    end: CancellationToken,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.end.cancel();
        self.server.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Kubelet {
    /// Starts one, which deletes every socket in the folder.
    pub(crate) fn start(folder: &Path) -> Self {
        Self::with(folder, Mood::Fair, false)
    }

    pub(crate) fn with(folder: &Path, mood: Mood, by_name_alone: bool) -> Self {
        fs::create_dir_all(folder).unwrap();
        for entry in fs::read_dir(folder).unwrap().flatten() {
            if entry.file_type().unwrap().is_socket() {
                let _ = fs::remove_file(entry.path()); // somebody was faster
            }
        }
        Self::beside(folder, mood, by_name_alone)
    }

    /// One that deletes nothing but the socket in its own place.
    pub(crate) fn beside(folder: &Path, mood: Mood, by_name_alone: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let end = CancellationToken::new();
        let shared = Shared {
            seen: Arc::default(),
            mood: Arc::new(Mutex::new(mood)),
            folder: folder.to_owned(),
            by_name_alone,
            end: end.clone(),
        };
        let socket = folder.join("kubelet.sock");
        let _ = fs::remove_file(&socket);
        let service = RegistrationServer::new(shared.clone());
        let _entered = runtime.enter();
        let listener = UnixListener::bind(socket).unwrap();
        let server = tokio::spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let _ = Server::builder().add_service(service).serve_with_incoming(incoming).await;
        });
        Self { folder: folder.to_owned(), shared, server, end, began: Instant::now(), runtime: Some(runtime) }
    }

    /// As SIGTERM ends it: its socket goes with it.
    pub(crate) fn stop(self) {
        let socket = self.folder.join("kubelet.sock");
        drop(self);
        let _ = fs::remove_file(socket);
    }

    /// As SIGKILL ends it: its socket's file stays.
    pub(crate) fn kill(self) {
        drop(self);
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Seen> {
        self.shared.seen()
    }

    /// Cuts a resource's stream, as a reset of the connection does.
    pub(crate) fn cut(&self, resource: &str) {
        if let Some(client) = self.seen().clients.get(resource) {
            client.end.cancel();
        }
    }

    /// What pods could be given, now.
    pub(crate) fn allocatable(&self, resource: &str) -> usize {
        let seen = self.seen();
        let devices = seen.clients.get(resource).map(|client| client.devices.clone()).unwrap_or_default();
        devices.iter().filter(|device| device.health == "Healthy").count()
    }

    /// Waits until so many can be given; answers since when, and panics after a generous while.
    pub(crate) fn offers(&self, resource: &str, count: usize) -> Instant {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.allocatable(resource) != count {
            assert!(Instant::now() < deadline, "{} and not {count} of {resource}", self.allocatable(resource));
            thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    }

    /// Waits until somebody registers.
    pub(crate) fn is_asked(&self) {
        let deadline = Instant::now() + Duration::from_secs(15);
        while self.seen().requests.is_empty() {
            assert!(Instant::now() < deadline, "never registered");
            thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn messages(&self, resource: &str) -> Vec<Message> {
        self.seen().messages.iter().filter(|message| message.resource == resource).cloned().collect()
    }

    /// One call over the connection that it has to the plugin.
    pub(crate) fn call<T, F>(&self, resource: &str, call: impl FnOnce(DevicePluginClient<Channel>) -> F) -> T
    where
        F: Future<Output = T>,
    {
        let channel = self.seen().clients[resource].channel.clone();
        self.runtime.as_ref().unwrap().block_on(call(DevicePluginClient::new(channel)))
    }
}

#[tonic::async_trait]
impl Registration for Shared {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        self.seen().requests.push(request.clone());
        let mood = {
            let mut mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
            let now = *mood;
            *mood = match now {
                Mood::Refuse(n) if n > 1 => Mood::Refuse(n - 1),
                Mood::Forget(n) if n > 1 => Mood::Forget(n - 1),
                Mood::Refuse(_) | Mood::Forget(_) => Mood::Fair,
                other => other,
            };
            now
        };
        if request.version != "v1beta1" {
            return Err(Status::unknown(format!("requested API version {:?} is not supported", request.version)));
        }
        if !is_extended(&request.resource_name) {
            return Err(Status::unknown(format!("the ResourceName {:?} is invalid", request.resource_name)));
        }
        match mood {
            Mood::Refuse(_) => return Err(Status::internal("not now")),
            Mood::Slow(pause) => tokio::time::sleep(pause).await,
            Mood::Fair | Mood::Forget(_) => {}
        }
        let channel = dial(&self.folder.join(&request.endpoint)).await?;
        let mut client = DevicePluginClient::new(channel.clone());
        let options = client.get_device_plugin_options(Empty {}).await?.into_inner();
        self.seen().options.push(options);
        if !matches!(mood, Mood::Forget(_)) {
            let key = if self.by_name_alone { String::new() } else { request.endpoint };
            self.connect(request.resource_name, key, channel);
        }
        Ok(Response::new(Empty {}))
    }
}

/// A name that it takes (`IsExtendedResourceName`).
fn is_extended(name: &str) -> bool {
    let native = |domain: &str| domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    name.split_once('/').is_some_and(|(domain, rest)| {
        !native(domain) && !name.starts_with("requests.") && !rest.is_empty() && !rest.contains('/') && rest.len() <= 63
    })
}

/// For ten seconds, whatever the trouble: who is not there yet may come (`DialTimeout`).
async fn dial(socket: &Path) -> Result<Channel, Status> {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(channel),
            Err(error) if Instant::now() > deadline => return Err(Status::unavailable(error.to_string())),
            // gRPC's own pause between two tries.
            Err(_) => tokio::time::sleep(Duration::from_secs(1)).await,
        }
    }
}

impl Shared {
    /// One stream, in a task of its own; it is never tried again.
    fn connect(&self, resource: String, key: String, channel: Channel) {
        let end = self.end.child_token();
        let serial = {
            let mut seen = self.seen();
            seen.serial += 1;
            let serial = seen.serial;
            let (channel, end) = (channel.clone(), end.clone());
            let client = Client { key: key.clone(), serial, channel, end, devices: Vec::new() };
            seen.clients.insert(resource.clone(), client);
            serial
        };
        let shared = self.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = end.cancelled() => {}
                () = shared.listen(&resource, serial, channel) => {}
            }
            shared.ended(&resource, &key, serial);
        });
    }

    async fn listen(&self, resource: &str, serial: u64, channel: Channel) {
        // gRPC's own limit, which the kubelet leaves as it is.
        let mut client = DevicePluginClient::new(channel).max_decoding_message_size(4 << 20);
        let Ok(stream) = client.list_and_watch(Empty {}).await else { return };
        let mut stream = stream.into_inner();
        while let Ok(Some(message)) = stream.message().await {
            let mut seen = self.seen();
            let devices = message.devices;
            if let Some(client) = seen.clients.get_mut(resource).filter(|client| client.serial == serial) {
                client.devices.clone_from(&devices);
            }
            seen.messages.push(Message { resource: resource.to_owned(), devices });
        }
    }

    /// Takes away the client whose stream this was. Known by its name alone, that is whoever is there now:
    /// the newer client too (kubernetes#127803).
    fn ended(&self, resource: &str, key: &str, serial: u64) {
        let mut seen = self.seen();
        let is_it = |client: &Client| client.key == key && (self.by_name_alone || client.serial == serial);
        if seen.clients.get(resource).is_some_and(is_it)
            && let Some(client) = seen.clients.remove(resource)
        {
            client.end.cancel();
        }
    }
}
