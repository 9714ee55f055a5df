//! Lists objects page by page, so that no answer of the API server is large. Tenants can write objects of 1.5 MB.
//! Therefore a page of many objects is read only up to a maximum size. If it is larger, its objects are requested in
//! pages of fewer objects.

use std::future::Future;

use axum::body::Body;
use axum::http::Uri;
use futures::StreamExt;
use kube::Error as KubeError;
use kube::api::{ListParams, ObjectList};
use thiserror::Error;
use tower::BoxError;

use crate::api_error::causes;

/// How many objects are requested at a time, as long as no page is too large. Pages of more objects have no maximum
/// size: the watchers of kube request 500 objects by default, and can't request fewer of them later.
pub const PAGE_OBJECTS: u32 = 400;
/// A page of at most this many objects may have any size, so that every list ends.
pub const SMALL_PAGE_OBJECTS: u32 = 25;
/// The maximum size of other pages, in bytes.
const MAX_PAGE_BYTES: usize = 4 << 20;

/// A page of a list is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a page of the list is larger than {MAX_PAGE_BYTES} bytes")]
struct PageTooLarge;

/// How many objects to request at a time after a page of so many objects was too large.
pub fn fewer_objects(objects: u32) -> u32 {
    (objects / 4).max(SMALL_PAGE_OBJECTS)
}

/// Whether a request failed because its page is too large. Request the page again with [`fewer_objects`].
pub fn is_page_too_large(error: &KubeError) -> bool {
    causes(error).any(<dyn std::error::Error>::is::<PageTooLarge>)
}

/// Whether the page that this URI requests has a maximum size.
pub(crate) fn has_maximum_size(uri: &Uri) -> bool {
    let limit = uri.query().and_then(|query| query.split('&').find_map(|part| part.strip_prefix("limit=")));
    limit
        .and_then(|limit| limit.parse().ok())
        .is_some_and(|limit: u32| SMALL_PAGE_OBJECTS < limit && limit <= PAGE_OBJECTS)
}

/// The same body. Reading it fails with [`PageTooLarge`] after [`MAX_PAGE_BYTES`].
pub(crate) fn with_maximum_size(body: Body) -> Body {
    let mut left = MAX_PAGE_BYTES;
    Body::from_stream(body.into_data_stream().map(move |part| {
        let part = part?;
        left = left.checked_sub(part.len()).ok_or(PageTooLarge)?;
        Ok::<_, BoxError>(part)
    }))
}

/// Calls `visit` with each object that `parameters` select. `list` sends the request for one page.
///
/// # Errors
/// The error of the first request that fails for another reason than the size of its page. `visit` was called with the
/// objects of the pages before.
pub async fn visit_pages<T: Clone, P>(
    parameters: ListParams,
    list: impl Fn(ListParams) -> P,
    mut visit: impl FnMut(T),
) -> Result<(), KubeError>
where
    P: Future<Output = Result<ObjectList<T>, KubeError>>,
{
    let (mut parameters, mut objects) = (parameters, PAGE_OBJECTS);
    loop {
        let found = match list(parameters.clone().limit(objects)).await {
            Err(error) if is_page_too_large(&error) => {
                objects = fewer_objects(objects);
                continue;
            }
            found => found?,
        };
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

    use axum::body::to_bytes;
    use kube::core::{ListMeta, TypeMeta};

    use super::*;

    #[test]
    fn only_pages_that_can_be_smaller_have_a_maximum_size() {
        for (uri, expected) in [
            ("/api/v1/services?limit=400", true),
            ("/api/v1/services?limit=500", false),
            ("/api/v1/services?labelSelector=a&limit=26&continue=x", true),
            ("/api/v1/services?limit=25", false),
            ("/api/v1/services?limit=", false),
            ("/api/v1/services?resourceVersion=0", false),
            ("/api/v1/services", false),
        ] {
            assert_eq!(has_maximum_size(&uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[tokio::test]
    async fn body_is_read_up_to_the_maximum_size() {
        let parts = |last: usize| {
            let parts = [MAX_PAGE_BYTES - 1, last].map(|length| Ok::<_, BoxError>(vec![0; length]));
            with_maximum_size(Body::from_stream(futures::stream::iter(parts)))
        };
        assert_eq!(to_bytes(parts(1), usize::MAX).await.unwrap().len(), MAX_PAGE_BYTES);
        let error = to_bytes(parts(2), usize::MAX).await.unwrap_err();
        assert!(is_page_too_large(&KubeError::Service(error.into())));
        assert!(!is_page_too_large(&KubeError::LinesCodecMaxLineLengthExceeded));
    }

    #[tokio::test]
    async fn objects_of_a_large_page_are_listed_in_smaller_pages() {
        // A page that begins at object 400 is too large if it has more than 30 objects.
        let requested = RefCell::new(Vec::new());
        let list = async |parameters: ListParams| {
            let first: u32 = parameters.continue_token.as_deref().map_or(0, |token| token.parse().unwrap());
            let limit = parameters.limit.unwrap();
            requested.borrow_mut().push((first, limit));
            if first == 400 && limit > 30 {
                return Err(KubeError::Service(PageTooLarge.into()));
            }
            let end = (first + limit).min(440);
            let continue_ = (end < 440).then(|| end.to_string());
            let metadata = ListMeta { continue_, ..ListMeta::default() };
            Ok(ObjectList { types: TypeMeta::default(), metadata, items: (first..end).collect() })
        };
        let mut visited = Vec::new();
        visit_pages(ListParams::default(), list, |number: u32| visited.push(number)).await.unwrap();
        assert_eq!(visited, (0..440).collect::<Vec<_>>());
        assert_eq!(*requested.borrow(), [(0, 400), (400, 400), (400, 100), (400, 25), (425, 25)]);
    }
}
