//! Label selectors, in the query syntax of the API server.

use clusterip_core::label_selector::{LabelSelector, Labels, Operator, Requirement};

/// Parses a label selector such as `a=b,c!=d,e in (f,g),h notin (i),j,!k`.
pub fn labels(text: &str) -> Result<LabelSelector, String> {
    let requirements = if text.trim().is_empty() { Vec::new() } else { split(text) };
    Ok(LabelSelector {
        match_labels: Labels::new(),
        match_expressions: requirements.into_iter().map(|part| requirement(text, part)).collect::<Result<_, _>>()?,
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

/// Reads a requirement, which is a part of the selector.
fn requirement(selector: &str, text: &str) -> Result<Requirement, String> {
    let error = |reason: &str| {
        let offset = text.as_ptr().addr().saturating_sub(selector.as_ptr().addr());
        let position = 1 + selector.get(..offset).unwrap_or_default().chars().count();
        format!("at character {position}: unable to parse requirement {text:?}: {reason}")
    };
    let is_plain = |text: &str, also: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c));
    let of = |key: &str, operator, values: Vec<String>| {
        let key = key.trim();
        if key.is_empty() || !is_plain(key, "-_./") {
            return Err(error("invalid label key"));
        }
        if !values.iter().all(|value| is_plain(value, "-_.")) {
            return Err(error("invalid label value"));
        }
        Ok(Requirement { key: key.to_owned(), operator, values })
    };
    if text.is_empty() {
        return Err(error("empty: remove a comma"));
    }
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
    let values = values.ok_or_else(|| error("values in parentheses are expected"))?;
    of(key, operator, values.split(',').map(|value| value.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        for text in [
            "app like web",
            "app in web",
            "=web",
            "app in (web",
            "a b c",
            "app=web tier=front",
            "app=web)",
            "app in (web))",
            "replicas>1",
            "app=web,",
            ",app=web",
            "app=web,,tier=front",
            ",",
        ] {
            assert!(labels(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn error_has_the_position_of_its_requirement() {
        for (text, position) in
            [("a b c", 1), ("app=web,  a b c", 11), ("app in (x,y),ü", 14), ("ü,x", 1), ("app==web,", 10)]
        {
            let error = labels(text).unwrap_err();
            assert!(error.starts_with(&format!("at character {position}: ")), "{text:?}: {error}");
        }
    }
}
