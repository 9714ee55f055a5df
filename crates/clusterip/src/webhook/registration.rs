//! Keeps the MutatingWebhookConfiguration: which requests the webhook gets, and which certificates it may have. Checks
//! that the API server calls a webhook that is registered with a URL.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::without_user_info;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_cluster::yaml;
use clusterip_core::annotations::REGISTERED_URL_ANNOTATION;
use clusterip_core::settings::Settings;
use futures::StreamExt;
use futures::future::OptionFuture;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PartialObjectMeta, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::admission_metrics::AdmissionMetrics;

/// The name of the configuration in the deployment, and of the deployment's own namespace.
pub const NAME: &str = "clusterip-policy";
/// How often the configuration is checked if nothing else asks for a check: a watch may be denied, or hang.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(2);
/// The shortest time between two writes, in case another client keeps overwriting the configuration.
const CALM: Duration = Duration::from_secs(1);
/// How often a write is attempted when another client changes the configuration first.
const TRIES: usize = 8;

const DEPLOYED: &str = include_str!("../../../../deploy/webhook/webhook-configuration.yaml");
/// The JSON Patch operations that add the webhooks for Nodes. They apply where the settings have pools of Nodes.
const DEPLOYED_FOR_NODES: &str = include_str!("../../../../deploy/nodes/component/webhook.yaml");
/// The same for external addresses.
const DEPLOYED_FOR_EXTERNAL: &str = include_str!("../../../../deploy/external/component/webhook.yaml");

/// The user that moves Services in the deployment.
const DEPLOYED_USER: &str = "system:serviceaccount:clusterip-policy:clusterip";
/// How long the API server may take to call the webhook for the first time. It learns of the registration by a watch.
const FIRST_CALL_WITHIN: Duration = Duration::from_secs(10);
const TRIAL_PAUSE: Duration = Duration::from_millis(500);
/// A namespace that every cluster has, and that the webhook configuration does not exclude.
const TRIAL_NAMESPACE: &str = "default";
const TRIAL_NAME: &str = "clusterip-trial";

#[derive(Debug, Error)]
#[error("{message}")]
pub struct Failure {
    message: String,
    is_final: bool,
}

impl Failure {
    fn passing(name: &str, what: &str) -> Self {
        Self { message: format!("MutatingWebhookConfiguration {name}{what}"), is_final: false }
    }

    fn silent(name: &str) -> Self {
        Self::passing(name, &format!(": no answer from the API server within {REQUEST_TIMEOUT:?}"))
    }

    fn conflict(name: &str) -> Self {
        Self::passing(name, &format!(" was changed by others {TRIES} times in a row"))
    }

    fn left_behind(self, name: &str) -> anyhow::Error {
        anyhow!("{self}; it was left behind: delete it with `kubectl delete mutatingwebhookconfiguration {name}`")
    }
}

/// The host of a `--register-url`: the name or address that the server's certificate must be for.
pub(crate) fn url_host(url: &str) -> anyhow::Result<String> {
    let wrong = || anyhow!("--register-url {}: it must be https://HOST:PORT, without a path", without_user_info(url));
    let parsed: http::Uri = url.parse().map_err(|_| wrong())?;
    let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(wrong)?;
    let bare = parsed.path_and_query().is_none_or(|path| path.as_str() == "/");
    let anonymous = parsed.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    if parsed.scheme_str() != Some("https") || !bare || !anonymous {
        return Err(wrong());
    }
    Ok(host.trim_start_matches('[').trim_end_matches(']').to_owned())
}

type Wanted = fn(&Settings) -> bool;

/// A configuration that this program makes and removes itself, for a URL.
#[derive(Debug)]
struct Own {
    /// The configuration with the webhooks for Services, without the trusted certificates.
    manifest: DynamicObject,
    /// The webhooks that only some settings need, each with the test of the settings.
    more: Vec<(Wanted, Value)>,
    /// The settings that say which of these webhooks are needed.
    settings: watch::Receiver<Arc<LiveSettings>>,
    url: String,
}

