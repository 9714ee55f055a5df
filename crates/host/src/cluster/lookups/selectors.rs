//! Label and field selectors, in the query syntax of the API server.

use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};
use serde_json::Value;
use thiserror::Error;

/// A selector that can't be parsed, or uses an operator that the API does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unable to parse requirement {requirement:?}: {reason}")]
pub struct SelectorError {
    requirement: String,
    reason: &'static str,
}

/// Parses a label selector such as `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
///
/// # Errors
/// [`SelectorError`] for the first requirement that is invalid.
pub fn labels(text: &str) -> Result<LabelSelector, SelectorError> {
    let requirements = split(text).into_iter().filter(|part| !part.is_empty());
    Ok(LabelSelector {
        match_labels: Labels::new(),
        match_expressions: requirements.map(requirement).collect::<Result<_, _>>()?,
    })
}

/// Splits at commas outside of parentheses.
fn split(text: &str) -> Vec<&str> {
    let mut depth = 0_u32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    })
    .map(str::trim)
    .collect()
}

fn requirement(text: &str) -> Result<Requirement, SelectorError> {
    let error = |reason| SelectorError { requirement: text.to_owned(), reason };
    let of = |key: &str, operator, values: Vec<String>| {
        let key = key.trim();
        let plain = !key.is_empty() && !key.contains(|c: char| c.is_whitespace() || "()=!,".contains(c));
        if plain { Ok(Requirement { key: key.to_owned(), operator, values }) } else { Err(error("invalid label key")) }
    };
    if let Some(key) = text.strip_prefix('!') {
        return of(key, Operator::DoesNotExist, Vec::new());
    }
    if let Some((key, value)) = text.split_once("!=") {
        return of(key, Operator::NotIn, vec![value.trim().to_owned()]);
    }
    if let Some((key, value)) = text.split_once('=') {
        return of(key, Operator::In, vec![value.trim_start_matches('=').trim().to_owned()]);
    }
    let Some((key, rest)) = text.split_once(char::is_whitespace) else { return of(text, Operator::Exists, Vec::new()) };
    let rest = rest.trim();
    let (operator, values) = match (rest.strip_prefix("notin"), rest.strip_prefix("in")) {
        (Some(values), _) => (Operator::NotIn, values),
        (None, Some(values)) => (Operator::In, values),
        (None, None) => return Err(error("an operator is expected: =, ==, !=, in, notin")),
    };
    let values = values.trim().strip_prefix('(').and_then(|values| values.strip_suffix(')'));
    let values = values.ok_or(error("values in parentheses are expected"))?;
    of(key, operator, values.split(',').map(|value| value.trim().to_owned()).collect())
}

/// Whether an object matches a field selector such as `metadata.name=web,spec.type!=LoadBalancer`.
///
/// # Errors
/// [`SelectorError`] for a requirement that is invalid.
pub fn fields_match(text: &str, object: &Value) -> Result<bool, SelectorError> {
    for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let error = |reason| SelectorError { requirement: part.to_owned(), reason };
        let (path, wanted, equal) = match (part.split_once("!="), part.split_once('=')) {
            (Some((path, value)), _) => (path, value, false),
            (None, Some((path, value))) => (path, value.trim_start_matches('='), true),
            (None, None) => return Err(error("an operator is expected: =, ==, !=")),
        };
        let path: Vec<&str> = path.trim().split('.').collect();
        if (crate::object::text(object, &path) == wanted.trim()) != equal {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::json;

    use super::*;

    #[test]
    fn label_selectors_select_as_the_api_server_does() {
        let web: Labels = [("app".to_owned(), "web".to_owned()), ("tier".to_owned(), "front".to_owned())].into();
        let rows = [
            ("", true),
            ("app=web", true),
            ("app==web", true),
            ("app=db", false),
            ("app!=db", true),
            ("none!=x", true),
            ("app in (db, web)", true),
            ("app in (db)", false),
            ("app notin (db),tier=front", true),
            ("tier", true),
            ("none", false),
            ("!none", true),
            ("!app", false),
        ];
        for (text, expected) in rows {
            assert_eq!(labels(text).unwrap().matches(&web), expected, "{text:?}");
        }
        for text in ["app like web", "app in web", "=web", "app in (web", "a b c"] {
            assert!(labels(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn field_selectors_compare_strings_at_paths() {
        let object = json!({"metadata": {"name": "web"}, "spec": {"type": "ClusterIP"}});
        for (text, expected) in [
            ("metadata.name=web", true),
            ("metadata.name==web,spec.type!=LoadBalancer", true),
            ("spec.clusterIP=None", false),
            ("spec.clusterIP=", true),
        ] {
            assert_eq!(fields_match(text, &object), Ok(expected), "{text:?}");
        }
        assert!(fields_match("metadata.name", &object).is_err());
    }
}
