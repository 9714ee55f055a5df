//! The webhook configuration for a server at a URL, derived from that of the deployment.

use anyhow::Context;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_cluster::yaml;
use clusterip_core::annotations::REGISTERED_URL_ANNOTATION;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::api::{ApiResource, DynamicObject};
use serde_json::{Value, json};

use super::{NAME, Wanted};

const DEPLOYED: &str = include_str!("../../../../../deploy/webhook/webhook-configuration.yaml");
/// The JSON Patch operations that add the webhooks for Nodes. They apply where the settings have pools of Nodes.
const DEPLOYED_FOR_NODES: &str = include_str!("../../../../../deploy/nodes/component/webhook.yaml");
/// The same for external addresses.
const DEPLOYED_FOR_EXTERNAL: &str = include_str!("../../../../../deploy/external/component/webhook.yaml");

/// The user that moves Services in the deployment.
const DEPLOYED_USER: &str = "system:serviceaccount:clusterip-policy:clusterip";

/// Makes every webhook trust these certificates. Returns whether anything changed.
pub(super) fn trust(configuration: &mut Value, bundle: &str) -> bool {
    let wanted = (!bundle.is_empty()).then(|| Value::String(STANDARD.encode(bundle)));
    let mut changed = false;
    for webhook in list(configuration, "webhooks") {
        let Some(client) = webhook.get_mut("clientConfig").and_then(Value::as_object_mut) else { continue };
        if client.get("caBundle") != wanted.as_ref() {
            changed = true;
            match &wanted {
                Some(wanted) => drop(client.insert("caBundle".to_owned(), wanted.clone())),
                None => drop(client.remove("caBundle")),
            }
        }
    }
    changed
}

/// The configuration of the deployment, changed for a server at `url` that uses the Kubernetes API as `user`.
pub(super) fn manifest(name: &str, url: &str, user: &str) -> anyhow::Result<DynamicObject> {
    let deployed = built_in(DEPLOYED)?;
    let mut manifest = DynamicObject::new(name, &ApiResource::erase::<MutatingWebhookConfiguration>(&()));
    manifest.metadata.annotations = Some([(REGISTERED_URL_ANNOTATION.to_owned(), url.to_owned())].into());
    manifest.metadata.labels = deployed.pointer("/metadata/labels").and_then(Value::as_object).map(|labels| {
        labels.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
    });
    manifest.data = json!({"webhooks": deployed["webhooks"]});
    list(&mut manifest.data, "webhooks").iter_mut().for_each(|webhook| point_to(webhook, url, user));
    Ok(manifest)
}

/// The webhooks of the deployment that only some settings need, changed for such a server.
pub(super) fn more_webhooks(url: &str, user: &str) -> anyhow::Result<Vec<(Wanted, Value)>> {
    let of_nodes: Wanted = |settings| !settings.nodes.pools.is_empty();
    let of_external: Wanted = |settings| !settings.external.pools.is_empty();
    let mut webhooks = Vec::new();
    for (wanted, operations) in [(of_nodes, DEPLOYED_FOR_NODES), (of_external, DEPLOYED_FOR_EXTERNAL)] {
        let mut operations = built_in(operations)?;
        for operation in operations.as_array_mut().into_iter().flatten() {
            let mut webhook = operation["value"].take();
            point_to(&mut webhook, url, user);
            webhooks.push((wanted, webhook));
        }
    }
    Ok(webhooks)
}

fn built_in(manifest: &str) -> anyhow::Result<Value> {
    yaml::single(manifest).context("the built-in webhook configuration can't be read")
}

/// Makes a webhook of the deployment call a server at `url` that uses the Kubernetes API as `user`.
fn point_to(webhook: &mut Value, url: &str, user: &str) {
    webhook["clientConfig"] = json!({"url": format!("{}/mutate", url.trim_end_matches('/'))});
    if let Some(selector) = webhook.get_mut("namespaceSelector") {
        for expression in list(selector, "matchExpressions") {
            if let Some(values) = expression.get_mut("values").and_then(Value::as_array_mut) {
                // The server does not run in the namespace of the deployment.
                values.retain(|value| value != NAME);
            }
        }
    }
    for condition in list(webhook, "matchConditions") {
        if let Some(Value::String(expression)) = condition.get_mut("expression") {
            *expression = expression.replace(DEPLOYED_USER, &cel_text(user));
        }
    }
}

/// Escapes a text for use between the quotes of a CEL expression.
pub(super) fn cel_text(text: &str) -> String {
    let mut written = String::new();
    for character in text.chars() {
        match character {
            '\\' | '\'' | '"' => written.extend(['\\', character]),
            character if character.is_control() => written.push_str(&format!("\\u{:04x}", u32::from(character))),
            character => written.push(character),
        }
    }
    written
}

fn list<'a>(value: &'a mut Value, field: &str) -> &'a mut [Value] {
    value.get_mut(field).and_then(Value::as_array_mut).map(Vec::as_mut_slice).unwrap_or_default()
}
