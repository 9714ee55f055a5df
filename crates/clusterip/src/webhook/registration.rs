//! Keeps the MutatingWebhookConfiguration: which requests the webhook gets, and which certificates it may have.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::without_user_info;
use clusterip_cluster::live_settings::LiveSettings;
use clusterip_cluster::send_if_changed::send_if_changed;
use clusterip_core::annotations::REGISTERED_URL_ANNOTATION;
use clusterip_core::settings::Settings;
use futures::StreamExt;
use futures::future::OptionFuture;
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, PartialObjectMeta, PostParams, Preconditions};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

mod configuration;

use self::configuration::{manifest, more_webhooks, trust};

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
pub fn url_host(url: &str) -> anyhow::Result<String> {
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
    /// The settings that say which of these webhooks are needed. Without settings, none is.
    settings: Option<watch::Receiver<Arc<LiveSettings>>>,
    url: String,
}

impl Own {
    /// Adds the webhooks that the settings need, and removes the others. Returns whether anything changed.
    fn sync_webhooks(&self, configuration: &mut Value) -> bool {
        let settings = self.settings.as_ref().map(|settings| Arc::clone(&settings.borrow()));
        let Some(webhooks) = configuration.get_mut("webhooks").and_then(Value::as_array_mut) else { return false };
        let mut changed = false;
        for (wanted, own) in &self.more {
            let wanted = settings.as_ref().is_some_and(|settings| wanted(&settings.settings));
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

    /// For a server outside of the cluster. With an empty `bundle`, the API server trusts those of its own system.
    pub async fn with_url(
        client: Client,
        name: &str,
        url: &str,
        bundle: watch::Receiver<String>,
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
        registration.own = Some(Own { manifest, more, settings: None, url: url.to_owned() });
        Ok(registration)
    }

    /// Follows these settings: a configuration of this program's own has the webhooks that their pools need.
    pub fn following(mut self, settings: watch::Receiver<Arc<LiveSettings>>) -> Self {
        if let Some(own) = &mut self.own {
            own.settings = Some(settings);
        }
        self
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
            let settings = self.own.as_mut().and_then(|own| own.settings.as_mut());
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
