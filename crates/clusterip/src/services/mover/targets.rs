//! Target addresses for a Service whose move is under way: [`Targets`] chooses and checks them, and an `Attempt` writes one
//! of them, and knows which one is next if it is refused.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clusterip_cluster::background;
use clusterip_cluster::evaluator::{Evaluation, Evaluator};
use clusterip_cluster::snapshot::{StoredEndpoints, StoredService};
use clusterip_core::address::Family;
use clusterip_core::annotations::is_moving;
use clusterip_core::service::addresses as service_addresses;
use clusterip_core::service_key::ServiceKey;
use clusterip_moves::journal::{Journal, ReleaseMethod};
use clusterip_moves::outcome::shown;
use clusterip_moves::step::Without;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::services::misplaced;

/// Chooses and checks the target addresses of one Service.
pub trait Targets: Send + Sync {
    /// Other addresses for the Service, as in [`MoveOrder::addresses`](super::MoveOrder::addresses); `None` if there are
    /// none. If one of them is in `refused`, there are no others.
    fn another(&self, refused: &[IpAddr]) -> impl Future<Output = Option<Vec<IpAddr>>> + Send;

    /// Whether the policy still gives the Service these addresses, which are the target of a recorded move.
    fn fits(&self, addresses: &[IpAddr]) -> impl Future<Output = bool> + Send;

    /// Addresses of these families for the Service if it can have neither new addresses nor its old ones, without any if
    /// the API server may pick them; `None` if there are none.
    fn last_resort(&self, families: &[Family]) -> impl Future<Output = Option<Vec<IpAddr>>> + Send;

    /// Asks the policy about an update of the Service that restores its external addresses. The settings may have
    /// changed since the move began.
    fn check_update(&self, before: &Value, after: &Value) -> impl Future<Output = Result<(), String>> + Send;

    /// Whether the Service, as it was before its move, can be reached at its addresses, if it has these EndpointSlices.
    fn is_reachable(&self, slices: &[Value]) -> bool;

    /// Whether the mover may restore a status with these addresses to the Service, as it was just stored. Other Services
    /// may show or have an address by now, and kube-proxy would send their traffic to the Pods of this Service.
    fn may_show(&self, service: &Value, addresses: &[IpAddr]) -> impl Future<Output = bool> + Send;
}

/// How long to wait until the watch of Services has shown the last write of a move.
const SEEN_WITHIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Asks the policy for other addresses for a Service that moves. Each one is reserved until the move has ended.
pub struct Alternatives {
    evaluator: Evaluator,
    /// The Service as it was before its move.
    service: Arc<StoredService>,
    evaluations: Mutex<Vec<Evaluation>>,
}

impl Alternatives {
    pub fn new(evaluator: &Evaluator, service: Arc<StoredService>) -> Self {
        Self { evaluator: evaluator.clone(), service, evaluations: Mutex::default() }
    }

    /// Asks on a background thread, because a move must neither block the runtime nor delay admission.
    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&Evaluator, &StoredService) -> T + Send + 'static,
    ) -> anyhow::Result<T> {
        let (evaluator, service) = (self.evaluator.clone(), Arc::clone(&self.service));
        background::run(&self.service.key().namespace, move || question(&evaluator, &service)).await
    }
}

impl Targets for Alternatives {
    async fn another(&self, _: &[IpAddr]) -> Option<Vec<IpAddr>> {
        // A refused address is reserved, or seen in use, so the policy does not choose it again.
        let asked = self.ask(|evaluator, service| misplaced::reserve_targets(evaluator, service).ok()).await;
        let (addresses, evaluation) = asked.ok()??;
        self.evaluations.lock().push(evaluation);
        Some(addresses)
    }

    async fn fits(&self, addresses: &[IpAddr]) -> bool {
        let addresses = addresses.to_vec();
        let fit = self.ask(move |evaluator, service| misplaced::may_have(evaluator, service, &addresses)).await;
        fit.unwrap_or_default()
    }

    async fn last_resort(&self, families: &[Family]) -> Option<Vec<IpAddr>> {
        let families = families.to_vec();
        self.ask(move |evaluator, service| misplaced::last_resort(evaluator, service.key(), &families)).await.ok()?
    }

    async fn check_update(&self, before: &Value, after: &Value) -> Result<(), String> {
        let (before, after) = (before.clone(), after.clone());
        let asked = self.ask(move |evaluator, _| misplaced::check_update(evaluator, &before, &after)).await;
        asked.map_err(|error| error.to_string())?
    }

