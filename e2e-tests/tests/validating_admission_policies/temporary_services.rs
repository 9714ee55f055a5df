//! The account of the server creates and deletes only the temporary Services of seamless moves, and only that account
//! and administrators write their label.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::support::shared::Shared;
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, PostParams};
use serde_json::{Value, json};

use super::support::{NAMESPACE, ROOT, SERVER, editor};
use crate::support::control_plane::{ControlPlane, Options};
use crate::support::eventually::eventually;
use crate::support::service_webhook_rules::{Call, assert_calls, call, service, services};

const LABEL: &str = "clusterip-policy/temporary";
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The end of the refusals of the policy `server-services`.
const REMEDY: &str = "use another account, or apply the ValidatingAdmissionPolicy of the same version as clusterip";
const NOT_TEMPORARY: &str = "server-services: Service NAME has no label clusterip-policy/temporary with the value new, \
                             old or trigger, so the account of clusterip may not create or delete it; REMEDY";
/// The refusal of a change of the label.
pub(super) const LABEL_OF_ANOTHER: &str = "server-updates: clusterip may not add, change or remove the label \
                                           clusterip-policy/temporary of a Service that exists";
const MANAGER: &str = "server-services: Service NAME must have the label app.kubernetes.io/managed-by: clusterip, \
                       because it is temporary; REMEDY";
const OWNER: &str = "server-services: Service NAME must have one owner, the Service that moves, which is not its \
                     controller, because it is temporary; REMEDY";
/// The refusal of changes of metadata.
pub(super) const METADATA: &str =
    "server-updates: clusterip may change no metadata, except labels and annotations of Services";
const TYPE: &str = "server-services: Service NAME must have the type ClusterIP, because it is temporary; REMEDY";
const EXTERNAL: &str = "server-services: Service NAME may have no external address, no field of a load balancer and no \
                        node port, because it is temporary; REMEDY";
const TRIGGER: &str = "server-services: Service NAME must be in the namespace of clusterip and without a selector, \
                       because it triggers kube-proxy; REMEDY";
pub(super) const NOT_BY_CLUSTERIP: &str = "temporary-services: Service NAME is temporary because of the label \
                                           clusterip-policy/temporary, so only clusterip may create or change it; \
                                           leave the label out, or change the Service that moves";
const FINALIZER: &str = "temporary-services: Service NAME is temporary and must be gone when its move ends, so it \
                         cannot get a finalizer; give the finalizer to the Service that moves";
/// The refusals of a name.
const NAME_OF_NEW: &str = "server-services: Service NAME must be named clusterip-new- and ten hexadecimal digits, \
                           because its label clusterip-policy/temporary is new; REMEDY";
const NAME_OF_OLD: &str = "server-services: Service NAME must be named clusterip-old- and ten hexadecimal digits, \
                           because its label clusterip-policy/temporary is old; REMEDY";

/// A control plane with `deploy/webhook` and `deploy/seamless`, and without a webhook, which no server would answer. The
/// account of the server has all permissions of `deploy`.
pub(super) async fn deployed() -> Arc<ControlPlane> {
    static DEPLOYED: Shared<ControlPlane> = Shared::new();
    DEPLOYED
        .get(async || {
            let plane = ControlPlane::start(Options { audit: false, ..Options::default() });
            plane.install_pools().await;
            plane.kubectl(&["apply", "-k", &format!("{ROOT}/deploy/webhook")]).await.ok();
            plane.kubectl(&["delete", "mutatingwebhookconfiguration", "clusterip-policy"]).await.ok();
            plane.kubectl(&["apply", "-f", &format!("{ROOT}/deploy/seamless/server-services.yaml")]).await.ok();
            for file in ["seamless/service", "load-balancers/status", "nodes/component/node"] {
                let patch = ["--type", "json", "--patch-file", &format!("{ROOT}/deploy/{file}-permissions.yaml")];
                plane.kubectl(&[&["patch", "clusterrole", "clusterip-policy"], &patch[..]].concat()).await.ok();
            }
            plane
        })
        .await
}

