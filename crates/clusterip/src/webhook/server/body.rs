//! Holds the bodies of requests from their arrival until their review begins, within the memory that they may take.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::body::Body as Sent;
use axum::http::StatusCode;
use clusterip_cluster::fair_queue::Requester;
use clusterip_cluster::http::server::ErrorResponse;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::webhook::admission::namespace_of;

/// The memory for bodies. If the bodies take too much, a body is given up: the newest of the client whose bodies take
/// most, and there of the namespace whose bodies take most. So a client loses no body while another client takes more
/// memory, and the server need not keep a share for each client.
#[derive(Debug)]
pub(super) struct Memory {
    most: usize,
    bodies: Mutex<Bodies>,
}

#[derive(Debug, Default)]
struct Bodies {
    waiting: BTreeMap<u64, Waiting>,
    arrived: u64,
    used: usize,
}

#[derive(Debug)]
struct Waiting {
    peer: IpAddr,
    namespace: Option<String>,
    bytes: Vec<u8>,
    /// Gets the beginning if the body is given up.
    given_up: oneshot::Sender<Vec<u8>>,
}

/// How many bytes say what a request is about: these fields precede its objects.
const BEGINNING: usize = 4 << 10;
/// What a request takes besides its body: a copy of the beginning, and places in queues.
const REQUEST: usize = 8 << 10;

impl Memory {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, bodies: Mutex::default() })
    }

    /// A place for the body of a request, and a receiver of its beginning if the body is given up.
    pub(super) fn begin(self: &Arc<Self>, peer: IpAddr) -> (Body, oneshot::Receiver<Vec<u8>>) {
        let (given_up, if_given_up) = oneshot::channel();
        let mut bodies = self.bodies.lock();
        bodies.arrived += 1;
        let number = bodies.arrived;
        bodies.waiting.insert(number, Waiting { peer, namespace: None, bytes: Vec::new(), given_up });
        bodies.used += REQUEST;
        bodies.shrink(self.most);
        drop(bodies);
        (Body { memory: Arc::clone(self), number }, if_given_up)
    }

    pub(super) fn refusal(&self) -> ErrorResponse {
        let most = self.most;
        let message = format!("busy: waiting requests may take {most} bytes, and those of this client take most of it");
        ErrorResponse(StatusCode::SERVICE_UNAVAILABLE, message)
    }
}

impl Bodies {
    fn remove(&mut self, number: u64) -> Option<Waiting> {
        let removed = self.waiting.remove(&number)?;
        self.used -= REQUEST + removed.bytes.len();
        Some(removed)
    }

    /// Gives bodies up until a sixteenth of `most` bytes is free, so that this is rarely needed.
    fn shrink(&mut self, most: usize) {
        if self.used <= most {
            return;
        }
        let mut of_peers: BTreeMap<IpAddr, usize> = BTreeMap::new();
        // What each namespace of a client takes, and its bodies in the order of arrival.
        let mut of_namespaces: BTreeMap<(IpAddr, Option<String>), (usize, Vec<u64>)> = BTreeMap::new();
        for (number, Waiting { peer, namespace, bytes, .. }) in &self.waiting {
            *of_peers.entry(*peer).or_default() += REQUEST + bytes.len();
            let (used, numbers) = of_namespaces.entry((*peer, namespace.clone())).or_default();
            *used += REQUEST + bytes.len();
            numbers.push(*number);
        }
        while self.used > most - most / 16 {
            let largest =
                of_namespaces.iter_mut().max_by_key(|((peer, _), (used, _))| (of_peers.get(peer).copied(), *used));
            let Some(((peer, _), (used, numbers))) = largest else { return };
            let Some(removed) = numbers.pop().and_then(|newest| self.remove(newest)) else { return };
            let bytes = REQUEST + removed.bytes.len();
            *used -= bytes;
            if let Some(of_peer) = of_peers.get_mut(peer) {
                *of_peer -= bytes;
            }
            let Waiting { mut bytes, given_up, .. } = removed;
            bytes.truncate(BEGINNING);
            bytes.shrink_to_fit();
            // A request may have ended meanwhile.
            let _ = given_up.send(bytes);
        }
    }
}

pub(super) struct Body {
    memory: Arc<Memory>,
    number: u64,
}

impl Drop for Body {
    fn drop(&mut self) {
        drop(self.memory.bodies.lock().remove(self.number));
    }
}

