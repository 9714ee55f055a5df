//! Reads Kubernetes lists as a stream: each item is read and dropped, never copied.

use std::borrow::Cow;
use std::net::IpAddr;

use clusterip_core::address::parse_address;
use clusterip_core::annotations::{FOREIGN_ANNOTATIONS, RECORD_ANNOTATION, claimed_addresses, recorded_addresses};
use clusterip_core::external::claim::MAX_EXTERNAL_IPS;
use clusterip_core::json::TypeMismatch;
use clusterip_core::label_selector::Labels;
use clusterip_core::nodes::blocks;
use clusterip_core::workload::{TemplateAt, Workload};
use ipnet::IpNet;
use serde_json::Value;
use thiserror::Error;

use crate::cursor::{Cursor, Text, Unexpected};

/// Why a list can't be read.
#[derive(Debug, Error)]
pub enum ListError {
    /// The text is not a list of objects, or a field that the policy reads has the wrong type.
    #[error(transparent)]
    Json(#[from] Unexpected),
    /// The value of a field can't be parsed.
    #[error(transparent)]
    Value(#[from] serde_json::Error),
    /// A string that the policy reads is not UTF-8.
    #[error("a string is not UTF-8")]
    Encoding,
    /// A field of a workload in the namespace has the wrong type.
    #[error("{name}: {mismatch}")]
    Object {
        /// Namespace and name of the object.
        name: String,
        /// The field, and what was expected there.
        mismatch: TypeMismatch,
    },
}

/// Reads a list of workloads, and returns those in `namespace` whose Pods have all labels of `selector`.
pub fn workloads(
    json: &[u8],
    template: TemplateAt,
    namespace: &str,
    selector: &Labels,
) -> Result<Vec<Workload>, ListError> {
    let mut found = Vec::new();
    each(json, &mut |item| {
        let (mut own_namespace, mut name, mut labels, mut spec) = (None, None, None, None);
        each_field(item, &mut |item, key| match key {
            Key::Metadata => each_field(item, &mut |metadata, key| match key {
                Key::Labels => set(&mut labels, metadata, Cursor::raw),
                Key::Name => set(&mut name, metadata, Cursor::text),
                Key::Namespace => set(&mut own_namespace, metadata, Cursor::text),
                _ => metadata.skip(),
            }),
            Key::Spec => set(&mut spec, item, Cursor::raw),
            _ => item.skip(),
        })?;
        if own_namespace.flatten().is_none() || read(own_namespace).ok_or(ListError::Encoding)? != namespace {
            return Ok(());
        }
        let name = read(name).ok_or(ListError::Encoding)?.into_owned();
        let (labels, spec) = (parse(labels)?, parse(spec)?);
        match template.selected(&labels, &spec, selector) {
            Ok(Some(pod_spec)) => found.push(Workload { name, pod_spec: pod_spec.into() }),
            Ok(None) => {}
            Err(mismatch) => return Err(ListError::Object { name: format!("{namespace}/{name}"), mismatch }),
        }
        Ok(())
    })?;
    Ok(found)
}

fn parse(raw: Field<&[u8]>) -> Result<Value, serde_json::Error> {
    raw.flatten().map_or(Ok(Value::Null), serde_json::from_slice)
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every cluster IP of each. An ExternalName
/// Service has none.
pub fn service_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), ListError> {
    each(json, &mut |item| {
        let (mut namespace, mut name) = (None, None);
        let (mut kind, mut primary, mut all) = (None, None, None);
        each_field(item, &mut |item, key| match key {
            Key::Metadata => each_field(item, &mut |metadata, key| match key {
                Key::Name => set(&mut name, metadata, Cursor::text),
                Key::Namespace => set(&mut namespace, metadata, Cursor::text),
                _ => metadata.skip(),
            }),
            Key::Spec => each_field(item, &mut |spec, key| match key {
                Key::Type => set(&mut kind, spec, Cursor::text),
                Key::ClusterIp => set(&mut primary, spec, Cursor::text),
                Key::ClusterIps => set(&mut all, spec, first_two),
                _ => spec.skip(),
            }),
            _ => item.skip(),
        })?;
        let all: [Option<Text<'_>>; 2] = all.flatten().unwrap_or_default();
        let primary = primary.flatten().filter(|primary| all[0] != Some(*primary));
        let (Some(namespace), Some(name)) = (read(namespace), read(name)) else { return Err(ListError::Encoding) };
        let is_alias = read(kind).ok_or(ListError::Encoding)? == "ExternalName";
        for text in primary.into_iter().chain(all.into_iter().flatten()).filter(|_| !is_alias) {
            if let Some(address) = parse_address(&text.read().ok_or(ListError::Encoding)?) {
                visit(&namespace, &name, address);
            }
        }
        Ok(())
    })
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every external address that each has or
/// claims.
pub fn external_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), ListError> {
    each(json, &mut |item| {
        let (mut namespace, mut name) = (None, None);
        let (mut claims, mut external_ips) = (Vec::new(), 0);
        each_field(item, &mut |item, key| match key {
            Key::Metadata => each_field(item, &mut |metadata, key| match key {
                Key::Annotations => each_field(metadata, &mut |annotations, key| match key {
                    Key::Claim | Key::Record => add(&mut claims, key, annotations),
                    _ => annotations.skip(),
                }),
                Key::Name => set(&mut name, metadata, Cursor::text),
                Key::Namespace => set(&mut namespace, metadata, Cursor::text),
                _ => metadata.skip(),
            }),
            Key::Spec => each_field(item, &mut |spec, key| match key {
                Key::ExternalIps => each_item(spec, &mut |ip| {
                    external_ips += 1;
                    if external_ips <= MAX_EXTERNAL_IPS { add(&mut claims, key, ip) } else { ip.skip() }
                }),
                Key::LoadBalancerIp => add(&mut claims, key, spec),
                _ => spec.skip(),
            }),
            Key::Status => each_field(item, &mut |status, key| match key {
                Key::LoadBalancer => each_field(status, &mut |balancer, key| match key {
                    Key::Ingress => each_item(balancer, &mut |ingress| {
                        each_field(ingress, &mut |ingress, key| match key {
                            Key::Ip => add(&mut claims, key, ingress),
                            _ => ingress.skip(),
                        })
                    }),
                    _ => balancer.skip(),
                }),
                _ => status.skip(),
            }),
            _ => item.skip(),
        })?;
        let (Some(namespace), Some(name)) = (read(namespace), read(name)) else { return Err(ListError::Encoding) };
        for (key, text) in claims {
            let text = text.read().ok_or(ListError::Encoding)?;
            let found = if key == Key::Record { recorded_addresses(&text) } else { claimed_addresses(&text) };
            for address in found {
                visit(&namespace, &name, address);
            }
        }
        Ok(())
    })
}

/// Reads the text at the cursor and adds it to `texts` under `key`; skips `null`.
fn add<'j>(texts: &mut Vec<(Key, Text<'j>)>, key: Key, cursor: &mut Cursor<'j>) -> Result<(), Unexpected> {
    if !cursor.null() {
        texts.push((key, cursor.text()?));
    }
    Ok(())
}

/// Calls `read` at each item of a list, which must read it. `null` counts as an empty list.
fn each_item<'j>(
    cursor: &mut Cursor<'j>,
    read: &mut impl FnMut(&mut Cursor<'j>) -> Result<(), Unexpected>,
) -> Result<(), Unexpected> {
    if cursor.null() { Ok(()) } else { cursor.list(read) }
}

/// Reads a list of Nodes, and calls `visit` with the name and every pod CIDR of each.
pub fn node_blocks(json: &[u8], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), ListError> {
    each(json, &mut |item| {
        let (mut name, mut primary, mut all) = (None, None, None);
        each_field(item, &mut |item, key| match key {
            Key::Metadata => each_field(item, &mut |metadata, key| match key {
                Key::Name => set(&mut name, metadata, Cursor::text),
                _ => metadata.skip(),
            }),
            Key::Spec => each_field(item, &mut |spec, key| match key {
                Key::PodCidr => set(&mut primary, spec, Cursor::text),
                Key::PodCidrs => set(&mut all, spec, first_two),
                _ => spec.skip(),
            }),
            _ => item.skip(),
        })?;
        let name = read(name).ok_or(ListError::Encoding)?;
        let [first, second] = all.flatten().unwrap_or_default();
        let mut texts: Vec<Cow<'_, str>> = Vec::new();
        for text in [primary.flatten(), first, second].into_iter().flatten() {
            texts.push(text.read().ok_or(ListError::Encoding)?);
        }
        blocks(texts.iter().map(AsRef::as_ref)).into_iter().for_each(|block| visit(&name, block));
        Ok(())
    })
}

/// The first two strings of a list: a Service has at most two addresses, and a Node at most two pod CIDRs.
fn first_two<'j>(list: &mut Cursor<'j>) -> Result<[Option<Text<'j>>; 2], Unexpected> {
    let (mut two, mut count) = ([None; 2], 0);
    list.list(&mut |item| -> Result<(), Unexpected> {
        count += 1;
        match two.get_mut(count - 1) {
            Some(place) => item.text().map(|text| *place = Some(text)),
            None => item.skip(),
        }
    })?;
    Ok(two)
}

