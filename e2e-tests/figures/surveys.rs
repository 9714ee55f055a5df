//! How many Services are created in a second while the server examines all others again and again.

use std::time::{Duration, Instant};

use tokio::time::MissedTickBehavior;

use super::bench::{Bench, services};
use super::manifests::service;
use super::support::serve_process::Server;
use super::table::{Bound, Table, ratios};

const NAMESPACE: &str = "shop";
/// The number of Services of a load.
const SERVICES: usize = 450;
/// The server logs this after each survey.
const EXAMINED: &str = "all Services were examined";
/// The server logs this when it uses new settings.
const IN_USE: &str = "settings in use source=";
/// The time that the server has to examine the Services after the last change of a load.
const SETTLING: Duration = Duration::from_secs(3);
/// The shortest time from a change of the settings to the next one.
const PACE: Duration = Duration::from_secs(1);
const MAX_CHANGE: Duration = Duration::from_secs(120);
/// The pause between two looks at the log.
const LOOK: Duration = Duration::from_millis(20);

/// The rates of each round, in Services per second.
#[derive(Default)]
pub struct Surveys {
    at_rest: Vec<f64>,
    during: Vec<f64>,
    /// The number of surveys during the load.
    surveys: usize,
}

/// Creates Services while the settings stay and while they change once a second, in turns. In every second round, the
/// order is reversed.
pub async fn measure(bench: &Bench, rounds: usize) -> Surveys {
    bench.namespace(NAMESPACE).await;
    let server = bench.serve("memory").await;
    let mut measured = Surveys::default();
    // The first load warms up connections, caches and the API server.
    rate(bench).await;
    for round in 0..rounds {
        for changes in [round % 2 == 0, round % 2 == 1] {
            if !changes {
                measured.at_rest.push(rate(bench).await);
                continue;
            }
            let before = surveys(&server);
            let during = tokio::select! {
                created = rate(bench) => created,
                () = keep_changing(bench, &server) => f64::NAN,
            };
            // The last change may not be in use yet.
            tokio::time::sleep(SETTLING).await;
            measured.during.push(during);
            measured.surveys += surveys(&server) - before;
        }
    }
    bench.end(server).await;
    measured
}

/// The times in seconds from a change of the settings until the server uses them, and until it has examined all Services
/// again.
pub struct Change {
    pub in_use: f64,
    pub examined: f64,
}

/// The number of surveys that the server has finished.
pub fn surveys(server: &Server) -> usize {
    logged(server, EXAMINED)
}

fn logged(server: &Server, text: &str) -> usize {
    server.log().iter().filter(|line| line.contains(text)).count()
}

/// Changes the settings, and waits until the server has examined all Services again.
pub async fn change(bench: &Bench, server: &Server) -> Change {
    let [in_use, examined] = [IN_USE, EXAMINED].map(|text| (text, logged(server, text)));
    let begin = Instant::now();
    bench.change_settings(server, examined.1);
    let wait = async |(text, before): (&str, usize)| {
        while logged(server, text) == before {
            assert!(begin.elapsed() < MAX_CHANGE, "not logged after a change of the settings: {text}");
            tokio::time::sleep(LOOK).await;
        }
        begin.elapsed().as_secs_f64()
    };
    Change { in_use: wait(in_use).await, examined: wait(examined).await }
}

async fn keep_changing(bench: &Bench, server: &Server) {
    let mut pace = tokio::time::interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        pace.tick().await;
        change(bench, server).await;
    }
}

/// Creates Services and deletes them. Returns how many were created in a second.
async fn rate(bench: &Bench) -> f64 {
    let path = services(NAMESPACE);
    let begin = Instant::now();
    bench.add(&path, (0..SERVICES).map(|index| service(NAMESPACE, index))).await;
    let rate = SERVICES as f64 / begin.elapsed().as_secs_f64();
    bench.clear(&path).await;
    rate
}

impl Surveys {
    /// Prints the figures.
    pub fn rows(&self, table: &mut Table) {
        table.total("surveys of all Services during the load", self.surveys as f64, "", Bound::None);
        table.rounds("rate of creates without a survey, 60 at a time", &self.at_rest, "/s", Bound::None);
        table.rounds("rate of creates during surveys, 60 at a time", &self.during, "/s", Bound::None);
        table.rounds("ratio of the rates", &ratios(&self.during, &self.at_rest), "", Bound::AtLeast(0.9));
    }
}