    fn is_reachable(&self, slices: &[Value]) -> bool {
        let settings = self.evaluator.settings();
        let slices: Vec<StoredEndpoints> = slices.iter().map(StoredEndpoints::read).collect();
        misplaced::endpoints_of(&slices, self.evaluator.stores(), &settings.settings, &self.service).reachable > 0
    }

    async fn may_show(&self, service: &Value, addresses: &[IpAddr]) -> bool {
        let (stores, settings, key) = (self.evaluator.stores(), self.evaluator.settings(), ServiceKey::of(service));
        // Only the controller of external addresses writes a status with an address of an external pool.
        if addresses.iter().any(|address| settings.settings.external.pool_of(*address).is_some()) {
            return false;
        }
        // The watch shows all Services in the order in which they were written. So it has shown what the others got
        // before the last write of this Service. Before its release, it may have had the same address, but not the
        // marker.
        let is_seen = || {
            let seen = stores.service(&key);
            seen.is_some_and(|seen| is_moving(&seen) && service_addresses(&seen) == service_addresses(service))
        };
        let since = Instant::now();
        // A list shows them in another order.
        while !addresses.is_empty() && (!is_seen() || stores.lists_services()) {
            if since.elapsed() > SEEN_WITHIN {
                return false;
            }
            sleep(LOOK_AGAIN).await;
        }
        let snapshot = stores.read_snapshot();
        let is_of_other = |ip: &IpAddr| snapshot.ip_addresses().contains(ip) || snapshot.is_routed_to_other(*ip, &key);
        !addresses.iter().any(is_of_other)
    }
}

/// How many targets of the policy a move tries. A Service without an address then tries as many others: its old
/// addresses and those of [`Source::LastResort`].
pub(super) const MAX_TARGETS: usize = 5;

/// Where a target comes from, in the order in which they are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Policy,
    /// The Service had it before its move, and so may have it again, whatever the policy says now.
    Old,
    LastResort,
}

/// The current attempt to give a Service an address, and what earlier attempts found out.
pub(super) struct Attempt {
    /// The addresses of this attempt; empty if the API server picks them.
    pub(super) target: Vec<IpAddr>,
    source: Source,
    refused: Vec<IpAddr>,
    tried: usize,
    pub(super) notes: Vec<String>,
    /// When the wait for a node port began.
    waiting: Option<Instant>,
    pub(super) without: Without,
}

impl Attempt {
    /// The first attempt: at the addresses in the journal, if this process `ordered` them or the policy still gives
    /// them to the Service; otherwise at another target, and without one at the old addresses.
    pub(super) async fn first(journal: &Journal, ordered: Option<&[IpAddr]>, targets: &impl Targets) -> Self {
        let to = journal.to.as_slice();
        let trusted = !to.is_empty() && (ordered == Some(to) || targets.fits(to).await);
        let found = if trusted { Some(to.to_vec()) } else { next_target(targets, &[], &journal.from).await };
        let (source, target) = match found {
            Some(to) => (Source::Policy, to),
            None => (Source::Old, journal.from.clone()),
        };
        let mut notes = Vec::new();
        if !trusted && !to.is_empty() {
            notes.push(format!("the policy does not give it {} any more", shown(to)));
        }
        let without = Without::default();
        Self { target, source, refused: Vec::new(), tried: 0, notes, waiting: None, without }
    }

    /// The addresses of this attempt; empty if they are a last resort, with which the move ends elsewhere.
    pub(super) fn wanted(&self) -> &[IpAddr] {
        if self.source == Source::LastResort { &[] } else { &self.target }
    }

    /// Goes on to the old addresses, or to the last resort for those refused. `false` if there is nothing left to try.
    async fn fall_back(&mut self, journal: &Journal, targets: &impl Targets) -> bool {
        let mut next = journal.from.clone();
        let mut lost: Vec<&mut IpAddr> = next.iter_mut().filter(|address| self.refused.contains(*address)).collect();
        if self.source == Source::Policy && lost.is_empty() {
            (self.source, self.target) = (Source::Old, next);
            return true;
        }
        let families: Vec<Family> = lost.iter().map(|address| Family::of(**address)).collect();
        let Some(new) = targets.last_resort(&families).await else {
            self.notes.push("no address outside of all pools is free".to_owned());
            return false;
        };
        self.target = if new.is_empty() {
            new
        } else {
            lost.iter_mut().zip(new).for_each(|(old, new)| **old = new);
            next
        };
        self.source = Source::LastResort;
        true
    }

