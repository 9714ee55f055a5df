//! `clusterip serve`

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use clap::{Args, ValueEnum};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::connect;
use super::in_force::{followed, say_what_is_missing};
use super::stop::{shutdown_signal, until};
use crate::audit::live_audit::LiveAudit;
use crate::cluster::ledger::Ledger;
use crate::cluster::replica_claims::{self, Claims};
use crate::cluster::stores::{State, Stores};
use crate::controller::competing_server::CompetingServer;
use crate::controller::identity::{Identity, Role};
use crate::controller::leader::Leader;
use crate::controller::lease::Timing;
use crate::controller::misplaced::Allowed;
use crate::controller::reconcile::Reconciler;
use crate::controller::replicas::Replicas;
use crate::controller::service_controller::Controller;
use crate::dns_address;
use crate::evaluator::Evaluator;
use crate::external;
use crate::live_settings::{LiveSettings, Source};
use crate::logging::Logging;
use crate::metrics::{FamilyFill, Metrics, PoolFill};
use crate::nodes::assigner::Assigner;
use crate::nodes::held_blocks::blocks_of;
use crate::nodes::pool_blocks;
use crate::permissions::{self, Duties};
use crate::policy::budget::Budget;
use crate::policy::module::{EMBEDDED, Module, SHARED_MEMORY};
use crate::pool_use;
use crate::ui::{self, map_server::UiServer};
use crate::webhook::admission::{Admission, OnError};
use crate::webhook::authority::{self, Authority};
use crate::webhook::client_ca::ClientCaFile;
use crate::webhook::registration::{self, Registration};
use crate::webhook::server::{Backend, Limits, Server};
use crate::webhook::tls::{Certificate, CertificateFiles};

/// The text at the end of `clusterip help serve`.
pub const HELP: &str = "\
Examples:
  In the cluster, as deploy/webhook runs it:
    clusterip serve --settings-configmap clusterip-settings
  A trial from outside; the API server must be able to reach the URL:
    clusterip serve --kubeconfig kubeconfig --listen 127.0.0.1:8443 --register-url https://127.0.0.1:8443

Exit status: 0 after SIGTERM or SIGINT; 2 if it can't start or go on.";

/// The interval at which certificate files are checked for changes.
const LOOK_AT_FILES: Duration = Duration::from_secs(5);

/// The minimum number of threads for evaluations.
const FEWEST_THREADS: usize = 2;
/// The minimum number if each evaluation waits for its claim.
const CLAIMING_THREADS: usize = 16;

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// How to reach the cluster; without it: the service account of the Pod, or $KUBECONFIG
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Where to serve HTTPS
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// The settings; read again when the file changes [default: `{}`, the K2s pools]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The ConfigMap with the settings in its key `settings.yaml`, in the server's namespace; followed
    #[arg(long, value_name = "NAME", conflicts_with = "settings")]
    settings_configmap: Option<String>,
    /// The server's namespace, with its Lease and Secret [default: that of the service account or kubeconfig]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The namespace of the agents, with the Leases that say which node holds which external address
    /// [default: the server's namespace]
    #[arg(long, value_name = "NAMESPACE")]
    agents_namespace: Option<String>,
    /// The Service of this server, for the names in its certificate
    #[arg(long, value_name = "NAME", default_value = "clusterip")]
    service: String,
    /// The webhook configuration whose caBundle is kept up to date
    #[arg(long, value_name = "NAME", default_value = registration::NAME)]
    webhook_configuration: String,
    /// Write the webhook configuration for this URL, and remove it at the end
    #[arg(long, value_name = "https://HOST:PORT")]
    register_url: Option<String>,
    /// A certificate of your own, in PEM; read again when the file changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Its key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer reviews only for clients with a certificate of this authority, in PEM; read again when the
    /// file changes
    #[arg(long, value_name = "FILE", conflicts_with = "no_webhook")]
    client_ca: Option<PathBuf>,
    /// How to answer a request if the policy fails
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    on_error: OnError,
    /// Serve no webhook, only the controller: another program does admission
    #[arg(long, conflicts_with_all = ["register_url", "tls_cert", "on_error"])]
    no_webhook: bool,
    /// Where addresses in flight are recorded; several replicas need `lease`
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    claims: replica_claims::Kept,
    /// Which misplaced Services are moved
    #[arg(long = "move", value_enum, value_name = "WHICH", default_value_t)]
    moves: Moves,
    /// Move Services of type LoadBalancer, too: their cloud may take the load balancer down meanwhile
    #[arg(long)]
    move_load_balancers: bool,
    /// Serve the map of all pools over plain HTTP; without an address, to this machine only
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:8080")]
    ui: Option<SocketAddr>,
    #[command(flatten)]
    logging: Logging,
}

