use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;

use axum::body::Body;
use axum::http::{Request, Response};
use clusterip_core::lookups::{Cluster as _, LookupError};
use clusterip_core::settings::Lookups;
use clusterip_core::workload::WorkloadKind;
use clusterip_failover::claims::Owner;
use futures::stream;
use serde_json::json;
use tokio::time::timeout;
use tower::service_fn;

use super::*;
use crate::lookups::stored_cluster::StoredCluster;
use crate::reservations::ledger::{Ledger, NamespaceShare};

const PATIENCE: Duration = Duration::from_secs(20);

/// A client of an API server that refuses streaming lists, and answers any other request for this path, with its query,
/// with this status and text. A watch stays open after the text.
pub(crate) fn client(answer: impl Fn(&str, &str) -> (u16, String) + Clone + Send + Sync + 'static) -> Client {
    api_server(move |path, query| {
        if query.contains(STREAM) {
            return refused_stream();
        }
        let (status, text) = answer(path, query);
        (status, text, query.contains("watch=true"))
    })
}

/// What only the query of a streaming list contains.
const STREAM: &str = "sendInitialEvents=true";

fn refused_stream() -> (u16, String, bool) {
    let message = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
    (422, json!({"kind": "Status", "status": "Failure", "code": 422, "message": message}).to_string(), false)
}

/// As [`client`], of an API server that answers each request with this status and text, and then keeps the answer open
/// or not.
fn api_server(answer: impl Fn(&str, &str) -> (u16, String, bool) + Clone + Send + Sync + 'static) -> Client {
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let (status, text, stays_open) = answer(path, query);
        let text = stream::iter([Ok::<_, Infallible>(text)]);
        let is_open = stays_open && status == 200;
        let body = if is_open { Body::from_stream(text.chain(stream::pending())) } else { Body::from_stream(text) };
        async move { Ok::<_, Infallible>(Response::builder().status(status).body(body).unwrap()) }
    });
    Client::new(service, "default")
}

fn list(items: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items}).to_string()
}

fn stores(client: Client, seen: impl Fn(&Value) + Send + Sync + 'static) -> Stores {
    Stores::new(client, ClusterMetrics::default(), seen, |_| ())
}

async fn eventually(what: &str, is_true: impl Fn() -> bool) {
    let wait = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

fn settings(kinds: &[&str]) -> Settings {
    Settings { kinds: kinds.iter().map(|kind| WorkloadKind::parse(kind).unwrap()).collect(), ..Settings::default() }
}

/// Why a look-up of the workloads of a kind fails; `None` if it does not.
fn failure(stores: &Stores, kind: &str) -> Option<LookupError> {
    let selector = [("app".to_owned(), "web".to_owned())].into_iter().collect();
    let cluster = StoredCluster::new(stores.snapshot(), &json!({"metadata": {"namespace": "shop", "name": "web"}}));
    cluster.workloads(&WorkloadKind::parse(kind).unwrap(), "shop", Lookups::Cluster, &selector).err()
}

#[tokio::test]
async fn service_ends_its_own_reservation_and_none_of_those_that_it_names() {
    let event = |namespace: &str, name: &str, annotations: Value, spec: Value| {
        let metadata =
            json!({"namespace": namespace, "name": name, "resourceVersion": "2", "annotations": annotations});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec});
        format!("{}\n", json!({"type": "ADDED", "object": object}))
    };
    let [web, db]: [IpAddr; 2] = [[10, 0, 0, 5].into(), [10, 0, 0, 6].into()];
    let names = json!({"metallb.io/loadBalancerIPs": format!("{web},{db}")});
    let events = event("mallory", "a", names, json!({"type": "ClusterIP", "externalIPs": [web, db]}))
        + &event("shop", "db", json!({}), json!({"clusterIP": db, "clusterIPs": [db]}));
    let (asked, asks) = std::sync::mpsc::channel();
    let client = client(move |_, query| match query.contains("watch=true") {
        true => {
            asked.send(query.to_owned()).unwrap();
            (200, events.clone())
        }
        false => (200, list(&[])),
    });
    let ledger = Ledger::default();
    let any = |_| NamespaceShare { max: 9, burst: 9, counts: Box::new(|_| true) };
    for (name, address) in [("web", web), ("db", db)] {
        let owner = Owner::new("shop", name, "");
        assert!(ledger.reserve(address, &owner, || false));
        ledger.commit(&owner, &[address], &[address], &any);
    }
    let watched = ledger.clone();
    let stores = stores(client, move |service| watched.mark_seen(service));
    stores.watch_kinds([("v1".to_owned(), "Service".to_owned())]);
    eventually("the reservation of the second Service ends", || ledger.owner(db).is_none()).await;
    assert!(stores.stored_service(&ServiceKey::new("mallory", "a")).is_some());
    assert!(ledger.owner(web).is_some(), "no Service has the address, and it counts as free in the cluster");
    assert!(!stores.read_snapshot().is_used(web));
    let query = asks.recv().unwrap();
    assert!(query.split('&').any(|part| part == format!("timeoutSeconds={WATCH_SECONDS}")), "{query}");
}

