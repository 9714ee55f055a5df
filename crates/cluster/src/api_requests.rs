//! Gives each request to the API server a time limit, and each page of a list a maximum size. Makes each answer UTF-8
//! that is not nested too deep. Names the URL in errors of the connection and the server in refusals.

use std::fmt;
use std::hint::black_box;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{Request, Response, StatusCode, Uri};
use futures::{AsyncReadExt, StreamExt, stream};
use kube::client::{AuthError, Body as RequestBody};
use kube::core::{Status, WatchEvent};
use kube::{Client, Config};
use thiserror::Error;
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::timeout;
use tower::util::BoxService;
use tower::{BoxError, Service, ServiceExt as _, service_fn};

use crate::api_error::{Cause, RequestError, causes, innermost};
use crate::list_pages::{PageSizes, query_parts, requested_objects, with_query};
use crate::readable_json::{with_limited_depth, with_replaced_bytes};

fn no_answer(limit: Duration) -> String {
    format!("no answer within {limit:?} (--request-timeout)")
}

/// The answer to a request; an error if there is none within this time.
pub async fn answer<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> kube::Result<T> {
    let late = |_| Err(kube::Error::Service(format!("no answer within {limit:?}").into()));
    timeout(limit, request).await.unwrap_or_else(late)
}

type Inner = BoxService<Request<RequestBody>, Response<Body>, BoxError>;

struct Sender {
    inner: AsyncMutex<Inner>,
    server: ApiServer,
    limit: Option<Duration>,
    pages: PageSizes,
}

/// Sends requests with `inner` to `server`. They have a time limit, and pages of lists have a maximum size.
pub(crate) fn bounded<S, B>(
    inner: S,
    server: ApiServer,
    limit: Option<Duration>,
) -> impl Service<Request<RequestBody>, Response = Response<Body>, Error = BoxError, Future: Send> + Send
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = BoxError, Future: Send> + Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let inner = AsyncMutex::new(inner.map_response(|response| response.map(Body::new)).boxed());
    let sender = Arc::new(Sender { inner, server, limit, pages: PageSizes::default() });
    service_fn(move |request: Request<RequestBody>| {
        let sender = Arc::clone(&sender);
        async move {
            let Some(objects) = requested_objects(request.uri()) else {
                let (mut head, body) = request.into_parts();
                head.uri = up_to_date(head.uri)?;
                return sender.send(Request::from_parts(head, body)).await;
            };
            let (head, _) = request.into_parts();
            sender.pages.request(&head, objects, |request| sender.send(request)).await
        }
    })
}

/// The URI of a request. That of a streaming list loses the resource version 0, with which kube's watcher accepts any
/// old state. Without it, the API server sends a state that is not older than the request, as it does for a list.
fn up_to_date(uri: Uri) -> Result<Uri, BoxError> {
    if !query_parts(&uri).any(|part| part == "sendInitialEvents=true") {
        return Ok(uri);
    }
    let query: Vec<&str> = query_parts(&uri).filter(|part| *part != "resourceVersion=0").collect();
    with_query(&uri, &query)
}

