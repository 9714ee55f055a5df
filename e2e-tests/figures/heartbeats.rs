//! What the heartbeats of agents cost the API server and etcd, with each value of `--failover`.
//!
//! The agents run in this process: those of `clusterip agent`, with connections and tokens of their own, on a network
//! that is fake because they hold no address. So at rest they write nothing but their heartbeats, and each of them
//! watches those of all others. The API server checks each write with the policies of `deploy/external`. etcd does not
//! wait until the disk has stored a write.

use std::sync::Arc;
use std::time::Duration;

use clusterip_agent::agent_metrics::{AgentMetrics, Renewal};
use clusterip_agent::event_loop::AddressAgent;
use clusterip_agent::heartbeat::Health;
use clusterip_cluster::shutdown::until;
use clusterip_failover::assignments::Assignments;
use clusterip_failover::timing::Failover;
use http::Request;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::bench::Bench;
use super::support::fake_network::FakeNetwork;
use super::support::installation::{AGENTS, DEPLOY};
use super::table::{Bound, Table};

/// The account of the agents.
const ACCOUNT: &str = "clusterip-agent";

struct Variant {
    agents: u16,
    failover: Failover,
    argument: &'static str,
    /// The largest and the smallest time between two heartbeats of an agent, in seconds.
    period: [f64; 2],
}

const VARIANTS: [Variant; 4] = [
    Variant { agents: 10, failover: Failover::Within25s, argument: "25s", period: [5.0, 4.5] },
    Variant { agents: 10, failover: Failover::Within5s, argument: "5s", period: [0.75, 0.675] },
    Variant { agents: 100, failover: Failover::Within25s, argument: "25s", period: [5.0, 4.5] },
    Variant { agents: 100, failover: Failover::Within5s, argument: "5s", period: [0.75, 0.675] },
];
/// Nothing is compared with another program here, and a round takes minutes, so there are few rounds.
const MOST_ROUNDS: usize = 3;
const SETTLING: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_secs(30);

/// The costs without agents and those of each of [`VARIANTS`], in each round.
pub struct Heartbeats {
    idle: Vec<Cost>,
    variants: [Vec<Round>; VARIANTS.len()],
}

struct Round {
    cost: Cost,
    /// The number of renewals that failed.
    failed: f64,
}

/// What happened in a second, on average.
#[derive(Clone, Copy)]
struct Cost {
    /// The writes of Leases.
    writes: f64,
    /// The events of Leases that the API server sent.
    events: f64,
    /// The processor time in seconds.
    api_server: f64,
    /// The processor time in seconds.
    etcd: f64,
}

/// Runs the agents of each variant in turns.
pub async fn measure(bench: &Bench, pairs: usize) -> Heartbeats {
    bench.plane().install_pools().await;
    bench.plane().kubectl(&["apply", "-k", &format!("{DEPLOY}/external")]).await.ok();
    let mut tokens = Vec::new();
    for nth in 0..VARIANTS.iter().map(|variant| variant.agents).max().unwrap() {
        tokens.push(bench.plane().token_on(&node(nth), AGENTS, ACCOUNT).await);
    }
    let mut measured = Heartbeats { idle: Vec::new(), variants: VARIANTS.map(|_| Vec::new()) };
    for _ in 0..pairs.min(MOST_ROUNDS) {
        measured.idle.push(cost(bench).await);
        for (variant, rounds) in VARIANTS.iter().zip(&mut measured.variants) {
            let agents = Agents::start(bench, variant, &tokens).await;
            let cost = cost(bench).await;
            rounds.push(Round { cost, failed: agents.end().await });
        }
    }
    measured
}

fn node(nth: u16) -> String {
    format!("agent-{nth}")
}

struct Agents {
    stop: watch::Sender<bool>,
    running: JoinSet<()>,
    metrics: Vec<AgentMetrics>,
}

impl Agents {
    /// Starts agents, and waits until all of them are alive.
    async fn start(bench: &Bench, variant: &Variant, tokens: &[String]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let network = FakeNetwork::default();
        // No agent ever gets another assignment.
        let (_, assignments) = watch::channel(Arc::new(Assignments::new()));
        let mut agents = Self { stop, running: JoinSet::new(), metrics: Vec::new() };
        let mut healths = Vec::new();
        for (nth, token) in (0..variant.agents).zip(tokens) {
            let (health, seen) = watch::channel(Health::default());
            let agent = AddressAgent {
                client: bench.plane().client_with(token),
                heartbeat: bench.plane().client_with(token),
                namespace: AGENTS.to_owned(),
                node: node(nth),
                failover: variant.failover,
                assignments: assignments.clone(),
                network: network.node(&node(nth)),
                metrics: AgentMetrics::default(),
            };
            agents.metrics.push(agent.metrics.clone());
            agents.running.spawn(agent.run(health, until(stopped.clone())));
            healths.push(seen);
        }
        for mut health in healths {
            health.wait_for(|health| health.alive).await.unwrap();
        }
        agents
    }

