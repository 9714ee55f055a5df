//! Reads the EndpointSlices of a Service that moves.
//!
//! Before the API server lists objects without a resource version, it waits until its cache has caught up with etcd: up
//! to 100 ms if their kind seldom changes, which is many times as long as any other request of a move takes. With the
//! resource version of an earlier list, it answers at once, and never with an older state than that of the earlier
//! list. So the moves of a mover share the resource version of their latest list without one.
//!
//! The resource version 0 would need no earlier list. But then the API server answers with whatever its cache has. An
//! API server whose cache is behind, beside others, would hide endpoints that became ready long ago, from this list and
//! from the watch, and the move would interrupt the Service.

use std::sync::Arc;
use std::time::Duration;

use clusterip_moves::outcome::Size;
use http::Method;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::targets::Targets;
use super::{MoveError, Page, Run};

/// How old an answer about the endpoints may be when the first write to the Service is sent. A dry run and a record
/// may take several requests. If the answer is older then, the EndpointSlices are listed again.
pub(super) const MAX_ANSWER_AGE: Duration = Duration::from_secs(1);
/// How long the resource version of a list serves other lists. Their answers count as being as old as that list, and a
/// move takes some time until its first write.
const LISTED_LASTS: Duration = Duration::from_millis(500);
/// How many EndpointSlices are read at once.
const SLICES_PER_PAGE: usize = 4;
/// How many pages of EndpointSlices of a Service are read at most: Kubernetes writes up to 100 endpoints into each, and
/// an administrator may raise that to 1000.
const MAX_PAGES: usize = 256;

/// The latest list of EndpointSlices without a resource version. All clones share it.
#[derive(Clone, Default)]
pub(super) struct LatestList(Arc<Mutex<Option<Listed>>>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    resource_version: String,
    /// When the request was sent. The answer has all that was stored by then.
    asked: Instant,
}

impl LatestList {
    fn recent(&self) -> Option<Listed> {
        self.0.lock().clone().filter(|listed| listed.asked.elapsed() < LISTED_LASTS)
    }

    fn note(&self, resource_version: &str, asked: Instant) {
        let mut latest = self.0.lock();
        if !resource_version.is_empty() && latest.as_ref().is_none_or(|latest| latest.asked < asked) {
            *latest = Some(Listed { resource_version: resource_version.to_owned(), asked });
        }
    }
}

/// What the API server has answered about the endpoints of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reachability {
    pub is_reachable: bool,
    /// The answer has all that was stored by then.
    pub at: Instant,
}

