//! `clusterip serve`

mod running;
mod startup;
mod webhook;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::live_settings::SettingsSource;
use clusterip_cluster::logging::Logging;
use clusterip_cluster::permissions::{self, Duties};
use clusterip_cluster::reservations::replica_claims::ClaimStore;
use clusterip_cluster::shutdown::{shutdown_signal, until};
use kube::Client;
use tokio::sync::watch;

use self::running::{Election, Running};
use self::startup::Startup;
use super::arguments::DnsArguments;
use crate::leader::Candidate;
use crate::services::controller::affected::Changes;
use crate::webhook::admission::OnError;
use crate::webhook::authority;
use crate::webhook::registration::{self, Registration};
use crate::webhook::server::WebhookServer;
use crate::webhook::tls::{Certificate, CertificateFiles};
use clusterip_moves::journal::SeamlessOptions;

const HELP: &str = "\
Examples:
  In the cluster, as in deploy/webhook:
    clusterip serve
  Outside of the cluster, to try it; the API server must be able to reach the URL:
    clusterip serve --settings examples/settings/k2s.yaml \\
      --listen 127.0.0.1:8443 --register-url https://127.0.0.1:8443
  Beside Kubewarden, with the settings of its policy, as in deploy/kubewarden/moves:
    clusterip serve --no-webhook --policy clusterip-policy

Exit status: 0 after SIGTERM or SIGINT; 2 if the server can't start or continue.";

/// The target of all log lines of this command.
const LOG_TARGET: &str = module_path!();

/// The number of threads for blocking work: files, DNS look-ups and checks of settings.
const BLOCKING_THREADS: usize = 2;
/// The minimum number of threads for reviews if each of them waits for its claim.
const CLAIMING_THREADS: usize = 16;

#[derive(Debug, Args)]
#[command(after_long_help = HELP)]
pub struct ServeArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The address for HTTPS
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8443", value_parser = listen_address)]
    listen: SocketAddr,
    /// The settings file, which is read again when it changes, or - for standard input [default: the pools of the
    /// cluster]
    #[arg(short, long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The ClusterAdmissionPolicy of Kubewarden with the settings in `spec.settings`, which is watched for changes
    #[arg(long, value_name = "NAME", requires = "no_webhook", conflicts_with = "settings", value_parser = NonEmptyStringValueParser::new())]
    policy: Option<String>,
    /// The server's namespace, with its Lease and Secret [default: that of the service account or kubeconfig]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    namespace: Option<String>,
    /// The namespace of the agents, with the Leases that name the holders of external addresses [default: the server's
    /// namespace]
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    agents_namespace: Option<String>,
    /// The Service of this server, for the names in its certificate
    #[arg(long, value_name = "NAME", default_value = "clusterip", value_parser = NonEmptyStringValueParser::new())]
    service: String,
    /// The webhook configuration whose caBundle is kept up to date
    #[arg(
        long,
        value_name = "NAME",
        default_value = registration::NAME,
        value_parser = NonEmptyStringValueParser::new()
    )]
    webhook_configuration: String,
    /// Write the webhook configuration for this URL. When the server stops, it removes this configuration, and the
    /// Lease and the Secret that it created
    #[arg(long, value_name = "https://HOST:PORT")]
    register_url: Option<String>,
    /// A certificate of your own, in PEM. The file is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Answer reviews only for clients with a certificate of this authority, in PEM. The file is read again when it
    /// changes
    #[arg(long, value_name = "FILE", conflicts_with = "no_webhook")]
    client_ca: Option<PathBuf>,
    /// How to answer a request if the policy fails
    #[arg(long, value_enum, value_name = "WHAT", default_value_t)]
    on_error: OnError,
    /// Run only the controllers, without a webhook, because another program does admission
    #[arg(long, conflicts_with_all = ["register_url", "tls_cert", "on_error"])]
    no_webhook: bool,
    /// Where addresses in flight are recorded; several replicas need `lease`
    #[arg(long, value_enum, value_name = "WHERE", default_value_t)]
    claims: ClaimStore,
    /// Which misplaced Services are moved
    #[arg(long = "move", value_enum, value_name = "WHICH", default_value_t)]
    moves: Moves,
    /// Also move Services of type LoadBalancer: their cloud may remove the load balancer during the move
    #[arg(long)]
    move_load_balancers: bool,
    /// Move Services with ready endpoints seamlessly: both addresses answer during the move. Needs the permissions of
    /// deploy/seamless
    #[arg(id = "seamless", long = "seamless-moves")]
    seamless_moves: bool,
    #[command(flatten)]
    dns: DnsArguments,
    /// Serve the map of all pools over plain HTTP. Without an address, only this machine can connect
    #[arg(
        long,
        value_name = "ADDR:PORT",
        num_args = 0..=1,
        default_missing_value = "127.0.0.1:8080",
        value_parser = ui_address
    )]
    ui: Option<SocketAddr>,
    #[command(flatten)]
    logging: Logging,
}