    /// Ends the agents, which give their heartbeats back. Returns how many renewals failed.
    async fn end(self) -> f64 {
        let failed = |metrics: &AgentMetrics| metrics.renewals.get_or_create(&[("result", Renewal::Failed)]).get();
        let failed: u64 = self.metrics.iter().map(failed).sum();
        self.stop.send_replace(true);
        self.running.join_all().await;
        failed as f64
    }
}

/// What happens in a second from now on.
async fn cost(bench: &Bench) -> Cost {
    sleep(SETTLING).await;
    let (before, begin) = (total(bench).await, Instant::now());
    sleep(PERIOD).await;
    let (after, seconds) = (total(bench).await, begin.elapsed().as_secs_f64());
    after.each(before, |after, before| (after - before) / seconds)
}

/// The same since the API server and etcd were started, according to their metrics.
async fn total(bench: &Bench) -> Cost {
    let etcd = Client::try_from(Config::new(bench.plane().etcd().parse().unwrap())).unwrap();
    let (api_server, etcd) = (metrics(bench.client()).await, metrics(&etcd).await);
    let leases = r#"resource="leases""#;
    Cost {
        writes: sum(&api_server, "apiserver_request_total", &[leases, r#"verb="PUT""#]),
        events: sum(&api_server, "apiserver_watch_events_total", &[leases]),
        api_server: sum(&api_server, "process_cpu_seconds_total", &[]),
        etcd: sum(&etcd, "process_cpu_seconds_total", &[]),
    }
}

async fn metrics(client: &Client) -> String {
    client.request_text(Request::get("/metrics").body(Vec::new()).unwrap()).await.unwrap()
}

/// The sum of a metric over all combinations of labels that contain these.
fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let is_it = |line: &&str| {
        line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    metrics.lines().filter(is_it).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

impl Cost {
    fn each(self, other: Self, combine: impl Fn(f64, f64) -> f64) -> Self {
        Self {
            writes: combine(self.writes, other.writes),
            events: combine(self.events, other.events),
            api_server: combine(self.api_server, other.api_server),
            etcd: combine(self.etcd, other.etcd),
        }
    }
}

impl Heartbeats {
    /// Prints what the agents of each variant add to the costs without agents.
    pub fn rows(&self, table: &mut Table) {
        let idle: Vec<f64> = self.idle.iter().map(|cost| 100.0 * (cost.api_server + cost.etcd)).collect();
        table.rounds("without agents: processor time of API server and etcd", &idle, "%", Bound::None);
        for (variant, rounds) in VARIANTS.iter().zip(&self.variants) {
            let more = |figure: fn(&Cost) -> f64| -> Vec<f64> {
                rounds.iter().zip(&self.idle).map(|(round, idle)| figure(&round.cost) - figure(idle)).collect()
            };
            let failed: Vec<f64> = rounds.iter().map(|round| round.failed).collect();
            let Variant { argument, period: [longest, shortest], .. } = variant;
            let agents = f64::from(variant.agents);
            // The renewals of an agent begin at any time, so a period has one more or one less of each agent.
            let edge = agents / PERIOD.as_secs_f64();
            let (least, most) = (agents / longest - edge, agents / shortest + edge);
            let name = format!("{agents} agents, --failover {argument}");
            table.rounds(&format!("{name}: writes a second"), &more(|cost| cost.writes), "", Bound::AtMost(most));
            let events = more(|cost| cost.events);
            table.rounds("  events of heartbeats a second", &events, "", Bound::AtLeast(agents * least));
            table.rounds("  processor time of the API server", &more(|cost| 100.0 * cost.api_server), "%", Bound::None);
            table.rounds("  processor time of etcd", &more(|cost| 100.0 * cost.etcd), "%", Bound::None);
            table.rounds("  renewals that failed", &failed, "", Bound::Exactly(0.0));
        }
    }
}