impl Body {
    /// Reads a body of at most `most` bytes. A larger one is read to its end, too, but not kept: a client that is still
    /// sending does not read the answer. Memory is counted for the bytes that have arrived, not for the announced
    /// length: otherwise a few slow clients could take all of it by announcing large bodies.
    pub(super) async fn read(&self, most: usize, sent: Sent) -> Result<(), ErrorResponse> {
        let (mut parts, mut length) = (sent.into_data_stream(), 0);
        while let Some(part) = parts.next().await {
            let broken = |error| ErrorResponse(StatusCode::BAD_REQUEST, format!("reading the body failed: {error}"));
            let part = part.map_err(broken)?;
            length += part.len();
            self.add(&part, most);
        }
        let ended = self.change(|waiting| {
            if waiting.bytes.len() < BEGINNING {
                waiting.namespace = Some(namespace_of(&waiting.bytes).unwrap_or_default());
            }
            waiting.is_nameless()
        });
        if length > most {
            return Err(ErrorResponse(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {most} bytes")));
        }
        if ended == Some(true) {
            let message = format!(
                "namespace and operation are not in the first {BEGINNING} bytes of the AdmissionReview: shorten \
                 metadata.name"
            );
            return Err(ErrorResponse(StatusCode::UNPROCESSABLE_ENTITY, message));
        }
        Ok(())
    }

    /// Adds a part. Of a body that is too long, or whose beginning names no namespace, only the beginning is kept.
    fn add(&self, part: &[u8], most: usize) {
        self.change(|waiting| {
            let before = waiting.bytes.len();
            waiting.bytes.extend_from_slice(part);
            // The namespace is known as soon as the beginning is there.
            if before < BEGINNING && waiting.bytes.len() >= BEGINNING {
                waiting.namespace = namespace_of(beginning(&waiting.bytes));
            }
            if waiting.bytes.len() > most || waiting.is_nameless() {
                waiting.bytes.truncate(BEGINNING);
                waiting.bytes.shrink_to_fit();
            }
        });
    }

    /// Changes the body, and returns what `change` returns; `None` if the body is given up.
    fn change<R>(&self, change: impl FnOnce(&mut Waiting) -> R) -> Option<R> {
        let mut bodies = self.memory.bodies.lock();
        let waiting = bodies.waiting.get_mut(&self.number)?;
        let before = waiting.bytes.len();
        let changed = change(waiting);
        let after = waiting.bytes.len();
        bodies.used = bodies.used - before + after;
        bodies.shrink(self.memory.most);
        Some(changed)
    }

    /// The length of the body, its beginning, and its requester; all empty if the body is given up.
    pub(super) fn about(&self) -> (usize, Vec<u8>, Requester) {
        let bodies = self.memory.bodies.lock();
        let Some(Waiting { peer, namespace, bytes, .. }) = bodies.waiting.get(&self.number) else {
            return Default::default();
        };
        let requester = Requester { peer: Some(*peer), namespace: namespace.clone().unwrap_or_default() };
        (bytes.len(), beginning(bytes).to_vec(), requester)
    }

    /// Takes the body for its review; `None` if the body is given up, or its request has ended. The body does not count
    /// any more: the number of threads limits how many bodies are reviewed at once.
    pub(super) fn taker(&self) -> impl FnOnce() -> Option<Vec<u8>> + Send + use<> {
        let (memory, number) = (Arc::clone(&self.memory), self.number);
        move || memory.bodies.lock().remove(number).map(|waiting| waiting.bytes)
    }
}

impl Waiting {
    /// Whether the beginning has arrived and does not say which namespace the request is about.
    fn is_nameless(&self) -> bool {
        self.namespace.is_none() && self.bytes.len() >= BEGINNING
    }
}

fn beginning(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(BEGINNING)]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The body of a request about an object of this namespace, of this length.
    fn text(namespace: &str, length: usize) -> Vec<u8> {
        let mut text = format!(r#"{{"request": {{"uid": "1", "kind": {{}}, "namespace": "{namespace}", "#).into_bytes();
        text.resize(length, b' ');
        text
    }

    struct Sent {
        body: Body,
        given_up: oneshot::Receiver<Vec<u8>>,
    }

    impl Sent {
        fn is_given_up(&mut self) -> bool {
            self.given_up.try_recv().is_ok()
        }
    }

    fn send(memory: &Arc<Memory>, peer: [u8; 2], namespace: &str, length: usize) -> Sent {
        let (body, given_up) = memory.begin(IpAddr::from([10, 0, peer[0], peer[1]]));
        body.add(&text(namespace, length), usize::MAX);
        Sent { body, given_up }
    }

    const API_SERVER: [u8; 2] = [9, 9];

    #[test]
    fn other_clients_take_no_memory_that_the_api_server_needs() {
        // Each row takes all memory: clients, requests of each of them, and the length of their bodies.
        for (clients, requests, length) in [(1, 20, 3 << 20), (13, 250, 5000), (13, 2, 3 << 20), (255, 64, 4000)] {
            let memory = Memory::new(32 << 20);
            let mut reviews = Vec::new();
            let mut attackers = Vec::new();
            for nth in 0..requests {
                for client in 0..clients {
                    let namespace = format!("ns-{client}-{nth}");
                    attackers.push(send(&memory, [client / 200, client % 200], &namespace, length));
                }
                if nth < 10 {
                    reviews.push(send(&memory, API_SERVER, "shop", 4000));
                }
            }
            let row = format!("{clients} clients, {requests} requests, {length} bytes");
            assert!(attackers.iter_mut().any(Sent::is_given_up), "{row}");
            assert_eq!(reviews.iter_mut().filter_map(|sent| sent.is_given_up().then_some(())).count(), 0, "{row}");
            assert!(memory.bodies.lock().used <= 32 << 20, "{row}");
            drop((attackers, reviews));
            let bodies = memory.bodies.lock();
            assert_eq!((bodies.used, bodies.waiting.len()), (0, 0), "{row}");
        }
    }

    #[test]
    fn namespace_takes_no_memory_that_others_need() {
        let memory = Memory::new(1 << 20);
        let mut mallory: Vec<Sent> = (0..9).map(|_| send(&memory, API_SERVER, "mallory", 100_000)).collect();
        assert!(!mallory.iter_mut().any(Sent::is_given_up), "alone it may take all");
        let mut shop: Vec<Sent> = (0..3).map(|_| send(&memory, API_SERVER, "shop", 100_000)).collect();
        assert!(!shop.iter_mut().any(Sent::is_given_up));
        let given_up: Vec<bool> = mallory.iter_mut().map(Sent::is_given_up).collect();
        assert_eq!(given_up, [false, false, false, false, false, false, true, true, true], "the newest");
    }

    #[test]
    fn beginning_of_a_body_that_is_given_up_or_too_large_says_what_the_request_is_about() {
        let memory = Memory::new(100_000);
        let mut sent = send(&memory, API_SERVER, "shop", 200_000);
        let beginning = sent.given_up.try_recv().unwrap();
        assert_eq!((namespace_of(&beginning).as_deref(), beginning.len()), (Some("shop"), BEGINNING));
        assert_eq!(sent.body.taker()(), None);
        let (body, _given_up) = memory.begin(IpAddr::from([10, 0, 0, 1]));
        (0..3).for_each(|_| body.add(&text("shop", 20_000), 50_000));
        let (length, beginning, requester) = body.about();
        assert_eq!((length, beginning.len(), requester.namespace.as_str()), (BEGINNING, BEGINNING, "shop"));
    }

    #[test]
    fn bodies_that_name_no_namespace_yet_are_not_those_of_objects_of_the_cluster() {
        let memory = Memory::new(1 << 20);
        let mut unnamed: Vec<Sent> = (0..80).map(|_| send(&memory, API_SERVER, "shop", 100)).collect();
        let mut nodes: Vec<Sent> = (0..4).map(|_| send(&memory, API_SERVER, "", 100_000)).collect();
        assert!(unnamed.iter_mut().any(Sent::is_given_up), "they take more than the Nodes");
        assert!(!nodes.iter_mut().any(Sent::is_given_up));
    }

    #[tokio::test]
    async fn body_whose_beginning_hides_its_namespace_is_refused() {
        struct Case {
            name: &'static str,
            /// The fields of the request before the others.
            fields: String,
            length: usize,
            status: Option<u16>,
        }
        let long = "n".repeat(BEGINNING);
        let named = r#""namespace": "shop""#;
        let cases = [
            Case { name: "a namespace", fields: named.into(), length: 9000, status: None },
            Case { name: "an operation alone", fields: r#""operation": "CREATE""#.into(), length: 9000, status: None },
            Case { name: "a small body", fields: r#""name": "web""#.into(), length: 1000, status: None },
            Case {
                name: "a long name",
                fields: format!(r#""name": "{long}", {named}"#),
                length: 9000,
                status: Some(422),
            },
            Case { name: "neither", fields: r#""name": "web""#.into(), length: 9000, status: Some(422) },
            Case { name: "too large", fields: named.into(), length: 20_000, status: Some(413) },
        ];
        for Case { name, fields, length, status } in cases {
            let memory = Memory::new(1 << 20);
            let (body, _given_up) = memory.begin(IpAddr::from([10, 0, 0, 1]));
            let mut text = format!(r#"{{"request": {{"uid": "1", "kind": {{}}, {fields}, "#).into_bytes();
            text.resize(length, b' ');
            let parts: Vec<_> = text.chunks(3000).map(|part| Ok::<_, std::io::Error>(part.to_vec())).collect();
            let read = body.read(10_000, axum::body::Body::from_stream(futures::stream::iter(parts))).await;
            assert_eq!(read.err().map(|refusal| refusal.0.as_u16()), status, "{name}");
            let kept = body.about().0;
            assert!(if status == Some(422) { kept == BEGINNING } else { kept <= length }, "{name}: {kept}");
        }
    }
}
