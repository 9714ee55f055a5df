//! Large JSON lists, read item by item. The YAML parser would keep a text in braces completely until its end.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use crate::object;

/// Calls `visit` with each object of a list as `kubectl get -o json` prints it, in its order. Returns whether the text
/// is such a list. If it returns false, for an invalid text too, the objects that were visited don't count; the YAML
/// parser reads the text again and reports where a mistake is.
pub fn visit(text: &str, namespace: &str, visit: &mut dyn FnMut(Value)) -> bool {
    if !text.trim_start().starts_with('{') {
        return false;
    }
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let list = List { namespace, visit };
    list.deserialize(&mut deserializer).is_ok_and(|()| deserializer.end().is_ok())
}

struct List<'v> {
    namespace: &'v str,
    visit: &'v mut dyn FnMut(Value),
}

impl<'de> DeserializeSeed<'de> for List<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for List<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let (mut is_list, mut has_items) = (false, false);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "kind" => is_list = map.next_value::<String>()? == "List",
                "items" if has_items => return Err(A::Error::custom("items twice")),
                "items" => {
                    has_items = true;
                    map.next_value_seed(Items { namespace: self.namespace, visit: &mut *self.visit })?;
                }
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if is_list && has_items { Ok(()) } else { Err(A::Error::custom("no list")) }
    }
}

struct Items<'v> {
    namespace: &'v str,
    visit: &'v mut dyn FnMut(Value),
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(mut item) = items.next_element::<Value>()? {
            let (kind, name) = (object::kind(&item), object::name(&item));
            if kind.is_empty() || kind.ends_with("List") || object::api_version(&item).is_empty() || name.is_empty() {
                return Err(A::Error::custom("no object"));
            }
            if object::is_namespaced(kind) && object::namespace(&item).is_empty() {
                item["metadata"]["namespace"] = json!(self.namespace);
            }
            (self.visit)(item);
        }
        Ok(())
    }
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
            let is_list = visit(&text, "default", &mut |item| {
                seen.push(format!("{}/{}", object::namespace(&item), object::name(&item)));
            });
            assert_eq!(is_list.then(|| seen.join(", ")).as_deref(), expected, "{name}");
        }
    }
}
