use std::sync::RwLock;
use std::thread;

use serde_json::json;

use super::*;
use crate::cluster::lookups::snapshot::{Snapshot, SnapshotCalls};

fn create(annotation: &str) -> Value {
    json!({
        "uid": "00000000-0000-4000-8000-000000000001",
        "kind": {"group": "", "version": "v1", "kind": "Service"},
        "namespace": "shop",
        "name": "web",
        "operation": "CREATE",
        "userInfo": {"username": "alice"},
        "object": {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "shop", "annotations": {"a": annotation}},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        },
    })
}

/// A cluster with this many Services, as the API server stores them.
fn cluster(services: usize) -> Arc<dyn HostCalls> {
    let mut snapshot = Snapshot::default();
    for number in 0..services {
        let address = format!("10.{}.{}.{}", number >> 16, (number >> 8) & 255, number & 255);
        snapshot.insert(json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {
                "name": format!("a-service-with-a-name-as-long-as-they-often-are-{number:05}"),
                "namespace": format!("team-{:03}", number % 100),
                "labels": {"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": format!("web-{number}")},
            },
            "spec": {
                "clusterIP": address,
                "clusterIPs": [address],
                "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}],
                "selector": {"app": "web"},
                "type": "ClusterIP",
            },
        }));
    }
    Arc::new(SnapshotCalls::new(Arc::new(RwLock::new(snapshot))))
}

fn settings() -> Value {
    json!({"services": {"order": "lowest", "pools": [{"name": "all", "cidrs": ["10.0.0.0/8"]}]}})
}

/// The estimate must be enough for a large cluster and for a large request.
#[test]
fn estimated_memory_is_enough() {
    struct Row {
        name: &'static str,
        services: usize,
        request: Value,
    }
    let rows = [
        Row { name: "an empty cluster", services: 0, request: create("") },
        Row { name: "1,000 Services", services: 1_000, request: create("") },
        Row { name: "10,000 Services", services: 10_000, request: create("") },
        Row { name: "30,000 Services", services: 30_000, request: create("") },
        Row { name: "a large annotation", services: 0, request: create(&"x".repeat(256 << 10)) },
    ];
    let settings = settings();
    // An evaluation that needs more gets the largest size.
    let modules = SIZES.map(|size| (size, Module::sharing(EMBEDDED, Budget::new(size)).unwrap()));
    for Row { name, services, request } in rows {
        let calls = cluster(services);
        let payload =
            Payload { request: &request, settings: &settings, allocation: None, external: None, prefetched: None };
        let needed = needed(serde_json::to_vec(&payload).unwrap().len(), services);
        let answers = modules.iter().map(|(size, module)| (*size, module.validate(&request, &settings, calls.clone())));
        let is_placed = |answer: Result<Answer, ModuleError>| answer.is_ok_and(|it| it.mutated_object.is_some());
        let enough: Vec<usize> = answers.filter_map(|(size, answer)| is_placed(answer).then_some(size >> 20)).collect();
        let size = SIZES.into_iter().find(|size| *size >= needed).unwrap() >> 20;
        assert!(enough.contains(&size), "{name}: {} KiB are estimated, and {enough:?} MiB are enough", needed >> 10);
    }
}

/// With many large evaluations at once, each is answered or fails on its own, and together they stay within the
/// budget.
#[test]
fn large_evaluations_share_the_budget() {
    let module = Module::sharing(EMBEDDED, Budget::new(SHARED_MEMORY)).unwrap();
    let (calls, settings, request) = (cluster(2_000), settings(), create(&"x".repeat(64 << 10)));
    thread::scope(|scope| {
        let ask = || module.validate(&request, &settings, calls.clone());
        let all: Vec<_> = (0..24).map(|_| scope.spawn(ask)).collect();
        for one in all {
            assert!(one.join().unwrap().unwrap().mutated_object.is_some());
        }
    });
}

#[test]
#[expect(unsafe_code, reason = "a build script has compiled the guest")]
fn evaluation_gets_only_the_memory_it_has_taken() {
    // A page has 64 KiB, and an evaluation of this size takes 8 MiB of the budget.
    let code = guests::code("traps with more than 128 pages").unwrap();
    // SAFETY: the build script of `guests` got this code from `Engine::precompile_module`.
    let compiled = unsafe { CompiledModule::from_build_script(code) };
    let module = Module::sharing(compiled, Budget::new(SHARED_MEMORY)).unwrap();
    let error = module.validate(&create(""), &json!({}), cluster(0)).unwrap_err().to_string();
    assert!(error.contains("neither an answer nor an error"), "{error}");
}
