//! The steps of a seamless move: finds out whether it can be prepared, and carries it out.

use std::net::IpAddr;
use std::time::Duration;

use clusterip_cluster::object::{service_path, text};
use clusterip_cluster::permissions;
use clusterip_core::annotations::TEMPORARY_LABEL;
use clusterip_core::service::MANAGER;
use clusterip_moves::journal::{Journal, Plan};
use clusterip_moves::method::{self, Method, method};
use clusterip_moves::outcome::{Outcome, Refusal, Size, Unmoved};
use clusterip_moves::seamless::{Moment, Observed, Request, SeamlessStep, Verb, Wait, next, request};
use clusterip_moves::step::{self, Step, is_being_deleted};
use clusterip_moves::temporary::{Role, Temporary, latest_grace_end};
use futures::future;
use http::Method as HttpMethod;
use jiff::Timestamp;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::records::text_of;
use super::targets::Targets;
use super::{FIRST_PAUSE, MoveError, MoveOrder, Run, RunStep, Stop};

/// How long the preparation may take. After that, the move is undone.
const MAX_PREPARATION: Duration = Duration::from_secs(30);
/// How often the EndpointSlices are looked at in the beginning. Later, an eighth of the time since then.
const ENDPOINTS_INTERVAL: Duration = Duration::from_millis(200);
/// A run pauses before each step on the Service itself that comes after this number of such steps. A move takes three
/// steps if no other client changes the Service.
const MAX_STEPS: usize = 8;
/// How many bytes the steps of a move add to a temporary Service at most.
const GROWTH: usize = 4096;
/// How many EndpointSlices are read at once.
const SLICES_PER_PAGE: usize = 4;
/// How many pages of EndpointSlices of a Service are read at most: Kubernetes writes up to 100 endpoints into each, and
/// an administrator may raise that to 1000.
const MAX_PAGES: usize = 256;

