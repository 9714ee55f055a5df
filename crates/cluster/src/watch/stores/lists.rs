//! How a kind is listed. Each watch begins with a list.

use crate::api_error::is_too_slow;
use crate::list_pages::{fewer_objects, is_page_too_large};

use super::super::kinds::{self, Kind};

/// The progress of the lists of one kind. It decides how the next list is requested.
pub(super) struct Lists {
    /// Whether the kind was listed completely at least once.
    pub(super) complete: bool,
    /// How many objects the next list requests at a time.
    pub(super) page_objects: u32,
}

impl Lists {
    /// The lists of a kind before the first one.
    pub(super) fn new(kind: &Kind) -> Self {
        Self { complete: false, page_objects: kinds::page_objects(kind) }
    }

    /// Notes that a list is complete.
    pub(super) fn completed(&mut self, kind: &Kind) {
        *self = Self { complete: true, ..Self::new(kind) };
    }

    /// Notes that a list failed. The next one has smaller pages if that may help. Returns whether to begin it at once.
    pub(super) fn failed(&mut self, error: &kube::Error) -> bool {
        let is_page_too_large = is_page_too_large(error);
        if is_page_too_large || is_too_slow(error) {
            self.page_objects = fewer_objects(self.page_objects);
        }
        is_page_too_large
    }
}
