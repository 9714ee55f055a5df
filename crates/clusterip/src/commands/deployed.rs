//! Finds the server that leads in a cluster, and the settings that it uses.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, bail};
use clusterip_host::live_settings::{self, Source};
use clusterip_leases::election::{self, LEASE, Timing};
use clusterip_leases::identity::{Identity, Role};
use clusterip_leases::observed::Observed;
use clusterip_runtime::api_error::error_message;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, sleep};

use super::terminal_options::notice;
use crate::services::controller::settings_in_use::{Origin, SettingsInUse};

/// How long to wait until the Lease of a server shows the settings that the command read: the server may have started
/// or read new settings a moment ago.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for the next server if the last one has given its Lease back, as in a rolling update.
const RESTART: Duration = Duration::from_secs(5);
/// How often the Lease is read meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// How often Leases are read to find out whether their holders are alive.
const LOOK_AT_HOLDERS: Duration = Duration::from_secs(1);
/// A holder whose Lease has not expired after this time counts as alive.
const MAX_DOUBT: Duration = Duration::from_secs(20);

/// The server that leads in a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployed {
    /// The namespace of the server. Without a server, the namespace for the Lease and the records of `clusterip move`.
    pub namespace: String,
    /// The server that leads there.
    pub leader: Option<Identity>,
    /// Whether the user gave the namespace.
    given: bool,
}

/// A process that holds the leader's Lease in a namespace.
struct Held {
    namespace: String,
    holder: Identity,
    lease: Observed<LeaseSpec>,
}

impl Held {
    /// `None` for a Lease without a holder, which a process has given back.
    fn of(lease: Lease, now: Instant) -> Option<Self> {
        let namespace = lease.namespace()?;
        let spec = lease.spec.unwrap_or_default();
        let holder = Identity::of(election::holder(&spec)?);
        Some(Self { namespace, holder, lease: Observed::first(spec, now) })
    }

    fn is_server(&self) -> bool {
        self.holder.role() != Some(Role::Move)
    }
}

impl Deployed {
    /// Finds the server. `given` is its namespace, if the user gave it. If `only_one` is false, several servers are the
    /// same as none, because the command doesn't depend on the server.
    ///
    /// # Errors
    /// If servers lead in several namespaces, or the Leases can't be read.
    pub async fn find(client: &Client, given: Option<&str>, only_one: bool) -> anyhow::Result<Self> {
        let deadline = Instant::now() + RESTART;
        loop {
            let (found, restarts) = Self::find_now(client, given, only_one).await?;
            if !only_one || !restarts || Instant::now() > deadline {
                return Ok(found);
            }
            sleep(LOOK).await;
        }
    }

    /// As [`Self::find`], without waiting. The second value is whether there is no server, but a Lease that a server
    /// has given back.
    async fn find_now(client: &Client, given: Option<&str>, only_one: bool) -> anyhow::Result<(Self, bool)> {
        let leases = match all_leases(client).await? {
            Some(leases) => leases,
            // A user who may not list Leases names the namespace, or uses that of the context.
            None => one_lease(client, given.unwrap_or(client.default_namespace())).await?.into_iter().collect(),
        };
        let now = Instant::now();
        let namespaces: Vec<String> = leases.iter().filter_map(|lease| lease.namespace()).collect();
        let mut servers: Vec<Held> = leases.into_iter().filter_map(|lease| Held::of(lease, now)).collect();
        servers.retain(|held| held.is_server() && given.is_none_or(|given| given == held.namespace));
        if servers.len() > 1 {
            servers = if only_one { alive(client, servers).await? } else { Vec::new() };
        }
        let is_given = given.is_some();
        match servers.as_slice() {
            [] => {
                // A Lease without a server shows where a server was, and may start again.
                let idle = if let [namespace] = namespaces.as_slice() { Some(namespace.as_str()) } else { None };
                let namespace = given.or(idle).unwrap_or(client.default_namespace()).to_owned();
                let restarts = namespaces.iter().any(|namespace| given.is_none_or(|given| given == namespace));
                Ok((Self { namespace, leader: None, given: is_given }, restarts))
            }
            [server] => {
                let (namespace, leader) = (server.namespace.clone(), Some(server.holder.clone()));
                Ok((Self { namespace, leader, given: is_given }, false))
            }
            several => bail!(
                "servers lead in several namespaces: {}; name one of them with --server-namespace",
                listed(several)
            ),
        }
    }