impl Own {
    /// Adds the webhooks that the settings need, and removes the others. Returns whether anything changed.
    fn sync_webhooks(&self, configuration: &mut Value) -> bool {
        let settings = Arc::clone(&self.settings.borrow());
        let Some(webhooks) = configuration.get_mut("webhooks").and_then(Value::as_array_mut) else { return false };
        let mut changed = false;
        for (wanted, own) in &self.more {
            let wanted = wanted(&settings.settings);
            let there = webhooks.iter().position(|webhook| webhook.get("name") == own.get("name"));
            match there {
                None if wanted => webhooks.push(own.clone()),
                Some(at) if !wanted => drop(webhooks.remove(at)),
                _ => continue,
            }
            changed = true;
        }
        changed
    }
}

pub struct Registration {
    client: Client,
    api: Api<DynamicObject>,
    name: String,
    bundle: watch::Receiver<String>,
    registered: watch::Sender<String>,
    own: Option<Own>,
    /// When this process has written the configuration. Until then, one in the cluster may come from an earlier run.
    written: Option<Instant>,
    /// Whether this process has sent a write, even if the answer is not known.
    sent: bool,
}

impl Registration {
    /// For the configuration of the deployment: only its `caBundle`s are written, with the PEM text of `bundle`.
    pub fn in_cluster(client: Client, name: &str, bundle: watch::Receiver<String>) -> Self {
        let resource = ApiResource::erase::<MutatingWebhookConfiguration>(&());
        let api = Api::all_with(client.clone(), &resource);
        let (name, registered) = (name.to_owned(), watch::Sender::default());
        Self { client, api, name, bundle, registered, own: None, written: None, sent: false }
    }

    /// For a server outside of the cluster, with the webhooks that the pools of the settings need. With an empty `bundle`,
    /// the API server trusts those of its own system.
    pub async fn with_url(
        client: Client,
        name: &str,
        url: &str,
        bundle: watch::Receiver<String>,
        settings: watch::Receiver<Arc<LiveSettings>>,
    ) -> anyhow::Result<Self> {
        url_host(url)?;
        let who =
            |reason: String| anyhow!("reading the user name of this program with a SelfSubjectReview failed: {reason}");
        let review = Api::<SelfSubjectReview>::all(client.clone())
            .create(&PostParams::default(), &SelfSubjectReview::default())
            .await
            .map_err(|error| who(error_message(&error)))?;
        let user =
            review.status.and_then(|status| status.user_info?.username).ok_or_else(|| who("no name".to_owned()))?;
        let (manifest, more) = (manifest(name, url, &user)?, more_webhooks(url, &user)?);
        let mut registration = Self::in_cluster(client, name, bundle);
        registration.own = Some(Own { manifest, more, settings, url: url.to_owned() });
        Ok(registration)
    }

    /// The certificates in PEM that all webhooks trusted when they were last read; empty if they differ or are missing.
    pub fn registered(&self) -> watch::Receiver<String> {
        self.registered.subscribe()
    }

