use std::convert::Infallible;
use std::net::IpAddr;

use clusterip_cluster::kinds::{self, State};
use clusterip_moves::journal::{Journal, Plan, ReleaseMethod};
use clusterip_moves::step::beginning;
use http::{Method, Response, StatusCode};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;
use crate::services::test_support::reconciler;

/// A reconciler in a cluster with a pool for Linux and one for Windows, and the requests that it has sent.
struct Cluster {
    reconciler: Arc<Reconciler>,
    requests: Arc<Mutex<Vec<(Method, String)>>>,
}

impl Cluster {
    /// The API server answers a request for one of these paths with this text, and any other with an empty object. It
    /// refuses to write an object that is [`UNWRITABLE`].
    fn new(answers: &[(&str, String)]) -> Self {
        let requests = Arc::<Mutex<Vec<(Method, String)>>>::default();
        let sent = Arc::clone(&requests);
        let answers: BTreeMap<String, String> =
            answers.iter().map(|(path, text)| ((*path).to_owned(), text.clone())).collect();
        let client = service_fn(move |request: Request<Body>| {
            let path = request.uri().path();
            let text = answers.get(path).map_or("{}", |text| text);
            let mut answer = Response::new(Body::from(text.to_owned().into_bytes()));
            if request.method() == Method::PUT && text.contains(UNWRITABLE) {
                *answer.status_mut() = StatusCode::FORBIDDEN;
            }
            sent.lock().push((request.method().clone(), path.to_owned()));
            async move { Ok::<_, Infallible>(answer) }
        });
        let reconciler = reconciler(Client::new(client, "default"));
        kinds::callers().for_each(|kind| reconciler.evaluator.stores().control_plane_services().listed(&kind));
        Self { reconciler, requests }
    }

    fn shows(&self, object: &Value) {
        self.reconciler.evaluator.stores().snapshot().write().unwrap().insert(object);
    }

    /// Looks at the Service `shop/web`, and returns the methods of the requests for it.
    async fn looks(&self, times: usize) -> Vec<Method> {
        self.looks_as(Size::Large, times).await
    }

    async fn looks_as(&self, size: Size, times: usize) -> Vec<Method> {
        for _ in 0..times {
            self.reconciler.reconcile(&ServiceKey::new("shop", "web"), size).await;
        }
        let sent = std::mem::take(&mut *self.requests.lock());
        sent.into_iter().filter_map(|(method, path)| (path == WEB).then_some(method)).collect()
    }
}

const WEB: &str = "/api/v1/namespaces/shop/services/web";

/// An annotation of a Service that the API server lets nobody write.
const UNWRITABLE: &str = "unwritable";

/// The Service `shop/web`, for Linux.
fn web(address: &str, annotations: Value) -> Value {
    let by_allocator = json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]);
    let mut metadata = json!({"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations});
    metadata["annotations"]["clusterip-policy/os"] = "linux".into();
    metadata["managedFields"] = by_allocator;
    json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address]}})
}

const IN_PLACE: &str = "10.2.200.1";
const MISPLACED: &str = "10.1.200.1";

#[tokio::test]
async fn service_that_is_too_large_is_read_once_whatever_its_author_asks_for() {
    for (name, address, bytes) in [
        ("in place", IN_PLACE, Size::Large.most_read()),
        ("misplaced", MISPLACED, Size::Large.most_read()),
        ("misplaced, and small enough to be read", MISPLACED, Size::Large.most()),
    ] {
        for annotations in [json!({}), json!({MOVE_ANNOTATION: "now"})] {
            let mut large = web(address, annotations.clone());
            large["metadata"]["annotations"]["filling"] = "x".repeat(bytes).into();
            let cluster = Cluster::new(&[(WEB, large.to_string())]);
            cluster.shows(&web(address, annotations.clone()));
            let is_read = address == MISPLACED || annotations[MOVE_ANNOTATION] == "now";
            assert_eq!(cluster.looks(5).await.len(), usize::from(is_read), "{name}: {annotations}");
            // A change that the stores show.
            cluster.shows(&web(address, json!({MOVE_ANNOTATION: "now", "clusterip-policy/pool": "linux"})));
            assert_eq!(cluster.looks(5).await, [Method::GET], "{name}: {annotations}, changed");
        }
    }
}

