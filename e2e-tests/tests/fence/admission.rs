//! Which Services a pool of either kind admits, and what its fence does about the other ones.

use serde_json::{Value, json};

use super::support::{
    Change, Fenced, UNFENCED, by_each_fence, create, dry_run, fenced_pool, outcome, patch, service_at, tenant,
    unfenced_service, until_refused,
};
use crate::support::eventually::eventually;
use crate::support::pools::pool;
use crate::support::service_webhook_rules::{Call, assert_calls};
use crate::support::webhook_cluster::service;

by_each_fence!(
    pools_of_both_kinds_admit_by_namespaces_and_labels,
    service_keeps_the_addresses_that_it_has,
    warn_lets_the_service_through_with_a_warning,
);

/// A pool, and a Service that gets an address of the pool.
struct Admission {
    name: &'static str,
    matches: Value,
    service_labels: Value,
    expected: &'static str,
}

fn admissions(namespace: &str) -> Vec<Admission> {
    let front = || json!({"tier": "front"});
    let row = |name, matches, expected| Admission { name, matches, service_labels: front(), expected };
    let on_namespace = |selector: Value| json!({"namespaceSelector": selector});
    let on_service = |selector: Value| json!({"serviceSelector": selector});
    let requirement = |key: &str, operator: &str, values: &[&str]| {
        let mut requirement = json!({"key": key, "operator": operator});
        if !values.is_empty() {
            requirement["values"] = json!(values);
        }
        json!({"matchExpressions": [requirement]})
    };
    vec![
        row("no condition", json!({}), "allowed"),
        row("its namespace", json!({"namespaces": ["other", namespace]}), "allowed"),
        row("another namespace", json!({"namespaces": ["other"]}), "refused"),
        row("nodes", json!({"os": "windows", "nodeLabels": {"disk": "ssd"}}), "allowed"),
        row("a label of its namespace", on_namespace(json!({"matchLabels": {"team": "a"}})), "allowed"),
        row("another label of its namespace", on_namespace(json!({"matchLabels": {"team": "b"}})), "refused"),
        row("an absent label of its namespace", on_namespace(json!({"matchLabels": {"stage": "a"}})), "refused"),
        row(
            "the name of its namespace as a label",
            on_namespace(json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}})),
            "allowed",
        ),
        row("In", on_namespace(requirement("team", "In", &["b", "a"])), "allowed"),
        row("In other values", on_namespace(requirement("team", "In", &["b"])), "refused"),
        row("In of an absent label", on_namespace(requirement("stage", "In", &["a"])), "refused"),
        row("NotIn", on_namespace(requirement("team", "NotIn", &["b", "a"])), "refused"),
        row("NotIn other values", on_namespace(requirement("team", "NotIn", &["b"])), "allowed"),
        row("NotIn of an absent label", on_namespace(requirement("stage", "NotIn", &["a"])), "allowed"),
        row("Exists", on_namespace(requirement("team", "Exists", &[])), "allowed"),
        row("Exists of an absent label", on_namespace(requirement("stage", "Exists", &[])), "refused"),
        row("DoesNotExist", on_namespace(requirement("team", "DoesNotExist", &[])), "refused"),
        row("DoesNotExist of an absent label", on_namespace(requirement("stage", "DoesNotExist", &[])), "allowed"),
        row("a label of the Service", on_service(json!({"matchLabels": {"tier": "front"}})), "allowed"),
        row("another label of the Service", on_service(json!({"matchLabels": {"tier": "back"}})), "refused"),
        row("In, of the Service", on_service(requirement("tier", "In", &["front"])), "allowed"),
        row("NotIn, of the Service", on_service(requirement("tier", "NotIn", &["front"])), "refused"),
        row("Exists, of the Service", on_service(requirement("tier", "Exists", &[])), "allowed"),
        row("DoesNotExist, of the Service", on_service(requirement("tier", "DoesNotExist", &[])), "refused"),
        Admission {
            name: "a Service without labels",
            matches: on_service(json!({"matchLabels": {"tier": "front"}})),
            service_labels: json!(null),
            expected: "refused",
        },
        row(
            "one of two conditions",
            json!({"namespaces": [namespace], "serviceSelector": {"matchLabels": {"tier": "back"}}}),
            "refused",
        ),
    ]
}

async fn pools_of_both_kinds_admit_by_namespaces_and_labels(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "admitted").await;
    plane.kubectl(&["label", "namespace", &namespace, "team=a"]).await.ok();
    let rows = admissions(&namespace);
    let mut pools = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let spec = |cidr: String| json!({"cidrs": [cidr], "fence": "Deny", "match": row.matches});
        pools.push(pool("ServicePool", &format!("row-{nth}"), spec(format!("172.21.{}.0/24", 32 + nth))));
        let mut external = spec(format!("198.18.{nth}.0/24"));
        // An ExternalPool has no conditions about nodes.
        external["match"].as_object_mut().unwrap().retain(|name, _| !["os", "nodeLabels"].contains(&name.as_str()));
        pools.push(pool("ExternalPool", &format!("row-{nth}"), external));
    }
    plane.apply(&json!({"apiVersion": "v1", "kind": "List", "items": pools}).to_string()).await;
    // A policy sees the pools of a kind in the order in which they were written, so it has seen the other ones.
    for (kind, cidr) in [("ServicePool", "172.21.31.0/24"), ("ExternalPool", "198.18.255.0/24")] {
        plane.apply(&fenced_pool(kind, "row-last", &[cidr], "another-team").to_string()).await;
    }
    until_refused(&client, &namespace, &service_at("last", "172.21.31.7")).await;
    until_refused(&client, &namespace, &unfenced_service("last", json!({"externalIPs": ["198.18.255.7"]}))).await;

    let mut seen = Vec::new();
    for (nth, row) in rows.iter().enumerate() {
        let specs = [
            ("ServicePool", json!({"clusterIP": format!("172.21.{}.7", 32 + nth)})),
            ("ExternalPool", json!({"clusterIP": UNFENCED, "externalIPs": [format!("198.18.{nth}.7")]})),
        ];
        for (kind, spec) in specs {
            let mut service = service("web", spec);
            service["metadata"]["labels"] = row.service_labels.clone();
            let outcome = outcome(dry_run(&client, &namespace, &service).await);
            seen.push(Call { request: format!("{kind}: {}", row.name), outcome, expected: row.expected });
        }
    }
    assert_calls(seen);
}

