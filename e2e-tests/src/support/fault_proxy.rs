//! A proxy in front of the API server that fails, delays or counts requests. It speaks plain HTTP on loopback, so the
//! product needs no hook: a client or a whole `clusterip serve` gets its URL as that of the API server. It forwards the
//! credentials of a client; a client without credentials gets those of the administrator. It forwards watches and other
//! long answers as a stream.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::control_plane::ControlPlane;
use super::eventually::MAX_WAIT;

/// A request that the proxy has received.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: String,
    /// The JSON body, or null.
    pub body: Value,
}

impl Seen {
    /// Whether the request is a write.
    pub fn is_write(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// Whether the request replaces a Service by one of this type, and is no dry run.
    pub fn sets_type(&self, type_: &str) -> bool {
        self.method == Method::PUT && !self.is_dry_run() && self.body["spec"]["type"] == type_
    }

    /// Whether the request is a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.query.split('&').any(|part| part == "dryRun=All")
    }
}

/// What the proxy does with a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Does not forward the request, and answers with this status code, and this reason and message of a `Status`.
    Answer(u16, &'static str, String),
    /// Does not forward the request, and closes the connection.
    CutBefore,
    /// Forwards the request, and closes the connection without an answer.
    CutAfter,
    /// Forwards the request when the test releases the gate.
    PauseBefore,
    /// Forwards the request, and returns the answer when the test releases the gate.
    PauseAfter,
}

/// A gate that stops matching requests until the test releases them.
#[derive(Clone, Debug)]
pub struct Gate {
    arrived: watch::Sender<usize>,
    open: watch::Sender<Option<bool>>,
    done: watch::Sender<usize>,
}

impl Gate {
    /// Waits until a request has arrived; for [`Fault::PauseAfter`], until the API server has answered it.
    pub async fn arrived(&self) {
        self.arrived_where("the test").await;
    }

    /// As [`Self::arrived`]. The failure names the row, because other rows of the test may wait at the same time.
    pub async fn arrived_for(&self, row: &str) {
        self.arrived_where(&format!("the row {row}")).await;
    }

    async fn arrived_where(&self, waiting: &str) {
        let mut arrived = self.arrived.subscribe();
        let waited = tokio::time::timeout(MAX_WAIT, arrived.wait_for(|count| *count > 0)).await;
        waited.unwrap_or_else(|_| panic!("no request came where {waiting} waits for it")).unwrap();
    }

    /// Waits until the API server has executed a released request, even if its client is gone.
    pub async fn carried_out(&self) {
        let mut done = self.done.subscribe();
        let waited = tokio::time::timeout(MAX_WAIT, done.wait_for(|count| *count > 0)).await;
        waited.expect("a request to be carried out").unwrap();
    }

    /// The number of requests that have arrived.
    pub fn count(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Releases the waiting request, and all later ones.
    pub fn release(&self) {
        self.open.send_replace(Some(true));
    }

    /// Drops the waiting request or its answer, and all later ones.
    pub fn discard(&self) {
        self.open.send_replace(Some(false));
    }

    async fn pass(&self) -> bool {
        let mut open = self.open.subscribe();
        let waited = tokio::time::timeout(MAX_WAIT, open.wait_for(Option::is_some)).await;
        matches!(waited, Ok(Ok(decision)) if *decision == Some(true))
    }

    fn arrive(&self) {
        self.arrived.send_modify(|count| *count += 1);
    }
}

type Matches = Box<dyn Fn(&Seen) -> bool + Send + Sync>;

struct Rule {
    matches: Matches,
    skip: usize,
    times: usize,
    fault: Fault,
    gate: Gate,
}

/// The proxy. It stops when this value is dropped.
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    server: AbortHandle,
}

struct Shared {
    upstream: String,
    authorization: String,
    http: reqwest::Client,
    rules: Mutex<Vec<Rule>>,
    requests: Mutex<Vec<Seen>>,
}

