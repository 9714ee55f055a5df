//! Joins values to one text.

use std::fmt::Display;

/// The items as text, with the separator between them.
pub fn joined<T: Display>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}