/// Also of the first list, which otherwise needs no memory of what it has shown.
#[tokio::test]
async fn objects_of_a_list_that_broke_off_are_forgotten_if_the_next_one_lacks_them() {
    let service = |name: &str| {
        let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": "1"});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "ClusterIP"}})
    };
    let (broke_off, goes_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (was_broken, may_go_on) = (Arc::clone(&broke_off), Arc::clone(&goes_on));
    let client = client(move |_, query| {
        let status = json!({"kind": "Status", "status": "Failure", "code": 500, "message": "it broke off"});
        if query.contains("watch=true") {
            (200, String::new())
        } else if query.contains("continue=") {
            was_broken.store(true, Ordering::SeqCst);
            (500, status.to_string())
        } else if !was_broken.load(Ordering::SeqCst) {
            let metadata = json!({"resourceVersion": "1", "continue": "next"});
            let page = json!({"apiVersion": "v1", "kind": "List", "metadata": metadata, "items": [service("gone")]});
            (200, page.to_string())
        } else if may_go_on.load(Ordering::SeqCst) {
            (200, list(&[service("web")]))
        } else {
            (500, status.to_string())
        }
    });
    let names = |stores: &Stores| stores.read_snapshot().services(None);
    let stores = stores(client, |_| ());
    stores.watch_kinds([("v1".to_owned(), "Service".to_owned())]);
    eventually("the list breaks off", || broke_off.load(Ordering::SeqCst)).await;
    assert_eq!(names(&stores), [ServiceKey::new("shop", "gone")]);
    goes_on.store(true, Ordering::SeqCst);
    eventually("the next list", || names(&stores) == [ServiceKey::new("shop", "web")]).await;
}

#[tokio::test]
async fn kind_that_cannot_be_listed_fails_only_its_own_look_ups() {
    let (forbidden, foo) = (Arc::new(AtomicBool::new(true)), "example.com/v1/Foo");
    let refuses = Arc::clone(&forbidden);
    let client = client(move |path, query| match path {
        "/apis/example.com/v1" => {
            let resource =
                json!({"name": "foos", "singularName": "foo", "namespaced": true, "kind": "Foo", "verbs": ["list"]});
            let kinds = json!({"kind": "APIResourceList", "groupVersion": "example.com/v1", "resources": [resource]});
            (200, kinds.to_string())
        }
        "/apis/example.com/v1/foos" if refuses.load(Ordering::SeqCst) => {
            let status = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden",
                                "message": "foos is forbidden"});
            (403, status.to_string())
        }
        _ if query.contains("watch=true") => (200, String::new()),
        _ => (200, list(&[])),
    });
    let stores = stores(client, |_| ());
    assert!(stores.watch(&settings(&["Deployment"])));
    assert!(!stores.begun(), "nothing was listed");
    assert!(failure(&stores, "Deployment").is_some());
    assert!(timeout(PATIENCE, stores.completed()).await.is_ok());
    assert!(stores.begun());

    let with_foo = settings(&["Deployment", foo]);
    assert!(stores.watch(&with_foo) && !stores.watch(&with_foo));
    let expected = |failure: Option<LookupError>, text: &str| match failure {
        Some(LookupError::Failed { resource, detail }) => resource == foo && detail.contains(text),
        _ => false,
    };
    assert!(expected(failure(&stores, foo), "it is being listed"), "before it was ever listed");
    eventually("the list to be refused", || expected(failure(&stores, foo), "foos is forbidden")).await;
    assert_eq!(failure(&stores, "Deployment"), None);
    assert!(stores.begun() && !stores.complete(), "other requests are reviewed");
    assert_eq!((stores.lagging(), stores.stale_since()), (Vec::new(), None), "the server stays ready");
    forbidden.store(false, Ordering::SeqCst);
    eventually("the kind to be listed", || failure(&stores, foo).is_none()).await;
    assert!(stores.complete());
}

