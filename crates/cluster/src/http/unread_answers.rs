//! Limits the memory for answers that clients request and do not read.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::body::{Body, Bytes, HttpBody as _, to_bytes};
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Request, State as Shared};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use parking_lot::Mutex;

use super::connection::host;
use super::error_response::ErrorResponse;

/// Shorter answers do not count. The answers to most reviews are shorter.
const SHORT: usize = 2 << 10;
/// How many bytes one IP address may leave unread.
const OF_PEER: usize = 4 << 20;
/// Beyond this many bytes of all addresses, each may leave an equal part of it unread. So all together are at most twice
/// as many, except for a first answer to each address: other clients can't keep the API server from getting an answer to
/// a review, however long that answer is.
const ALL: usize = 16 << 20;

/// The lengths of the answers that clients have not read, by IP address.
#[derive(Clone, Debug, Default)]
pub(super) struct UnreadAnswers(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// An answer. It counts until it is dropped: the HTTP server keeps it until the client has read it, or is gone.
struct Unread {
    bytes: Bytes,
    peer: IpAddr,
    answers: UnreadAnswers,
}

impl UnreadAnswers {
    fn count(&self, peer: IpAddr, bytes: Bytes) -> Result<Unread, ErrorResponse> {
        let mut lengths = self.0.lock();
        let (all, of_peer) = (lengths.values().sum::<usize>(), lengths.get(&peer).copied().unwrap_or_default());
        let most = if all + bytes.len() > ALL { OF_PEER.min(ALL / lengths.len().max(1)) } else { OF_PEER };
        if of_peer > 0 && of_peer + bytes.len() > most {
            let message =
                format!("busy: this client has not read answers of {of_peer} bytes, and all clients {all}; try again");
            return Err(ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, message));
        }
        *lengths.entry(peer).or_default() += bytes.len();
        Ok(Unread { bytes, peer, answers: self.clone() })
    }
}

impl AsRef<[u8]> for Unread {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let mut lengths = self.answers.0.lock();
        if let Some(length) = lengths.get_mut(&self.peer) {
            *length -= self.bytes.len();
            if *length == 0 {
                lengths.remove(&self.peer);
            }
        }
    }
}

/// Middleware that answers 503 if a long answer would exceed the limits of unread answers. It needs a server with
/// `into_make_service_with_connect_info`.
pub(super) async fn limit(
    Shared(answers): Shared<UnreadAnswers>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let (head, body) = next.run(request).await.into_parts();
    if body.size_hint().upper().is_some_and(|length| length <= SHORT as u64) {
        return Response::from_parts(head, body);
    }
    let Ok(bytes) = to_bytes(body, usize::MAX).await else {
        let message = "the answer can't be sent".to_owned();
        return ErrorResponse(StatusCode::INTERNAL_SERVER_ERROR, message).into_response();
    };
    match answers.count(host(peer), bytes) {
        Ok(unread) => Response::from_parts(head, Body::from(Bytes::from_owner(unread))),
        Err(refusal) => refusal.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_count_until_they_are_dropped() {
        let answers = UnreadAnswers::default();
        let count = |last: u8, length: usize| answers.count(IpAddr::from([10, 0, 0, last]), vec![0; length].into());
        let of = |last: u8, length: usize| count(last, length).ok().map(Bytes::from_owner);
        let long = of(1, 2 * OF_PEER);
        assert!(long.is_some(), "the first answer to a client may have any length");
        assert!(of(1, 1).is_none());
        let others: Vec<_> = (2..34).map(|last| of(last, OF_PEER / 8)).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(of(2, 1).is_none(), "a client that has more than an equal part");
        let (first, second) = (of(99, 10_000), of(99, 10_000));
        assert!(first.is_some() && second.is_some(), "a client that has less");
        drop((first, second, others));
        let part = long.map(|long| long.slice(..10));
        assert!(of(1, 1).is_none(), "a part keeps all of it");
        drop(part);
        assert!(of(1, 1).is_some());
        assert!(answers.0.lock().is_empty());
    }
}
