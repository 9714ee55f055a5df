//! The identity of an object of this API. Messages about settings that were compiled from objects name the object and
//! its field in place of a field of the document.

use std::fmt;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

use crate::{GROUP, VERSION};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    ServicePool,
    ExternalPool,
    NodeBlockPool,
    ClusterIPPolicy,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::ServicePool, Self::ExternalPool, Self::NodeBlockPool, Self::ClusterIPPolicy];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::ServicePool => "ServicePool",
            Self::ExternalPool => "ExternalPool",
            Self::NodeBlockPool => "NodeBlockPool",
            Self::ClusterIPPolicy => "ClusterIPPolicy",
        }
    }

    pub fn api_resource(self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, VERSION, self.as_str()))
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// The kind and the name of an object. No object of this API has a namespace. Displayed as `ServicePool linux`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    pub kind: Kind,
    pub name: String,
}

impl ObjectKey {
    /// The only ClusterIPPolicy that is read: `default`.
    pub fn policy() -> Self {
        Self { kind: Kind::ClusterIPPolicy, name: "default".to_owned() }
    }

    /// The key of an object in JSON; `None` if it is not an object of this API, or has no name.
    pub fn of(object: &Value) -> Option<Self> {
        let (group, _) = object.get("apiVersion")?.as_str()?.split_once('/')?;
        if group != GROUP {
            return None;
        }
        let kind = Kind::parse(object.get("kind")?.as_str()?)?;
        Some(Self { kind, name: object.pointer("/metadata/name")?.as_str()?.to_owned() })
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.as_str(), self.name)
    }
}

pub(crate) const SECTIONS: [(&str, Kind); 3] =
    [("services", Kind::ServicePool), ("external", Kind::ExternalPool), ("nodes", Kind::NodeBlockPool)];
/// The fields of a ClusterIPPolicy or a pool with one of several names as their value. Objects have these names in
/// upper camel case, as all of Kubernetes does, and the document has them in lower camel case.
pub(crate) const ENUM_FIELDS: [&str; 4] = ["order", "explicit", "whenFull", "unmatched"];

/// What messages say about fields of the document, and what they say about the same fields of objects.
const WORDS: [(&str, &str); 6] = [
    ("services.pools[].whenFull: unmanaged", "spec.whenFull: Unmanaged in the ServicePool"),
    ("services.whenFull: unmanaged", "spec.whenFull: Unmanaged in ClusterIPPolicy default"),
    ("services.order: spread", "spec.order: Spread in ClusterIPPolicy default"),
    ("services.order is lowest", "spec.order of ClusterIPPolicy default is Lowest"),
    ("services.evidence.kinds", "spec.evidence.kinds of ClusterIPPolicy default"),
    ("services.serviceCIDRs", "spec.serviceCIDRs of ClusterIPPolicy default"),
];

/// The object and the field that a path of a compiled document stands for, such as `ServicePool linux` and `spec.match`
/// for `services.pools[0].match`; `None` if the text is not such a path.
pub fn field_of(path: &str, document: &Value) -> Option<(ObjectKey, String)> {
    let below = |section: &str| path.strip_prefix(section).filter(|rest| rest.is_empty() || rest.starts_with('.'));
    let (section, kind) = *SECTIONS.iter().find(|(section, _)| below(section).is_some())?;
    let below = below(section)?.trim_start_matches('.');
    if let Some((index, field)) = below.strip_prefix("pools[").and_then(|rest| rest.split_once(']')) {
        let name = document.pointer(&format!("/{section}/pools/{index}/name"))?.as_str()?.to_owned();
        return Some((ObjectKey { kind, name }, format!("spec{field}")));
    }
    let field = match (section, below) {
        // No pool is for the Services of which only this is known.
        ("services", "pools") => "spec.assumeOS".to_owned(),
        ("services", "") => "spec".to_owned(),
        ("services", field) => format!("spec.{field}"),
        _ => format!("spec.{path}"),
    };
    Some((ObjectKey::policy(), field))
}

/// What is wrong with a field of an object. It begins with the value if that is a name, which objects have in upper
/// camel case.
pub fn reason_of_object(field: &str, reason: &str) -> String {
    let is_name = ENUM_FIELDS.iter().any(|name| field == format!("spec.{name}"));
    if is_name { upper_camel(reason) } else { in_words_of_objects(reason) }
}

/// `deny` as `Deny`.
fn upper_camel(name: &str) -> String {
    name.char_indices().map(|(at, c)| if at == 0 { c.to_ascii_uppercase() } else { c }).collect()
}

pub fn in_words_of_objects(message: &str) -> String {
    WORDS.iter().fold(message.to_owned(), |message, (of_document, of_object)| message.replace(of_document, of_object))
}

/// The mistakes of a compiled document, one in each line, with the objects and their fields.
pub fn mistakes_of_objects(mistakes: &str, document: &Value) -> String {
    let named = |line: &str| {
        let located = line.split_once(": ").and_then(|(path, reason)| Some((field_of(path, document)?, reason)));
        match located {
            Some(((key, field), reason)) => format!("{key}: {field}: {}", reason_of_object(&field, reason)),
            None => in_words_of_objects(line),
        }
    };
    mistakes.lines().map(named).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests;
