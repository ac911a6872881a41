//! A proxy before the API server, for the agents alone. It passes on what comes, is away, or lets each request of a
//! node meet the next of a list of troubles.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::client;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector, server};

use crate::cluster::Cluster;
use crate::inside::inside;

/// At the address that the agents know.
pub(crate) const PORT: u16 = 6444;
const SERVER: &str = "10.99.0.1:443";

/// What a request meets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    /// It is passed on after so long; beyond the end of a list, at once.
    Slow(Duration),
    /// This status in the server's place, as a load balancer would answer.
    Answers(u16),
    /// The end of the connection before the server has heard of it, after it has, or amid its answer.
    CutBefore,
    CutAfter,
    CutMidway,
    /// Nothing, until the agent gives up.
    Hangs,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Weather {
    /// Connections stay, and nobody looks into them.
    Calm,
    /// Nobody listens.
    Away,
    Storm(&'static [Trouble]),
}

/// A request during a storm.
#[derive(Debug, Clone)]
pub(crate) struct Met {
    pub(crate) at: Instant,
    line: String,
    pub(crate) trouble: Trouble,
}

impl Met {
    pub(crate) fn is_event(&self) -> bool {
        self.line.contains("/events")
    }

    pub(crate) fn is_well(&self) -> bool {
        matches!(self.trouble, Trouble::Slow(_))
    }
}

#[derive(Default)]
struct Log {
    /// By the node's address, since the weather's last change.
    met: BTreeMap<String, Vec<Met>>,
    connections: BTreeMap<String, usize>,
}

/// It, until the test ends.
pub(crate) struct Proxy {
    weather: watch::Sender<Weather>,
    log: Arc<Mutex<Log>>,
}

#[derive(Clone)]
struct Ends {
    acceptor: TlsAcceptor,
    connector: TlsConnector,
    log: Arc<Mutex<Log>>,
}

impl Proxy {
    pub(crate) fn start(cluster: &Cluster) -> Self {
        let (weather, seen) = watch::channel(Weather::Calm);
        let log = Arc::new(Mutex::new(Log::default()));
        let ends = Ends::new(&cluster.state().join("pki"), Arc::clone(&log));
        inside(cluster, move || serve(ends, seen));
        Self { weather, log }
    }

    /// Every connection there is ends at once.
    pub(crate) fn turns(&self, weather: Weather) {
        self.weather.send_replace(weather);
        self.log.lock().expect("no thread died").met.clear();
    }

    /// What a node's agent met since the weather changed.
    pub(crate) fn met(&self, node: &str) -> Vec<Met> {
        self.log.lock().expect("no thread died").met.get(&address(node)).cloned().unwrap_or_default()
    }

    pub(crate) fn connections(&self, node: &str) -> usize {
        self.log.lock().expect("no thread died").connections.get(&address(node)).copied().unwrap_or_default()
    }
}

fn address(node: &str) -> String {
    format!("10.99.0.1{}", node.trim_start_matches('n'))
}

impl Ends {
    fn new(pki: &Path, log: Arc<Mutex<Log>>) -> Self {
        let certificate = |name: &str| CertificateDer::from_pem_file(pki.join(name)).expect("a certificate");
        let key = PrivateKeyDer::from_pem_file(pki.join("apiserver.key")).expect("a key");
        let server = ServerConfig::builder().with_no_client_auth();
        let server = server.with_single_cert(vec![certificate("apiserver.crt")], key).expect("the server's own");
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.crt")).expect("an authority");
        let client = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        Self { acceptor: Arc::new(server).into(), connector: Arc::new(client).into(), log }
    }

    async fn upstream(&self) -> io::Result<client::TlsStream<TcpStream>> {
        let name = ServerName::try_from("10.99.0.1").expect("an address");
        self.connector.connect(name, TcpStream::connect(SERVER).await?).await
    }

    async fn connection(self, stream: TcpStream, weather: Weather) -> io::Result<()> {
        let node = stream.peer_addr()?.ip().to_string();
        let mut stream = self.acceptor.accept(stream).await?;
        *self.log.lock().expect("no thread died").connections.entry(node.clone()).or_default() += 1;
        let Weather::Storm(troubles) = weather else {
            return copy_bidirectional(&mut stream, &mut self.upstream().await?).await.map(drop);
        };
        let request = request(&mut stream).await?;
        let trouble = {
            let mut log = self.log.lock().expect("no thread died");
            let met = log.met.entry(node).or_default();
            let trouble = troubles.get(met.len()).copied().unwrap_or(Trouble::Slow(Duration::ZERO));
            let line = request.lines().next().unwrap_or_default().to_owned();
            met.push(Met { at: Instant::now(), line, trouble });
            trouble
        };
        self.meet(stream, &request, trouble).await
    }

    async fn meet(&self, mut stream: server::TlsStream<TcpStream>, request: &str, trouble: Trouble) -> io::Result<()> {
        match trouble {
            Trouble::Slow(pause) => sleep(pause).await,
            Trouble::Answers(status) => {
                let body = "<html>not now</html>";
                let head = format!("HTTP/1.1 {status} Trouble\r\nConnection: close\r\nRetry-After: 1\r\n");
                let answer = format!("{head}Content-Type: text/html\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                stream.write_all(answer.as_bytes()).await?;
                return stream.shutdown().await;
            }
            Trouble::CutBefore => return Ok(()),
            Trouble::Hangs => sleep(Duration::from_secs(3600)).await,
            Trouble::CutAfter | Trouble::CutMidway => {}
        }
        let mut upstream = self.upstream().await?;
        let once = request.replacen("\r\n", "\r\nConnection: close\r\n", 1);
        upstream.write_all(once.as_bytes()).await?;
        let mut answer = Vec::new();
        upstream.read_to_end(&mut answer).await?;
        match trouble {
            Trouble::CutAfter => return Ok(()),
            Trouble::CutMidway => stream.write_all(&answer[..answer.len() / 2]).await?,
            _ => stream.write_all(&answer).await?,
        }
        stream.shutdown().await
    }
}

/// One, head and body.
async fn request(stream: &mut server::TlsStream<TcpStream>) -> io::Result<String> {
    let mut request = Vec::new();
    loop {
        if stream.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
        if body.len() >= length.unwrap_or(0_usize) {
            return Ok(text.into_owned());
        }
    }
}

async fn serve(ends: Ends, mut weather: watch::Receiver<Weather>) {
    loop {
        let listener = TcpListener::bind(("0.0.0.0", PORT)).await.expect("the port is free");
        loop {
            tokio::select! {
                biased;
                changed = weather.changed() => match changed {
                    Err(_) => return,
                    Ok(()) if matches!(*weather.borrow_and_update(), Weather::Away) => break,
                    Ok(()) => {}
                },
                Ok((stream, _)) = listener.accept() => {
                    let (ends, now, mut weather) = (ends.clone(), *weather.borrow(), weather.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            biased;
                            _ = weather.changed() => {}
                            _ = ends.connection(stream, now) => {}
                        }
                    });
                }
            }
        }
        drop(listener);
        while matches!(*weather.borrow_and_update(), Weather::Away) {
            if weather.changed().await.is_err() {
                return;
            }
        }
    }
}