    /// Keeps the configuration up to date until `shutdown`, and then removes it if this program made it: the server
    /// must still run. Only a configuration of this program's own can fail; one of the deployment is waited for.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> anyhow::Result<()> {
        let mut shutdown = pin!(shutdown);
        let metadata: Api<PartialObjectMeta<MutatingWebhookConfiguration>> = Api::all(self.client.clone());
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let mut changes = pin!(watcher(metadata, only).default_backoff());
        let mut last_problem = String::new();
        loop {
            let problem = tokio::select! {
                () = &mut shutdown => break,
                kept = self.keep() => kept.err(),
            };
            let text = problem.as_ref().map(ToString::to_string).unwrap_or_default();
            if problem.is_some_and(|problem| problem.is_final) {
                bail!(text);
            }
            if !text.is_empty() && text != last_problem {
                tracing::warn!("{text}");
            }
            let pause = if text.is_empty() { CHECK_INTERVAL } else { RETRY };
            last_problem = text;
            let settings = self.own.as_mut().map(|own| &mut own.settings);
            tokio::select! {
                () = &mut shutdown => break,
                () = sleep(pause) => {}
                Ok(()) = self.bundle.changed() => {}
                Some(Ok(())) = OptionFuture::from(settings.map(watch::Receiver::changed)) => {}
                // An error is a reason to check too: a watch may not be granted yet.
                Some(_) = changes.next() => {}
            }
        }
        let removed = timeout(REQUEST_TIMEOUT, self.remove()).await;
        let removed = removed.unwrap_or_else(|_| Err(Failure::silent(&self.name)));
        removed.map_err(|failure| failure.left_behind(&self.name))
    }

    pub async fn keep(&mut self) -> Result<(), Failure> {
        let bundle = self.bundle.borrow().clone();
        let seen = timeout(REQUEST_TIMEOUT, self.write(&bundle)).await;
        let seen = seen.unwrap_or_else(|_| Err(Failure::silent(&self.name)));
        let trusted = if seen.is_ok() { bundle } else { String::new() };
        send_if_changed(&self.registered, trusted);
        seen
    }

    async fn write(&mut self, bundle: &str) -> Result<(), Failure> {
        for _ in 0..TRIES {
            let found = self.api.get_opt(&self.name).await.map_err(|error| self.failed("read", &error))?;
            let next = self.next(found, bundle)?;
            let Some(next) = next else { return Ok(()) };
            if let Some(last) = self.written {
                sleep_until(last + CALM).await;
            }
            self.sent = true;
            let parameters = PostParams::default();
            let (verb, written) = match next.metadata.resource_version {
                Some(_) => ("updated", self.api.replace(&self.name, &parameters, &next).await),
                None => ("created", self.api.create(&parameters, &next).await),
            };
            match written {
                Ok(_) => {
                    tracing::info!(name = self.name, "the webhook configuration was written");
                    self.written = Some(Instant::now());
                }
                // Another client was faster: read the configuration again, as after every write.
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(self.failed(verb, &error)),
            }
        }
        Err(Failure::conflict(&self.name))
    }

    /// The configuration to write instead of `found`; `None` if `found` is up to date.
    fn next(&self, found: Option<DynamicObject>, bundle: &str) -> Result<Option<DynamicObject>, Failure> {
        let is_final = |text: &str| Failure { is_final: true, ..Failure::passing(&self.name, text) };
        let Some(own) = &self.own else {
            let mut found = found.ok_or_else(|| {
                Failure::passing(&self.name, " does not exist: apply deploy/webhook, or use --register-url")
            })?;
            return Ok(trust(&mut found.data, bundle).then_some(found));
        };
        if let Some(found) = &found {
            // One URL is one server: if this server listens there now, no earlier server does.
            match found.annotations().get(REGISTERED_URL_ANNOTATION) {
                None => {
                    let text = " already exists, and no earlier --register-url made it: delete it, or the deployment \
                                that it belongs to, first";
                    return Err(is_final(text));
                }
                Some(url) if *url == own.url => {}
                Some(url) if self.written.is_some() => {
                    return Err(is_final(&format!(" was taken over by another --register-url, for {url}")));
                }
                Some(url) => tracing::warn!(name = self.name, url, "taking over a webhook configuration"),
            }
        }
        match found {
            Some(mut found) if self.written.is_some() => {
                let webhooks_changed = own.sync_webhooks(&mut found.data);
                Ok((trust(&mut found.data, bundle) || webhooks_changed).then_some(found))
            }
            found => {
                let mut next = own.manifest.clone();
                own.sync_webhooks(&mut next.data);
                trust(&mut next.data, bundle);
                next.metadata.resource_version = found.and_then(|found| found.metadata.resource_version);
                Ok(Some(next))
            }
        }
    }

    async fn remove(&self) -> Result<(), Failure> {
        let Some(own) = self.own.as_ref().filter(|_| self.sent) else { return Ok(()) };
        for _ in 0..TRIES {
            let found = self.api.get_opt(&self.name).await.map_err(|error| self.failed("read", &error))?;
            let Some(found) =
                found.filter(|found| found.annotations().get(REGISTERED_URL_ANNOTATION) == Some(&own.url))
            else {
                return Ok(());
            };
            let ObjectMeta { uid, resource_version, .. } = found.metadata;
            let parameters = DeleteParams::default().preconditions(Preconditions { uid, resource_version });
            match self.api.delete(&self.name, &parameters).await {
                Ok(_) => {
                    tracing::info!(name = self.name, "the webhook configuration was removed");
                    return Ok(());
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
                Err(error) => return Err(self.failed("deleted", &error)),
            }
        }
        Err(Failure::conflict(&self.name))
    }

    /// Only the first write is refused for good: later an API server may not know all permissions yet.
    fn failed(&self, verb: &str, error: &kube::Error) -> Failure {
        let refused = matches!(error, kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 422));
        let is_final = refused && self.own.is_some() && self.written.is_none();
        let text = format!(" can't be {verb}: {}", error_message(error));
        Failure { is_final, ..Failure::passing(&self.name, &text) }
    }
}

