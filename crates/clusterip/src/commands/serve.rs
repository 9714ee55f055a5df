//! `clusterip serve`

mod startup;
mod tasks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use clusterip_cluster::connect::ClusterArguments;
use clusterip_cluster::logging::Logging;
use clusterip_cluster::permissions::{self, Duties};
use clusterip_cluster::reservations::replica_claims::ClaimStore;
use clusterip_cluster::shutdown::shutdown_signal;

use super::arguments::DnsArguments;
use crate::webhook::admission::OnError;
use crate::webhook::authority;
use crate::webhook::registration;
use crate::webhook::tls::CertificateFiles;

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

#[derive(Debug, Args)]
#[command(after_long_help = HELP, group(DnsArguments::requiring("seamless")))]
pub struct ServeArguments {
    #[command(flatten)]
    cluster: ClusterArguments,
    /// The address for HTTPS
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:8443", value_parser = address("0.0.0.0:8443"))]
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
        value_parser = address("127.0.0.1:8080")
    )]
    ui: Option<SocketAddr>,
    #[command(flatten)]
    logging: Logging,
}

fn address(example: &'static str) -> impl Fn(&str) -> Result<SocketAddr, String> + Clone {
    move |text| text.parse().map_err(|_| format!("expected ADDR:PORT such as {example}"))
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

    /// Serves until SIGTERM or SIGINT.
    async fn serve(self, files: Option<CertificateFiles>) -> anyhow::Result<()> {
        let mut shutdown = pin!(shutdown_signal());
        let running = tokio::select! {
            biased;
            () = &mut shutdown => {
                tracing::info!(target: LOG_TARGET, "stopped before startup was complete");
                return Ok(());
            }
            running = self.start(files) => running?,
        };
        running.until_shutdown(shutdown).await
    }

    fn duties(&self, namespace: &str) -> Duties {
        let registers = !self.no_webhook && (self.register_url.is_some() || self.tls_cert.is_none());
        Duties {
            namespace: namespace.to_owned(),
            moves: true,
            load_balancers: self.move_load_balancers,
            seamless: self.seamless_moves,
            nodes: true,
            external: true,
            agents_namespace: self.agents_namespace.clone(),
            claims: self.claims == ClaimStore::Lease,
            authority: self.tls_cert.is_none().then(|| authority::SECRET.to_owned()),
            registration: registers.then(|| permissions::Registration {
                name: self.webhook_configuration.clone(),
                own: self.register_url.is_some(),
            }),
            pools: self.settings.is_none() && self.policy.is_none(),
            kubewarden_policy: self.policy.clone(),
            ..Duties::default()
        }
    }
}