impl Proxy {
    /// Starts a proxy on a free port, in front of this control plane.
    pub async fn start(plane: &ControlPlane) -> Self {
        super::use_ring();
        let authority = std::fs::read(plane.certificate_authority()).unwrap();
        let http = reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&authority).unwrap()])
            .http1_only()
            .build()
            .unwrap();
        let shared = Arc::new(Shared {
            upstream: plane.server().trim_end_matches('/').to_owned(),
            authorization: format!("Bearer {}", plane.admin_token()),
            http,
            rules: Mutex::default(),
            requests: Mutex::default(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }).abort_handle();
        Self { url, shared, server }
    }

    /// The URL, such as `http://127.0.0.1:12345`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client that connects to the proxy, with the permissions of the administrator.
    pub fn client(&self) -> kube::Client {
        super::use_ring();
        kube::Client::try_from(kube::Config::new(self.url.parse().unwrap())).unwrap()
    }

    /// Adds a rule for the first matching request. If several rules match, the earliest one applies.
    pub fn on(&self, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> Gate {
        self.on_nth(0, 1, matches, fault)
    }

    /// Adds a rule that lets the first `skip` matching requests pass, and applies to the next `times`.
    pub fn on_nth(
        &self,
        skip: usize,
        times: usize,
        matches: impl Fn(&Seen) -> bool + Send + Sync + 'static,
        fault: Fault,
    ) -> Gate {
        let gate = Gate { arrived: watch::Sender::new(0), open: watch::Sender::new(None), done: watch::Sender::new(0) };
        let rule = Rule { matches: Box::new(matches), skip, times, fault, gate: gate.clone() };
        lock(&self.shared.rules).push(rule);
        gate
    }

    /// The requests so far, in the order of their arrival.
    pub fn requests(&self) -> Vec<Seen> {
        lock(&self.shared.requests).clone()
    }

    /// The writes among them.
    pub fn writes(&self) -> Vec<Seen> {
        self.requests().into_iter().filter(Seen::is_write).collect()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fault for this request, if there is one.
fn fault(rules: &mut [Rule], seen: &Seen) -> Option<(Fault, Gate)> {
    let rule = rules.iter_mut().find(|rule| (rule.skip > 0 || rule.times > 0) && (rule.matches)(seen))?;
    if rule.skip > 0 {
        rule.skip -= 1;
        return None;
    }
    rule.times -= 1;
    Some((rule.fault.clone(), rule.gate.clone()))
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let seen = Seen {
        method: parts.method.clone(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    };
    lock(&shared.requests).push(seen.clone());
    let met = fault(&mut lock(&shared.rules), &seen);
    let forward = forward(Arc::clone(&shared), parts, body);
    let Some((fault, gate)) = met else {
        return forward.await;
    };
    let forward = {
        let gate = gate.clone();
        async move {
            let answer = forward.await;
            gate.done.send_modify(|count| *count += 1);
            answer
        }
    };
    if !matches!(fault, Fault::PauseAfter) {
        gate.arrive();
    }
    // The request has a task of its own, so that it can be executed after its client is gone.
    let outcome = tokio::spawn(async move {
        match fault {
            Fault::Answer(code, reason, message) => {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": message, "reason": reason, "code": code});
                let code = StatusCode::from_u16(code).unwrap();
                (code, [(header::CONTENT_TYPE, "application/json")], status.to_string()).into_response()
            }
            Fault::CutBefore => cut(),
            Fault::CutAfter => {
                forward.await;
                cut()
            }
            Fault::PauseBefore if gate.pass().await => forward.await,
            Fault::PauseBefore => cut(),
            Fault::PauseAfter => {
                let answer = forward.await;
                gate.arrive();
                if gate.pass().await { answer } else { cut() }
            }
        }
    });
    outcome.await.unwrap_or_else(|_| cut())
}

/// An answer that breaks off, so that the client sees a closed connection.
fn cut() -> Response {
    let broken = futures::stream::once(async { Err::<Bytes, _>(std::io::Error::other("cut")) });
    let mut response = Response::new(Body::from_stream(broken));
    response.headers_mut().insert(header::CONTENT_LENGTH, 1.into());
    response
}

async fn forward(shared: Arc<Shared>, parts: axum::http::request::Parts, body: Bytes) -> Response {
    let url = format!("{}{}", shared.upstream, parts.uri);
    let mut headers = parts.headers;
    for own in [header::HOST, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        headers.remove(own);
    }
    headers.entry(header::AUTHORIZATION).or_insert_with(|| shared.authorization.parse().unwrap());
    let sent = shared.http.request(parts.method, url).headers(headers).body(body).send().await;
    // As if the API server were unavailable.
    let Ok(answer) = sent else { return cut() };
    let mut response = axum::http::Response::from(answer).map(Body::new);
    for own in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        response.headers_mut().remove(own);
    }
    response
}