/// A server that has read its settings and listens, but takes no part in the leader election and answers no request
/// yet.
struct Prepared<'a> {
    // The first field is dropped first: if the start is given up, the tasks are aborted before the server is dropped.
    startup: Startup<'a>,
    candidate: Candidate,
    /// The changes that the stores see.
    changes: Changes,
    /// The client of the task that gives Nodes their pod CIDRs.
    nodes_client: Client,
    server: WebhookServer,
    certificate: Certificate,
    /// The registration of the webhook, if this server looks after one.
    registration: Option<Registration>,
    /// The options of seamless moves; `None` for plain moves.
    seamless: Option<SeamlessOptions>,
}

fn listen_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected ADDR:PORT such as 0.0.0.0:8443")
}

fn ui_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "expected ADDR:PORT such as 127.0.0.1:8080")
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Moves {
    /// No Service: misplaced Services are only reported
    Never,
    /// Services without ready endpoints that can be reached at their present address
    #[default]
    Undisturbed,
    /// All misplaced Services
    Always,
}

impl ServeArguments {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        if let Some(url) = &self.register_url {
            registration::url_host(url)?;
        }
        // The user's own certificate.
        let files = self.tls_cert.as_ref().zip(self.tls_key.as_ref());
        let files = files.map(|(certificate, key)| CertificateFiles::open(certificate, key)).transpose()?;
        self.logging.start()?;
        // Evaluations have threads of their own. The allocator keeps some megabytes of freed memory for each thread.
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.max_blocking_threads(BLOCKING_THREADS).enable_all().build()?;
        let done = runtime.block_on(self.serve(files));
        // A watch may still be in the middle of a request that no task waits for.
        runtime.shutdown_background();
        done.map(|()| ExitCode::SUCCESS)
    }

    /// Starts the duties of the server one after the other, then serves until SIGTERM or SIGINT.
    async fn serve(self, files: Option<CertificateFiles>) -> anyhow::Result<()> {
        let mut shutdown = pin!(shutdown_signal());
        let prepared = tokio::select! {
            biased;
            () = &mut shutdown => {
                tracing::info!(target: LOG_TARGET, "stopped before startup was complete");
                return Ok(());
            }
            prepared = self.prepare(files) => prepared?,
        };
        self.start(prepared)?.until_shutdown(shutdown).await
    }

    /// All steps of the start that wait for the API server. They may be dropped at any point: no Lease is taken and no
    /// request is answered before [`Self::start`].
    async fn prepare(&self, files: Option<CertificateFiles>) -> anyhow::Result<Prepared<'_>> {
        // From here on requests may be in progress: each task below ends by itself after `stop`.
        let (mut startup, candidate, changes) = Startup::begin(self).await?;
        startup.warn_about_the_cluster();
        startup.serve_map().await?;
        let server = startup.listen().await?;
        let (certificate, registration) = startup.certificate(files).await?;
        startup.trust_clients(&certificate)?;
        let seamless = self.dns.options(&self.cluster.client().await?, self.seamless_moves).await;
        // The controller of Nodes runs in a thread of its own, and its connections live there.
        let nodes_client = self.cluster.client().await?;
        Ok(Prepared { startup, candidate, changes, nodes_client, server, certificate, registration, seamless })
    }

    /// Takes part in the leader election, and starts the duties that depend on it.
    fn start(&self, prepared: Prepared<'_>) -> anyhow::Result<Running> {
        let Prepared { mut startup, candidate, changes, nodes_client, server, certificate, registration, seamless } =
            prepared;
        let mut election = Election::start(candidate);
        let reconciler = startup.reconciler().seamless(seamless);
        let reconciler = Arc::new(startup.claim_addresses(reconciler, &mut election));
        startup.assign_pod_cidrs(nodes_client, &election)?;
        startup.assign_external_addresses(&reconciler, &election);
        startup.write_status(Arc::clone(&reconciler), &election);
        startup.move_services(Arc::clone(&reconciler), changes, &election);
        let backend = startup.backend(reconciler, &certificate, &election);
        let (close, closed) = watch::channel(false);
        let server = tokio::spawn(async move { server.run(backend, &certificate, until(closed)).await });
        startup.register(registration, &election);
        Ok(Running { tasks: startup.tasks, server, close, election, unregisters: self.register_url.is_some() })
    }

    fn settings_source(&self, client: &Client) -> SettingsSource {
        SettingsSource::chosen(self.settings.as_deref(), self.policy.as_deref(), client)
    }

    fn duties(&self, namespace: &str) -> Duties {
        let registers = !self.no_webhook && (self.register_url.is_some() || self.tls_cert.is_none());
        Duties {
            namespace: namespace.to_owned(),
            moves: true,
            previews_moves: false,
            load_balancers: self.move_load_balancers,
            seamless: self.seamless_moves,
            nodes: true,
            external: true,
            agents_namespace: self.agents_namespace.clone(),
            agent: false,
            claims: self.claims == ClaimStore::Lease,
            authority: self.tls_cert.is_none().then(|| authority::SECRET.to_owned()),
            registration: registers.then(|| permissions::Registration {
                name: self.webhook_configuration.clone(),
                own: self.register_url.is_some(),
            }),
            pools: self.settings.is_none() && self.policy.is_none(),
            kubewarden_policy: self.policy.clone(),
        }
    }
}
