//! Lists objects page by page, so that no answer of the API server is large. Tenants can write objects of 1.5 MB, which
//! have up to 9 MB as JSON. Therefore a page of several objects is read only up to a maximum size. If it is larger, fewer
//! objects are requested in its place.

use std::collections::BTreeMap;
use std::future::Future;

use axum::body::{Body, Bytes};
use axum::http::uri::{PathAndQuery, Uri};
use axum::http::{Response, request};
use futures::StreamExt;
use kube::Error as KubeError;
use kube::api::{ListParams, ObjectList};
use kube::client::Body as RequestBody;
use parking_lot::Mutex;
use tower::BoxError;

/// How many objects are requested at a time, as long as no page is too large.
pub(crate) const PAGE_OBJECTS: u32 = 400;
/// How many objects are requested at a time if their kind has no schema, or if the API server is slow.
pub(crate) const SMALL_PAGE_OBJECTS: u32 = 25;
const MAX_PAGE_BYTES: usize = 4 << 20;
/// A page that is too large is requested again with so many times fewer objects, and the one after a page that is not
/// with so many times more.
const STEP: u32 = 4;

/// How many objects the next page of each list has at most, by the path of the list, after pages that were too large.
#[derive(Debug, Default)]
pub(crate) struct PageSizes(Mutex<BTreeMap<String, u32>>);

/// How many objects a request lists at most; `None` for another request.
pub(crate) fn requested_objects(uri: &Uri) -> Option<u32> {
    query_parts(uri).find_map(|part| part.strip_prefix("limit="))?.parse().ok()
}

pub(crate) fn query_parts(uri: &Uri) -> impl Iterator<Item = &str> {
    uri.query().into_iter().flat_map(|query| query.split('&'))
}

impl PageSizes {
    /// The answer to a request for a page of at most `requested` objects: a page with fewer objects, if it would be too
    /// large otherwise. A page of one object may have any size, so that every list ends.
    pub(crate) async fn request<P>(
        &self,
        head: &request::Parts,
        requested: u32,
        send: impl Fn(request::Request<RequestBody>) -> P,
    ) -> Result<Response<Body>, BoxError>
    where
        P: Future<Output = Result<Response<Body>, BoxError>>,
    {
        let path = head.uri.path();
        let mut objects = self.0.lock().get(path).map_or(requested, |most| requested.min(*most));
        loop {
            let mut head = head.clone();
            head.uri = with_limit(&head.uri, objects)?;
            let response = send(request::Request::from_parts(head, RequestBody::empty())).await?;
            let (answered, mut body) = response.into_parts();
            if objects > 1 {
                let Some(read) = read_up_to_maximum(body).await? else {
                    objects = (objects / STEP).max(1);
                    self.0.lock().insert(path.to_owned(), objects);
                    continue;
                };
                body = read.into();
            }
            self.grow(path, objects);
            return Ok(Response::from_parts(answered, body));
        }
    }

    fn grow(&self, path: &str, objects: u32) {
        let mut sizes = self.0.lock();
        let next = objects.saturating_mul(STEP);
        if next >= PAGE_OBJECTS {
            sizes.remove(path);
        } else if let Some(most) = sizes.get_mut(path) {
            *most = next;
        }
    }
}

fn with_limit(uri: &Uri, objects: u32) -> Result<Uri, BoxError> {
    let limit = format!("limit={objects}");
    let query: Vec<&str> =
        query_parts(uri).map(|part| if part.starts_with("limit=") { &limit } else { part }).collect();
    with_query(uri, &query)
}

/// The same URI with a query of these parts.
pub(crate) fn with_query(uri: &Uri, query: &[&str]) -> Result<Uri, BoxError> {
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}?{}", uri.path(), query.join("&")))?);
    Ok(Uri::from_parts(parts)?)
}

/// The whole body; `None` if it has more than [`MAX_PAGE_BYTES`].
async fn read_up_to_maximum(body: Body) -> Result<Option<Bytes>, BoxError> {
    let (mut parts, mut read) = (body.into_data_stream(), Vec::new());
    while let Some(part) = parts.next().await {
        read.extend_from_slice(&part?);
        if read.len() > MAX_PAGE_BYTES {
            return Ok(None);
        }
    }
    Ok(Some(read.into()))
}

/// Calls `visit` with each object that `parameters` select, up to the first request that fails. `list` sends the request
/// for one page.
pub async fn visit_pages<T: Clone, P>(
    parameters: ListParams,
    list: impl Fn(ListParams) -> P,
    mut visit: impl FnMut(T),
) -> Result<(), KubeError>
where
    P: Future<Output = Result<ObjectList<T>, KubeError>>,
{
    let mut parameters = parameters.limit(PAGE_OBJECTS);
    loop {
        let found = list(parameters.clone()).await?;
        found.items.into_iter().for_each(&mut visit);
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::cell::RefCell;

    use axum::http::Request;

    use super::*;

    #[test]
    fn only_lists_with_a_limit_have_pages() {
        for (uri, expected) in [
            ("/api/v1/services?limit=400", Some(400)),
            ("/api/v1/services?labelSelector=a&limit=26&continue=x", Some(26)),
            ("/api/v1/services?limit=", None),
            ("/api/v1/services?resourceVersion=0", None),
            ("/api/v1/services", None),
        ] {
            assert_eq!(requested_objects(&uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[tokio::test]
    async fn fewer_objects_are_requested_where_they_are_large() {
        // Objects 400 to 409 have 9 MB each.
        const LARGE: std::ops::Range<u32> = 400..410;
        let requested = RefCell::new(Vec::new());
        let sizes = PageSizes::default();
        let mut first = 0;
        while first < 900 {
            let uri = format!("/api/v1/pods?limit=400&continue={first}");
            let (head, ()) = Request::get(uri).body(()).unwrap().into_parts();
            let limit = requested_objects(&head.uri).unwrap();
            let answer = sizes.request(&head, limit, async |request| {
                let limit = requested_objects(request.uri()).unwrap();
                requested.borrow_mut().push((first, limit));
                let bytes: usize = (first..first + limit).map(|at| if LARGE.contains(&at) { 9 << 20 } else { 9 }).sum();
                let mut response = Response::new(Body::from(vec![b' '; bytes]));
                response.headers_mut().insert("objects", limit.into());
                Ok(response)
            });
            first += answer.await.unwrap().headers()["objects"].to_str().unwrap().parse::<u32>().unwrap();
        }
        let mut expected = vec![(0, 400), (400, 400), (400, 100), (400, 25), (400, 6), (400, 1)];
        expected.extend((401..410).flat_map(|at| [(at, 4), (at, 1)]));
        expected.extend([(410, 4), (414, 16), (430, 64), (494, 256), (750, 400)]);
        assert_eq!(*requested.borrow(), expected);
    }
}
