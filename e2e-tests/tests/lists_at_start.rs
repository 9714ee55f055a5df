//! How a server lists objects when it starts.

use std::collections::BTreeMap;

use crate::support::control_plane::{ControlPlane, Options};
use crate::support::fault_proxy::Proxy;
use crate::support::serve_process::ServerBuilder;

/// Some of the kinds that a server watches.
const PATHS: [&str; 7] = [
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/pods",
    "/api/v1/services",
    "/apis/apps/v1/deployments",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/ipaddresses",
];

#[tokio::test]
async fn each_kind_is_listed_once_as_a_stream_or_in_pages() {
    struct Case {
        /// Whether the API server has streaming lists, as it has by default since Kubernetes 1.34.
        feature_gates: &'static str,
        streams: bool,
    }
    let cases = [
        Case { feature_gates: "WatchList=true", streams: true },
        Case { feature_gates: "WatchList=false", streams: false },
    ];
    for Case { feature_gates, streams } in cases {
        let options = Options { audit: false, feature_gates: feature_gates.to_owned(), ..Options::default() };
        let plane = ControlPlane::start(options);
        let proxy = Proxy::start(&plane).await;
        let kubeconfig = plane.write_kubeconfig("lists.kubeconfig", proxy.url(), plane.admin_token());
        let mut server = ServerBuilder::as_user(&kubeconfig).arg("--no-webhook").start().await;
        let mut lists: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let requests = proxy.requests();
        for request in &requests {
            let Some(path) = PATHS.into_iter().find(|path| *path == request.path) else { continue };
            let has = |part: &str| request.query.split('&').any(|other| other == part);
            match (has("watch=true"), has("sendInitialEvents=true")) {
                (true, true) => {
                    assert!(!request.query.contains("resourceVersion=0"), "it may be old: {}", request.query);
                    lists.entry(path).or_default().push("stream");
                }
                (false, _) => lists.entry(path).or_default().push("page"),
                (true, false) => {}
            }
        }
        if !streams {
            // Three kinds are listed at once before the first answer shows that the API server refuses streams.
            let refused = lists.values().flatten().filter(|list| **list == "stream").count();
            assert!((1..=3).contains(&refused), "{lists:?}");
            lists.values_mut().for_each(|lists| lists.retain(|list| *list == "page"));
        }
        let expected = PATHS.map(|path| (path, vec![if streams { "stream" } else { "page" }]));
        assert_eq!(lists, BTreeMap::from(expected), "{feature_gates}");
        assert_eq!(server.terminate().await, 0);
    }
}