/// `allowed`, the short name of the policy that refused the request and its message, or another error. In the message,
/// the namespace and name of the Service that was refused are `NAME`, and [`REMEDY`] is `REMEDY`.
pub(super) fn outcome<T>(result: Result<T, kube::Error>) -> String {
    let message = match result {
        Ok(_) => return "allowed".to_owned(),
        Err(kube::Error::Api(status)) => status.message,
        Err(error) => return error.to_string(),
    };
    let refusal = message.split_once("' denied request: ").and_then(|(by, text)| {
        let policy = by.rsplit_once('\'')?.1.strip_suffix(".clusterip-policy.io")?;
        let service = format!("/{}", by.split('"').nth(1)?);
        let words = text.split(' ').map(|word| if word.ends_with(&service) { "NAME" } else { word });
        Some(format!("{policy}: {}", words.collect::<Vec<_>>().join(" ").replace(REMEDY, "REMEDY")))
    });
    refusal.unwrap_or(message)
}

/// A reference to the Service that moves.
fn owner() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "00000000-0000-0000-0000-000000000001"})
}

/// Another owner: the API server removes a second reference to the same object.
fn other_owner() -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "name": "api", "uid": "00000000-0000-0000-0000-000000000002"})
}

/// A temporary Service, as the server creates it.
fn temporary(role: &str, name: &str) -> DynamicObject {
    let selector = if role == "trigger" { Value::Null } else { json!({"app": "web"}) };
    let mut service = service(name, json!({"type": "ClusterIP", "selector": selector}));
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    service.metadata.labels = Some(BTreeMap::from([label(LABEL, role), label(MANAGED_BY, "clusterip")]));
    if role != "trigger" {
        own(&mut service, &[owner()]);
    }
    service
}

fn own(service: &mut DynamicObject, owners: &[Value]) {
    let owners = owners.iter().map(|owner| serde_json::from_value(owner.clone()).unwrap()).collect();
    service.metadata.owner_references = Some(owners);
}

fn relabel(service: &mut DynamicObject, label: &str, value: Option<&str>) {
    let labels = service.metadata.labels.get_or_insert_default();
    match value {
        Some(value) => drop(labels.insert(label.to_owned(), value.to_owned())),
        None => drop(labels.remove(label)),
    }
}

fn finalize(service: &mut DynamicObject) {
    service.metadata.finalizers = Some(vec!["example.com/keep".to_owned()]);
}

fn with(mut service: DynamicObject, change: impl FnOnce(&mut DynamicObject)) -> DynamicObject {
    change(&mut service);
    service
}

/// A Service that is created, and the result.
struct Create {
    name: &'static str,
    service: DynamicObject,
    expected: &'static str,
}

fn create(name: &'static str, service: DynamicObject, expected: &'static str) -> Create {
    Create { name, service, expected }
}

const NEW: &str = "clusterip-new-0123456789";
const OLD: &str = "clusterip-old-abcdef0123";
const OF_TRIGGER: &str = "clusterip-trigger-0000000000";

fn creates_in_a_namespace_of_a_user() -> Vec<Create> {
    let new = || temporary("new", NEW);
    let owned = |change: Value| {
        let mut owner = owner();
        json_patch::merge(&mut owner, &change);
        with(new(), |service| own(service, &[owner]))
    };
    let with_spec = |change: Value| with(new(), |service| json_patch::merge(&mut service.data["spec"], &change));
    vec![
        create("the new address", new(), "allowed"),
        create("the old address", temporary("old", OLD), "allowed"),
        create("no label", with(new(), |service| relabel(service, LABEL, None)), NOT_TEMPORARY),
        create("another label", with(new(), |service| relabel(service, LABEL, Some("web"))), NOT_TEMPORARY),
        create("a name of a user", temporary("new", "web-2"), NAME_OF_NEW),
        create("the name of another role", temporary("new", OLD), NAME_OF_NEW),
        create("a short name", temporary("new", "clusterip-new-012345678"), NAME_OF_NEW),
        create("a long name", temporary("new", &format!("{NEW}0")), NAME_OF_NEW),
        create("another manager", with(new(), |service| relabel(service, MANAGED_BY, Some("helm"))), MANAGER),
        create("no owner", with(new(), |service| service.metadata.owner_references = None), OWNER),
        create("two owners", with(new(), |service| own(service, &[owner(), other_owner()])), OWNER),
        create("another kind of owner", owned(json!({"apiVersion": "apps/v1", "kind": "Deployment"})), OWNER),
        create("a controller", owned(json!({"controller": true})), OWNER),
        create("an owner that waits for it", owned(json!({"blockOwnerDeletion": true})), OWNER),
        create("type NodePort", with_spec(json!({"type": "NodePort"})), TYPE),
        create("type LoadBalancer", with_spec(json!({"type": "LoadBalancer"})), TYPE),
        create("type ExternalName", with_spec(json!({"type": "ExternalName", "externalName": "moving.invalid"})), TYPE),
        create("an external IP", with_spec(json!({"externalIPs": ["192.0.2.10"]})), EXTERNAL),
        create("a trigger", temporary("trigger", OF_TRIGGER), TRIGGER),
        create("a finalizer", with(new(), finalize), FINALIZER),
    ]
}