impl<T: Targets> Run<'_, T> {
    /// Whether the API server knows an endpoint of the Service that can be reached at its present addresses.
    pub(super) async fn reachability(&mut self) -> Result<Reachability, MoveError> {
        let (targets, listed, begin) = (self.targets, self.mover.latest_list.recent(), Instant::now());
        if let Some(listed) = listed {
            let found =
                self.find_in_slices(&self.id.name, Some(&listed), |slices| targets.is_reachable(slices)).await?;
            return Ok(Reachability { is_reachable: found, at: listed.asked });
        }
        let found = self.find_in_slices(&self.id.name, None, |slices| targets.is_reachable(slices)).await?;
        Ok(Reachability { is_reachable: found, at: begin })
    }

    /// Reads the EndpointSlices of a Service in the namespace of the move, until `found` returns true for some of them,
    /// and tells whether it did. Also returns true after [`MAX_PAGES`], so that the Service does not move as one
    /// without endpoints. They are not older than `listed`, or than this request. They are read in small pages: a
    /// tenant decides how large its EndpointSlices are, and many moves read theirs at once.
    pub(super) async fn find_in_slices(
        &mut self,
        service: &str,
        listed: Option<&Listed>,
        mut found: impl FnMut(&[Value]) -> bool,
    ) -> Result<bool, MoveError> {
        let (mut token, mut limit) = (String::new(), SLICES_PER_PAGE);
        for _ in 0..MAX_PAGES {
            let path = format!(
                "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D\
                 {service}&limit={limit}&continue={token}",
                self.id.namespace
            );
            // The token of a page contains the resource version of the first page.
            let read = match token.is_empty() {
                true => self.first_page(&path, listed).await,
                false => self.list(&path).await,
            };
            let page = match read {
                // An administrator may have allowed 1000 endpoints in each.
                Err(MoveError::TooLarge(_)) if self.mover.size == Size::Large && limit > 1 => {
                    limit = 1;
                    continue;
                }
                read => read?,
            };
            if found(&page.items) {
                return Ok(true);
            }
            if page.token.is_empty() {
                return Ok(false);
            }
            token = page.token;
        }
        Ok(true)
    }

    async fn first_page(&mut self, path: &str, listed: Option<&Listed>) -> Result<Page, MoveError> {
        if let Some(Listed { resource_version, .. }) = listed {
            let not_older = format!("{path}&resourceVersion={resource_version}&resourceVersionMatch=NotOlderThan");
            // An API server that does not know the resource version yet refuses it. Then it is asked without one.
            if let Ok(page) = self.request(Method::GET, &not_older, Vec::new()).await {
                return Ok(Page::of(page));
            }
        }
        let asked = Instant::now();
        let page = self.list(path).await?;
        self.mover.latest_list.note(&page.resource_version, asked);
        Ok(page)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::convert::Infallible;

    use clusterip_cluster::snapshot::StoredService;
    use clusterip_core::service_key::ServiceKey;
    use http::{Request, Response, StatusCode};
    use kube::Client;
    use kube::client::Body;
    use serde_json::json;
    use tower::service_fn;

    use super::*;
    use crate::services::mover::Mover;
    use crate::services::mover::targets::Alternatives;
    use crate::services::test_support::reconciler;

    /// The API server answers with two pages and the resource version 1 to the first list, 2 to the next one, and so
    /// on.
    #[tokio::test(start_paused = true)]
    async fn list_is_not_older_than_one_of_the_last_half_second() {
        struct Case {
            name: &'static str,
            /// Milliseconds since the list before.
            after: u64,
            /// Whether the API server does not know the resource version yet.
            is_behind: bool,
            /// The resource version of each first page that is asked for; empty if none is named.
            expected: &'static [&'static str],
            /// How many milliseconds old the answer counts as.
            age: u64,
        }
        let case = |name, after, expected, age| Case { name, after, is_behind: false, expected, age };
        let cases = [
            case("the first one", 0, &[""], 0),
            case("soon", 100, &["1"], 100),
            case("another one, which makes the version no newer", 399, &["1"], 499),
            case("after half a second", 1, &[""], 0),
            Case { is_behind: true, ..case("an API server that is behind", 200, &["4", ""], 200) },
            case("after that", 499, &["6"], 499),
        ];
        let sent = Arc::<Mutex<Vec<String>>>::default();
        let is_behind = Arc::<Mutex<bool>>::default();
        let lists = Arc::<Mutex<u64>>::default();
        let (seen, behind) = (Arc::clone(&sent), Arc::clone(&is_behind));
        let client = service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let version = query.split('&').find_map(|field| field.strip_prefix("resourceVersion="));
            let is_first_page = query.contains("continue=&") || query.ends_with("continue=");
            assert_eq!(query.contains("resourceVersionMatch=NotOlderThan"), version.is_some(), "{query}");
            let mut metadata = json!({});
            if is_first_page {
                let mut lists = lists.lock();
                *lists += 1;
                metadata = json!({"resourceVersion": lists.to_string(), "continue": "more"});
                seen.lock().push(version.unwrap_or_default().to_owned());
            } else {
                assert_eq!(version, None, "the token has it");
            }
            let page = json!({"metadata": metadata, "items": []}).to_string();
            let mut answer = Response::new(Body::from(page.into_bytes()));
            if version.is_some() && *behind.lock() {
                *answer.status_mut() = StatusCode::GATEWAY_TIMEOUT;
            }
            async move { Ok::<_, Infallible>(answer) }
        });
        let client = Client::new(client, "default");
        let evaluator = reconciler(client.clone()).evaluator.clone();
        let web = StoredService::read(&json!({"metadata": {"namespace": "shop", "name": "web"}}));
        let targets = Alternatives::new(&evaluator, Arc::new(web));
        let (mover, id) = (Mover::new(client, "clusterip"), ServiceKey::new("shop", "web"));
        for Case { name, after, is_behind: now_behind, expected, age } in cases {
            tokio::time::advance(Duration::from_millis(after)).await;
            *is_behind.lock() = now_behind;
            // Each move has a clone of the mover.
            let mover = mover.up_to(Size::Usual);
            let found = Run::new(&mover, &id, "u", &targets).reachability().await.unwrap();
            assert!(!found.is_reachable, "{name}");
            assert_eq!(found.at.elapsed(), Duration::from_millis(age), "{name}");
            assert_eq!(std::mem::take(&mut *sent.lock()), expected, "{name}");
        }
    }
}