/// Which misplaced Services are moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Moves {
    /// None: they are reported
    Never,
    /// Those without ready endpoints that can be reached where they are
    #[default]
    Undisturbed,
    /// All of them
    Always,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// If the server can't start or can't go on.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        self.logging.start()?;
        // Evaluations are bound by the CPU, so more threads than this make them no faster. But the allocator keeps
        // some megabytes of freed memory for each thread: in a large cluster more than the cluster itself takes.
        let fewest = if self.claims == replica_claims::Kept::Lease { CLAIMING_THREADS } else { FEWEST_THREADS };
        let threads = fewest.max(available_parallelism().map_or(1, usize::from));
        let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(threads).enable_all().build()?;
        let done = runtime.block_on(self.serve());
        // A watch may still be in the middle of a request that no task waits for.
        runtime.shutdown_background();
        done.map(|()| ExitCode::SUCCESS)
    }

    async fn serve(self) -> anyhow::Result<()> {
        let client = connect::client(self.kubeconfig.as_deref()).await?;
        let namespace = self.namespace.clone().unwrap_or_else(|| client.default_namespace().to_owned());
        let agents_namespace = self.agents_namespace.clone().unwrap_or_else(|| namespace.clone());
        let metrics = Arc::new(Metrics::new());
        let me = Identity::new(Role::Serve);
        let mut leader = Leader::new(client.clone(), &namespace, me.clone(), Timing::default());
        let compile = || Module::sharing(EMBEDDED, Budget::new(SHARED_MEMORY));
        // A lease that a dead leader left behind expires while everything else starts. An error here is reported
        // later.
        let (module, _) = tokio::join!(tokio::task::spawn_blocking(compile), leader.look());
        let module = Arc::new(module??);
        let (stop, stopped) = watch::channel(false);
        let until = |stopped: &watch::Receiver<bool>| until(stopped.clone());

        let ledger = Ledger::default();
        let seen = ledger.clone();
        let (stores, changes) = Stores::new(client.clone(), Arc::clone(&metrics), move |address| seen.seen(address));
        stores.ask_for_service_cidrs().await;
        let (file, name) = (self.settings.as_deref(), self.settings_configmap.as_deref());
        let source = Source::chosen(file, name, &client, &namespace);
        let (ranges, duties) = (stores.service_cidrs(), self.duties(&namespace));
        let follower = followed(source, &module, ranges, &metrics, &client, &duties).await?;
        let settings = follower.subscribe();
        let registered = settings.clone();
        stores.watch(&settings.borrow().settings);
        let claims = (self.claims == replica_claims::Kept::Lease)
            .then(|| Claims::new(client.clone(), &namespace, me.as_str(), ledger.clone(), Arc::clone(&metrics)));
        let evaluator =
            Evaluator::new(Arc::clone(&module), settings.clone(), stores.clone(), ledger, Arc::clone(&metrics));
        let evaluator = match &claims {
            Some(claims) => evaluator.claiming(claims.clone()),
            None => evaluator,
        };

        // From here on requests may be in progress: each task below ends by itself after `stop`.
        let mut tasks: JoinSet<anyhow::Result<()>> = JoinSet::new();
        let end = until(&stopped);
        tasks.spawn(async move {
            follower.run(end).await;
            Ok(())
        });
        let (end, missing) = (until(&stopped), say_what_is_missing(client.clone(), settings.clone(), duties));
        tasks.spawn(async move {
            tokio::select! {
                () = missing => {}
                () = end => {}
            }
            Ok(())
        });
        let (end, warned) = (until(&stopped), dns_address::warn(stores.clone(), settings.clone()));
        tasks.spawn(async move {
            tokio::select! {
                () = warned => {}
                () = end => {}
            }
            Ok(())
        });
        let allowed = Allowed {
            any: self.moves != Moves::Never,
            ready: self.moves == Moves::Always,
            load_balancers: self.move_load_balancers,
        };
        let reconciler = Reconciler::new(evaluator.clone(), client.clone(), &namespace, Arc::clone(&metrics), allowed);
        let (last, unled) = watch::channel(false);
        let (leadership, competing_server, term) = (leader.subscribe(), leader.competing_server(), leader.term());
        let led = tokio::spawn(leader.run(until(&unled)));
        let (mut reconciler, mut counted) = (reconciler, None);
        if let Some(claims) = claims {
            let replicas = Replicas::new(client.clone(), &namespace, me, settings.clone(), Arc::clone(&metrics));
            reconciler = reconciler.agreeing(replicas.subscribe());
            let leads = leadership.clone();
            counted = Some(tokio::spawn(replicas.run(move || leads.borrow().leads(), until(&unled))));
            let (leadership, end) = (leadership.clone(), until(&stopped));
            tasks.spawn(async move {
                claims.run(|| leadership.borrow().leads(), end).await;
                Ok(())
            });
        }
        let assigner = Assigner {
            module,
            stores: stores.clone(),
            // The assigner runs in a thread of its own, and its connections live there.
            client: connect::client(self.kubeconfig.as_deref()).await?,
            settings: settings.clone(),
            leadership: leadership.clone(),
            term,
            metrics: Arc::clone(&metrics),
        };
        let assigned = assigner.start(until(&stopped))?;
        tasks.spawn(async move { assigned.await.context("the node CIDR controller") });
        let external = external::controller::Controller {
            evaluator: evaluator.clone(),
            client: client.clone(),
            namespace: agents_namespace.clone(),
            settings: settings.clone(),
            leadership: leadership.clone(),
            metrics: Arc::clone(&metrics),
        };
        let end = until(&stopped);
        tasks.spawn(async move {
            external.run(end).await;
            Ok(())
        });
        let reconciler = Arc::new(reconciler);
        let controller = Controller {
            reconciler: Arc::clone(&reconciler),
            changes,
            settings,
            leadership: leadership.clone(),
            client: client.clone(),
            namespace: namespace.clone(),
        };
        let end = until(&stopped);
        tasks.spawn(async move {
            controller.run(end).await;
            Ok(())
        });
        let mut limits = Limits::default();
        if self.claims == replica_claims::Kept::Lease {
            // A review mostly waits for its claim.
            limits.reviews = limits.reviews.max(CLAIMING_THREADS);
        }
        if let Some(address) = self.ui {
            let ui = UiServer::bind(address, ui::map_server::Limits::default()).await?;
            let audit = LiveAudit::new(evaluator.clone()).reading_leases(client.clone(), &agents_namespace);
            tracing::info!(url = %format_args!("http://{}/", ui.local_addr()), "showing the map");
            let end = until(&stopped);
            tasks.spawn(async move { Ok(ui.run(Arc::new(move || Ok(audit.audit()?)), end).await?) });
        }
        let server = Server::bind(self.listen, limits).await?;
        tracing::info!(listen = %server.local_addr(), namespace, "serving");
        let (certificate, registration) =
            self.certificate(&client, &namespace, registered, &stopped, &mut tasks).await?;
        if let Some(path) = &self.client_ca {
            let file = ClientCaFile::open(path, &certificate)?;
            let end = until(&stopped);
            tasks.spawn(async move {
                file.run(LOOK_AT_FILES, end).await;
                Ok(())
            });
        }
        let gauges = Gauges { metrics: Arc::clone(&metrics), reconciler, leadership, certificate: certificate.clone() };
        // Several replicas may run if each one claims the addresses that it assigns, or if they serve no webhook.
        let alone = (self.claims == replica_claims::Kept::Memory && !self.no_webhook).then_some(competing_server);
        let backend = Backend {
            reviewer: Arc::new(Admission::new(evaluator, Arc::clone(&metrics), self.on_error)),
            not_ready: {
                let (stores, certificate, competing_server) = (stores.clone(), certificate.clone(), alone.clone());
                Arc::new(move || {
                    let lagging = stores.lagging().into_iter().chain(certificate.problem(Timestamp::now()));
                    lagging.chain(competing_server.as_ref().and_then(|found| found.borrow().problem())).collect()
                })
            },
            metrics: Arc::new(move || gauges.encode()),
        };
        // The webhook is registered only after the caches have synced. A registration by URL is removed before the
        // server stops.
        let (close, closed) = watch::channel(false);
        let end = until(&closed);
        let mut server = tokio::spawn(async move { server.run(backend, &certificate, end).await });
        if let Some(registration) = registration {
            let (end, stopped, stores) = (until(&stopped), until(&stopped), stores.clone());
            tasks.spawn(async move {
                let ready = async {
                    stores.completed().await;
                    if let Some(mut competing_server) = alone {
                        // A replica must not take over the webhook configuration of another running server.
                        let _ = competing_server.wait_for(|found| *found == CompetingServer::None).await;
                    }
                };
                tokio::select! {
                    () = ready => {}
                    () = stopped => return Ok(()),
                }
                tracing::info!("ready");
                Ok(registration.run(end).await?)
            });
        }
        let mut failed = tokio::select! {
            () = shutdown_signal() => {
                tracing::info!("stopping");
                None
            }
            ended = &mut server => Some(ended.context("the server stopped early").and_then(|ended| Ok(ended?))),
            Some(ended) = tasks.join_next() => Some(ended.context("a server task stopped early").flatten()),
        };
        stop.send_replace(true);
        if self.register_url.is_none() {
            close.send_replace(true);
        }
        while let Some(ended) = tasks.join_next().await {
            failed = failed.or(Some(ended.context("a server task stopped early").flatten()).filter(Result::is_err));
        }
        close.send_replace(true);
        if !server.is_finished() {
            let ended = server.await.context("the server stopped early").and_then(|ended| Ok(ended?));
            failed = failed.or(Some(ended).filter(Result::is_err));
        }
        last.send_replace(true);
        let _ = led.await;
        if let Some(counted) = counted {
            let _ = counted.await;
        }
        tracing::info!("stopped");
        failed.unwrap_or(Ok(()))
    }

    fn duties(&self, namespace: &str) -> Duties {
        let registers = !self.no_webhook && (self.register_url.is_some() || self.tls_cert.is_none());
        Duties {
            namespace: namespace.to_owned(),
            moves: true,
            load_balancers: self.move_load_balancers,
            nodes: true,
            external: true,
            agents_namespace: self.agents_namespace.clone(),
            agent: false,
            claims: self.claims == replica_claims::Kept::Lease,
            authority: self.tls_cert.is_none().then(|| authority::SECRET.to_owned()),
            registration: registers.then(|| permissions::Registration {
                name: self.webhook_configuration.clone(),
                own: self.register_url.is_some(),
            }),
            settings: self.settings_configmap.clone(),
            settings_namespace: None,
        }
    }

    /// The certificate of the server, and the task that registers it with the API server.
    async fn certificate(
        &self,
        client: &Client,
        namespace: &str,
        settings: watch::Receiver<Arc<LiveSettings>>,
        stopped: &watch::Receiver<bool>,
        tasks: &mut JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<(Certificate, Option<Registration>)> {
        let name = &self.webhook_configuration;
        if let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) {
            let files = CertificateFiles::open(certificate, key)?;
            let (certificate, chain) = (files.certificate(), String::from_utf8_lossy(files.chain()).into_owned());
            let end = until(stopped.clone());
            tasks.spawn(async move {
                files.run(LOOK_AT_FILES, end).await;
                Ok(())
            });
            let registration = match &self.register_url {
                Some(url) => {
                    let (_, bundle) = watch::channel(chain);
                    Some(Registration::with_url(client.clone(), name, url, bundle).await?.following(settings))
                }
                // A user with an own certificate has configured the API server to trust it.
                None => None,
            };
            return Ok((certificate, registration));
        }
        let names = match &self.register_url {
            Some(url) => vec![registration::url_host(url)?],
            None => authority::service_names(&self.service, namespace),
        };
        let authority = Authority::open(client.clone(), namespace, names, Arc::new(Timestamp::now)).await?;
        let certificate = authority.certificate();
        let registration = match &self.register_url {
            _ if self.no_webhook => None,
            Some(url) => {
                Some(Registration::with_url(client.clone(), name, url, authority.bundle()).await?.following(settings))
            }
            None => Some(Registration::in_cluster(client.clone(), name, authority.bundle())),
        };
        // Without a webhook the API server need not trust this server.
        let trusted = registration.as_ref().map_or_else(|| authority.bundle(), Registration::registered);
        let end = until(stopped.clone());
        tasks.spawn(async move {
            authority.run(trusted, end).await;
            Ok(())
        });
        Ok((certificate, registration))
    }
}