impl Sender {
    async fn send(&self, request: Request<RequestBody>) -> Result<Response<Body>, BoxError> {
        let name = format!("{} {}{}", request.method(), self.server.url, request.uri().path());
        let server = self.server.to_string();
        let in_pod = self.server.context.is_none();
        let failed = move |reason, cause| {
            let (name, server) = (name.clone(), server.clone());
            RequestError { name, server, in_pod, reason, cause }
        };
        // The answer to a watch is empty as long as nothing changes. The watcher has a time limit of its own.
        let is_watch = query_parts(request.uri()).any(|part| part == "watch=true" || part == "watch=1");
        // The lock ends when the request has begun.
        let begin = async { Ok(self.inner.lock().await.ready().await?.call(request)) };
        let answer = async { begin.await.map_err(|error: BoxError| error)?.await };
        let answered = match self.limit {
            Some(limit) => timeout(limit, answer).await.map_err(|_| failed(no_answer(limit), Cause::TimeLimit))?,
            None => answer.await,
        };
        let answered = answered.map_err(|error| {
            // Errors of the client itself, such as a missing token, stay as they are.
            if error.is::<kube::Error>() {
                return error;
            }
            let is_login = causes(error.as_ref()).any(|cause| cause.is::<AuthError>());
            failed(innermost(error.as_ref()), if is_login { Cause::Login } else { Cause::Connection }).into()
        });
        let mut response = answered?;
        if is_watch && response.status() == StatusCode::OK {
            response = response.map(events_of_watch);
        } else if let Some(limit) = self.limit {
            let no_answer = move || failed(no_answer(limit), Cause::TimeLimit);
            response = response.map(|body| with_time_limit(body, no_answer, limit));
        }
        response = response.map(with_replaced_bytes).map(with_limited_depth);
        refusal_named(response, &self.server).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the answer has more than {0} bytes, or too many maps")]
struct AnswerTooLarge(usize);

/// How many bytes a map that is not empty counts at least. As a value it takes 650 bytes, and a chain of owned fields
/// has one in every 8 bytes. Objects that are not made for that have one in about 50 bytes.
const BYTES_OF_MAP: usize = 32;

/// The size of an object with this text, as limits count it that bound the memory of its values.
pub fn counted_bytes(text: &[u8]) -> usize {
    let maps = text.windows(2).filter(|pair| matches!(pair, [b'{', after] if *after != b'}')).count();
    text.len().max(maps * BYTES_OF_MAP)
}

/// Sends a request, and reads its answer, which may have at most `most` [bytes](counted_bytes);
/// [`is_answer_too_large`] recognizes the error. Tenants can write objects of 1.5 MB, and an object that is read into
/// values takes many times its bytes. The answer ends with spaces, so that its length is its counted size.
pub async fn request_at_most(client: &Client, request: Request<Vec<u8>>, most: usize) -> kube::Result<Vec<u8>> {
    let (mut answer, mut bytes) = (client.request_stream(request).await?.take(most as u64 + 1), Vec::new());
    let failed = |error: io::Error| kube::Error::Service(error.into_inner().unwrap_or_else(|| "unreadable".into()));
    answer.read_to_end(&mut bytes).await.map_err(failed)?;
    let size = counted_bytes(&bytes);
    if size > most {
        return Err(kube::Error::Service(AnswerTooLarge(most).into()));
    }
    bytes.resize(size, b' ');
    Ok(bytes)
}

/// Whether [`request_at_most`] gave up an answer because of its size.
pub fn is_answer_too_large(error: &kube::Error) -> bool {
    causes(error).any(<dyn std::error::Error>::is::<AnswerTooLarge>)
}

const MAX_REFUSAL: usize = 1 << 20;
/// The response of an API server to a request over plain HTTP.
const EXPECTS_HTTPS: &[u8] = b"Client sent an HTTP request to an HTTPS server.";

/// The response of a server that does not know the client, or that expects HTTPS, with a message that names the server
/// and a remedy. Other responses stay as they are.
async fn refusal_named(response: Response<Body>, server: &ApiServer) -> Result<Response<Body>, BoxError> {
    let refused = |why| format!("the API server {server} refuses the request: {why}");
    match response.status() {
        StatusCode::UNAUTHORIZED => {
            let why = match server.context {
                Some(_) => {
                    "Unauthorized; check the user of the context, whose token or certificate may have expired, and that \
                     --kubeconfig and --context name the right cluster"
                }
                None => "Unauthorized; check the token of the service account of this Pod",
            };
            Ok(refusal(&refused(why), "Unauthorized", StatusCode::UNAUTHORIZED))
        }
        StatusCode::BAD_REQUEST if server.url.starts_with("http://") => {
            let (head, body) = response.into_parts();
            let body = to_bytes(body, MAX_REFUSAL).await?;
            if !body.starts_with(EXPECTS_HTTPS) {
                return Ok(Response::from_parts(head, Body::from(body)));
            }
            let why = "it expects HTTPS; write https:// instead of http:// in the cluster's `server` in the kubeconfig";
            Ok(refusal(&refused(why), "BadRequest", StatusCode::BAD_REQUEST))
        }
        _ => Ok(response),
    }
}

fn refusal(message: &str, reason: &str, code: StatusCode) -> Response<Body> {
    let status = Status::failure(message, reason).with_code(code.as_u16());
    // Serializing can't fail: a Status has only texts and numbers.
    let mut response = Response::new(Body::from(serde_json::to_vec(&status).unwrap_or_default()));
    *response.status_mut() = code;
    response
}

/// A watch ends after an event with more bytes than this. Its reader keeps a buffer for the largest event until the watch
/// ends, and tenants can write objects of 9 MB of each kind. The watcher then goes on with a new request.
const LARGE_EVENT: usize = 1 << 20;
/// How long after a large event its memory is given back: the event has been read by then.
const MEMORY_USED: Duration = Duration::from_secs(5);
/// How soon a watch ends without any event if the API server can't send the next one: if `managedFields` have almost
/// 10,000 levels, it stores and lists the object, but can't write it into an event.
const EARLY_END: Duration = Duration::from_secs(10);

/// The events of a watch up to the first large one. Each is a line. A watch that ends early without an event gets an
/// error, after which the watcher lists the objects: a watch from the same version would end in the same way for ever.
fn events_of_watch(body: Body) -> Body {
    let (begin, state) = (Instant::now(), Some((body.into_data_stream(), 0, true)));
    Body::from_stream(stream::try_unfold(state, move |state| async move {
        let Some((mut parts, mut length, is_empty)) = state else { return Ok(None) };
        let Some(part) = parts.next().await.transpose()? else {
            let is_early = is_empty && begin.elapsed() < EARLY_END;
            return Ok(is_early.then(|| (expired(), None)));
        };
        let ends_large_event = |byte: &u8| {
            length += 1;
            *byte == b'\n' && std::mem::take(&mut length) > LARGE_EVENT
        };
        Ok::<_, axum::Error>(match part.iter().position(ends_large_event) {
            Some(last) => {
                tokio::spawn(give_memory_back());
                Some((part.slice(..=last), None))
            }
            None => Some((part, Some((parts, length, false)))),
        })
    }))
}

/// Makes the allocator give freed memory back. mimalloc keeps it for a second, and then does so only while it gets or
/// frees a large block: a program that has little to do would keep the memory of the last large events.
async fn give_memory_back() {
    tokio::time::sleep(MEMORY_USED).await;
    drop(black_box(Vec::<u8>::with_capacity(LARGE_EVENT)));
}

/// The event with which the API server says that a watch can't go on from its version.
fn expired() -> Bytes {
    let message = "the watch ended at once: the API server can't send the next event";
    let status = Status::failure(message, "Expired").with_code(StatusCode::GONE.as_u16());
    serde_json::to_vec(&WatchEvent::<()>::Error(status.boxed())).unwrap_or_default().into()
}

/// The same body, which fails if its next part does not arrive within the limit.
fn with_time_limit(body: Body, no_answer: impl Fn() -> RequestError + Clone + Send + 'static, limit: Duration) -> Body {
    Body::from_stream(stream::try_unfold(body.into_data_stream(), move |mut parts| {
        let no_answer = no_answer.clone();
        async move {
            match timeout(limit, parts.next()).await {
                Ok(Some(part)) => Ok(Some((part.map_err(BoxError::from)?, parts))),
                Ok(None) => Ok(None),
                Err(_) => Err(BoxError::from(no_answer())),
            }
        }
    }))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiServer {
    /// Without a user name and password, and without a slash at the end.
    pub(crate) url: String,
    /// The context of the kubeconfig; `None` without a kubeconfig, as in a Pod.
    pub(crate) context: Option<String>,
}

impl ApiServer {
    pub(crate) fn new(config: &Config, context: Option<String>) -> Self {
        let url = &config.cluster_url;
        let authority = url.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        let url = format!("{}://{host}{}", url.scheme_str().unwrap_or("http"), url.path().trim_end_matches('/'));
        Self { url, context }
    }
}

impl fmt::Display for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.context {
            Some(context) => write!(f, "{} (context {context})", self.url),
            None => f.write_str(&self.url),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures::future;

    use super::*;

    #[test]
    fn streaming_list_is_not_older_than_its_request() {
        for (uri, expected) in [
            (
                "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
                "/api/v1/pods?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
            ),
            ("/api/v1/pods?watch=true&resourceVersion=0", "/api/v1/pods?watch=true&resourceVersion=0"),
            ("/api/v1/pods", "/api/v1/pods"),
        ] {
            assert_eq!(up_to_date(uri.parse().unwrap()).unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn small_maps_count_more_than_their_text() {
        struct Case {
            name: &'static str,
            text: String,
            expected: usize,
        }
        let chain = |levels: usize| [r#"{"f:a":"#.repeat(levels), "{}".to_owned(), "}".repeat(levels)].concat();
        let own = |name, text: String| Case { name, expected: text.len(), text };
        let port = r#"{"name":"p","port":1,"protocol":"TCP","targetPort":1}"#;
        let owned = r#""k:{\"port\":1,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{},"f:protocol":{}}"#;
        let cases = [
            own("empty maps", r#"{"f:a":{},"f:b":{},"f:c":{},"f:d":{},"f:e":{}}"#.repeat(100)),
            own("ports and their owners", [port, owned].concat().repeat(100)),
            Case { name: "a chain", text: chain(90), expected: 90 * BYTES_OF_MAP },
            Case { name: "pairs", text: r#"{"f:a":{"f:b":{}}}"#.repeat(100), expected: 200 * BYTES_OF_MAP },
        ];
        for Case { name, text, expected } in cases {
            let answer = move |_| future::ready(Ok::<_, BoxError>(Response::new(Body::from(text.clone()))));
            let client = Client::new(service_fn(answer), "default");
            let read = async |most| request_at_most(&client, Request::get("/").body(Vec::new()).unwrap(), most).await;
            assert_eq!(read(expected).await.unwrap().len(), expected, "{name}");
            assert!(is_answer_too_large(&read(expected - 1).await.unwrap_err()), "{name}");
        }
    }

    #[tokio::test]
    async fn watch_ends_after_a_large_event() {
        let (small, large) = ("x".repeat(LARGE_EVENT - 1) + "\n", "x".repeat(LARGE_EVENT) + "\n");
        let rows = [
            ("small events", [&*small, &small, "x"].concat(), 2 * LARGE_EVENT + 1),
            ("a large event", [&*small, &large, &small].concat(), 2 * LARGE_EVENT + 1),
            ("a large event that has not ended", [&*small, &large[..LARGE_EVENT]].concat(), 2 * LARGE_EVENT),
        ];
        for (name, text, expected) in rows {
            for size in [1000, LARGE_EVENT, text.len()] {
                let parts: Vec<_> = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
                let body = Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, axum::Error>)));
                let found = to_bytes(events_of_watch(body), usize::MAX).await.unwrap();
                assert_eq!(found, text.as_bytes()[..expected], "{name}, in parts of {size} bytes");
            }
        }
    }

    #[tokio::test]
    async fn watch_that_ends_at_once_without_an_event_has_expired() {
        let found = to_bytes(events_of_watch(Body::empty()), usize::MAX).await.unwrap();
        let event: WatchEvent<serde_json::Value> = serde_json::from_slice(&found).unwrap();
        assert!(matches!(event, WatchEvent::Error(status) if status.code == 410));
    }
}
