//! Reads Kubernetes lists as a stream: of each item, only the fields that the policy uses are read, and the item is
//! dropped before the next one is read.

use std::net::IpAddr;

use clusterip_core::external::claim::{claims, recorded, shown};
use clusterip_core::field_mask::Mask;
use clusterip_core::json::{Located, TypeMismatch};
use clusterip_core::label_selector::{Labels, selects};
use clusterip_core::nodes::Node;
use clusterip_core::service::{MAX_FAMILIES, Service, addresses};
use clusterip_core::workload::{TemplateAt, Workload};
use ipnet::IpNet;
use serde_json::Value;

/// The fields of Services and Nodes that the policy reads in addition to `metadata`, sorted because the host compares
/// queries as sets. The host prunes all others.
pub const SERVICE_MASKS: [&str; 3] = ["spec.clusterIP", "spec.clusterIPs", "spec.type"];
pub const EXTERNAL_MASKS: [&str; 3] = ["spec.externalIPs", "spec.loadBalancerIP", "status.loadBalancer.ingress"];
pub const NODE_MASKS: [&str; 2] = ["spec.podCIDR", "spec.podCIDRs"];

pub fn workload_masks(at: TemplateAt) -> Vec<String> {
    const POD_SPEC: [&str; 4] = ["affinity.nodeAffinity", "nodeSelector", "os", "runtimeClassName"];
    if at == TemplateAt::Itself {
        let fields = ["affinity.nodeAffinity", "nodeName", "nodeSelector", "os", "runtimeClassName"];
        return fields.iter().map(|field| format!("spec.{field}")).collect();
    }
    let template = at.path().join(".");
    let mut masks = vec![format!("{template}.metadata.labels")];
    masks.extend(POD_SPEC.iter().map(|field| format!("{template}.spec.{field}")));
    masks
}

