//! Finds the server that leads in a cluster, and the settings that it uses.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use anyhow::{Error, anyhow, bail};
use clusterip_cluster::api_error::{RequestFailure, failed};
use clusterip_cluster::harmless_text::harmless;
use clusterip_cluster::live_settings::{self, SettingsSource};
use clusterip_cluster::permissions::Need;
use clusterip_failover::leases::{self, Identity, LEASE, Observed, Role, Timing};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use super::given_settings;
use super::terminal::notice;
use crate::lease_namespaces::LeaseNamespaces;
use crate::services::controller::stored_settings::{self, SettingsInUse, SettingsOrigin};
use crate::text::joined;

/// How long to wait until a server has stored the settings that the command read.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for the next server if the last one has given its Lease back, as in a rolling update.
const RESTART: Duration = Duration::from_secs(5);
/// How often the Lease is read meanwhile.
const LOOK: Duration = Duration::from_millis(500);
/// A check whether servers are alive that takes longer than this prints a notice. Servers renew their Leases every 2 s.
const LONG_CHECK: Duration = Duration::from_secs(5);
/// A holder whose Lease has not expired after this time counts as alive.
const MAX_DOUBT: Duration = Duration::from_secs(20);
/// What a message says about a server that has not stored its settings.
const NO_SETTINGS: &str = "does not show its settings, because it is starting or its version is older";

/// The server that leads in a cluster.
///
/// A user with the role `edit` in any namespace can write a Lease there as a server writes it. Therefore a holder of a
/// Lease counts as a server only if it has also stored its settings in that namespace, see [`stored_settings`].
pub struct LeadingServer {
    /// The namespace of the server. Without a server, the namespace for the Lease and the records of `clusterip move`.
    pub namespace: String,
    pub leader: Option<Identity>,
    /// The namespace of the agents, according to the server.
    agents_namespace: Option<String>,
    /// Whether the user gave the namespace.
    given: bool,
}

/// A server that holds the leader's Lease in its namespace.
struct Server {
    namespace: String,
    holder: Identity,
    agents_namespace: String,
    lease: Observed<LeaseSpec>,
}

#[derive(Default)]
struct Servers {
    leading: Vec<Server>,
    /// The namespaces with the settings of a server that does not hold the Lease any more.
    idle: BTreeSet<String>,
}

impl Servers {
    /// Reads the servers; the inner error if the user lacks the permission to read the settings that servers use.
    async fn read(client: &Client, namespace: Option<&str>) -> anyhow::Result<Result<Self, RequestFailure>> {
        let listed = match stored_settings::list(client, namespace).await {
            Ok(listed) => listed,
            Err(error) if RequestFailure::from(&error).is_forbidden => return Ok(Err(RequestFailure::from(&error))),
            Err(error) => return Err(failed("ControllerRevisions can't be listed", &error)),
        };
        let mut servers = Self::default();
        for (namespace, SettingsInUse { leader, agents_namespace, .. }) in listed {
            let spec = lease_spec(client, &namespace).await?.unwrap_or_default();
            if leases::holder(&spec) == Some(leader.as_str()) {
                let (holder, lease) = (Identity::of(&leader), Observed::first(spec, Instant::now()));
                servers.leading.push(Server { namespace, holder, agents_namespace, lease });
            } else {
                servers.idle.insert(namespace);
            }
        }
        servers.idle.retain(|idle| servers.leading.iter().all(|server| server.namespace != *idle));
        Ok(Ok(servers))
    }
}

impl LeadingServer {
    /// The permissions to find the server. It may lead in any namespace, unless one is given.
    pub fn needs(given: Option<&str>) -> Vec<Need> {
        let lease = Need::read("get", "coordination.k8s.io", "leases", given);
        vec![
            Need::read("list", "apps", "controllerrevisions", given),
            Need::read("get", "apps", "controllerrevisions", given),
            Need { name: Some(LEASE.to_owned()), ..lease },
        ]
    }