/// Calls `visit` at each item of a Kubernetes list, which must read it, until `visit` fails. A list without `items`, or
/// with `items: null`, is empty.
fn each<'j>(json: &'j [u8], visit: &mut impl FnMut(&mut Cursor<'j>) -> Result<(), ListError>) -> Result<(), ListError> {
    let mut cursor = Cursor::new(json);
    let Some(mut list) = cursor.object()? else { return Err(cursor.unexpected("a Kubernetes list").into()) };
    while let Some(key) = cursor.field(&mut list, Key::of)? {
        if key != Key::Items {
            cursor.skip()?;
        } else if !cursor.null() {
            cursor.list(&mut |item| match item.null() {
                true => Err(item.unexpected("an object").into()),
                false => visit(item),
            })?;
        }
    }
    Ok(cursor.end()?)
}

/// Calls `read` at the value of each field with a known key, which must read it. `null` counts as an empty object.
fn each_field<'j>(
    cursor: &mut Cursor<'j>,
    read: &mut impl FnMut(&mut Cursor<'j>, Key) -> Result<(), Unexpected>,
) -> Result<(), Unexpected> {
    let Some(mut object) = cursor.object()? else { return Ok(()) };
    while let Some(key) = cursor.field(&mut object, Key::of)? {
        read(cursor, key)?;
    }
    Ok(())
}