impl<T: Targets> Run<'_, T> {
    /// Chooses how to make the ordered move: with these temporary Services, or `None` for a plain move, because no
    /// seamless one was ordered, or because the Service can't move seamlessly. Changes no Service.
    pub(super) async fn plan_method(
        &mut self,
        service: &Value,
        to: &[IpAddr],
        order: &MoveOrder,
    ) -> Result<Option<Plan>, Stop> {
        let Some(options) = &order.seamless else { return Ok(None) };
        // All of them are read: the move reads them, too, and begins only if they are small enough for its place.
        let has_ready = self.ready_endpoints(&self.id.name).await?.is_none_or(|(number, _)| number > 0);
        if method(service, to, has_ready) != Method::Seamless {
            return Ok(None);
        }
        let prevented = |reason| Err(Unmoved::NotPrepared { reason }.into());
        if let Err(error) = permissions::require(&self.mover.client, &permissions::seamless_moves()).await {
            return prevented(error.to_string());
        }
        let quotas = format!("/api/v1/namespaces/{}/resourcequotas", self.id.namespace);
        if let Some(reason) = method::without_room(&self.list(&quotas).await?.1) {
            return prevented(reason);
        }
        let server = &self.mover.records.namespace;
        let grace = i64::from(options.grace_period);
        let plan = Plan::new(&self.id.namespace, self.uid, server, &options.cluster_domain, grace);
        match self.refusal_of_new(service, to, &plan).await {
            Some(reason) => prevented(reason),
            None => Ok(Some(plan)),
        }
    }

    /// Why the API server refuses the temporary Service with the new addresses; `None` if it may accept the Service.
    async fn refusal_of_new(&self, service: &Value, to: &[IpAddr], plan: &Plan) -> Option<String> {
        let creation = || {
            let service = step::bare(service);
            let journal = Journal { seamless: Some(plan.clone()), ..step::beginning(&service, to, "") };
            let seen = Observed { service: Some(service), ..Observed::default() };
            request(&SeamlessStep::Create(Role::New), &seen, &journal, 0)
        };
        let Request { namespace, body, .. } = creation()?;
        let path = format!("/api/v1/namespaces/{namespace}/services?dryRun=All&fieldManager={MANAGER}");
        match self.send(HttpMethod::POST, &path, text_of(body)).await {
            Ok(answer) if answer.len() + GROWTH > self.mover.size.most_read() => Some(format!(
                "the temporary Service {namespace}/{} would have {} bytes, and may become too large to read: shorten \
                 the Service, or move without --seamless",
                plan.new,
                answer.len()
            )),
            Err(Refusal::Refused(reason) | Refusal::TooLarge(reason)) => Some(format!(
                "the API server refuses the temporary Service {namespace}/{}: {reason}; it has the label \
                 {TEMPORARY_LABEL}, and none of the labels of the Service: exempt Services with this label from the \
                 policy that refuses it, or move without --seamless",
                plan.new
            )),
            _ => None,
        }
    }

    /// Carries out what is left of a seamless move, until nothing is to be done before the end of the grace period.
    pub(super) async fn finish_seamless(&mut self, journal: &Journal, plan: &Plan) -> Result<Outcome, MoveError> {
        // From here on, only the last step deletes the record.
        self.recorded = None;
        let mut last_write = Instant::now();
        let until_end = latest_grace_end(journal).saturating_sub(Timestamp::now().as_second());
        let deadline = last_write.into_std() + Duration::from_secs(until_end.max(0).unsigned_abs());
        self.mover.unfinished.set_deadline(self.uid, Some(deadline));
        let mut seen = Observed::default();
        self.observe(&mut seen, journal, plan).await?;
        let (mut is_fresh, mut steps) = (false, 0);
        loop {
            let has_temporary = seen.has_temporary(journal);
            self.mover.unfinished.set_deadline(self.uid, has_temporary.then_some(deadline));
            let begin = Instant::now();
            let step = self.next_step(&seen, journal, plan, last_write).await?;
            match &step {
                SeamlessStep::Wait(Wait::Grace(until)) => {
                    let rest = until.saturating_sub(Timestamp::now().as_second()).max(1).unsigned_abs();
                    self.mover.unfinished.go_on_after(self.uid, Duration::from_secs(rest));
                    return Ok(self.outcome(&seen));
                }
                SeamlessStep::Wait(Wait::Requests) => {
                    self.rest_until_requests_end();
                    return Ok(self.outcome(&seen));
                }
                // Another leader may have written since the objects were read.
                SeamlessStep::End if !is_fresh => {
                    self.observe(&mut seen, journal, plan).await?;
                    is_fresh = true;
                }
                SeamlessStep::End => {
                    // Its record stays: the move goes on when the Service can be read again.
                    if let Some(reason) = self.unreadable.take() {
                        self.wait(RunStep::Untouched("read"), &reason).await?;
                    }
                    self.discard().await?;
                    return Ok(self.outcome(&seen));
                }
                SeamlessStep::Wait(wait) => {
                    // A tenant whose endpoints never match must not make the mover look all the time.
                    let interval = ENDPOINTS_INTERVAL.max(self.since.elapsed() / 8).max(4 * begin.elapsed());
                    sleep(if let Wait::For(rest) = wait { *rest } else { interval }).await;
                    self.observe(&mut seen, journal, plan).await?;
                }
                SeamlessStep::GiveUp(role) => {
                    let (namespace, name) = plan.place(*role, journal);
                    self.progress.fail(format!(
                        "Service {namespace}/{name} exists, and is not the temporary Service of this move: rename or \
                         delete it, or move without --seamless"
                    ));
                }
                // The addresses of the first attempt decide which temporary Services are in its way. They are chosen
                // before `new` is deleted, because the Service has no address after that.
                SeamlessStep::Original(Step::Assign) | SeamlessStep::Delete(Role::New)
                    if self.attempt.is_none()
                        && seen.service.as_ref().is_some_and(|it| step::next(it, journal) == Step::Assign) =>
                {
                    self.attempt(journal).await;
                }
                SeamlessStep::Original(step) => {
                    is_fresh = true;
                    let Some(service) = seen.service.take() else { continue };
                    // The author of the Service can undo each step at once. Without temporary Services, the move can wait.
                    if !has_temporary && Instant::now().into_std() >= deadline {
                        // So long it waits for a node port before it gives the port up.
                        self.limit = self.limit.min(2 * self.mover.limits.ports);
                    }
                    steps += 1;
                    if steps > MAX_STEPS {
                        self.pause = self.since.elapsed() / 8;
                        self.wait(RunStep::Changing("restore"), &Refusal::Conflict).await?;
                    }
                    self.carry_out_step(*step, service, journal).await?;
                    self.observe(&mut seen, journal, plan).await?;
                }
                step => {
                    is_fresh = false;
                    if self.send_step(step, &mut seen, journal).await? {
                        last_write = Instant::now();
                    } else {
                        self.observe(&mut seen, journal, plan).await?;
                    }
                }
            }
        }
    }

    async fn next_step(
        &mut self,
        seen: &Observed,
        journal: &Journal,
        plan: &Plan,
        last_write: Instant,
    ) -> Result<SeamlessStep, MoveError> {
        let mut moment = Moment {
            now: Timestamp::now().as_second(),
            since_write: last_write.elapsed(),
            endpoints_match: false,
            is_late: self.since.elapsed() > MAX_PREPARATION,
            requests_ended: self.requests_ended(),
        };
        let target = self.attempt.as_ref().map_or_else(|| journal.to.clone(), |attempt| attempt.target.clone());
        let step = next(seen, journal, &self.progress, &moment, &target);
        if step != SeamlessStep::Wait(Wait::Endpoints) {
            return Ok(step);
        }
        moment.endpoints_match = self.endpoints_match(seen, plan).await?;
        Ok(next(seen, journal, &self.progress, &moment, &target))
    }

    /// Sends the request of a step. Returns whether it was carried out. Otherwise the objects have to be read again.
    async fn send_step(
        &mut self,
        step: &SeamlessStep,
        seen: &mut Observed,
        journal: &Journal,
    ) -> Result<bool, MoveError> {
        // The other steps belong to a swap, which begins when the trigger is created or deleted.
        if let SeamlessStep::Create(_) | SeamlessStep::ReleaseOld | SeamlessStep::Delete(Role::Old | Role::Trigger) =
            step
        {
            self.mover.change_windows.wait().await;
        }
        let Some(request) = request(step, seen, journal, Timestamp::now().as_second()) else { return Ok(false) };
        let Request { verb, namespace, name, body } = request;
        let path = service_path(&namespace, &name);
        let (method, path) = match verb {
            Verb::Create => {
                (HttpMethod::POST, format!("/api/v1/namespaces/{namespace}/services?fieldManager={MANAGER}"))
            }
            Verb::Replace => (HttpMethod::PUT, format!("{path}?fieldManager={MANAGER}")),
            Verb::TryReplace => (HttpMethod::PUT, format!("{path}?dryRun=All&fieldManager={MANAGER}")),
            Verb::Delete => (HttpMethod::DELETE, path),
        };
        let answer = self.request(method, &path, text_of(body)).await;
        tracing::debug!(service = %self.label(), ?step, refused = ?answer.as_ref().err(), "seamless move");
        if let Err(refusal) = &answer {
            self.note_unanswered(refusal);
        }
        let waits = self.progress.answered(step, answer.as_ref().map(drop));
        let written = match answer {
            // The API server keeps a Service that has a finalizer. The run waits for the removal of the finalizer, and
            // ends with an error after its time limit.
            Ok(written) if matches!(step, SeamlessStep::Delete(_)) && is_being_deleted(&written) => {
                let remains = "a finalizer keeps the temporary Service: remove the finalizer".to_owned();
                return self.wait(RunStep::Changing(step.name()), &Refusal::Trouble(remains)).await.map(|()| false);
            }
            Ok(written) => written,
            // A client that changes an object again and again must not keep the mover busy.
            Err(refusal) if waits || refusal == Refusal::Conflict => {
                return self.wait(RunStep::Changing(step.name()), &refusal).await.map(|()| false);
            }
            Err(_) => return Ok(false),
        };
        self.pause = FIRST_PAUSE;
        match step {
            SeamlessStep::Create(role) => *seen.temporary(*role) = Some(written),
            SeamlessStep::Delete(role) => *seen.temporary(*role) = None,
            SeamlessStep::ReleaseOld | SeamlessStep::TakeOld | SeamlessStep::BeginGrace => seen.old = Some(written),
            SeamlessStep::Release | SeamlessStep::PreventRelease => seen.service = Some(written),
            _ => {}
        }
        Ok(true)
    }

    /// Reads the objects. Those that were seen before are dropped first, because a user may have made them large.
    async fn observe(&mut self, seen: &mut Observed, journal: &Journal, plan: &Plan) -> Result<(), MoveError> {
        *seen = Observed::default();
        loop {
            // A Service that grows must not keep the old address while it waits for a place for large ones.
            let ends_unread =
                self.mover.size == Size::Large || Timestamp::now().as_second() >= latest_grace_end(journal);
            let path = |role| {
                let (namespace, name) = plan.place(role, journal);
                service_path(namespace, name)
            };
            let (own, new, old, trigger) = (self.path(), path(Role::New), path(Role::Old), path(Role::Trigger));
            let (own, new, old, trigger) =
                future::join4(self.get(&own), self.get(&new), self.get(&old), self.get(&trigger)).await;
            // No temporary Service of a move is too large to read, so such an object is of a user.
            let temporary = |read| match read {
                Err(Refusal::TooLarge(_)) if self.mover.size == Size::Large => Ok(Some(Value::Null)),
                read => read,
            };
            match (own, temporary(new), temporary(old), temporary(trigger)) {
                (Ok(service), Ok(new), Ok(old), Ok(trigger)) => {
                    self.unreadable = None;
                    let service = service.and_then(|service| self.same_service(service));
                    *seen = Observed { service, new, old, trigger };
                    return Ok(());
                }
                // Its author must not keep the old address, so it ends its move as if it were gone.
                (Err(reason @ Refusal::TooLarge(_)), Ok(new), Ok(old), Ok(trigger)) if ends_unread => {
                    self.unreadable = Some(reason);
                    *seen = Observed { service: None, new, old, trigger };
                    return Ok(());
                }
                (Err(refusal), ..) | (_, Err(refusal), ..) | (_, _, Err(refusal), _) | (_, _, _, Err(refusal)) => {
                    self.wait(RunStep::Untouched("read"), &refusal).await?;
                }
            }
        }
    }

    /// Whether a temporary Service of this move has an address of the current attempt.
    pub(super) async fn is_held_by_temporary(&self, journal: &Journal, plan: &Plan) -> bool {
        let Some(attempt) = &self.attempt else { return false };
        for role in [Role::New, Role::Old] {
            let (namespace, name) = plan.place(role, journal);
            if let Ok(found) = self.get(&service_path(namespace, name)).await
                && Temporary::of(found.as_ref(), role, journal).has_any(&attempt.target)
            {
                return true;
            }
        }
        false
    }

    /// Whether the EndpointSlices of the temporary Services list the endpoints of the Service. Those of `old` are not
    /// updated while it has no address.
    async fn endpoints_match(&mut self, seen: &Observed, plan: &Plan) -> Result<bool, MoveError> {
        let expected = self.ready_endpoints(&self.id.name).await?;
        let old_is_released = seen.old.as_ref().is_some_and(|old| text(old, &["spec", "type"]) == "ExternalName");
        Ok(expected.is_some()
            && self.ready_endpoints(&plan.new).await? == expected
            && (old_is_released || self.ready_endpoints(&plan.old).await? == expected))
    }

    /// The number of ready endpoints, and the sum of their hashes, which does not depend on their order; `None` if there
    /// are too many EndpointSlices.
    async fn ready_endpoints(&mut self, service: &str) -> Result<Option<(u64, u64)>, MoveError> {
        let mut ready = (0_u64, 0_u64);
        let add = |slices: &[Value]| {
            method::ready_endpoints(slices).for_each(|hash| ready = (ready.0 + 1, ready.1.wrapping_add(hash)));
            false
        };
        let too_many = self.find_in_slices(service, add).await?;
        Ok((!too_many).then_some(ready))
    }

    /// Whether the API server knows an endpoint of the Service that can be reached at its present addresses.
    pub(super) async fn is_reachable(&mut self) -> Result<bool, MoveError> {
        let targets = self.targets;
        self.find_in_slices(&self.id.name, |slices| targets.is_reachable(slices)).await
    }

    /// Reads the EndpointSlices of a Service in the namespace of the move, until `found` returns true for some of them,
    /// and tells whether it did. Also returns true after [`MAX_PAGES`], so that the Service does not move as one without
    /// endpoints. They are read in small pages: a tenant decides how large its EndpointSlices are, and many moves read
    /// theirs at once.
    async fn find_in_slices(
        &mut self,
        service: &str,
        mut found: impl FnMut(&[Value]) -> bool,
    ) -> Result<bool, MoveError> {
        let (mut token, mut limit) = (String::new(), SLICES_PER_PAGE);
        for _ in 0..MAX_PAGES {
            let path = format!(
                "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D\
                 {service}&limit={limit}&continue={token}",
                self.id.namespace
            );
            let (next, page) = match self.list(&path).await {
                // An administrator may have allowed 1000 endpoints in each.
                Err(MoveError::TooLarge(_)) if self.mover.size == Size::Large && limit > 1 => {
                    limit = 1;
                    continue;
                }
                read => read?,
            };
            if found(&page) {
                return Ok(true);
            }
            if next.is_empty() {
                return Ok(false);
            }
            token = next;
        }
        Ok(true)
    }

    /// The token of the next page, and the objects of a page of a list.
    async fn list(&mut self, path: &str) -> Result<(String, Vec<Value>), MoveError> {
        loop {
            match self.request(HttpMethod::GET, path, Vec::new()).await {
                Ok(mut page) => {
                    let items = page.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
                    let token = text(&page, &["metadata", "continue"]).to_owned();
                    return Ok((token, items.unwrap_or_default()));
                }
                Err(refusal) => self.wait(RunStep::Untouched("look up"), &refusal).await?,
            }
        }
    }

    fn outcome(&mut self, seen: &Observed) -> Outcome {
        let reached = seen.service.as_ref().and_then(|service| self.reached(service));
        match (reached, &self.progress.failure, &seen.service) {
            (None | Some(Outcome::Kept { .. }), Some(reason), Some(_)) => {
                Outcome::Unmoved(Unmoved::NotPrepared { reason: reason.clone() })
            }
            (Some(reached), ..) => reached,
            (None, None, Some(_)) => Outcome::Unmoved(Unmoved::NotMoving),
            (None, _, None) => Outcome::Unmoved(Unmoved::Gone),
        }
    }
}