    /// Finds the server. `given` is its namespace, if the user gave it. If `only_one` is false, the command doesn't
    /// depend on the server: several servers, or servers that can't be read, are the same as none.
    pub async fn find(client: &Client, given: Option<&str>, only_one: bool) -> anyhow::Result<Self> {
        let namespace = given.unwrap_or(client.default_namespace()).to_owned();
        let none = Self { namespace, leader: None, agents_namespace: None, given: given.is_some() };
        if !only_one {
            let servers = Servers::read(client, given).await.ok().and_then(Result::ok).unwrap_or_default();
            return Ok(match servers.leading.as_slice() {
                [server] => none.led_by(server),
                _ => none.or_idle(&servers.idle),
            });
        }
        let deadline = Instant::now() + RESTART;
        loop {
            let Servers { leading, mut idle } = Self::servers(client, given).await?;
            idle.extend(leading.iter().map(|server| server.namespace.clone()));
            match alive(client, leading).await?.as_slice() {
                [server] => return Ok(none.led_by(server)),
                [] => {
                    let is_due = !idle.is_empty() || may_be_starting(client, given).await;
                    if !is_due || Instant::now() > deadline {
                        return Ok(none.or_idle(&idle));
                    }
                }
                several => bail!(
                    "servers lead in several namespaces: {}; name one of them with --server-namespace",
                    listed(several)
                ),
            }
            sleep(LOOK).await;
        }
    }

    pub fn lease_namespaces(&self) -> LeaseNamespaces {
        LeaseNamespaces { server: Some(self.namespace.clone()), agents: self.agents_namespace.clone() }
    }

    fn led_by(self, Server { namespace, holder, agents_namespace, .. }: &Server) -> Self {
        let (namespace, agents_namespace) = (namespace.clone(), Some(agents_namespace.clone()));
        Self { namespace, leader: Some(holder.clone()), agents_namespace, ..self }
    }

    /// Without a server: in the namespace where a server was, and may start again.
    fn or_idle(self, idle: &BTreeSet<String>) -> Self {
        match idle.first() {
            Some(namespace) if idle.len() == 1 && !self.given => Self { namespace: namespace.clone(), ..self },
            _ => self,
        }
    }

    /// The servers of the given namespace, or of all. A user who may not list those of all namespaces uses the server
    /// in the namespace of the context.
    async fn servers(client: &Client, given: Option<&str>) -> anyhow::Result<Servers> {
        let refused = match Servers::read(client, given).await? {
            Ok(servers) => return Ok(servers),
            Err(refused) => Error::new(refused),
        };
        if let Some(given) = given {
            return Err(refused.context(format!(
                "ControllerRevisions can't be read in namespace {given}, so it is unknown whether a server leads there"
            )));
        }
        match Servers::read(client, Some(client.default_namespace())).await {
            Ok(Ok(servers)) if !servers.leading.is_empty() => Ok(servers),
            _ => Err(refused.context(
                "ControllerRevisions can't be listed in all namespaces, so it is unknown where a server leads \
                 (--server-namespace names its namespace)",
            )),
        }
    }

    /// The text of the notice that tells which settings are used.
    pub fn settings_notice(&self, settings: &SettingsSource) -> String {
        match settings {
            SettingsSource::File(_) | SettingsSource::Document(_) => format!("settings: {settings}"),
            _ if self.leader.is_none() => format!("settings: {settings} (no server leads)"),
            _ => format!("settings: {settings} (server in namespace {})", self.namespace),
        }
    }

