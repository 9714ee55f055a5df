//! Kubernetes lists, read as a stream: an item is looked at and forgotten, never copied.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;

use clusterip_core::json::{At, Mistyped};
use clusterip_core::label_selector::Labels;
use clusterip_core::pod_spec::PodSpec;
use clusterip_core::service::MOVING_ANNOTATION;
use clusterip_core::workload::{TemplateAt, Workload};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use thiserror::Error;

/// What is wrong with a list.
#[derive(Debug, Error)]
pub enum ListError {
    /// It is no list of objects.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// An object that matters has a field of the wrong kind.
    #[error("{name}: {mistyped}")]
    Object {
        /// Namespace and name of the object.
        name: String,
        /// The field.
        mistyped: Mistyped,
    },
}

/// Reads a list of workloads, and gives those of `namespace` whose Pods' labels `selects` accepts.
///
/// # Errors
/// [`ListError`] for the first mistake, in the list or in an object of the namespace.
pub fn workloads(
    json: &[u8],
    template: TemplateAt,
    namespace: &str,
    selects: &dyn Fn(&Labels) -> bool,
) -> Result<Vec<Workload>, ListError> {
    let mut found = Vec::new();
    each(json, &mut |Item { metadata, spec }: Item<'_>| {
        let metadata = metadata.unwrap_or_default();
        if metadata.namespace.as_ref().is_none_or(|text| text.0 != namespace) {
            return Ok(());
        }
        let name = metadata.name.map(|name| name.0.into_owned()).unwrap_or_default();
        let (labels, spec) = (parse(metadata.labels)?, parse(spec)?);
        match pod_spec(&labels, &spec, template, selects) {
            Ok(Some(pod_spec)) => found.push(Workload { name, pod_spec }),
            Ok(None) => {}
            Err(mistyped) => return Err(ListError::Object { name: format!("{namespace}/{name}"), mistyped }),
        }
        Ok(())
    })?;
    Ok(found)
}

/// The Pod spec of an object, if its Pods' labels are accepted.
fn pod_spec(
    labels: &Value,
    spec: &Value,
    template: TemplateAt,
    selects: &dyn Fn(&Labels) -> bool,
) -> Result<Option<PodSpec>, Mistyped> {
    let (labels, spec) = (At::new(labels, "metadata.labels"), At::new(spec, "spec"));
    let template = match template {
        TemplateAt::Itself => {
            let labels = if labels.value.is_null() { Labels::new() } else { labels.map()? };
            return if selects(&labels) { read_spec(Some(&spec)) } else { Ok(None) };
        }
        TemplateAt::Template => spec.get("template")?,
        TemplateAt::JobTemplate => spec.descend(&["jobTemplate", "spec", "template"])?,
    };
    let Some(template) = template else { return Ok(None) };
    let labels = template.get("metadata")?.map_or(Ok(Labels::new()), |metadata| metadata.map_of("labels"))?;
    if selects(&labels) { read_spec(template.get("spec")?.as_ref()) } else { Ok(None) }
}

fn read_spec(spec: Option<&At<'_>>) -> Result<Option<PodSpec>, Mistyped> {
    spec.map_or(Ok(PodSpec::default()), PodSpec::read).map(Some)
}

fn parse(raw: Option<&RawValue>) -> Result<Value, serde_json::Error> {
    raw.map_or(Ok(Value::Null), |raw| serde_json::from_str(raw.get()))
}

/// Reads a list of Services, and gives every address of each, and the addresses that a move under way
/// keeps for it, with its namespace and name.
///
/// # Errors
/// [`ListError`] for the first mistake.
pub fn service_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), ListError> {
    each(json, &mut |item: ServiceItem<'_>| {
        let metadata = item.metadata.unwrap_or_default();
        let spec = item.spec.unwrap_or_default();
        let texts = spec.cluster_ips.unwrap_or_default().0;
        let primary = spec.cluster_ip.filter(|primary| texts[0].as_ref() != Some(primary));
        let moving = metadata.annotations.unwrap_or_default().addresses;
        let mut own = primary.iter().chain(texts.iter().flatten()).filter_map(|text| text.0.parse().ok()).peekable();
        if own.peek().is_none() && moving.is_empty() {
            return Ok(());
        }
        let (namespace, name) = (borrowed(&metadata.namespace), borrowed(&metadata.name));
        own.chain(moving).for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

fn borrowed<'t>(text: &'t Option<Text<'_>>) -> &'t str {
    text.as_ref().map_or("", |text| &text.0)
}

/// Calls `visit` with each item of a list, until it fails. A list without `items`, or with `null` for
/// them, is empty.
fn each<'j, T, F>(json: &'j [u8], visit: &mut F) -> Result<(), ListError>
where
    T: Deserialize<'j>,
    F: FnMut(T) -> Result<(), ListError>,
{
    let mut failed = None;
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let list = Stream { visit, failed: &mut failed, item: PhantomData };
    let read = list.deserialize(&mut deserializer).and_then(|()| deserializer.end());
    match failed {
        Some(error) => Err(error),
        None => Ok(read?),
    }
}

/// A list object, and then the value of its `items`: everything else is skipped.
struct Stream<'v, T, F> {
    visit: &'v mut F,
    /// Why `visit` stopped the stream.
    failed: &'v mut Option<ListError>,
    item: PhantomData<T>,
}

