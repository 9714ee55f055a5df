//! Lists objects page by page, so that no answer of the API server is large.

use std::future::Future;

use kube::Error as KubeError;
use kube::api::{ListParams, ObjectList};

/// How many objects are requested at a time.
const PAGE: u32 = 500;

/// Calls `visit` with each object that `parameters` select. `list` sends the request for one page.
///
/// # Errors
/// The error of the first request that fails. `visit` was called with the objects of the pages before.
pub async fn visit_pages<T: Clone, P>(
    parameters: ListParams,
    list: impl Fn(ListParams) -> P,
    mut visit: impl FnMut(T),
) -> Result<(), KubeError>
where
    P: Future<Output = Result<ObjectList<T>, KubeError>>,
{
    let parameters = parameters.limit(PAGE);
    let mut page = parameters.clone();
    loop {
        let found = list(page).await?;
        found.items.into_iter().for_each(&mut visit);
        match found.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = parameters.clone().continue_token(&token),
            None => return Ok(()),
        }
    }
}
