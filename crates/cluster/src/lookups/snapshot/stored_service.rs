//! A Service as it is kept: its addresses, and the fields that decisions, moves and audits read.

use std::net::IpAddr;

use clusterip_core::address_set_by_hand::{ADDRESS_FIELDS, is_set_by_hand};
use clusterip_core::annotations::RECORD_ANNOTATION;
use clusterip_core::external::stored::in_use;
use clusterip_core::service_key::ServiceKey;
use clusterip_core::services::addresses;
use serde_json::{Map, Value, json};

use super::workloads::hash;

/// The fields that are kept as they are written.
const FIELDS: [&[&str]; 16] = [
    &["metadata", "annotations"],
    &["metadata", "deletionTimestamp"],
    &["metadata", "labels"],
    &["metadata", "uid"],
    &["spec", "clusterIP"],
    &["spec", "clusterIPs"],
    &["spec", "externalIPs"],
    &["spec", "externalName"],
    &["spec", "ipFamilies"],
    &["spec", "ipFamilyPolicy"],
    &["spec", "loadBalancerClass"],
    &["spec", "loadBalancerIP"],
    &["spec", "ports"],
    &["spec", "selector"],
    &["spec", "type"],
    &["status", "loadBalancer", "ingress"],
];
const ANNOTATIONS: usize = 0;
const EXTERNAL_NAME: usize = 7;
const SELECTOR: usize = 13;
const TYPE: usize = 14;

/// Frequent texts, which need no memory of their own.
const FREQUENT: [&str; 7] = ["ClusterIP", "NodePort", "LoadBalancer", "SingleStack", "PreferDualStack", "IPv4", "None"];

/// The fields of a Service that decisions, moves and audits read.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredService {
    key: ServiceKey,
    addresses: Box<[IpAddr]>,
    external: Box<[IpAddr]>,
    /// Whether the address was set by hand; `None` if that is unknown.
    by_hand: Option<bool>,
    /// The index in [`FIELDS`], and the value.
    fields: Box<[(u8, Field)]>,
}

#[derive(Clone, Debug, PartialEq)]
enum Field {
    Frequent(&'static str),
    Text(Box<str>),
    Texts(Box<[Box<str>]>),
    Map(Box<[(Box<str>, Box<str>)]>),
    /// A field that few Services have, or one of the wrong type.
    Other(Box<Value>),
}

impl StoredService {
    /// Reads a Service.
    pub(super) fn read(service: &Value) -> Self {
        let value = |path: &[&str]| path.iter().try_fold(service, |value, key| value.get(key));
        let field = |(index, path): (usize, &&[&str])| Some((u8::try_from(index).ok()?, Field::of(value(path)?)));
        Self {
            key: ServiceKey::of(service),
            addresses: addresses(service).into(),
            external: in_use(service).into(),
            by_hand: is_set_by_hand(service),
            fields: FIELDS.iter().enumerate().filter_map(field).collect(),
        }
    }

    /// The namespace and the name.
    pub fn key(&self) -> &ServiceKey {
        &self.key
    }

    /// The cluster IPs without repetition, the primary one first.
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// The external addresses that count as held, see [`in_use`].
    pub fn external(&self) -> &[IpAddr] {
        &self.external
    }

    /// The text in `spec.externalName`; empty if there is none.
    pub fn external_name(&self) -> &str {
        self.text(EXTERNAL_NAME)
    }

    /// Whether the Service has a record of external addresses that is not empty.
    pub fn has_record(&self) -> bool {
        self.record().is_some_and(|record| !record.is_empty())
    }

    /// Whether the Service is of type `LoadBalancer`, has a record of external addresses, or claims or shows some. Most
    /// clusters have few such Services among many.
    pub(super) fn may_have_external(&self) -> bool {
        !self.external.is_empty() || self.text(TYPE) == "LoadBalancer" || self.record().is_some()
    }

    /// The Service as a JSON object with the fields that are kept.
    pub fn value(&self) -> Value {
        let mut service = Map::new();
        service.insert("apiVersion".to_owned(), "v1".into());
        service.insert("kind".to_owned(), "Service".into());
        let ServiceKey { namespace, name } = &self.key;
        let mut metadata = Map::from_iter([("name".to_owned(), name.as_str().into())]);
        if !namespace.is_empty() {
            metadata.insert("namespace".to_owned(), namespace.as_str().into());
        }
        if let Some(by_hand) = self.by_hand {
            let owner = if by_hand { json!({"fieldsV1": {"f:spec": {(ADDRESS_FIELDS[0]): {}}}}) } else { json!({}) };
            metadata.insert("managedFields".to_owned(), json!([owner]));
        }
        service.insert("metadata".to_owned(), metadata.into());
        for (index, field) in &self.fields {
            let path = FIELDS[usize::from(*index)];
            let Some((last, outer)) = path.split_last() else { continue };
            let within = outer.iter().try_fold(&mut service, |object, key| {
                object.entry(*key).or_insert_with(|| Map::new().into()).as_object_mut()
            });
            if let Some(within) = within {
                within.insert((*last).to_owned(), field.value());
            }
        }
        service.into()
    }

