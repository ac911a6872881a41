//! TLS before the API server, by a certificate authority that can become another one.

use std::{net::TcpListener as Listener, path::Path, sync::Arc, thread};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig, rustls::pki_types::PrivateKeyDer};

/// It, until the test's process ends.
pub(crate) struct Front {
    pub(crate) port: u16,
    certificate: watch::Sender<Arc<ServerConfig>>,
}

impl Front {
    /// Before the server at this port; and what is to be trusted, in PEM.
    pub(crate) fn new(server: u16) -> (Self, String) {
        let (trusted, first) = authority("first");
        let (certificate, of_now) = watch::channel(first);
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(pass_on(stream, of_now.clone(), server));
                }
            });
        });
        (Self { port, certificate }, trusted)
    }

    /// Another authority from now on, also for connections that are open; what is to be trusted now.
    pub(crate) fn rotate(&self) -> String {
        let (trusted, next) = authority("second");
        self.certificate.send_replace(next);
        trusted
    }
}

/// Until the certificate is another one.
async fn pass_on(stream: TcpStream, mut certificate: watch::Receiver<Arc<ServerConfig>>, server: u16) {
    let acceptor = TlsAcceptor::from(Arc::clone(&certificate.borrow_and_update()));
    // Who does not trust it goes away.
    let Ok(mut client) = acceptor.accept(stream).await else { return };
    let mut server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
    tokio::select! {
        _ = copy_bidirectional(&mut client, &mut server) => {}
        _ = certificate.changed() => {}
    }
}

fn authority(name: &str) -> (String, Arc<ServerConfig>) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate().unwrap();
    let trusted = authority.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().unwrap();
    let own = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(vec![own.der().clone()], key).unwrap();
    (trusted, Arc::new(config))
}

/// Replaces it as the kubelet does: a reader sees the old or the new one.
pub(crate) fn trust(dir: &Path, authority: &str) {
    std::fs::write(dir.join("new.crt"), authority).unwrap();
    std::fs::rename(dir.join("new.crt"), dir.join("ca.crt")).unwrap();
}
