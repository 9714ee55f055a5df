//! The arguments of seamless moves.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use kube::Client;

use crate::services::cluster_dns::{self, MAX_GRACE_PERIOD};
use crate::services::mover::SeamlessOptions;

/// What seamless moves depend on in DNS. By default, both values are those of the configuration of CoreDNS. Each needs
/// the argument with the id `seamless`.
#[derive(Debug, Args)]
pub struct DnsArguments {
    /// For how many seconds the old address answers after a seamless move [default: as long as DNS may answer with it,
    /// as the ConfigMap kube-system/coredns says, and 5 s more; 60 if it can't be read]
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "seamless",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_GRACE_PERIOD)),
    )]
    grace_period: Option<u32>,
    /// The domain of the cluster in DNS [default: as the ConfigMap kube-system/coredns says; cluster.local if it can't
    /// be read]
    #[arg(long, value_name = "DOMAIN", requires = "seamless", value_parser = NonEmptyStringValueParser::new())]
    cluster_domain: Option<String>,
}

impl DnsArguments {
    /// The options of seamless moves.
    pub async fn options(&self, client: &Client) -> SeamlessOptions {
        cluster_dns::options(client, self.grace_period, self.cluster_domain.as_deref()).await
    }
}

/// The arguments of `serve`.
#[derive(Debug, Args)]
pub struct SeamlessServer {
    /// Move Services with ready endpoints seamlessly: both addresses answer during the move. Needs the permissions of
    /// deploy/seamless
    #[arg(id = "seamless", long = "seamless-moves")]
    seamless_moves: bool,
    #[command(flatten)]
    dns: DnsArguments,
}

impl SeamlessServer {
    /// Whether Services are moved seamlessly.
    pub fn is_on(&self) -> bool {
        self.seamless_moves
    }

    /// The options of seamless moves; `None` if Services are not moved seamlessly.
    pub async fn options(&self, client: &Client) -> Option<SeamlessOptions> {
        if self.seamless_moves { Some(self.dns.options(client).await) } else { None }
    }
}

/// The arguments of `move`.
#[derive(Debug, Args)]
pub struct SeamlessCommand {
    /// Move Services with ready endpoints seamlessly: both addresses answer during the move. Needs the permissions of
    /// deploy/seamless
    #[arg(long)]
    seamless: bool,
    /// If a server carries out the moves: wait until the old addresses have stopped answering, and the temporary
    /// Services are deleted. Without a server, the command always waits
    #[arg(long, requires = "seamless")]
    pub wait: bool,
    #[command(flatten)]
    dns: DnsArguments,
}

impl SeamlessCommand {
    /// Whether Services are moved seamlessly.
    pub fn is_on(&self) -> bool {
        self.seamless
    }

    /// The options of seamless moves; `None` if Services are not moved seamlessly.
    pub async fn options(&self, client: &Client) -> Option<SeamlessOptions> {
        if self.seamless { Some(self.dns.options(client).await) } else { None }
    }
}