fn creates_in_the_namespace_of_the_server() -> Vec<Create> {
    let trigger = || temporary("trigger", OF_TRIGGER);
    vec![
        create("a trigger", trigger(), "allowed"),
        create(
            "a trigger with a selector",
            with(trigger(), |service| service.data["spec"]["selector"] = json!({"app": "web"})),
            TRIGGER,
        ),
        create("a Service that is not temporary", service("web", json!({})), NOT_TEMPORARY),
    ]
}

/// Compares the results of creates in dry runs.
async fn creates(user: &Api<DynamicObject>, place: &str, rows: Vec<Create>) -> Vec<Call<'static>> {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let mut calls = Vec::new();
    for Create { name, service, expected } in rows {
        let outcome = outcome(user.create(&dry_run, &service).await);
        calls.push(call(format!("{place}: {name}"), outcome, expected));
    }
    calls
}

#[tokio::test]
async fn server_creates_only_temporary_services() {
    let plane = deployed().await;
    let namespace = plane.namespace("policies-created").await;
    let server = plane.client_with(&plane.token(NAMESPACE, SERVER).await);
    let (of_user, own) = (services(server.clone(), &namespace), services(server, NAMESPACE));
    in_force(&of_user, NOT_TEMPORARY).await;
    let mut calls = creates(&of_user, "a user's namespace", creates_in_a_namespace_of_a_user()).await;
    calls.extend(creates(&own, "its own namespace", creates_in_the_namespace_of_the_server()).await);
    assert_calls(calls);
}

/// Waits until this user is refused to create an unlabelled Service, or one with a label.
pub(super) async fn in_force(user: &Api<DynamicObject>, refusal: &str) {
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let tried = match refusal {
        NOT_TEMPORARY => service("trial", json!({})),
        _ => temporary("new", NEW),
    };
    eventually("the policies to be in force", async || {
        (outcome(user.create(&dry_run, &tried).await) == refusal).then_some(())
    })
    .await;
}

/// A user, the Service that exists, and what the user does with it; `None` deletes it.
struct Write {
    name: &'static str,
    before: fn() -> DynamicObject,
    change: Option<fn(&mut DynamicObject)>,
    by_server: &'static str,
    by_tenant: &'static str,
}

pub(super) fn ordinary() -> DynamicObject {
    service("web", json!({}))
}

pub(super) fn new() -> DynamicObject {
    temporary("new", NEW)
}

fn old() -> DynamicObject {
    temporary("old", OLD)
}

/// Makes a Service an alias of another one in its namespace.
fn alias(service: &mut DynamicObject, name: &str) {
    let namespace = service.metadata.namespace.clone().unwrap();
    release_to(service, &format!("{name}.{namespace}.svc.cluster.local"));
}