async fn service_keeps_the_addresses_that_it_has(plane: &Fenced) {
    let (namespace, client) = tenant(plane, "keeps").await;
    let mut old = service_at("old", "172.21.0.65");
    old["spec"]["externalIPs"] = json!(["198.19.1.7"]);
    old["metadata"]["annotations"] = json!({"metallb.io/loadBalancerIPs": "198.19.1.8"});
    create(&client, &namespace, &old).await.unwrap();
    plane.apply(&fenced_pool("ServicePool", "keeps", &["172.21.0.64/29"], "another-team").to_string()).await;
    plane.apply(&fenced_pool("ExternalPool", "keeps", &["198.19.1.0/24"], "another-team").to_string()).await;
    until_refused(&client, &namespace, &service_at("new", "172.21.0.66")).await;
    until_refused(&client, &namespace, &unfenced_service("new", json!({"externalIPs": ["198.19.1.9"]}))).await;

    let row = |name, patch, expected| Change { name, namespace: &namespace, patch, expected };
    let rows = [
        row("a label", json!({"metadata": {"labels": {"changed": "yes"}}}), "allowed"),
        row("an annotation", json!({"metadata": {"annotations": {"changed": "yes"}}}), "allowed"),
        row("a port", json!({"spec": {"ports": [{"port": 81}]}}), "allowed"),
        row("one more address of its own", json!({"spec": {"externalIPs": ["198.19.1.7", "203.0.113.7"]}}), "allowed"),
        row("one more address of the pool", json!({"spec": {"externalIPs": ["198.19.1.7", "198.19.1.9"]}}), "refused"),
        // An address counts where it is: an annotation that nothing reads must not become a claim.
        row("its address elsewhere", json!({"spec": {"externalIPs": ["198.19.1.7", "198.19.1.8"]}}), "refused"),
        row("one address less", json!({"spec": {"externalIPs": []}}), "allowed"),
        row(
            "no address",
            json!({"metadata": {"annotations": {"metallb.io/loadBalancerIPs": null}}, "spec": {"type": "ExternalName",
            "externalName": "a.example", "clusterIP": null, "clusterIPs": null}}),
            "allowed",
        ),
        row(
            "its old address",
            json!({"spec": {"type": "ClusterIP", "externalName": null, "clusterIP": "172.21.0.65",
            "clusterIPs": ["172.21.0.65"]}}),
            "refused",
        ),
    ];
    let mut seen = Vec::new();
    for Change { name, namespace, patch: change, expected } in rows {
        let outcome = outcome(patch(&client, namespace, "old", change).await);
        seen.push(Call { request: name.to_owned(), outcome, expected });
    }
    assert_calls(seen);
}

async fn warn_lets_the_service_through_with_a_warning(plane: &Fenced) {
    let namespace = plane.namespace("warned").await;
    let only_others = |cidr: &str| json!({"cidrs": [cidr], "fence": "Warn", "match": {"namespaces": ["another-team"]}});
    plane.apply(&pool("ServicePool", "warned", only_others("172.21.14.0/24")).to_string()).await;
    plane.apply(&pool("ExternalPool", "warned", only_others("198.19.2.0/24")).to_string()).await;
    let rows = [
        (
            json!({"clusterIP": "172.21.14.7"}),
            "service-fence-warning",
            "172.21.14.7 lies in ServicePool \"warned\", which does not admit this Service of namespace warned",
        ),
        (
            json!({"clusterIP": UNFENCED, "externalIPs": ["198.19.2.7"]}),
            "external-fence-warning",
            "spec.externalIPs: 198.19.2.7 lies in ExternalPool \"warned\", which does not admit this Service of \
             namespace warned",
        ),
    ];
    for (spec, fence, why) in rows {
        let policy = plane.policy("warned", fence);
        let expected = format!(
            "Warning: Validation failed for ValidatingAdmissionPolicy '{policy}' with binding '{policy}': {why}"
        );
        let web = service("web", spec).to_string();
        let arguments = ["create", "--dry-run=server", "--namespace", namespace.as_str(), "--filename", "-"];
        eventually(&expected, async || {
            let created = plane.kubectl_with(&arguments, &web).await;
            assert_eq!(created.status, 0, "{}", created.stderr);
            created.stderr.contains(&expected).then_some(())
        })
        .await;
    }
}