#[tokio::test]
async fn nothing_moves_while_the_addresses_in_use_can_not_be_watched() {
    let live = web(MISPLACED, json!({}));
    let cluster = Cluster::new(&[(WEB, live.to_string())]);
    cluster.shows(&live);
    let becomes = |state| {
        let kind = ("networking.k8s.io/v1".to_owned(), "IPAddress".to_owned());
        cluster.reconciler.evaluator.stores().states().insert(kind, state);
    };
    becomes(State::Failing { since: Instant::now(), reason: "no answer".to_owned(), usable: true });
    assert_eq!(cluster.looks(2).await, [Method::GET; 0], "the watch fails");
    becomes(State::Synced);
    assert!(cluster.looks(1).await.contains(&Method::PUT), "it moves as soon as the watch works");
}

/// Until it moves as a large one, it may wait for the rate limit.
#[tokio::test]
async fn large_service_is_read_once_to_find_out_that_it_is_large() {
    let mut large = web(MISPLACED, json!({}));
    large["metadata"]["annotations"]["filling"] = "x".repeat(Size::Usual.most()).into();
    let cluster = Cluster::new(&[(WEB, large.to_string())]);
    cluster.shows(&web(MISPLACED, json!({})));
    assert_eq!(cluster.looks_as(Size::Usual, 5).await, [Method::GET]);
}

#[tokio::test]
async fn version_that_is_known_to_be_outdated_is_not_read_again() {
    let now = || json!({MOVE_ANNOTATION: "now"});
    let stays = || json!({MOVE_ANNOTATION: "now", "clusterip-policy/pool": "unknown"});
    let answered = [Method::GET, Method::PUT];
    let answered_twice = [Method::GET, Method::GET, Method::PUT];
    for (name, shown, live, expected) in [
        ("moved", web(MISPLACED, json!({})), web(IN_PLACE, json!({})), &answered[..1]),
        ("answered by another leader", web(MISPLACED, now()), web(MISPLACED, json!({})), &answered[..1]),
        ("in place, and answered", web(IN_PLACE, now()), web(IN_PLACE, now()), &answered[..]),
        ("it stays, and is answered", web(MISPLACED, stays()), web(MISPLACED, stays()), &answered_twice[..]),
    ] {
        let cluster = Cluster::new(&[(WEB, live.to_string())]);
        cluster.shows(&shown);
        assert_eq!(cluster.looks(5).await, expected, "{name}");
    }
}