impl<'j, T: Deserialize<'j>, F: FnMut(T) -> Result<(), ListError>> DeserializeSeed<'j> for Stream<'_, T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'j>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'j, T: Deserialize<'j>, F: FnMut(T) -> Result<(), ListError>> Visitor<'j> for Stream<'_, T, F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes list and its items")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'j>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'j>>()? {
            if key.0 == "items" {
                map.next_value_seed(Stream { visit: self.visit, failed: self.failed, item: PhantomData })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'j>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(item) = items.next_element()? {
            if let Err(error) = (self.visit)(item) {
                *self.failed = Some(error);
                return Err(A::Error::custom("stopped"));
            }
        }
        Ok(())
    }
}

/// A string that is borrowed from the document where it has no escapes.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Text<'j>(#[serde(borrow)] Cow<'j, str>);

#[derive(Deserialize)]
struct Item<'j> {
    #[serde(borrow)]
    metadata: Option<Metadata<'j>>,
    #[serde(borrow)]
    spec: Option<&'j RawValue>,
}

#[derive(Default, Deserialize)]
struct Metadata<'j> {
    #[serde(borrow)]
    name: Option<Text<'j>>,
    #[serde(borrow)]
    namespace: Option<Text<'j>>,
    #[serde(borrow)]
    labels: Option<&'j RawValue>,
}

#[derive(Deserialize)]
struct ServiceItem<'j> {
    #[serde(borrow)]
    metadata: Option<ServiceMetadata<'j>>,
    #[serde(borrow)]
    spec: Option<ServiceSpec<'j>>,
}

#[derive(Default, Deserialize)]
struct ServiceMetadata<'j> {
    #[serde(borrow)]
    name: Option<Text<'j>>,
    #[serde(borrow)]
    namespace: Option<Text<'j>>,
    annotations: Option<Moving>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServiceSpec<'j> {
    #[serde(borrow, rename = "clusterIP")]
    cluster_ip: Option<Text<'j>>,
    #[serde(borrow, rename = "clusterIPs")]
    cluster_ips: Option<Two<'j>>,
}

/// The first two strings of a list: a Service has no more addresses.
#[derive(Default)]
struct Two<'j>([Option<Text<'j>>; 2]);

impl<'de: 'j, 'j> Deserialize<'de> for Two<'j> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Strings<'j>(PhantomData<&'j str>);
        impl<'de: 'j, 'j> Visitor<'de> for Strings<'j> {
            type Value = Two<'j>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of addresses")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Two<'j>, A::Error> {
                let two = Two([items.next_element()?, items.next_element()?]);
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(two)
            }
        }
        deserializer.deserialize_seq(Strings(PhantomData))
    }
}

/// The addresses that the annotation of a move under way names; all other annotations are skipped.
#[derive(Default)]
struct Moving {
    addresses: Vec<IpAddr>,
}

impl<'j> Deserialize<'j> for Moving {
    fn deserialize<D: Deserializer<'j>>(deserializer: D) -> Result<Self, D::Error> {
        struct Annotations;
        impl<'j> Visitor<'j> for Annotations {
            type Value = Moving;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("annotations")
            }

            fn visit_map<A: MapAccess<'j>>(self, mut map: A) -> Result<Moving, A::Error> {
                let mut moving = Moving::default();
                while let Some(key) = map.next_key::<Text<'j>>()? {
                    if key.0 == MOVING_ANNOTATION {
                        moving = Moving::read(&map.next_value::<Text<'j>>()?.0);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(moving)
            }
        }
        deserializer.deserialize_map(Annotations)
    }
}

impl Moving {
    /// Whoever may write a Service may write this annotation: what can't be read counts for nothing, and
    /// at most two addresses a side are believed, or one Service could use up a pool, or block it.
    fn read(text: &str) -> Self {
        let value: Value = serde_json::from_str(text).unwrap_or_default();
        let side = |key| value.get(key).and_then(Value::as_array).into_iter().flatten().take(2);
        let addresses = side("from").chain(side("to")).filter_map(|address| address.as_str()?.parse().ok());
        Self { addresses: addresses.collect() }
    }
}
