//! Checks whether this identity has all permissions that it needs.
//!
//! An administrator learns of all missing permissions at once, and not of one after the other when it is needed.

mod duties;

use std::collections::BTreeSet;
use std::fmt;

use crate::api_error::failed;
use clusterip_core::settings::Settings;
use clusterip_core::workload::WorkloadKind;
use futures::stream::{self, StreamExt, TryStreamExt};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::Client;
use kube::api::{Api, ApiResource, PostParams};
use serde_json::json;
use thiserror::Error;

pub use self::duties::{Duties, Registration, needs, seamless_moves};
use crate::kinds;

const AT_ONCE: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub verb: &'static str,
    pub group: String,
    /// With the subresource, if it is for one: `services/status`.
    pub resource: String,
    /// The only object that the permission is needed for; `None` for all objects.
    pub name: Option<String>,
    /// The only namespace that the permission is needed for; `None` for the whole cluster.
    pub namespace: Option<String>,
}

impl Need {
    pub fn list(resource: &ApiResource) -> Self {
        Self::read("list", &resource.group, &resource.plural, None)
    }

    /// The permission to read all objects of a resource with this verb, in a namespace or in the whole cluster.
    pub fn read(verb: &'static str, group: &str, resource: &str, namespace: Option<&str>) -> Self {
        Self {
            verb,
            group: group.to_owned(),
            resource: resource.to_owned(),
            name: None,
            namespace: namespace.map(str::to_owned),
        }
    }
}

/// The error about all missing permissions. The message lists them as rules that grant them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub struct Missing {
    /// The user that needs the permissions; `None` if the API server does not tell.
    pub user: Option<String>,
    pub needs: Vec<Need>,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_deref().unwrap_or("this identity");
        write!(f, "{user} lacks permissions; these rules grant what is missing:")?;
        for namespace in self.needs.iter().map(|need| &need.namespace).collect::<BTreeSet<_>>() {
            match namespace {
                None => f.write_str("\nin a ClusterRole:")?,
                Some(namespace) => write!(f, "\nin a Role of namespace {namespace}:")?,
            }
            let mut rules: Vec<(&Need, Vec<&str>)> = Vec::new();
            for need in self.needs.iter().filter(|need| need.namespace == *namespace) {
                match rules.iter_mut().find(|(rule, _)| Need { verb: need.verb, ..(*rule).clone() } == *need) {
                    Some((_, verbs)) => verbs.push(need.verb),
                    None => rules.push((need, vec![need.verb])),
                }
            }
            for (need, verbs) in rules {
                write!(f, "\n- {}", rule(need, &verbs))?;
            }
        }
        // Nothing but seamless moves creates or deletes Services.
        if self.needs.iter().any(|need| need.resource == "services" && matches!(need.verb, "create" | "delete")) {
            f.write_str("\ndeploy/seamless has the rules for seamless moves; plain moves do not need them")?;
        }
        Ok(())
    }
}

fn rule(need: &Need, verbs: &[&str]) -> String {
    let list = |items: &[&str]| json!(items).to_string().replace(',', ", ");
    let names = need.name.as_deref().map(|name| format!("resourceNames: {}, ", list(&[name]))).unwrap_or_default();
    format!(
        "{{apiGroups: {}, resources: {}, {names}verbs: {}}}",
        list(&[&need.group]),
        list(&[&need.resource]),
        list(verbs)
    )
}

/// The resources of these kinds of workloads. A kind that the API server does not serve has no objects.
pub async fn workloads(client: &Client, kinds: &[WorkloadKind]) -> anyhow::Result<Vec<ApiResource>> {
    let mut served = Vec::new();
    for kind in kinds {
        served.extend(kinds::resource(client, &kinds::of_workload(kind)).await.map_err(|error| {
            let WorkloadKind { api_version, kind, .. } = kind;
            failed(format!("{api_version}/{kind}, one of evidence.kinds in the settings, can't be looked up"), &error)
        })?);
    }
    Ok(served)
}

fn review(need: &Need) -> SelfSubjectAccessReview {
    let (resource, subresource) = need.resource.split_once('/').unwrap_or((&need.resource, ""));
    let attributes = ResourceAttributes {
        verb: Some(need.verb.to_owned()),
        group: Some(need.group.clone()),
        resource: Some(resource.to_owned()),
        subresource: (!subresource.is_empty()).then(|| subresource.to_owned()),
        name: need.name.clone(),
        namespace: need.namespace.clone(),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
    SelfSubjectAccessReview { spec, ..Default::default() }
}

pub async fn check(client: &Client, settings: &Settings, duties: &Duties) -> anyhow::Result<()> {
    // An agent looks no workloads up.
    let workloads = if duties.agent { Vec::new() } else { workloads(client, &settings.kinds).await? };
    let duties = Duties {
        nodes: duties.nodes && !settings.nodes.pools.is_empty(),
        external: duties.external && !settings.external.pools.is_empty(),
        ..duties.clone()
    };
    require(client, &needs(&workloads, &duties)).await
}

pub async fn require(client: &Client, needs: &[Need]) -> anyhow::Result<()> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = async |need: Need| {
        let answer = reviews.create(&PostParams::default(), &review(&need)).await;
        let answer = answer.map_err(|error| failed("the permissions of this identity can't be checked", &error))?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        anyhow::Ok((!allowed).then_some(need))
    };
    let asked = stream::iter(needs.to_vec()).map(ask).buffered(AT_ONCE).try_filter_map(async |need| Ok(need));
    let needs: Vec<Need> = asked.try_collect().await?;
    if needs.is_empty() {
        return Ok(());
    }
    // The name of this user is for the message only.
    let users: Api<SelfSubjectReview> = Api::all(client.clone());
    let user = users.create(&PostParams::default(), &SelfSubjectReview::default()).await.ok();
    Err(Missing { user: user.and_then(|user| user.status?.user_info?.username), needs }.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