#[tokio::test]
async fn service_with_too_many_endpoint_slices_stays() {
    let page = |token: &str| json!({"metadata": {"continue": token}, "items": []}).to_string();
    let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
    for (name, token, pages, expected) in [
        ("none", "", 1, &[Method::GET, Method::PUT, Method::PUT][..]),
        ("more and more", "more", 256, &[Method::GET, Method::PUT]),
    ] {
        let service = web(MISPLACED, json!({}));
        let cluster = Cluster::new(&[(WEB, service.to_string()), (slices, page(token))]);
        cluster.shows(&service);
        let id = ServiceKey::new("shop", "web");
        let look = cluster.reconciler.reconcile(&id, Size::Usual);
        let _ = tokio::time::timeout(Duration::from_secs(3), look).await;
        let sent = std::mem::take(&mut *cluster.requests.lock());
        let of =
            |path: &str| sent.iter().filter(|(_, of)| of == path).map(|(method, _)| method.clone()).collect::<Vec<_>>();
        assert_eq!(of(slices).len(), pages, "{name}: {sent:?}");
        assert_eq!(of(WEB)[..expected.len()], *expected, "{name}: the first write is a dry run");
        assert_eq!(of(WEB).len() > 2, token.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn failing_services_of_a_namespace_are_tried_a_hundred_times_a_minute() {
    let reconciler = Cluster::new(&[]).reconciler;
    let failures = |namespace: &str, count: u32| {
        let id = |number| ServiceKey::new(namespace, format!("web-{number}"));
        (0..count).map(|number| reconciler.after_failure(&id(number))).collect::<Vec<_>>()
    };
    let seconds = |pause| Next::After(Duration::from_secs(pause));
    for pause in [2, 4] {
        assert_eq!(failures("mallory", 300), vec![seconds(pause); 300]);
    }
    let third = failures("mallory", 300);
    assert_eq!((third[0], third[150]), (seconds(8), seconds(90)), "one after the other");
    for _ in 0..8 {
        assert_eq!(failures("mallory", 300), vec![seconds(180); 300]);
    }
    let gone = ServiceKey::new("mallory", "web-7");
    reconciler.mover.unfinished.add("u", &gone, true);
    let next = reconciler.reconcile(&gone, Size::Large).await;
    assert!(matches!(next, Next::After(pause) if pause <= MAX_PAUSE), "a Service that is gone: {next:?}");
    for pause in [2, 4, 8, 16, 32, 60, 60] {
        assert_eq!(failures("shop", 1), [seconds(pause)], "another namespace");
    }
}

#[tokio::test]
async fn annotation_that_can_not_be_removed_does_not_delay_the_end_of_a_grace_period() {
    for is_in_grace_period in [false, true] {
        let service = web(IN_PLACE, json!({MOVE_ANNOTATION: "now", UNWRITABLE: ""}));
        let cluster = Cluster::new(&[(WEB, service.to_string())]);
        let id = ServiceKey::new("shop", "web");
        cluster.shows(&service);
        if is_in_grace_period {
            cluster.reconciler.mover.unfinished.add("u", &id, true);
            cluster.reconciler.mover.unfinished.go_on_after("u", Duration::from_secs(5));
        }
        cluster.reconciler.known.lock().entry(id.clone()).or_default().failures = 9;
        assert_eq!(cluster.looks(1).await, [Method::GET, Method::PUT]);
        let pause = cluster.reconciler.remaining_pause(&id).unwrap();
        assert_eq!(pause <= Duration::from_secs(5), is_in_grace_period, "{pause:?}");
    }
}

#[tokio::test]
async fn failing_services_of_a_namespace_do_not_delay_the_end_of_a_grace_period() {
    let reconciler = Cluster::new(&[]).reconciler;
    let id = |number| ServiceKey::new("mallory", format!("web-{number}"));
    for _ in 0..4 {
        for number in 0..1000 {
            reconciler.after_failure(&id(number));
        }
    }
    let seconds = Duration::from_secs;
    let (own, unfinished) = (id(7), &reconciler.mover.unfinished);
    assert_eq!(reconciler.after_failure(&own), Next::After(seconds(600)));
    unfinished.add("u", &own, true);
    assert!(!reconciler.goes_on_now(&own), "it fails again and again");
    assert_eq!(unfinished.late(Instant::now()), []);
    unfinished.set_deadline("u", Some(Instant::now() + seconds(500)));
    assert!(reconciler.goes_on_now(&own), "it has temporary Services");
    assert_eq!(unfinished.late(Instant::now()), std::slice::from_ref(&own));
    for (due, deadline, expected) in
        [(60, Some(500), 60), (0, Some(500), 500), (700, Some(800), 600), (0, None, 600), (0, Some(0), 60)]
    {
        unfinished.go_on_after("u", seconds(due));
        unfinished.set_deadline("u", deadline.map(|deadline| Instant::now() + seconds(deadline)));
        let next = reconciler.after_failure(&own);
        let is_expected = |pause| pause <= seconds(expected) && pause + seconds(5) > seconds(expected);
        assert!(matches!(next, Next::After(pause) if is_expected(pause)), "{due} s, {deadline:?} s: {next:?}");
    }
    unfinished.set_deadline("u", None);
    reconciler.forget_failures(&own);
    assert!(reconciler.goes_on_now(&own), "its grace period has ended");
    unfinished.go_on_after("u", seconds(60));
    assert!(!reconciler.goes_on_now(&own), "in its grace period");
}

#[tokio::test]
async fn service_that_waits_for_consent_is_not_given_back_in_its_grace_period() {
    let mut released = web(MISPLACED, json!({}));
    released["spec"] = json!({"type": "ExternalName", "externalName": "moving.invalid"});
    let name = |role: &str| format!("clusterip-{role}");
    let seamless = Some(Plan {
        new: name("new"),
        old: name("old"),
        trigger: name("trigger"),
        server_namespace: "clusterip".to_owned(),
        external_name: "moving.invalid".to_owned(),
        grace: 60,
    });
    let begun = beginning(&web(MISPLACED, json!({})), &[IpAddr::from([10, 2, 200, 1])], "");
    let journal = Journal { release_method: ReleaseMethod::ExternalName, seamless, ..begun };
    let record = json!({"metadata": {"name": "clusterip-move-u"}, "revision": 1, "data": journal});
    let path = "/apis/apps/v1/namespaces/clusterip/controllerrevisions/clusterip-move-u";
    let cluster = Cluster::new(&[(WEB, released.to_string()), (path, record.to_string())]);
    let (reconciler, id) = (&cluster.reconciler, ServiceKey::new("shop", "web"));
    cluster.shows(&released);
    reconciler.mover.unfinished.add("u", &id, true);
    reconciler.mover.unfinished.go_on_after("u", Duration::from_secs(60));
    reconciler.brakes.lock().settings_changed([(id, true)].into(), 1, BTreeSet::new());
    let looks = tokio::time::timeout(Duration::from_secs(30), cluster.looks(3)).await;
    assert_eq!(looks, Ok(vec![Method::GET; 3]), "it is read, and nothing is written");
}

#[tokio::test]
async fn request_chooses_the_method_and_the_grace_period_of_its_move_and_the_server_the_domain() {
    let options = |grace_period, domain: &str| SeamlessOptions { grace_period, cluster_domain: domain.to_owned() };
    let request = |seamless: Option<SeamlessOptions>| MoveRequest {
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "uid-1".to_owned(),
        control_plane: false,
        seamless,
    };
    let corefile =
        json!({"metadata": {"name": "coredns"}, "data": {"Corefile": ".:53 {\n kubernetes read.example\n}"}});
    let read = Cluster::new(&[("/api/v1/namespaces/kube-system/configmaps/coredns", corefile.to_string())]);
    let unread = Cluster::new(&[]);
    struct Case<'c> {
        name: &'static str,
        cluster: &'c Cluster,
        request: Option<MoveRequest>,
        server: Option<SeamlessOptions>,
        expected: Option<SeamlessOptions>,
    }
    let case = |name, request, server, expected| Case { name, cluster: &read, request, server, expected };
    let (server, asked) = (Some(options(1, "server.example")), request(Some(options(2, "asked.example"))));
    let too_long = request(Some(options(u32::MAX, "asked.example")));
    let cases = [
        case("no request, a plain server", None, None, None),
        case("no request, a seamless server", None, server.clone(), server.clone()),
        case("a plain move, a seamless server", Some(request(None)), server.clone(), None),
        case("a seamless move, a plain server", Some(asked.clone()), None, Some(options(2, "read.example"))),
        case("both seamless", Some(asked.clone()), server.clone(), Some(options(2, "server.example"))),
        case("too long a grace period", Some(too_long), server, Some(options(86_400, "server.example"))),
        Case {
            cluster: &unread,
            ..case("a server that can't read the domain", Some(asked), None, Some(options(2, "cluster.local")))
        },
    ];
    for Case { name, cluster, request, server, expected } in cases {
        // The request as the server reads it.
        let stored = serde_json::to_value(&request).unwrap();
        let read: Option<MoveRequest> = serde_json::from_value(stored).unwrap();
        let found = seamless_options(&cluster.reconciler.client, read, server.as_ref()).await;
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn annotation_that_asks_for_a_move_is_removed_alone() {
    let service = |annotations: Value| {
        let metadata = json!({"name": "web", "annotations": annotations, "managedFields": [{"manager": "é"}]});
        json!({"kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 80}]}})
    };
    let other = json!({"example.com/text": "a \" \u{1} é"});
    for (name, value, is_removed) in [("now", "now", true), ("another value", "never", false)] {
        let mut annotations = other.clone();
        annotations[MOVE_ANNOTATION] = value.into();
        let left = without_move_now(service(annotations).to_string().as_bytes());
        let left = left.map(|left| serde_json::from_slice::<Value>(&left).unwrap());
        assert_eq!(left, is_removed.then(|| service(other.clone())), "{name}");
    }
    assert_eq!(without_move_now(service(other).to_string().as_bytes()), None);
    assert_eq!(without_move_now(b"{}"), None);
}
