//! Gives each request to the API server a time limit, and names its URL in errors of the connection.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response, Uri};
use futures::{StreamExt, stream};
use kube::client::{AuthError, Body as RequestBody};
use thiserror::Error;
use tokio::time::timeout;
use tower::{BoxError, Service};

use crate::api_error::{causes, innermost};
use crate::api_server::{ApiServer, Unreachable};
use crate::connect::RequestTimeout;

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SentRequest {
    /// The method and URL.
    name: String,
    server: ApiServer,
}

impl fmt::Display for SentRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A request to the API server that got no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
enum RequestError {
    /// The time limit was reached.
    #[error("{request}: no answer within {limit} (--request-timeout)")]
    NoAnswer {
        /// The request.
        request: SentRequest,
        /// The time limit.
        limit: RequestTimeout,
    },
    /// The connection failed.
    #[error("{request}: {reason}")]
    Failed {
        /// The request.
        request: SentRequest,
        /// The error of the connection.
        reason: String,
        /// Whether the request was not sent, because the client has no token.
        is_login: bool,
    },
}

impl RequestError {
    fn unreachable(&self) -> Option<Unreachable> {
        let (request, reason) = match self {
            Self::NoAnswer { request, limit } => (request, format!("no answer within {limit} (--request-timeout)")),
            Self::Failed { request, reason, is_login: false } => (request, reason.clone()),
            Self::Failed { is_login: true, .. } => return None,
        };
        Some(Unreachable { server: request.server.clone(), reason })
    }
}

/// The API server, if the request failed because the API server can't be reached.
pub(crate) fn unreachable(error: &kube::Error) -> Option<Unreachable> {
    causes(error).find_map(|cause| cause.downcast_ref::<RequestError>())?.unreachable()
}

/// A client whose requests have a time limit.
pub(crate) struct Bounded<S> {
    inner: S,
    server: ApiServer,
    limit: Option<Duration>,
}

impl<S> Bounded<S> {
    /// A client that sends its requests with `inner` to `server`.
    pub(crate) fn new(inner: S, server: ApiServer, limit: Option<Duration>) -> Self {
        Self { inner, server, limit }
    }
}

impl<S, B> Service<Request<RequestBody>> for Bounded<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let name = format!("{} {}{}", request.method(), self.server.url, request.uri().path());
        let sent = SentRequest { name, server: self.server.clone() };
        // The answer to a watch is empty as long as nothing changes. The watcher has a time limit of its own.
        let is_watch = is_watch(request.uri());
        let (limit, answer) = (self.limit, self.inner.call(request));
        Box::pin(async move {
            let Some(limit) = limit else {
                return Ok(answer.await.map_err(|error| named(sent, error))?.map(Body::new));
            };
            let Ok(answered) = timeout(limit, answer).await else { return Err(no_answer(sent, limit)) };
            let response = answered.map_err(|error| named(sent.clone(), error))?.map(Body::new);
            Ok(if is_watch { response } else { response.map(|body| bounded(body, sent, limit)) })
        })
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true" || part == "watch=1"))
}

/// An error of the connection with the name of the request. Errors of the client itself, such as a missing token, stay
/// as they are.
fn named(request: SentRequest, error: BoxError) -> BoxError {
    if error.is::<kube::Error>() {
        return error;
    }
    let is_login = causes(error.as_ref()).any(|cause| cause.is::<AuthError>());
    RequestError::Failed { request, reason: innermost(error.as_ref()), is_login }.into()
}

fn no_answer(request: SentRequest, limit: Duration) -> BoxError {
    RequestError::NoAnswer { request, limit: RequestTimeout(Some(limit)) }.into()
}

/// The same body, which fails if its next part does not arrive within the limit.
fn bounded(body: Body, request: SentRequest, limit: Duration) -> Body {
    Body::from_stream(stream::try_unfold(body.into_data_stream(), move |mut parts| {
        let request = request.clone();
        async move {
            match timeout(limit, parts.next()).await {
                Ok(Some(part)) => Ok(Some((part.map_err(BoxError::from)?, parts))),
                Ok(None) => Ok(None),
                Err(_) => Err(no_answer(request, limit)),
            }
        }
    }))
}