/// The gauges that are computed for each scrape.
struct Gauges {
    metrics: Arc<Metrics>,
    reconciler: Arc<Reconciler>,
    leadership: watch::Receiver<crate::controller::leader::Leadership>,
    certificate: Certificate,
}

impl Gauges {
    fn encode(&self) -> String {
        let evaluator = self.reconciler.evaluator();
        let settings = evaluator.settings();
        let mut used: Vec<_> = {
            let snapshot = evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
            snapshot.addresses().collect()
        };
        let in_flight = evaluator.ledger().held();
        used.extend(in_flight.iter().map(|(address, _)| *address));
        used.sort_unstable();
        used.dedup();
        let squatters =
            if self.leadership.borrow().leads() { self.reconciler.squatters() } else { BTreeMap::default() };
        let mut pools: Vec<PoolFill> = Vec::new();
        for pool in pool_use::of(&settings.settings, &used) {
            let fill = FamilyFill {
                family: pool.family,
                usable: pool.usable,
                used: pool.occupied,
                free: pool.usable.saturating_sub(pool.used),
            };
            match pools.last_mut().filter(|last| last.pool == pool.name) {
                Some(last) => last.families.push(fill),
                None => {
                    let squatters = squatters.get(&pool.name).copied().unwrap_or_default();
                    pools.push(PoolFill { pool: pool.name, families: vec![fill], squatters });
                }
            }
        }
        self.metrics.pools(&pools);
        self.metrics.node_pools(&{
            let snapshot = evaluator.stores().snapshot().read().unwrap_or_else(PoisonError::into_inner);
            pool_blocks::of(&settings.settings, || {
                snapshot.all("v1", "Node").flat_map(|node| blocks_of(&node)).collect()
            })
        });
        self.metrics.ledger(in_flight.len());
        let leads = self.leadership.borrow().leads();
        self.metrics.leader(leads);
        if !leads {
            // Only the leader reports misplaced Services.
            self.metrics.misplaced(&[]);
        }
        for ((_, kind), state) in evaluator.stores().states().iter() {
            self.metrics.store_synced(kind, matches!(state, State::Synced | State::Absent));
        }
        for (kind, followed) in evaluator.stores().control_plane_services().followed() {
            self.metrics.store_synced(&kind, followed);
        }
        self.metrics.certificate_expiry(self.certificate.not_after());
        let blind = evaluator.stores().stale_since().map(|since| since.elapsed()).unwrap_or_default();
        self.metrics.api_server_contact(SystemTime::now() - blind);
        self.metrics.encode()
    }
}