/// Makes every webhook trust these certificates. Returns whether anything changed.
fn trust(configuration: &mut Value, bundle: &str) -> bool {
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
fn manifest(name: &str, url: &str, user: &str) -> anyhow::Result<DynamicObject> {
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
fn more_webhooks(url: &str, user: &str) -> anyhow::Result<Vec<(Wanted, Value)>> {
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
fn cel_text(text: &str) -> String {
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

/// Waits for the registration, and then creates a Service in dry runs until the webhook is called. Warns if it is not.
/// The webhook fails open: if the API server can't reach the URL, it creates Services without the webhook and reports no
/// error to the user or to the server.
pub(crate) async fn check_calls(
    client: Client,
    url: String,
    mut registered: watch::Receiver<String>,
    metrics: AdmissionMetrics,
) {
    if registered.wait_for(|bundle| !bundle.is_empty()).await.is_err() {
        return;
    }
    let deadline = Instant::now() + FIRST_CALL_WITHIN;
    let last = loop {
        let tried = try_create(&client).await;
        if metrics.has_answered() {
            tracing::info!("the API server calls the webhook at {url}");
            return;
        }
        if Instant::now() >= deadline {
            break tried;
        }
        sleep(TRIAL_PAUSE).await;
    };
    match last {
        Ok(()) => tracing::warn!(
            "the API server does not call the webhook at {url}, so Services are created without it: check that the API \
             server can connect to this host and port, that this server listens there, and that no proxy or other \
             server answers in its place"
        ),
        // The API server checks permissions before it calls webhooks.
        Err(error) => tracing::warn!(
            "it is unknown whether the API server can reach the webhook at {url}: a dry run that creates Service \
             {TRIAL_NAMESPACE}/{TRIAL_NAME} failed: {}",
            error_message(&error)
        ),
    }
}

async fn try_create(client: &Client) -> Result<(), kube::Error> {
    let ports = Some(vec![ServicePort { port: 80, ..ServicePort::default() }]);
    let service = Service {
        metadata: ObjectMeta { name: Some(TRIAL_NAME.to_owned()), ..ObjectMeta::default() },
        spec: Some(ServiceSpec { ports, ..ServiceSpec::default() }),
        ..Service::default()
    };
    let parameters = PostParams { dry_run: true, ..PostParams::default() };
    Api::<Service>::namespaced(client.clone(), TRIAL_NAMESPACE).create(&parameters, &service).await.map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn user_name_is_escaped_in_cel_expressions() {
        struct Case {
            name: &'static str,
            user: &'static str,
            written: &'static str,
        }
        let cases = [
            Case { name: "usual", user: "system:serviceaccount:shop:web", written: "system:serviceaccount:shop:web" },
            Case { name: "a quote", user: "o'neill", written: r"o\'neill" },
            Case { name: "an escape", user: r#"a\' || "b"#, written: r#"a\\\' || \"b"# },
            Case { name: "a line break", user: "a\nb", written: r"a\u000ab" },
        ];
        for Case { name, user, written } in cases {
            assert_eq!(cel_text(user), written, "{name}");
        }
    }

    #[test]
    fn configuration_that_is_left_behind_is_named_with_the_remedy() {
        let error = Failure::silent("clusterip-policy").left_behind("clusterip-policy");
        assert_eq!(
            error.to_string(),
            "MutatingWebhookConfiguration clusterip-policy: no answer from the API server within 20s; it was left behind: \
             delete it with `kubectl delete mutatingwebhookconfiguration clusterip-policy`"
        );
    }

    #[test]
    fn url_host_is_the_name_or_address_in_the_certificate() {
        for (url, host) in [
            ("https://127.0.0.1:8443", "127.0.0.1"),
            ("https://[::1]:8443/", "::1"),
            ("https://laptop.example.com", "laptop.example.com"),
        ] {
            assert_eq!(url_host(url).unwrap(), host, "{url}");
        }
    }
}