    /// The settings of a file, or those that the leading server uses. If no server leads in the cluster, those of its
    /// pools, which a server would use. Adds the permissions to read them to `needs`.
    pub async fn settings(
        &self,
        client: &Client,
        file: Option<&Path>,
        needs: &mut Vec<Need>,
    ) -> anyhow::Result<SettingsSource> {
        const REMEDY: &str = "use --settings FILE";
        if let Some(file) = file {
            return Ok(SettingsSource::File(file.to_owned()));
        }
        let Some(leader) = &self.leader else {
            // If the user names a namespace, a server may lead in another one, with other settings.
            if !self.given {
                needs.extend(given_settings::pool_needs());
                let pools = live_settings::list_if_defined(client).await;
                let pools = pools
                    .map_err(|error| failed("no server leads in this cluster, and its pools can't be listed", &error));
                if !pools?.is_empty() {
                    return Ok(SettingsSource::chosen(None, None, client));
                }
            }
            let place = if self.given { format!("namespace {}", self.namespace) } else { "this cluster".to_owned() };
            bail!("no server leads in {place}, so its settings are unknown: {REMEDY}");
        };
        let at = format!("server {} in namespace {}", harmless(leader.as_str()), self.namespace);
        let found = self.wait_for_settings(client, async |in_use| {
            let Some(SettingsInUse { version, source, .. }) = in_use else {
                return Ok(Err(format!("{at} {NO_SETTINGS}")));
            };
            let policy = match source {
                SettingsOrigin::File(file) => {
                    bail!("{at} uses the file {} on its machine: {REMEDY}", harmless(&file))
                }
                SettingsOrigin::Pools => {
                    needs.extend(given_settings::pool_needs());
                    None
                }
                SettingsOrigin::KubewardenPolicy(name) => {
                    let policies = Need::read("get", "policies.kubewarden.io", "clusteradmissionpolicies", None);
                    needs.push(Need { name: Some(name.clone()), ..policies });
                    Some(name)
                }
            };
            let source = SettingsSource::chosen(None, policy.as_deref(), client);
            let written = live_settings::written(&source, client).await;
            let written = written.map_err(|error| {
                let text = format!("{error}; or {REMEDY}");
                error.context(text)
            })?;
            if live_settings::version(&written.document) == version {
                return Ok(Ok(source));
            }
            let source = harmless(&source.to_string());
            Ok(Err(format!("{at} does not use the current settings of {source} (its log shows the reason)")))
        });
        found.await?.map_err(|problem| anyhow!("{problem}: try again, or {REMEDY}"))
    }

    /// Checks that the leading server uses the settings version `version`, which was read from `source`: a server that
    /// is asked to move Services uses its own settings.
    pub async fn check_version(&self, client: &Client, version: &str, source: &SettingsSource) -> anyhow::Result<()> {
        let checked = self.wait_for_settings(client, async |in_use| {
            Ok(Err(match in_use {
                None => NO_SETTINGS.to_owned(),
                Some(in_use) if in_use.version == version => return Ok(Ok(())),
                Some(in_use) => match &in_use.source {
                    SettingsOrigin::Pools => "uses the pools of the cluster".to_owned(),
                    SettingsOrigin::File(file) => {
                        format!("uses the settings of its file {}, not those of this command", harmless(file))
                    }
                    SettingsOrigin::KubewardenPolicy(name) => {
                        let name = harmless(name);
                        format!("uses the settings of ClusterAdmissionPolicy {name}, not those of this command")
                    }
                },
            }))
        });
        checked.await?.map_err(|problem| {
            anyhow!(
                "the server in namespace {} {problem}, and would not use {source} to move Services: apply these \
                 settings to the server first, or use --dry-run",
                self.namespace
            )
        })
    }

    /// Calls `look` with the settings that the leader of this namespace uses, `None` if it has not stored them, until
    /// `look` finds no problem: the server may have started or read new settings a moment ago. Returns the last result.
    async fn wait_for_settings<T>(
        &self,
        client: &Client,
        mut look: impl AsyncFnMut(Option<SettingsInUse>) -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<Result<T, String>> {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let lease = lease_spec(client, &self.namespace).await?;
            let in_use = match lease.as_ref().and_then(leases::holder) {
                Some(leader) => stored_settings::of_leader(client, &self.namespace, leader).await,
                None => Ok(None),
            };
            let unreadable =
                || format!("the settings that the server in namespace {} has stored can't be read", self.namespace);
            let found = look(in_use.map_err(|error| failed(unreadable(), &error))?).await?;
            if found.is_ok() || Instant::now() > deadline {
                return Ok(found);
            }
            sleep(LOOK).await;
        }
    }

