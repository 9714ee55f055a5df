//! Large JSON lists, read item by item. The YAML parser would keep a text in braces completely until its end.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::in_order::in_order;
use crate::object;

#[derive(Deserialize)]
struct List<'t> {
    kind: String,
    #[serde(borrow)]
    items: Vec<&'t RawValue>,
}

/// Reads the objects of a list as `kubectl get -o json` prints it, on other threads, and calls `visit` with what `read`
/// makes of each, in their order. Returns whether the text is such a list. If it returns false, for an invalid text too, the objects that were visited don't count; the YAML
/// parser reads the text again and reports where a mistake is.
pub fn visit<R: Send>(text: &str, namespace: &str, read: impl Fn(Value) -> R + Sync, mut visit: impl FnMut(R)) -> bool {
    if !text.trim_start().starts_with('{') {
        return false;
    }
    let Ok(List { kind, items }) = serde_json::from_str(text) else { return false };
    let mut is_list = kind == "List";
    in_order(
        &items,
        |item| object(item, namespace).map(&read),
        |_, item| match item {
            Some(item) => visit(item),
            None => is_list = false,
        },
    );
    is_list
}

/// An item of a list; `None` if it is no object with a type and a name.
fn object(item: &RawValue, namespace: &str) -> Option<Value> {
    let mut item: Value = serde_json::from_str(item.get()).ok()?;
    let (kind, name) = (object::kind(&item), object::name(&item));
    if kind.is_empty() || kind.ends_with("List") || object::api_version(&item).is_empty() || name.is_empty() {
        return None;
    }
    if object::is_namespaced(kind) && object::namespace(&item).is_empty() {
        item["metadata"]["namespace"] = json!(namespace);
    }
    Some(item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_complete_json_list_is_accepted() {
        struct Case {
            name: &'static str,
            text: String,
            expected: Option<&'static str>,
        }
        let web = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}"#;
        let whole = r#"default/web"#;
        let cases = [
            Case { name: "a list", text: format!(r#"{{"kind": "List", "items": [{web}]}}"#), expected: Some(whole) },
            Case {
                name: "a list with its kind after the items",
                text: format!(r#"{{"items": [{web}], "metadata": {{}}, "kind": "List"}}"#),
                expected: Some(whole),
            },
            Case { name: "an empty list", text: r#"{"kind": "List", "items": []}"#.to_owned(), expected: Some("") },
            Case { name: "an object", text: web.to_owned(), expected: None },
            Case {
                name: "a list whose items have no kind",
                text: r#"{"kind": "ServiceList", "items": [{"metadata": {"name": "web"}}]}"#.to_owned(),
                expected: None,
            },
            Case {
                name: "a list in a list",
                text: r#"{"kind": "List", "items": [{"kind": "PodList", "apiVersion": "v1"}]}"#.to_owned(),
                expected: None,
            },
            Case { name: "YAML", text: "{kind: List, items: []}".to_owned(), expected: None },
            Case {
                name: "a list with more text after it",
                text: format!(r#"{{"kind": "List", "items": [{web}]}} x"#),
                expected: None,
            },
            Case {
                name: "a list that is cut off",
                text: format!(r#"{{"kind": "List", "items": [{web}"#),
                expected: None,
            },
        ];
        for Case { name, text, expected } in cases {
            let mut seen = Vec::new();
            let shown = |item| format!("{}/{}", object::namespace(&item), object::name(&item));
            let is_list = visit(&text, "default", shown, |item| seen.push(item));
            assert_eq!(is_list.then(|| seen.join(", ")).as_deref(), expected, "{name}");
        }
    }
}