    /// The settings of a file, or those that the leading server uses.
    ///
    /// # Errors
    /// If there is neither a file nor a server, or the settings of the server can't be read here.
    pub async fn settings(&self, client: &Client, file: Option<&Path>) -> anyhow::Result<Source> {
        const REMEDY: &str = "use --settings FILE";
        if let Some(file) = file {
            return Ok(Source::File(file.to_owned()));
        }
        let Some(leader) = &self.leader else {
            let place = if self.given { format!("namespace {}", self.namespace) } else { "this cluster".to_owned() };
            bail!("no server leads in {place}, so its settings are unknown: {REMEDY}");
        };
        let at = format!("server {leader} in namespace {}", self.namespace);
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let problem = match self.in_use(client).await? {
                None => format!("{at} does not show its settings, because it is starting or its version is older"),
                Some(SettingsInUse { version, source, .. }) => {
                    let source = match source {
                        Origin::File(file) => bail!("{at} uses the file {file} on its machine: {REMEDY}"),
                        Origin::Defaults => Source::Defaults,
                        Origin::ConfigMap { namespace, name } => {
                            Source::ConfigMap { client: client.clone(), namespace, name }
                        }
                    };
                    let written = live_settings::written(&source).await;
                    let written = written.map_err(|error| anyhow!("{error}; or {REMEDY}"))?;
                    if live_settings::version(&written) == version {
                        return Ok(source);
                    }
                    format!("{at} does not use the current settings of {source} (its log shows the reason)")
                }
            };
            if Instant::now() > deadline {
                bail!("{problem}: try again, or {REMEDY}");
            }
            sleep(LOOK).await;
        }
    }

    /// Checks that the leading server uses the settings version `version`, which was read from `source`: a server that
    /// is asked to move Services uses its own settings.
    ///
    /// # Errors
    /// If the server uses other settings, or does not show which ones it uses.
    pub async fn check_version(&self, client: &Client, version: &str, source: &Source) -> anyhow::Result<()> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let in_use = self.in_use(client).await?;
            let problem = match &in_use {
                Some(in_use) if in_use.version == version => return Ok(()),
                Some(in_use) => match &in_use.source {
                    Origin::Defaults => "uses the default settings".to_owned(),
                    Origin::File(file) => format!("uses the settings of its file {file}, not those of this command"),
                    Origin::ConfigMap { namespace, name } => {
                        format!("uses the settings of configmap {namespace}/{name}, not those of this command")
                    }
                },
                None => "does not show its settings, because it is starting or its version is older".to_owned(),
            };
            if Instant::now() > deadline {
                bail!(
                    "the server in namespace {} {problem}, and would not use {source} to move \
                     Services: apply these settings to the server first, or use --dry-run",
                    self.namespace
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Checks that no process leads in another namespace: it would move Services with other settings at the same time.
    ///
    /// # Errors
    /// If a process leads in another namespace, or this can't be found out.
    pub async fn no_leader_elsewhere(&self, client: &Client) -> anyhow::Result<()> {
        let Some(leases) = all_leases(client).await? else {
            bail!(
                "no server leads in namespace {}, and without the permission to list Leases it is unknown whether one \
                 leads in another namespace; this rule of a ClusterRole grants it:\n\
                 - {{apiGroups: [\"coordination.k8s.io\"], resources: [\"leases\"], verbs: [\"list\"]}}",
                self.namespace
            )
        };
        let now = Instant::now();
        let mut held: Vec<Held> = leases.into_iter().filter_map(|lease| Held::of(lease, now)).collect();
        held.retain(|held| held.namespace != self.namespace);
        let alive = alive(client, held).await?;
        if alive.is_empty() {
            return Ok(());
        }
        bail!(
            "no server leads in namespace {}, but a process leads in another namespace: {}. \
             It also moves Services: omit --server-namespace, or set it to that namespace",
            self.namespace,
            listed(&alive)
        )
    }

    /// The settings that the leader of this namespace uses; `None` if its Lease does not show them.
    async fn in_use(&self, client: &Client) -> anyhow::Result<Option<SettingsInUse>> {
        Ok(one_lease(client, &self.namespace).await?.as_ref().and_then(SettingsInUse::on))
    }
}

/// The leader's Leases of all namespaces; `None` if this user may not list them.
async fn all_leases(client: &Client) -> anyhow::Result<Option<Vec<Lease>>> {
    let only = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    match Api::<Lease>::all(client.clone()).list(&only).await {
        Ok(leases) => Ok(Some(leases.items)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => bail!("leases can't be listed: {}", error_message(&error)),
    }
}

/// The leader's Lease of a namespace; `None` if there is none, or this user may not read it.
async fn one_lease(client: &Client, namespace: &str) -> anyhow::Result<Option<Lease>> {
    match Api::<Lease>::namespaced(client.clone(), namespace).get_opt(LEASE).await {
        Ok(lease) => Ok(lease),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
        Err(error) => bail!("lease {namespace}/{LEASE} can't be read: {}", error_message(&error)),
    }
}

/// Returns the processes that are alive because they renew their Leases. A Lease that expires under observation belongs
/// to a process that has ended.
async fn alive(client: &Client, mut undecided: Vec<Held>) -> anyhow::Result<Vec<Held>> {
    let mut alive = Vec::new();
    let limit = Instant::now() + MAX_DOUBT;
    if !undecided.is_empty() {
        let list = listed(&undecided);
        notice(&format!("checking whether these processes are alive: {list}"));
    }
    while !undecided.is_empty() {
        sleep(LOOK_AT_HOLDERS).await;
        let mut later = Vec::new();
        for held in undecided {
            let Some(lease) = one_lease(client, &held.namespace).await? else { continue };
            let spec = lease.spec.unwrap_or_default();
            let Some(holder) = election::holder(&spec).map(Identity::of) else { continue };
            let now = Instant::now();
            let lease = Observed::next(Some(held.lease), spec, now);
            let (changed, end) = (lease.changed, election::end(&lease, Timing::default()));
            let held = Held { namespace: held.namespace, holder, lease };
            if changed || now >= limit {
                alive.push(held);
            } else if now < end {
                later.push(held);
            }
        }
        undecided = later;
    }
    alive.sort_by(|one, other| one.namespace.cmp(&other.namespace));
    Ok(alive)
}

fn listed(held: &[Held]) -> String {
    let one = |held: &Held| format!("{} ({})", held.namespace, held.holder);
    held.iter().map(one).collect::<Vec<_>>().join(", ")
}