    /// About how many bytes of memory the Service takes, with its entries in the indexes.
    pub(super) fn bytes(&self) -> usize {
        const ENTRY: usize = 96;
        let key = 2 * self.key.name.len() + self.key.namespace.len();
        let addresses = (self.addresses.len() + self.external.len()) * (size_of::<IpAddr>() + ENTRY);
        let fields = self.fields.iter().map(|(_, field)| size_of::<(u8, Field)>() + field.bytes());
        size_of::<Self>() + 2 * ENTRY + key + addresses + fields.sum::<usize>()
    }

    /// The hash of the first label of the selector. A selected Pod has all labels of the selector, so one of them is
    /// enough to find the Service. `None` if the Service selects no Pods.
    pub(super) fn first_selected(&self) -> Option<u64> {
        self.selector().first().map(|(key, value)| hash(key, value))
    }

    /// Whether the Service selects Pods with these labels.
    pub(super) fn selects(&self, labels: &[u64]) -> bool {
        self.selector().iter().all(|(key, value)| labels.binary_search(&hash(key, value)).is_ok())
    }

    fn selector(&self) -> &[(Box<str>, Box<str>)] {
        match self.field(SELECTOR) {
            Some(Field::Map(selector)) => selector,
            _ => &[],
        }
    }

    fn record(&self) -> Option<&str> {
        match self.field(ANNOTATIONS) {
            Some(Field::Map(annotations)) => {
                annotations.iter().find(|(key, _)| **key == *RECORD_ANNOTATION).map(|(_, record)| &**record)
            }
            _ => None,
        }
    }

    fn text(&self, index: usize) -> &str {
        match self.field(index) {
            Some(Field::Frequent(text)) => text,
            Some(Field::Text(text)) => text,
            _ => "",
        }
    }

    fn field(&self, index: usize) -> Option<&Field> {
        self.fields.iter().find(|(other, _)| usize::from(*other) == index).map(|(_, field)| field)
    }
}

impl Field {
    fn of(value: &Value) -> Self {
        let other = || Self::Other(Box::new(value.clone()));
        match value {
            Value::String(text) => match FREQUENT.iter().find(|known| *known == text) {
                Some(known) => Self::Frequent(known),
                None => Self::Text(text.as_str().into()),
            },
            Value::Array(items) => {
                let texts: Option<_> = items.iter().map(|item| Some(item.as_str()?.into())).collect();
                texts.map_or_else(other, Self::Texts)
            }
            Value::Object(fields) => {
                let texts = fields.iter().map(|(key, value)| Some((key.as_str().into(), value.as_str()?.into())));
                texts.collect::<Option<_>>().map_or_else(other, Self::Map)
            }
            _ => other(),
        }
    }

    fn value(&self) -> Value {
        match self {
            Self::Frequent(text) => (*text).into(),
            Self::Text(text) => (**text).into(),
            Self::Texts(texts) => texts.iter().map(|text| Value::from(&**text)).collect(),
            Self::Map(map) => map.iter().map(|(key, value)| (key.to_string(), Value::from(&**value))).collect(),
            Self::Other(value) => value.as_ref().clone(),
        }
    }

    fn bytes(&self) -> usize {
        /// A text has a pointer, a length, and what the allocator adds.
        const TEXT: usize = 24;
        match self {
            Self::Frequent(_) => 0,
            Self::Text(text) => text.len() + TEXT,
            Self::Texts(texts) => texts.iter().map(|text| text.len() + TEXT).sum(),
            Self::Map(map) => map.iter().map(|(key, value)| key.len() + value.len() + 2 * TEXT).sum(),
            Self::Other(value) => bytes_of(value),
        }
    }
}

/// About how many bytes a JSON value takes.
fn bytes_of(value: &Value) -> usize {
    const VALUE: usize = 64;
    VALUE
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(bytes_of).sum(),
            Value::Object(fields) => fields.iter().map(|(key, value)| key.len() + VALUE + bytes_of(value)).sum(),
            _ => 0,
        }
}
