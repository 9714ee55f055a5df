//! The arguments that several commands share: which Services, and what seamless moves depend on.

use std::str::FromStr;

use anyhow::{Context, anyhow, bail};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgGroup, Args};
use clusterip_cluster::api_error::error_message;
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::lookups::selectors;
use clusterip_cluster::snapshot::Snapshot;
use clusterip_core::label_selector::LabelSelector;
use clusterip_core::service_key::ServiceKey;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use super::terminal::notice;
use crate::services::cluster_dns::{self, MAX_GRACE_PERIOD};
use clusterip_moves::journal::SeamlessOptions;

pub const NO_SUCH_LABELS: &str = "no Service has these labels";

#[derive(Clone, Debug, Default, Args)]
pub struct Scope {
    /// Only Services in this namespace [default: the namespace of the context, or all namespaces]
    #[arg(long, short, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub namespace: Option<String>,
    /// Services in all namespaces, even if the context has a namespace
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Only Services with these labels, such as app=web,tier!=back or 'env in (test,prod)'
    #[arg(long, short = 'l', value_name = "SELECTOR", value_parser = selectors::labels)]
    pub selector: Option<LabelSelector>,
}

impl Scope {
    /// The only namespace of the command; `None` for all namespaces.
    pub fn namespace(&self, cluster: &ClusterArguments) -> Option<String> {
        if self.all_namespaces {
            return None;
        }
        self.namespace.clone().or_else(|| cluster.namespace())
    }

    /// Prints the namespace of the command if it is that of the context.
    pub fn announce_namespace(&self, cluster: &ClusterArguments, service: Option<&ServiceName>) {
        let is_given = self.namespace.is_some() || service.is_some_and(|service| service.namespace.is_some());
        if !is_given && let Some(namespace) = self.namespace(cluster) {
            notice(&format!("namespace: {namespace} (of the context; -A selects all namespaces)"));
        }
    }

    fn named_by(&self, service: Option<&ServiceName>) -> &'static str {
        match (&self.namespace, service.and_then(|service| service.namespace.as_ref())) {
            (Some(_), _) => "--namespace",
            (None, Some(_)) => "--service",
            (None, None) => "the context",
        }
    }

    /// Checks that the namespace exists, and tells if none of its Services has the labels of `--selector`.
    pub fn check(
        &self,
        snapshot: &Snapshot,
        namespace: Option<&str>,
        service: Option<&ServiceName>,
    ) -> anyhow::Result<()> {
        // A snapshot file may have no Namespaces.
        if let Some(namespace) = namespace
            && snapshot.namespace(namespace).is_none()
            && snapshot.services(Some(namespace)).is_empty()
        {
            return Err(missing_namespace(namespace, self.named_by(service)));
        }
        if let Some(selector) = &self.selector
            && !snapshot.each_service(namespace).any(|service| service.is_selected_by(selector))
        {
            notice(NO_SUCH_LABELS);
        }
        Ok(())
    }
}

/// A Service on the command line: `NAMESPACE/NAME`, or `NAME` with `--namespace`.
#[derive(Clone, Debug)]
pub struct ServiceName {
    namespace: Option<String>,
    name: String,
}

impl FromStr for ServiceName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        if !text.is_empty() && !text.contains('/') {
            return Ok(Self { namespace: None, name: text.to_owned() });
        }
        let ServiceKey { namespace, name } = text.parse()?;
        Ok(Self { namespace: Some(namespace), name })
    }
}

impl ServiceName {
    /// The Service. A name without a namespace is in `namespace`.
    pub fn key(&self, scope: &Scope, namespace: impl FnOnce() -> Option<String>) -> anyhow::Result<ServiceKey> {
        let name = &self.name;
        let namespace = match (&self.namespace, &scope.namespace) {
            (Some(named), Some(given)) if named != given => {
                bail!("Service {named}/{name} is not in namespace {given}: remove --namespace")
            }
            (Some(named), _) => named.clone(),
            (None, _) => namespace().with_context(|| {
                format!("--service {name} needs the namespace of the Service: --namespace NAMESPACE")
            })?,
        };
        Ok(ServiceKey::new(namespace, name.clone()))
    }
}

pub async fn check_namespace_in_cluster(client: &Client, namespace: Option<&str>, option: &str) -> anyhow::Result<()> {
    let Some(namespace) = namespace else { return Ok(()) };
    match Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(missing_namespace(namespace, option)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
        Err(error) => bail!("namespace {namespace} of {option} can't be read: {}", error_message(&error)),
    }
}

pub fn missing_namespace(namespace: &str, named_by: &str) -> anyhow::Error {
    anyhow!("there is no namespace {namespace}: check {named_by}")
}

/// Which Services a command moves, and how many at once.
#[derive(Clone, Debug, Default, Args)]
pub struct MoveOptions {
    /// Also move Services of type LoadBalancer: their cloud may remove the load balancer during the move
    #[arg(long)]
    pub load_balancers: bool,
    /// Also move this Service, although the control plane calls it: a webhook, an aggregated API or a CRD conversion
    /// may fail during the move. It stays if one of its webhooks blocks the move. May be given several times
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub called_by_control_plane: Vec<ServiceKey>,
    /// The maximum number of Services that move at once
    #[arg(long, value_name = "NUMBER", default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub at_once: u8,
}

/// What seamless moves depend on in DNS. By default, both values are those of the configuration of CoreDNS.
#[derive(Clone, Debug, Default, Args)]
pub struct DnsArguments {
    /// For how many seconds the old address answers after a seamless move [default: as long as DNS may answer with it,
    /// as the ConfigMap kube-system/coredns says, and 5 s more; 60 if it can't be read]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_GRACE_PERIOD)),
    )]
    grace_period: Option<u32>,
    /// The domain of the cluster in DNS [default: as the ConfigMap kube-system/coredns says; cluster.local if it can't
    /// be read]
    #[arg(long, value_name = "DOMAIN", value_parser = NonEmptyStringValueParser::new())]
    cluster_domain: Option<String>,
}

impl DnsArguments {
    /// The group of both arguments, which requires the argument with this id.
    pub fn requiring(id: &'static str) -> ArgGroup {
        ArgGroup::new("dns").args(["grace_period", "cluster_domain"]).multiple(true).requires(id)
    }

    pub async fn options(&self, client: &Client, is_seamless: bool) -> Option<SeamlessOptions> {
        if !is_seamless {
            return None;
        }
        Some(cluster_dns::options(client, self.grace_period, self.cluster_domain.as_deref()).await)
    }
}
