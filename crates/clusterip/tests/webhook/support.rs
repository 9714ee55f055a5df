//! A server for a test, and clients that trust it.

use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use clusterip::webhook::admission::Reviewer;
use clusterip::webhook::issuer::{CaCertificate, Leaf};
use clusterip::webhook::server::{Backend, Limits, serve};
use clusterip::webhook::tls::Certificate;
use clusterip_cluster::admission_review::AdmissionResponse;
use clusterip_cluster::http::probes::Scrapes;
use clusterip_cluster::http::server::Server;
use jiff::Timestamp;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, ClientBuilder, StatusCode};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than any operation takes on a machine under load.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

pub struct Review<F>(pub F);

impl<F: Fn(&Value) -> AdmissionResponse + Send + Sync + 'static> Reviewer for Review<F> {
    fn review(&self, request: &Value) -> AdmissionResponse {
        (self.0)(request)
    }
}

pub fn allowed() -> AdmissionResponse {
    AdmissionResponse {
        uid: "another".to_owned(),
        allowed: true,
        patch_type: None,
        patch: None,
        status: None,
        audit_annotations: None,
        warnings: None,
    }
}

/// Allows everything, and is ready.
pub fn backend(review: impl Fn(&Value) -> AdmissionResponse + Send + Sync + 'static) -> Backend {
    Backend {
        reviewer: Arc::new(Review(review)),
        not_ready: Arc::new(Vec::new),
        scrapes: Scrapes::new(|| "# EOF\n".to_owned()),
    }
}

/// The reviews that wait until they are released.
pub struct Hanging {
    begun: UnboundedReceiver<()>,
    release: Sender<()>,
}

impl Hanging {
    /// Waits until the next one has begun.
    pub async fn begun(&mut self) {
        timeout(MAX_WAIT, self.begun.recv()).await.unwrap();
    }

    pub fn release(&self) {
        self.release.send(()).unwrap();
    }
}

/// Allows everything, but a request with the UID `hangs` only when its review is released.
pub fn hanging() -> (Backend, Hanging) {
    let ((entered, begun), (release, released)) = (unbounded_channel(), channel());
    let released = Mutex::new(released);
    let review = move |request: &Value| {
        if request["uid"] == "hangs" {
            entered.send(()).unwrap();
            released.lock().unwrap().recv().unwrap();
        }
        allowed()
    };
    (backend(review), Hanging { begun, release })
}

pub fn authority() -> CaCertificate {
    CaCertificate::generate(Timestamp::now()).unwrap()
}

pub fn leaf(authority: &CaCertificate) -> Leaf {
    authority.issue(&["localhost".to_owned(), "127.0.0.1".to_owned()], Timestamp::now()).unwrap()
}

pub fn certificate(leaf: &Leaf) -> Certificate {
    Certificate::from_pem(leaf.certificate.as_bytes(), leaf.key.as_bytes()).unwrap()
}

pub struct Running {
    pub address: SocketAddr,
    pub authority: String,
    stop: Mutex<Option<oneshot::Sender<()>>>,
    served: JoinHandle<anyhow::Result<()>>,
}

impl Running {
    pub async fn start(backend: Backend, limits: Limits) -> Self {
        let authority = authority();
        Self::start_with(backend, limits, &authority.certificate, certificate(&leaf(&authority))).await
    }

    pub async fn start_with(backend: Backend, limits: Limits, authority: &str, certificate: Certificate) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let server = Server::bind(([127, 0, 0, 1], 0).into(), "the webhook", "--listen").await.unwrap();
        let address = server.local_addr();
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            serve(server, limits, backend, &certificate, stopped).await
        });
        Self { address, authority: authority.to_owned(), stop: Mutex::new(Some(stop)), served }
    }

    pub fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.address)
    }

    pub fn client_builder(&self) -> ClientBuilder {
        let root = reqwest::Certificate::from_pem(self.authority.as_bytes()).unwrap();
        Client::builder().tls_certs_only([root]).timeout(MAX_WAIT)
    }

    pub fn client(&self) -> Client {
        self.client_builder().build().unwrap()
    }

    pub fn stop(&self) {
        self.stop.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap().send(()).unwrap();
    }

    pub async fn ended(self) {
        timeout(MAX_WAIT, self.served).await.unwrap().unwrap().unwrap();
    }

    pub async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> (StatusCode, String) {
        self.post_with(&self.client(), path, body).await
    }

    pub async fn post_with(&self, client: &Client, path: &str, body: impl Into<reqwest::Body>) -> (StatusCode, String) {
        let request = client.post(self.url(path)).header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    pub async fn get(&self, path: &str) -> (u16, String) {
        let response = self.client().get(self.url(path)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Sends a review, and checks that it is answered.
    pub async fn assert_serves(&self) {
        let expected = (StatusCode::OK, answer("1", json!({"allowed": true})));
        let (status, text) = self.post("/mutate", review("1")).await;
        assert_eq!((status, serde_json::from_str(&text).unwrap_or(Value::String(text))), expected);
    }

    /// A TCP connection on which nothing has been sent. This call blocks.
    pub fn tcp(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
        stream
    }

    /// A TCP connection from this address of the machine, on which nothing has been sent.
    pub async fn tcp_from(&self, address: [u8; 4]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((address, 0).into()).unwrap();
        let stream = socket.connect(self.address).await.unwrap().into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
        stream
    }

    /// A TLS connection whose handshake begins with the first write. This call blocks.
    pub fn tls(&self, versions: &[&'static SupportedProtocolVersion]) -> StreamOwned<ClientConnection, TcpStream> {
        self.tls_on(self.tcp(), versions)
    }

    /// The same on a connection that is there already.
    pub fn tls_on(
        &self,
        stream: TcpStream,
        versions: &[&'static SupportedProtocolVersion],
    ) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.authority.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let connection = ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
        StreamOwned::new(connection, stream)
    }
}

pub fn review(uid: &str) -> String {
    let request = json!({"uid": uid, "operation": "CREATE"});
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).to_string()
}

/// The whole answer, with these fields in addition to the usual ones of the response.
pub fn answer(uid: &str, response: Value) -> Value {
    let mut whole = json!({"uid": uid, "auditAnnotations": null, "warnings": null});
    whole.as_object_mut().unwrap().extend(response.as_object().unwrap().clone());
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": whole})
}
