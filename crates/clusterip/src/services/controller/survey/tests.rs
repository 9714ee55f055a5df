use std::collections::BTreeSet;
use std::sync::Arc;

use clusterip_core::annotations::MOVE_ANNOTATION;
use serde_json::{Value, json};

use super::*;
use crate::services::misplaced::{AskedBy, Misplaced};
use crate::services::test_support::{client, reconciler};

#[test]
fn services_in_place_are_not_reconciled() {
    struct Case {
        name: &'static str,
        annotations: Value,
        managers: Value,
        is_managed: bool,
        inspection: anyhow::Result<Inspection>,
        is_open: bool,
        would_move: Option<bool>,
        counts: bool,
    }
    let misplaced = |stays: Option<StayReason>, impact: Impact| {
        Ok(Inspection::Misplaced(Box::new(Misplaced {
            uid: "uid-1".to_owned(),
            from: Vec::new(),
            why: String::new(),
            unmatched: Vec::new(),
            asked_by: AskedBy::Controller,
            impact,
            stays: stays.map(|reason| (reason, String::new())),
        })))
    };
    let by_hand = json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {"f:clusterIP": {}}}}]);
    let base = || Case {
        name: "in place",
        annotations: json!({}),
        managers: json!([{"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:spec": {}}}]),
        is_managed: true,
        inspection: Ok(Inspection::InPlace),
        is_open: false,
        would_move: None,
        counts: true,
    };
    let moves = |impact| misplaced(None, impact);
    let open = |name, inspection| Case { name, inspection, is_open: true, ..base() };
    let would_move = |waits, case| Case { would_move: Some(waits), ..case };
    let full = |impact| misplaced(Some(StayReason::PoolFull), impact);
    let asks = json!({MOVE_ANNOTATION: "now"});
    let cases = [
        base(),
        Case { name: "ignored", is_managed: false, counts: false, ..base() },
        Case { annotations: asks, ..open("in place, and its author asks for a move", Ok(Inspection::InPlace)) },
        open("half moved", Ok(Inspection::HalfMoved)),
        would_move(false, open("misplaced", moves(Impact::Unnoticed))),
        would_move(true, open("misplaced, with ready endpoints", moves(Impact::Plain))),
        open("misplaced, and stays", full(Impact::Unnoticed)),
        would_move(true, open("with ready endpoints, and stays until an address is free", full(Impact::Plain))),
        open("misplaced, and reachable", misplaced(Some(StayReason::ReadyEndpoints), Impact::Plain)),
        Case { managers: by_hand, ..open("misplaced by hand", moves(Impact::Unnoticed)) },
        Case { counts: false, ..open("not examined", Err(anyhow::anyhow!("on purpose"))) },
    ];
    for Case { name, annotations, managers, is_managed, inspection, is_open, would_move, counts } in cases {
        let id = ServiceKey::new("shop", "web");
        let service =
            StoredService::read(&json!({"metadata": {"annotations": annotations, "managedFields": managers}}));
        let mut survey = Survey::default();
        survey.add(&id, &service, is_managed, inspection, |impact| impact == Impact::Plain);
        let expected = Survey {
            open: is_open.then(|| id.clone()).into_iter().collect(),
            would_move: would_move.map(|waits| (id.clone(), waits)).into_iter().collect(),
            managed: usize::from(counts),
            ..Survey::default()
        };
        assert_eq!(survey, expected, "{name}");
    }
}

/// A Service with this address and a selector of its own.
fn service(name: &str, address: &str, annotations: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "shop", "name": name, "uid": name, "annotations": annotations},
        "spec": {"clusterIP": address, "clusterIPs": [address], "selector": {"app": name}},
    })
}

/// A Deployment for Windows whose Pods the Service of the same name selects.
fn windows_deployment(name: &str) -> Value {
    let template = json!({
        "metadata": {"labels": {"app": name}}, "spec": {"nodeSelector": {"kubernetes.io/os": "windows"}},
    });
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "shop", "name": name},
        "spec": {"template": template},
    })
}

#[tokio::test]
async fn survey_finds_the_misplaced_among_many_services() {
    let reconciler = reconciler(client());
    let stores = reconciler.evaluator.stores();
    let mut objects = vec![
        service("asks-for-an-unknown-pool", "10.2.200.1", json!({"clusterip-policy/pool": "unknown"})),
        service("headless", "None", json!({})),
        service("in-no-pool", "10.3.0.1", json!({})),
        service("windows-in-linux", "10.2.200.2", json!({})),
        windows_deployment("windows-in-linux"),
    ];
    for number in 0..1_000 {
        let (name, is_windows) = (format!("web-{number:03}"), number % 2 == 1);
        let pool = if is_windows { 1 } else { 2 };
        objects.push(service(&name, &format!("10.{pool}.{}.{}", number / 200, number % 200 + 1), json!({})));
        objects.extend(is_windows.then(|| windows_deployment(&name)));
    }
    for object in objects {
        stores.snapshot().write().unwrap().insert(&object);
    }
    let ids = stores.read_snapshot().services(None);
    let mut survey = Survey { rest: ids.iter().cloned().map(Arc::new).collect(), ..Survey::default() };
    while !survey.rest.is_empty() {
        survey = survey.next_round(Arc::clone(&reconciler), true).await;
    }
    let names: Vec<&str> = survey.open.iter().map(|id| id.name.as_str()).collect();
    assert_eq!(names, ["asks-for-an-unknown-pool", "in-no-pool", "windows-in-linux"]);
    assert_eq!((ids.len(), survey.managed), (1_004, 1_003));
    let waiting: BTreeSet<ServiceKey> = ids.into_iter().take(30).collect();
    let would_move = waiting.iter().map(|id| (id.clone(), false)).collect();
    reconciler.brakes.lock().settings_changed(would_move, 30, BTreeSet::new());
    assert_eq!(reconciler.noted(), waiting, "Services that wait for consent are reconciled, too");
}
