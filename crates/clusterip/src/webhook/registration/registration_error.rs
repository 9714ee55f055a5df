//! Why the webhook configuration can't be kept up to date.

use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::without_user_info;
use clusterip_cluster::yaml::YamlError;
use thiserror::Error;

use super::{REQUEST_TIMEOUT, TRIES};

/// A webhook configuration that can't be kept up to date.
#[derive(Debug, Error)]
pub enum RegistrationError {
    /// The API server refuses a request.
    #[error("MutatingWebhookConfiguration {name} can't be {verb}: {}", error_message(.reason))]
    Cluster {
        /// The name of the configuration.
        name: String,
        /// `read`, `created`, `updated` or `deleted`.
        verb: &'static str,
        /// The answer of the API server.
        reason: Box<kube::Error>,
    },
    /// The own user name is unknown.
    #[error("reading the user name of this program with a SelfSubjectReview failed: {0}")]
    WhoAmI(String),
    /// There is no configuration to write into.
    #[error("MutatingWebhookConfiguration {0} does not exist: apply deploy/webhook, or use --register-url")]
    Absent(String),
    /// There is a configuration that this program did not write.
    #[error(
        "MutatingWebhookConfiguration {0} already exists, and no earlier --register-url made it: \
         delete it, or the deployment that it belongs to, first"
    )]
    Foreign(String),
    /// Another process has overwritten the configuration with its own.
    #[error("MutatingWebhookConfiguration {0} was taken over by another --register-url, for {1}")]
    TakenOver(String, String),
    /// The API server does not answer in time.
    #[error("MutatingWebhookConfiguration {0}: no answer from the API server within {REQUEST_TIMEOUT:?}")]
    Silent(String),
    /// Other clients changed the configuration before every attempt to write it.
    #[error("MutatingWebhookConfiguration {0} was changed by others {TRIES} times in a row")]
    Conflict(String),
    /// The configuration could not be removed at the end.
    #[error("{reason}; it was left behind: delete it with `kubectl delete mutatingwebhookconfiguration {name}`")]
    LeftBehind {
        /// The name of the configuration.
        name: String,
        /// Why it could not be removed.
        reason: Box<RegistrationError>,
    },
    /// The built-in configuration can't be read.
    #[error("the built-in webhook configuration can't be read: {0}")]
    Embedded(#[from] YamlError),
    /// The API server can't send requests to this URL.
    #[error("--register-url {}: it must be https://HOST:PORT, without a path", without_user_info(.0))]
    Url(String),
}

impl RegistrationError {
    /// Whether trying again can't help. Before the first write (`written` is false) a refusal is final. After it, a
    /// refusal may pass: an API server that has just started does not know all permissions yet.
    pub(super) fn is_final(&self, written: bool) -> bool {
        match self {
            Self::Cluster { reason, .. } if !written => {
                matches!(reason.as_ref(), kube::Error::Api(status) if matches!(status.code, 400 | 401 | 403 | 422))
            }
            Self::Cluster { .. } | Self::Conflict(_) | Self::Absent(_) | Self::Silent(_) => false,
            Self::WhoAmI(_)
            | Self::Foreign(_)
            | Self::TakenOver(..)
            | Self::LeftBehind { .. }
            | Self::Embedded(_)
            | Self::Url(_) => true,
        }
    }
}