#[tokio::test]
async fn failures_end_no_completeness_and_required_kinds_do_not_become_unknown() {
    struct Case {
        name: &'static str,
        kind: (&'static str, &'static str),
        before: State,
        failing_for: Duration,
        complete: bool,
        is_known: bool,
    }
    let (evidence, required) = (("apps/v1", "Deployment"), ("v1", "Namespace"));
    let (short, long) = (Duration::ZERO, MAX_STALENESS + Duration::from_secs(1));
    let case = |name, kind, before, failing_for, complete, is_known| Case {
        name,
        kind,
        before,
        failing_for,
        complete,
        is_known,
    };
    let cases = [
        case("absent", evidence, State::Absent, short, true, false),
        case("listed", evidence, State::Synced, short, true, true),
        case("listed long ago", evidence, State::Synced, long, true, false),
        case("never listed", evidence, State::Syncing, short, false, false),
        case("not listed for a while", evidence, State::Syncing, long, true, false),
        case("required, listed", required, State::Synced, short, true, true),
        case("required, listed long ago", required, State::Synced, long, true, true),
        case("required, not listed for a while", required, State::Syncing, long, false, false),
    ];
    for Case { name, kind, before, failing_for, complete, is_known } in cases {
        let Some(since) = Instant::now().checked_sub(failing_for) else { return };
        let stores = stores(client(|_, _| (500, String::new())), |_| ());
        let is_required = kind == required;
        let kind = (kind.0.to_owned(), kind.1.to_owned());
        match &before {
            State::Absent => stores.0.set_absent(&kind),
            State::Synced => stores.0.set_synced(&kind),
            _ => {
                stores.0.set_unlisted(&kind, "it is being listed");
                stores.states().insert(kind.clone(), State::Syncing);
            }
        }
        for _ in 0..2 {
            stores.0.set_failing(&kind, &std::io::Error::other("no answer"));
            if let Some(State::Failing { since: begin, .. }) = stores.states().get_mut(&kind) {
                *begin = since;
            }
        }
        assert_eq!(stores.complete(), complete, "{name}");
        assert_eq!(stores.read_snapshot().missing(&kind.0, &kind.1).is_none(), is_known, "{name}");
        // A server is not ready as long as a required kind fails, or before all kinds were listed.
        let (seconds, unready) = (failing_for.as_secs(), !complete || is_required);
        let lagging = unready.then(|| format!("{}/{} could not be watched for {seconds} s: no answer", kind.0, kind.1));
        let found = (stores.lagging(), stores.stale_since().is_some());
        assert_eq!(found, (Vec::from_iter(lagging), is_required), "{name}");
    }
}

#[test]
fn lists_of_agents_take_at_most_a_fifth_of_the_time_and_servers_are_blind_for_seconds_only() {
    for on_each_node in [false, true] {
        for took in [0, 1, 20, 500, 3_000, 20_000, 120_000].map(Duration::from_millis) {
            let mut last = Duration::ZERO;
            for expiries in 1..40 {
                let pause = pause_after_expiry(expiries, took, on_each_node);
                let least = if on_each_node { 4 * took } else { (4 * took).min(Duration::from_secs(5)) };
                assert!(least <= pause && last <= pause, "{took:?}, {expiries} times: {pause:?}");
                last = pause;
            }
            let longest = if on_each_node { Duration::from_secs(120) } else { Duration::from_secs(2) };
            let of_list = if on_each_node { 4 * took } else { (4 * took).min(Duration::from_secs(5)) };
            assert_eq!(last, longest.max(of_list), "{took:?}");
        }
    }
}

#[tokio::test]
async fn listener_gets_every_event_from_the_beginning_of_a_list() {
    let (pod, node) = (("v1".to_owned(), "Pod".to_owned()), ("v1".to_owned(), "Node".to_owned()));
    let subscriptions = Subscriptions::default();
    let (sender, shown) = mpsc::channel();
    let listener = move |event: &Event<PartialObject>| {
        let text = match event {
            Event::Init => "init",
            Event::InitApply(_) => "listed",
            Event::InitDone => "done",
            Event::Apply(_) => "changed",
            Event::Delete(_) => "gone",
        };
        sender.send(text).is_ok()
    };
    subscriptions.show(&node, &Event::Apply(PartialObject::default()));
    subscriptions.add(&node, Box::new(listener));
    subscriptions.asks(&node).notified().await;
    // The rest of an earlier list.
    subscriptions.show(&node, &Event::InitApply(PartialObject::default()));
    subscriptions.show(&node, &Event::InitDone);
    for kind in [&node, &pod] {
        subscriptions.show(kind, &Event::Init);
        subscriptions.show(kind, &Event::InitApply(PartialObject::default()));
        subscriptions.show(kind, &Event::InitDone);
        subscriptions.show(kind, &Event::Apply(PartialObject::default()));
        subscriptions.show(kind, &Event::Delete(PartialObject::default()));
    }
    assert_eq!(shown.try_iter().collect::<Vec<_>>(), ["init", "listed", "done", "changed", "gone"]);
    drop(shown);
    subscriptions.show(&node, &Event::Init);
    assert!(subscriptions.with(&node, |entry| entry.listener.is_none()));
}

