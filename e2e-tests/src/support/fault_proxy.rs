//! A proxy before the API server that fails, waits or counts where a test says so.
//!
//! It speaks plain HTTP on loopback, so that nothing of the product needs a hook: a client, or a whole
//! `clusterip serve`, is given its URL as the API server's. What a client authorizes itself with is passed
//! on; one without gets the administrator's rights. Watches and other long answers are passed on as they come.

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
use super::eventually::PATIENCE;

/// A request, as it came.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    pub method: Method,
    pub path: String,
    pub query: String,
    /// Its JSON; null where it has none.
    pub body: Value,
}

impl Seen {
    /// Whether it changes something, if the API server lets it.
    pub fn is_write(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// Whether it is only tried.
    pub fn is_dry_run(&self) -> bool {
        self.query.split('&').any(|part| part == "dryRun=All")
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is not carried out, and this is the answer: a status, and the reason and message of a `Status`.
    Answer(u16, &'static str, String),
    /// It is not carried out, and the connection ends without an answer.
    CutBefore,
    /// It is carried out, and the connection ends without an answer.
    CutAfter,
    /// It waits for the test before it is carried out.
    PauseBefore,
    /// It is carried out, and the answer waits for the test.
    PauseAfter,
}

/// What a test waits at.
#[derive(Clone, Debug)]
pub struct Gate {
    arrived: watch::Sender<usize>,
    open: watch::Sender<Option<bool>>,
    done: watch::Sender<usize>,
}

impl Gate {
    /// Waits until a request is here; for [`Fault::PauseAfter`], until it is carried out.
    pub async fn arrived(&self) {
        self.arrived_times(1).await;
    }

    /// Waits until so many requests were here.
    pub async fn arrived_times(&self, times: usize) {
        let mut arrived = self.arrived.subscribe();
        let waited = tokio::time::timeout(PATIENCE, arrived.wait_for(|count| *count >= times)).await;
        waited.unwrap_or_else(|_| panic!("no {times} requests came where the test waits for them")).unwrap();
    }

    /// Waits until a request that was let go on has had its effect, even if nobody waits for the answer.
    pub async fn carried_out(&self) {
        let mut done = self.done.subscribe();
        let waited = tokio::time::timeout(PATIENCE, done.wait_for(|count| *count > 0)).await;
        waited.expect("a request to be carried out").unwrap();
    }

    /// How many requests were here so far.
    pub fn count(&self) -> usize {
        *self.arrived.borrow()
    }

    /// Lets it go on, and all that come later.
    pub fn release(&self) {
        self.open.send_replace(Some(true));
    }

    /// Lets nothing go on: what waits is not carried out, or its answer is lost; its client may be gone.
    pub fn discard(&self) {
        self.open.send_replace(Some(false));
    }

    async fn pass(&self) -> bool {
        let mut open = self.open.subscribe();
        let waited = tokio::time::timeout(PATIENCE, open.wait_for(Option::is_some)).await;
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

/// The proxy. It ends with the test.
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
    writes: Mutex<Vec<Seen>>,
}

impl Proxy {
    /// Starts one on a free port, in front of this control plane.
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
            writes: Mutex::default(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let app = Router::new().fallback(handle).with_state(Arc::clone(&shared));
        let server = tokio::spawn(async move { axum::serve(listener, app).await.unwrap() }).abort_handle();
        Self { url, shared, server }
    }

    /// Its address, such as `http://127.0.0.1:12345`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A client that goes through it, with the administrator's rights.
    pub fn client(&self) -> kube::Client {
        super::use_ring();
        kube::Client::try_from(kube::Config::new(self.url.parse().unwrap())).unwrap()
    }

    /// What happens to the first request that matches. The first rule that matches counts.
    pub fn on(&self, matches: impl Fn(&Seen) -> bool + Send + Sync + 'static, fault: Fault) -> Gate {
        self.on_nth(0, 1, matches, fault)
    }

    /// What happens to so many of the requests that match, after the first few were let through.
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

    /// The requests so far that change something, in the order in which they came.
    pub fn writes(&self) -> Vec<Seen> {
        lock(&self.shared.writes).clone()
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

/// The fault that this request meets, if any.
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
    if seen.is_write() {
        lock(&shared.writes).push(seen.clone());
    }
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
    // A task of its own: a request that waits outlives its client, until the test lets it go on or not.
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

/// An answer that breaks off before it is one: the client sees its connection end.
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
    let answer = match shared.http.request(parts.method, url).headers(headers).body(body).send().await {
        Ok(answer) => answer,
        // As if the API server were not there.
        Err(_) => return cut(),
    };
    let (status, mut headers) = (answer.status(), answer.headers().clone());
    for own in [header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION] {
        headers.remove(own);
    }
    let stream = futures::stream::unfold(Some(answer), |answer| async {
        let mut answer = answer?;
        match answer.chunk().await {
            Ok(Some(chunk)) => Some((Ok(chunk), Some(answer))),
            Ok(None) => None,
            Err(error) => Some((Err(error), None)),
        }
    });
    let mut response = Response::new(Body::from_stream(stream));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}
