//! Only the server writes the annotation of a move.

use std::collections::BTreeMap;

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use super::support::{NAMESPACE, SERVER, deployed, editor, marked, outcome};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{MOVING, assert_calls, call, service, services};

#[tokio::test]
async fn tenants_can_not_write_the_annotation_of_a_move() {
    const ONE: &str = r#"{"from":["172.21.0.77"],"to":["172.21.1.77"]}"#;
    const OTHER: &str = r#"{"from":["172.21.0.77"],"to":["172.21.1.78"]}"#;
    let plane = deployed().await;
    let namespace = plane.namespace("policies-moving").await;
    let mallory = services(editor(&plane, &namespace).await, &namespace);
    let server = services(plane.client_with(&plane.token(NAMESPACE, SERVER).await), &namespace);
    let admin = services(plane.client(), &namespace);
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let new = || marked(service("new", json!({})), Some(ONE));
    eventually("the policy to be in force", async || {
        (outcome(mallory.create(&dry_run, &new()).await) == "refused").then_some(())
    })
    .await;

    let mut seen = vec![
        call("mallory creates with it", outcome(mallory.create(&dry_run, &new()).await), "refused"),
        call("an administrator creates with it", outcome(admin.create(&dry_run, &new()).await), "allowed"),
    ];
    /// An update of the annotation, and its result.
    struct Row<'a> {
        name: &'static str,
        user: &'a Api<DynamicObject>,
        before: Option<&'static str>,
        after: Option<&'static str>,
        expected: &'static str,
    }
    let rows = [
        Row { name: "mallory adds it", user: &mallory, before: None, after: Some(ONE), expected: "refused" },
        Row { name: "mallory adds an empty one", user: &mallory, before: None, after: Some(""), expected: "refused" },
        Row { name: "mallory changes it", user: &mallory, before: Some(ONE), after: Some(OTHER), expected: "refused" },
        Row { name: "mallory keeps it", user: &mallory, before: Some(ONE), after: Some(ONE), expected: "allowed" },
        Row { name: "mallory removes it", user: &mallory, before: Some(ONE), after: None, expected: "allowed" },
        Row { name: "the server adds it", user: &server, before: None, after: Some(ONE), expected: "allowed" },
        Row {
            name: "the server changes it",
            user: &server,
            before: Some(ONE),
            after: Some(OTHER),
            expected: "allowed",
        },
        Row { name: "the server removes it", user: &server, before: Some(ONE), after: None, expected: "allowed" },
        Row { name: "an administrator adds it", user: &admin, before: None, after: Some(ONE), expected: "allowed" },
    ];
    for (row, Row { name, user, before, after, expected }) in rows.into_iter().enumerate() {
        let before = marked(service(&format!("row-{row}"), json!({})), before);
        let before = admin.create(&PostParams::default(), &before).await.unwrap();
        let mut changed = marked(before, after);
        changed.metadata.labels = Some(BTreeMap::from([("changed".to_owned(), "yes".to_owned())]));
        let replaced = user.replace(&format!("row-{row}"), &PostParams::default(), &changed).await;
        seen.push(call(name, outcome(replaced), expected));
    }
    let patch = Patch::Merge(json!({"metadata": {"annotations": {MOVING: ONE}}}));
    let patched = mallory.patch("row-0", &PatchParams::default(), &patch).await;
    seen.push(call("mallory adds it with a patch", outcome(patched), "refused"));
    let applied =
        Patch::Apply(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"annotations": {MOVING: ONE}}}));
    let applied = mallory.patch("row-0", &PatchParams::apply("mallory"), &applied).await;
    seen.push(call("mallory adds it with an apply", outcome(applied), "refused"));
    assert_calls(seen);
}