    /// Goes on to the next target after an address was refused. Returns `false` if there is nothing left to try.
    pub(super) async fn after_address(
        &mut self,
        journal: &Journal,
        which: Option<IpAddr>,
        reason: &str,
        targets: &impl Targets,
    ) -> bool {
        if !self.note_refusal("is not available", reason) {
            return false;
        }
        // If the second address is refused, the API server keeps the first one allocated for about a minute, so both
        // are lost.
        let is_first = which.is_some() && which == self.target.first().copied();
        self.lose(if is_first { 1 } else { self.target.len() }, journal);
        self.tried += 1;
        if self.tried < MAX_TARGETS
            && let Some(next) = next_target(targets, &self.refused, &journal.from).await
        {
            (self.source, self.target) = (Source::Policy, next);
            return true;
        }
        self.tried < 2 * MAX_TARGETS && self.fall_back(journal, targets).await
    }

    /// Goes on after the API server has refused the Service with these addresses. `false` if nothing is left to try.
    pub(super) async fn after_refusal(&mut self, journal: &Journal, reason: &str, targets: &impl Targets) -> bool {
        if !self.note_refusal("was refused", reason) {
            return false;
        }
        if self.source == Source::Old {
            self.lose(self.target.len(), journal);
        }
        self.source != Source::LastResort && self.fall_back(journal, targets).await
    }

    /// Notes why this attempt failed. `false` if the API server picked the addresses, so that nothing is left to try.
    fn note_refusal(&mut self, what: &str, reason: &str) -> bool {
        self.notes.push(match self.target.as_slice() {
            [] => reason.to_owned(),
            tried => format!("{} {what}: {reason}", shown(tried)),
        });
        !self.target.is_empty()
    }

    /// Does not try the first `count` addresses of this attempt again, except for one that the Service keeps throughout
    /// its move: it is not allocated again, and so never refused.
    fn lose(&mut self, count: usize, journal: &Journal) {
        let stays = |address: &IpAddr| {
            journal.release_method == ReleaseMethod::SingleStack && journal.from.first() == Some(address)
        };
        self.refused.extend(self.target.iter().take(count).filter(|address| !stays(address)));
    }

    /// Gives up a node port that was waited for long enough. `false` if the wait goes on, or no port can be given up.
    pub(super) fn after_port(&mut self, which: Option<u64>, reason: &str, patience: Duration) -> bool {
        let since = *self.waiting.get_or_insert_with(Instant::now);
        if since.elapsed() < patience {
            return false;
        }
        let Some(port) = which.filter(|port| !self.without.ports.contains(port)) else { return false };
        self.without.ports.push(port);
        self.notes.push(format!("node port {port} was replaced by another: {reason}"));
        true
    }
}

/// The next target that can be used: with the same address families, and without a refused address.
pub(super) async fn next_target(targets: &impl Targets, refused: &[IpAddr], from: &[IpAddr]) -> Option<Vec<IpAddr>> {
    let next = targets.another(refused).await?;
    let fresh = !next.is_empty() && next.iter().all(|address| !refused.contains(address));
    (fresh && (from.is_empty() || same_families(from, &next))).then_some(next)
}