fn writes() -> Vec<Write> {
    let affinity: fn(&mut DynamicObject) = |service| service.data["spec"]["sessionAffinity"] = json!("ClientIP");
    let write = |name, before, change: Option<fn(&mut DynamicObject)>, by_server, by_tenant| Write {
        name,
        before,
        change,
        by_server,
        by_tenant,
    };
    vec![
        write("a field of another Service", ordinary, Some(affinity), "allowed", "allowed"),
        write("a field of a temporary Service", new, Some(affinity), "allowed", NOT_BY_CLUSTERIP),
        write(
            "the release of the address",
            new,
            Some(|service| release_to(service, "moving.invalid")),
            "allowed",
            NOT_BY_CLUSTERIP,
        ),
        write(
            "the alias of new",
            old,
            Some(|service| alias(service, "clusterip-new-abcdef0123")),
            "allowed",
            NOT_BY_CLUSTERIP,
        ),
        write("an alias of another new", old, Some(|service| alias(service, NEW)), TYPE, NOT_BY_CLUSTERIP),
        write("an alias of new by new", new, Some(|service| alias(service, NEW)), TYPE, NOT_BY_CLUSTERIP),
        write("another external name", new, Some(|service| release_to(service, "example.com")), TYPE, NOT_BY_CLUSTERIP),
        write(
            "no label any more",
            new,
            Some(|service| relabel(service, LABEL, None)),
            LABEL_OF_ANOTHER,
            NOT_BY_CLUSTERIP,
        ),
        write(
            "another label",
            new,
            Some(|service| relabel(service, LABEL, Some("old"))),
            LABEL_OF_ANOTHER,
            NOT_BY_CLUSTERIP,
        ),
        write(
            "the label of a Service that is not temporary",
            ordinary,
            Some(|service| relabel(service, LABEL, Some("new"))),
            LABEL_OF_ANOTHER,
            NOT_BY_CLUSTERIP,
        ),
        write(
            "no owner any more",
            new,
            Some(|service| service.metadata.owner_references = None),
            METADATA,
            NOT_BY_CLUSTERIP,
        ),
        write(
            "another manager",
            new,
            Some(|service| relabel(service, MANAGED_BY, Some("helm"))),
            MANAGER,
            NOT_BY_CLUSTERIP,
        ),
        write("a finalizer", new, Some(finalize), FINALIZER, NOT_BY_CLUSTERIP),
        write("its deletion", new, None, "allowed", "allowed"),
        write(
            "its deletion after an administrator has removed its manager",
            || with(new(), |service| relabel(service, MANAGED_BY, None)),
            None,
            "allowed",
            "allowed",
        ),
        write("the deletion of another Service", ordinary, None, NOT_TEMPORARY, "allowed"),
        write(
            "the deletion of a Service with the label and the name of a user",
            || temporary("old", "web"),
            None,
            NAME_OF_OLD,
            "allowed",
        ),
    ]
}

fn release_to(service: &mut DynamicObject, name: &str) {
    service.data["spec"]["type"] = json!("ExternalName");
    service.data["spec"]["externalName"] = json!(name);
}

#[tokio::test]
async fn only_clusterip_makes_services_temporary_and_it_changes_and_deletes_no_others() {
    let plane = deployed().await;
    let namespace = plane.namespace("policies-temporary").await;
    let mallory = services(editor(&plane, &namespace).await, &namespace);
    let server = services(plane.client_with(&plane.token(NAMESPACE, SERVER).await), &namespace);
    let admin = services(plane.client(), &namespace);
    in_force(&server, NOT_TEMPORARY).await;
    in_force(&mallory, NOT_BY_CLUSTERIP).await;
    let mut calls = creates(
        &mallory,
        "mallory",
        vec![create("a temporary Service", new(), NOT_BY_CLUSTERIP), create("another Service", ordinary(), "allowed")],
    )
    .await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    for Write { name, before, change, by_server, by_tenant } in writes() {
        let stored = admin.create(&PostParams::default(), &before()).await.unwrap();
        let stored_name = stored.metadata.name.clone().unwrap();
        for (user, who, expected) in
            [(&server, "server", by_server), (&mallory, "mallory", by_tenant), (&admin, "administrator", "")]
        {
            let outcome = match change {
                Some(change) => {
                    let changed = with(stored.clone(), change);
                    outcome(user.replace(&stored_name, &dry_run, &changed).await)
                }
                None => outcome(user.delete(&stored_name, &DeleteParams::default().dry_run()).await),
            };
            // Two policies refuse it, and the API server reports one of them.
            let outcome = if expected == FINALIZER && outcome == METADATA { FINALIZER.to_owned() } else { outcome };
            // An administrator may do everything except give a temporary Service a finalizer.
            let expected = match expected {
                "" if by_server == FINALIZER => FINALIZER,
                "" => "allowed",
                expected => expected,
            };
            calls.push(call(format!("{who}: {name}"), outcome, expected));
        }
        admin.delete(&stored_name, &DeleteParams::default()).await.unwrap();
    }
    assert_calls(calls);
}