/// The keys that the policy looks for in any object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Key {
    Annotations,
    /// An annotation that asks another program for external addresses.
    Claim,
    ClusterIp,
    ClusterIps,
    ExternalIps,
    Ingress,
    Ip,
    Items,
    Labels,
    LoadBalancer,
    LoadBalancerIp,
    Metadata,
    Name,
    Namespace,
    PodCidr,
    PodCidrs,
    /// The annotation that records the external addresses of a Service.
    Record,
    Spec,
    Status,
    Type,
}

impl Key {
    fn of(written: &[u8]) -> Option<Self> {
        const RECORD: &[u8] = RECORD_ANNOTATION.as_bytes();
        Some(match written {
            b"annotations" => Self::Annotations,
            b"clusterIP" => Self::ClusterIp,
            b"clusterIPs" => Self::ClusterIps,
            b"externalIPs" => Self::ExternalIps,
            b"ingress" => Self::Ingress,
            b"ip" => Self::Ip,
            b"items" => Self::Items,
            b"labels" => Self::Labels,
            b"loadBalancer" => Self::LoadBalancer,
            b"loadBalancerIP" => Self::LoadBalancerIp,
            b"metadata" => Self::Metadata,
            b"name" => Self::Name,
            b"namespace" => Self::Namespace,
            b"podCIDR" => Self::PodCidr,
            b"podCIDRs" => Self::PodCidrs,
            b"spec" => Self::Spec,
            b"status" => Self::Status,
            b"type" => Self::Type,
            RECORD => Self::Record,
            key if FOREIGN_ANNOTATIONS.iter().any(|foreign| foreign.as_bytes() == key) => Self::Claim,
            _ => return None,
        })
    }
}

/// The value of a field: `None` if the field is absent, `Some(None)` if it is `null`.
type Field<T> = Option<Option<T>>;

/// Reads the value of a field, which may be `null`. A second value of the same field is an error, even after `null`.
fn set<'j, T>(
    field: &mut Field<T>,
    cursor: &mut Cursor<'j>,
    read: impl FnOnce(&mut Cursor<'j>) -> Result<T, Unexpected>,
) -> Result<(), Unexpected> {
    if field.is_some() {
        return Err(cursor.unexpected("each field once"));
    }
    *field = Some(if cursor.null() { None } else { Some(read(cursor)?) });
    Ok(())
}

/// The decoded text of a field; empty if the field is absent or `null`, and `None` if the text is not UTF-8.
fn read(text: Field<Text<'_>>) -> Option<Cow<'_, str>> {
    text.flatten().map_or(Some(Cow::Borrowed("")), |text| text.read())
}