/// Whether both lists have the same address families, in the same order.
pub(super) fn same_families(one: &[IpAddr], other: &[IpAddr]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(one, other)| one.is_ipv4() == other.is_ipv4())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use clusterip_moves::step::beginning;
    use serde_json::json;

    use super::*;

    /// Targets that are known in advance.
    struct Known {
        another: &'static [&'static str],
        fits: bool,
        last_resort: Option<&'static [&'static str]>,
    }

    fn parsed(addresses: &[&str]) -> Vec<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    impl Targets for Known {
        async fn another(&self, refused: &[IpAddr]) -> Option<Vec<IpAddr>> {
            let mut another = parsed(self.another).into_iter();
            another.find(|address| !refused.contains(address)).map(|address| vec![address])
        }

        async fn fits(&self, _: &[IpAddr]) -> bool {
            self.fits
        }

        async fn last_resort(&self, _: &[Family]) -> Option<Vec<IpAddr>> {
            self.last_resort.map(parsed)
        }

        async fn check_update(&self, _: &Value, _: &Value) -> Result<(), String> {
            Ok(())
        }

        fn is_reachable(&self, _: &[Value]) -> bool {
            false
        }

        async fn may_show(&self, _: &Value, _: &[IpAddr]) -> bool {
            false
        }
    }

    #[tokio::test]
    async fn api_server_picks_an_address_only_as_the_last_resort() {
        struct Case {
            name: &'static str,
            from: &'static [&'static str],
            to: &'static [&'static str],
            targets: Known,
            /// What the API server answers to each attempt: that an address is taken, or the first one, or another
            /// refusal.
            answers: &'static str,
            /// The addresses of each attempt; empty if the API server picks them.
            expected: &'static [&'static str],
        }
        let outside: Option<&'static [&'static str]> = Some(&["10.9.0.1"]);
        let known = |another, last_resort| Known { another, fits: true, last_resort };
        let base = |name, targets, answers, expected| Case {
            name,
            from: &["10.0.0.1"],
            to: &["10.1.0.1"],
            targets,
            answers,
            expected,
        };
        let dual = |name, to, last_resort, answers, expected| Case {
            from: &["10.0.0.1", "fd00::1"],
            to,
            ..base(name, known(&[], Some(last_resort)), answers, expected)
        };
        let cases = [
            base("refused", known(&[], outside), "rrr", &["10.1.0.1", "10.0.0.1", "10.9.0.1"]),
            base(
                "all are taken",
                known(&["10.1.0.2"], outside),
                "tttt",
                &["10.1.0.1", "10.1.0.2", "10.0.0.1", "10.9.0.1", "10.9.0.1"],
            ),
            base(
                "the old one is taken, and its pool is free again",
                known(&["10.0.0.1"], outside),
                "tt",
                &["10.1.0.1", "10.0.0.1", "10.9.0.1"],
            ),
            base("nothing is left", known(&[], None), "tt", &["10.1.0.1", "10.0.0.1"]),
            base("the settings isolate nothing", known(&[], Some(&[])), "ttt", &["10.1.0.1", "10.0.0.1", ""]),
            base(
                "the policy gives it no address",
                Known { another: &[], fits: false, last_resort: outside },
                "tr",
                &["10.0.0.1", "10.9.0.1"],
            ),
            base(
                "the policy gives it another address",
                Known { another: &["10.1.0.2"], fits: false, last_resort: outside },
                "r",
                &["10.1.0.2", "10.0.0.1"],
            ),
            dual(
                "only the second address moves",
                &["10.0.0.1", "fd01::1"],
                &["fd09::1"],
                "rrr",
                &["10.0.0.1,fd01::1", "10.0.0.1,fd00::1", "10.0.0.1,fd09::1"],
            ),
            dual(
                "both addresses move",
                &["10.1.0.1", "fd01::1"],
                &["10.9.0.1", "fd09::1"],
                "tt",
                &["10.1.0.1,fd01::1", "10.0.0.1,fd00::1", "10.9.0.1,fd09::1"],
            ),
            dual(
                "the first of both old addresses is taken",
                &["10.1.0.1", "fd01::1"],
                &["10.9.0.1"],
                "rf",
                &["10.1.0.1,fd01::1", "10.0.0.1,fd00::1", "10.9.0.1,fd00::1"],
            ),
        ];
        for Case { name, from, to, targets, answers, expected } in cases {
            let service = json!({"spec": {"clusterIP": from.first(), "clusterIPs": from}});
            let journal = beginning(&service, &parsed(to), "");
            let mut attempt = Attempt::first(&journal, None, &targets).await;
            let text = |attempt: &Attempt| attempt.target.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(",");
            let mut tried = vec![text(&attempt)];
            for answer in answers.chars() {
                let goes_on = match answer {
                    't' => attempt.after_address(&journal, None, "taken", &targets).await,
                    'f' => {
                        let first = attempt.target.first().copied();
                        attempt.after_address(&journal, first, "taken", &targets).await
                    }
                    _ => attempt.after_refusal(&journal, "refused", &targets).await,
                };
                tried.extend(goes_on.then(|| text(&attempt)));
            }
            assert_eq!(tried, expected, "{name}");
            let is_last_resort = attempt.source == Source::LastResort;
            assert_eq!(attempt.wanted().is_empty(), is_last_resort, "{name}: the outcome");
        }
    }
}