/// Reads a list of workloads, and returns those in `namespace` whose Pods have all labels of `selector`.
pub fn workloads(
    json: &[u8],
    template: TemplateAt,
    namespace: &str,
    selector: &Labels,
) -> Result<Vec<Workload>, String> {
    let mut found = Vec::new();
    each(json, "labels", &workload_masks(template), Some(namespace), &mut |own_namespace, name, item| {
        if own_namespace != namespace {
            return Ok(());
        }
        let labels = item.value.get("metadata").and_then(|metadata| metadata.get("labels")).unwrap_or(&Value::Null);
        let spec = item.value.get("spec").unwrap_or(&Value::Null);
        let in_words = |mismatch: TypeMismatch| format!("{namespace}/{name}: {mismatch}");
        let pods = template.pods(labels, spec).map_err(in_words)?.filter(|pods| selects(selector, &pods.labels));
        if let Some(pods) = pods {
            found.push(Workload { name: name.to_owned(), pod_spec: pods.spec.map_err(in_words)?.into() });
        }
        Ok(())
    })?;
    Ok(found)
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every cluster IP of each.
pub fn service_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), String> {
    each(json, "name", &SERVICE_MASKS.map(str::to_owned), None, &mut |namespace, name, item| {
        let spec = item.at("spec").map_err(in_words)?;
        // A field of another type is a mistake here. `addresses` would count it as absent.
        let texts = spec.text_of("type").and(spec.text_of("clusterIP")).and(spec.texts_of("clusterIPs", MAX_FAMILIES));
        texts.map_err(in_words)?;
        addresses(item.value).into_iter().for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Services, and calls `visit` with the namespace, name and every external address that each of them
/// has or claims.
pub fn external_addresses(json: &[u8], visit: &mut dyn FnMut(&str, &str, IpAddr)) -> Result<(), String> {
    each(json, "annotations", &EXTERNAL_MASKS.map(str::to_owned), None, &mut |namespace, name, item| {
        let service = Service::read(item.value, &item.path).map_err(in_words)?;
        // `in_use` would sort them, for which the module has no room.
        let claims = claims(&service).into_iter().map(|(_, address)| address);
        let shown = shown(item.value.pointer("/status/loadBalancer/ingress"));
        let all = recorded(&service).into_iter().chain(claims).chain(shown);
        all.for_each(|address| visit(namespace, name, address));
        Ok(())
    })
}

/// Reads a list of Nodes, and calls `visit` with the name and every pod CIDR of each.
pub fn node_blocks(json: &[u8], visit: &mut dyn FnMut(&str, IpNet)) -> Result<(), String> {
    each(json, "name", &NODE_MASKS.map(str::to_owned), None, &mut |_, name, item| {
        let node = Node::read(item.value, &item.path).map_err(in_words)?;
        node.blocks.into_iter().for_each(|block| visit(name, block));
        Ok(())
    })
}

fn in_words(mismatch: TypeMismatch) -> String {
    mismatch.to_string()
}

/// What to do with the namespace, the name and the fields of an item. An error must come before any effect.
type Visit<'v> = dyn FnMut(&str, &str, &Located<'_>) -> Result<(), String> + 'v;

/// Calls `visit` at each item of a list until it fails. The item has a field of `metadata` and those of the masks. A list
/// without `items`, or with `items: null`, is empty. With a namespace, items that name another one are not
/// visited.
fn each(
    json: &[u8],
    metadata: &str,
    masks: &[String],
    namespace: Option<&str>,
    visit: &mut Visit<'_>,
) -> Result<(), String> {
    let namespaces = Mask::new(["metadata.namespace"]);
    let mut mask = Mask::new(masks);
    for field in ["name", "namespace", metadata] {
        mask.at(&format!("metadata.{field}"));
    }
    let mut rest = Rest(json);
    rest.expect(b'{', "a Kubernetes list")?;
    let mut is_first = true;
    while !rest.skip(b'}') {
        if !is_first {
            rest.expect(b',', "a comma or the end of the list")?;
        }
        is_first = false;
        let key = rest.value(&Mask::default())?;
        let is_items = Located::new(&key, "key").text().map_err(in_words)? == "items";
        rest.expect(b':', "a colon")?;
        if !is_items || !rest.skip(b'[') {
            let value = rest.value(&Mask::default())?;
            if is_items && !value.is_null() {
                return Err(Located::new(&value, "items").mismatch("a list").to_string());
            }
            continue;
        }
        let mut count = 0;
        while !rest.skip(b']') {
            if count > 0 {
                rest.expect(b',', "a comma or the end of the items")?;
            }
            count += 1;
            // Most workloads of a cluster are in other namespaces, and the namespace alone is read in a third of the time.
            if namespace.is_some_and(|namespace| rest.skip_item_elsewhere(&namespaces, namespace)) {
                continue;
            }
            let item = rest.value(&mask)?;
            let mut read = |path: String| {
                let item = Located::new(&item, path);
                item.object().map_err(in_words)?;
                let metadata = item.at("metadata").map_err(in_words)?;
                let text = |key: &str| metadata.text_of(key).map(Option::unwrap_or_default).map_err(in_words);
                visit(text("namespace")?, text("name")?, &item)
            };
            // Only an error needs the path, which takes longer than the item.
            if read(String::new()).is_err() {
                read(format!("items[{}]", count - 1))?;
            }
        }
    }
    rest.skip_spaces();
    if rest.0.is_empty() { Ok(()) } else { Err(format!("the last {} bytes follow the list", rest.0.len())) }
}

/// The rest of a JSON text. One value at a time is read.
struct Rest<'j>(&'j [u8]);

impl Rest<'_> {
    /// Skips `byte`, which is part of the syntax, and returns true, if it is next.
    fn skip(&mut self, byte: u8) -> bool {
        self.skip_spaces();
        let rest = self.0.strip_prefix(&[byte]);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn skip_spaces(&mut self) {
        while let [b' ' | b'\n' | b'\t' | b'\r', rest @ ..] = self.0 {
            self.0 = rest;
        }
    }

    fn expect(&mut self, byte: u8, expected: &str) -> Result<(), String> {
        if self.skip(byte) {
            return Ok(());
        }
        Err(format!("expected {expected} before the last {} bytes", self.0.len()))
    }

    /// Skips the next item, and returns true, if it names another namespace.
    fn skip_item_elsewhere(&mut self, mask: &Mask, namespace: &str) -> bool {
        let Ok((item, length)) = mask.read_first(self.0) else { return false };
        let own = item.get("metadata").and_then(|metadata| metadata.get("namespace")).and_then(Value::as_str);
        let is_elsewhere = own.is_some_and(|own| own != namespace);
        if is_elsewhere {
            self.0 = &self.0[length..];
        }
        is_elsewhere
    }

    /// The next value, without the fields that the mask does not contain.
    fn value(&mut self, mask: &Mask) -> Result<Value, String> {
        // An error is that of the whole value, which can also be in a field that the mask does not contain.
        let value = mask.read_first(self.0).or_else(|_| Mask::default().read_first(self.0));
        let (value, length) = value.map_err(|error| format!("{error} of the last {} bytes", self.0.len()))?;
        self.0 = &self.0[length..];
        Ok(value)
    }
}