    /// Checks that no server leads in another namespace: it would move Services with other settings at the same time.
    pub async fn no_leader_elsewhere(&self, client: &Client) -> anyhow::Result<()> {
        let Ok(Servers { mut leading, .. }) = Servers::read(client, None).await? else {
            bail!(
                "no server leads in namespace {}, and without the permission to read ControllerRevisions it is unknown \
                 whether one leads in another namespace; this rule of a ClusterRole grants it:\n\
                 - {{apiGroups: [\"apps\"], resources: [\"controllerrevisions\"], verbs: [\"get\", \"list\"]}}",
                self.namespace
            )
        };
        leading.retain(|server| server.namespace != self.namespace);
        let alive = alive(client, leading).await?;
        if alive.is_empty() {
            return Ok(());
        }
        bail!(
            "no server leads in namespace {}, but a server leads in another namespace: {}. \
             It also moves Services: omit --server-namespace, or set it to that namespace",
            self.namespace,
            listed(&alive)
        )
    }
}

/// Returns the servers that are alive because they renew their Leases. A Lease that expires under observation belongs
/// to a server that has ended.
async fn alive(client: &Client, mut undecided: Vec<Server>) -> anyhow::Result<Vec<Server>> {
    let mut alive = Vec::new();
    let begin = Instant::now();
    let mut is_announced = false;
    while !undecided.is_empty() {
        if !is_announced && begin.elapsed() > LONG_CHECK {
            notice(&format!("checking whether these servers are alive: {}", listed(&undecided)));
            is_announced = true;
        }
        sleep(LOOK).await;
        let mut later = Vec::new();
        for server in undecided {
            let Some(spec) = lease_spec(client, &server.namespace).await? else { continue };
            // The next leader stores its settings first.
            if leases::holder(&spec).map(Identity::of).as_ref() != Some(&server.holder) {
                continue;
            }
            let now = Instant::now();
            let lease = Observed::next(Some(server.lease), spec, now);
            let (changed, end) = (lease.changed, leases::end(&lease, Timing::default()));
            let server = Server { lease, ..server };
            if changed || now >= begin + MAX_DOUBT {
                alive.push(server);
            } else if now < end {
                later.push(server);
            }
        }
        undecided = later;
    }
    alive.sort_by(|one, other| one.namespace.cmp(&other.namespace));
    Ok(alive)
}

/// Whether a process that looks like a server holds a Lease. It may be a server that has not stored its settings yet.
/// It may also be forged, so this is only a reason to wait for a moment.
async fn may_be_starting(client: &Client, given: Option<&str>) -> bool {
    let leases: Api<Lease> = match given {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let only = ListParams::default().fields(&format!("metadata.name={LEASE}"));
    let Ok(leases) = leases.list(&only).await else { return false };
    let holders = leases.items.iter().filter_map(|lease| leases::holder(lease.spec.as_ref()?));
    holders.map(Identity::of).any(|holder| holder.role() == Some(Role::Serve))
}

/// The spec of the leader's Lease of a namespace; `None` if the Lease is missing, or has no spec.
async fn lease_spec(client: &Client, namespace: &str) -> anyhow::Result<Option<LeaseSpec>> {
    let lease = Api::<Lease>::namespaced(client.clone(), namespace).get_opt(LEASE).await;
    lease.map(|lease| lease?.spec).map_err(|error| failed(format!("Lease {namespace}/{LEASE} can't be read"), &error))
}

fn listed(servers: &[Server]) -> String {
    let one = |server: &Server| format!("{} ({})", server.namespace, harmless(server.holder.as_str()));
    joined(servers.iter().map(one), ", ")
}