#[tokio::test(start_paused = true)]
async fn kinds_are_listed_in_pages_after_the_first_streaming_list_that_does_not_end() {
    fn service(name: &str) -> Value {
        let metadata = json!({"namespace": "shop", "name": name, "resourceVersion": "1"});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"type": "ClusterIP"}})
    }
    struct Case {
        name: &'static str,
        /// The answer to the nth streaming list, beginning with 0.
        stream: fn(usize, &[Value]) -> (u16, String, bool),
        /// What is listed in this way.
        streamed: &'static [&'static str],
        /// How many streaming lists and pages of two kinds are requested.
        requests: (usize, usize),
    }
    fn events(objects: &[Value]) -> String {
        objects.iter().map(|object| json!({"type": "ADDED", "object": object}).to_string() + "\n").collect()
    }
    fn end() -> String {
        let metadata = json!({"resourceVersion": "9", "annotations": {"k8s.io/initial-events-end": "true"}});
        let object = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
        json!({"type": "BOOKMARK", "object": object}).to_string() + "\n"
    }
    let cases = [
        Case {
            name: "complete",
            stream: |_, objects| (200, events(objects) + &end(), true),
            streamed: &["a", "b"],
            requests: (2, 0),
        },
        Case {
            name: "not available at first",
            stream: |nth, objects| {
                if nth == 0 { (503, String::new(), false) } else { (200, events(objects) + &end(), true) }
            },
            streamed: &["a", "b"],
            requests: (3, 0),
        },
        Case { name: "refused", stream: |_, _| refused_stream(), streamed: &[], requests: (1, 2) },
        Case {
            name: "not known, so without an end",
            stream: |_, objects| (200, events(objects), true),
            streamed: &["a", "gone"],
            requests: (1, 2),
        },
        Case { name: "without any event", stream: |_, _| (200, String::new(), true), streamed: &[], requests: (1, 2) },
        Case {
            name: "broken off, as by a large object",
            stream: |_, objects| (200, events(objects), false),
            streamed: &["a", "gone"],
            requests: (2, 2),
        },
        Case {
            name: "ended by an error",
            stream: |_, objects| {
                let status = json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old"});
                let error = json!({"type": "ERROR", "object": status}).to_string() + "\n";
                (200, events(objects) + &error, true)
            },
            streamed: &["a", "gone"],
            requests: (1, 2),
        },
    ];
    for Case { name, stream, streamed, requests } in cases {
        let counts = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let counted = Arc::clone(&counts);
        let client = api_server(move |path, query| {
            let of_path = |names: &[&str]| -> Vec<Value> {
                if path == "/api/v1/services" { names.iter().map(|name| service(name)).collect() } else { Vec::new() }
            };
            if query.contains(STREAM) {
                stream(counted.0.fetch_add(1, Ordering::SeqCst), &of_path(streamed))
            } else if query.contains("watch=true") {
                (200, String::new(), true)
            } else {
                counted.1.fetch_add(1, Ordering::SeqCst);
                (200, list(&of_path(&["a", "b"])), false)
            }
        });
        let stores = stores(client, |_| ());
        for kind in ["Service", "Namespace"] {
            stores.watch_kinds([("v1".to_owned(), kind.to_owned())]);
            assert!(timeout(PATIENCE, stores.completed()).await.is_ok(), "{name}: {kind} is not listed");
        }
        let services = stores.read_snapshot().services(None);
        assert_eq!(services, ["a", "b"].map(|service| ServiceKey::new("shop", service)), "{name}");
        let found = (counts.0.load(Ordering::SeqCst), counts.1.load(Ordering::SeqCst));
        assert_eq!(found, requests, "{name}");
    }
}
