//! Reads manifests from files, folders and standard input.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use serde_json::{Value, json};

pub mod large_texts;
pub mod manifest_edit;
pub mod manifest_files;

pub use self::manifest_files::{MAX_FILE, is_standard_input, read_at_most, read_file, read_open_file};
use crate::object;
use crate::yaml::{self, Data, Node, YamlError};

pub struct ManifestText {
    /// The path as given or found; `-` for standard input.
    pub name: String,
    /// The text itself, without a byte order mark.
    pub text: String,
}

/// An object, or what is kept of it, and where it is written.
pub struct Manifest<T = Value> {
    /// The namespace of the object is filled in.
    pub object: T,
    pub origin: Origin,
}

impl Manifest {
    fn map<T>(self, keep: impl FnOnce(Value) -> T) -> Manifest<T> {
        Manifest { object: keep(self.object), origin: self.origin }
    }
}

/// The namespace of objects that name none, and whether naming another one is a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamespaceRule<'n> {
    /// Other objects may name other namespaces.
    Default(&'n str),
    /// Other objects may only name this namespace.
    Only(&'n str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub source: usize,
    pub file: Arc<str>,
    /// The document in the source, counted from 1.
    pub document: usize,
    /// The line at which the object begins, counted from 1.
    pub line: usize,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: document {}, line {}", self.file, self.document, self.line)
    }
}

fn mistakes(mistakes: &[String]) -> anyhow::Error {
    const MAX_PRINTED: usize = 100;
    let printed = mistakes.iter().take(MAX_PRINTED).map(String::as_str).collect::<Vec<_>>().join("\n");
    match mistakes.len().saturating_sub(MAX_PRINTED) {
        0 => anyhow!(printed),
        more => anyhow!("{printed}\nand {more} more"),
    }
}

const TEMPLATE: &str = " (a template? render it first: `helm template … | clusterip plan -`)";
const KUSTOMIZATION: &str = "a kustomization: plan it with --kustomize, or `kubectl kustomize … | clusterip plan -`";

/// Is called with each manifest, and with its place in the text.
type Visit<'v> = dyn FnMut(Manifest, &Node) + 'v;

/// Parses all objects of the texts, including the items of `List`s, and calls `visit` with each in turn. An object
/// without a namespace, of a kind that has one, gets `namespace`. The error has all mistakes. Behind text that is not
/// YAML, no document is read.
pub fn each(sources: &[ManifestText], namespace: &str, visit: &mut Visit<'_>) -> anyhow::Result<()> {
    let mut errors = Vec::new();
    for (index, source) in sources.iter().enumerate() {
        let rule = NamespaceRule::Default(namespace);
        visit_documents(yaml::documents(&source.text), source, index, rule, visit, &mut errors);
    }
    if errors.is_empty() { Ok(()) } else { Err(mistakes(&errors)) }
}

/// What a text contains. In ascending order: a text contains the greatest of what its documents contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    /// No documents, or only empty ones.
    Nothing,
    /// Documents, none of which is a Kubernetes object.
    OtherDocuments,
    /// Kubernetes objects, or text that is not YAML and may be meant as Kubernetes objects.
    Objects,
}

/// Calls `visit` with each manifest of these documents of the source with this index, and adds the mistakes to `errors`.
/// The documents are counted from the first one that is given.
fn visit_documents(
    documents: impl Iterator<Item = Result<Node, YamlError>>,
    source: &ManifestText,
    index: usize,
    rule: NamespaceRule<'_>,
    visit: &mut Visit<'_>,
    errors: &mut Vec<String>,
) -> Content {
    let mut content = Content::Nothing;
    let file: Arc<str> = source.name.as_str().into();
    for (position, node) in documents.enumerate() {
        let node = match node {
            Ok(node) if node.is_null() => continue,
            Ok(node) => node,
            Err(error) => {
                content = Content::Objects;
                errors.push(invalid(source, &error));
                continue;
            }
        };
        let is_object = content == Content::Objects || is_like_an_object(&node, &source.name);
        content = if is_object { Content::Objects } else { Content::OtherDocuments };
        let origin = Origin { source: index, file: Arc::clone(&file), document: position + 1, line: node.at.line };
        errors.extend(add(&node, origin, None, rule, visit).err().into_iter().flatten());
    }
    content
}

/// Whether a text is a `List` that says that it has no objects: `items: []`.
pub fn is_empty_list(source: &ManifestText) -> bool {
    let Ok(value) = yaml::single(&source.text) else { return false };
    object::kind(&value) == "List" && value.get("items").and_then(Value::as_array).is_some_and(Vec::is_empty)
}

fn invalid(source: &ManifestText, error: &YamlError) -> String {
    let hint = if source.text.contains("{{") { TEMPLATE } else { "" };
    format!("{}: document {}, {error}{hint}", source.name, error.document)
}

/// As [`each`] for one source, but the items of a list are visited as soon as they are read, so a large list is never
/// completely in memory. Items after a mistake are visited too.
pub fn stream(source: &ManifestText, namespace: &str, visit: &mut dyn FnMut(Manifest)) -> anyhow::Result<()> {
    let file: Arc<str> = source.name.as_str().into();
    let mut wrong = None;
    let take = RefCell::new(|node: &Node, document: usize| {
        let origin = Origin { source: 0, file: Arc::clone(&file), document, line: node.at.line };
        let rule = NamespaceRule::Default(namespace);
        if let Err(errors) = add(node, origin, None, rule, &mut |manifest, _| visit(manifest)) {
            wrong = wrong.take().or(errors.into_iter().next());
        }
    });
    let on_item = |item: Node, document: usize| {
        // An item without a type has the type of its list, which may follow the items.
        let typed = item.field("kind").is_some() && item.field("apiVersion").is_some();
        if typed {
            take.borrow_mut()(&item, document);
        }
        (!typed).then_some(item)
    };
    for (position, node) in yaml::documents_with_items(&source.text, Box::new(on_item)).enumerate() {
        let node = node.map_err(|error| anyhow!(invalid(source, &error)))?;
        if !node.is_null() {
            take.borrow_mut()(&node, position + 1);
        }
    }
    wrong.map_or(Ok(()), |wrong| Err(anyhow!(wrong)))
}

/// Adds an object, or the items of a list. Items without a type of their own get `type_of_list`. The error has the mistake
/// of the object, or of each item.
fn add(
    node: &Node,
    origin: Origin,
    type_of_list: Option<(&str, &str)>,
    rule: NamespaceRule<'_>,
    visit: &mut Visit<'_>,
) -> Result<(), Vec<String>> {
    let mut object = node.to_value();
    let wrong = |reason: String| Err(vec![format!("{origin}: {reason}")]);
    if !object.is_object() {
        return wrong(format!("expected a Kubernetes object, found {}", a_kind_of(&object)));
    }
    if let Some((api_version, kind)) = type_of_list {
        for (key, value) in [("apiVersion", api_version), ("kind", kind)] {
            if object.get(key).is_none() {
                object[key] = value.into();
            }
        }
    }
    if is_kustomization(&object, &origin.file) {
        return wrong(KUSTOMIZATION.to_owned());
    }
    check_type(&object).or_else(wrong)?;
    if let Some(item_kind) = object::kind(&object).strip_suffix("List")
        && (object.get("items").is_some() || item_kind.is_empty())
    {
        let items = match node.field("items").map(|(_, items)| items) {
            None => return Ok(()),
            Some(Node { data: Data::Sequence(items), .. }) => items,
            Some(items) if items.is_null() => return Ok(()),
            Some(_) => return wrong("`items`: expected a list".to_owned()),
        };
        let api_version = object::api_version(&object).to_owned();
        let item_type = (!item_kind.is_empty()).then_some((api_version.as_str(), item_kind));
        let mut add = |item: &Node| add(item, Origin { line: item.at.line, ..origin.clone() }, item_type, rule, visit);
        let errors: Vec<String> = items.iter().filter_map(|item| add(item).err()).flatten().collect();
        return if errors.is_empty() { Ok(()) } else { Err(errors) };
    }
    visit(manifest(object, origin, rule).map_err(|mistake| vec![mistake])?, node);
    Ok(())
}

fn check_type(object: &Value) -> Result<(), String> {
    for key in ["kind", "apiVersion"] {
        match object.get(key) {
            Some(Value::String(text)) if !text.is_empty() => {}
            None | Some(Value::Null) => return Err(format!("no `{key}`: not a Kubernetes object")),
            Some(other) => return Err(format!("`{key}`: expected a string, found {}", a_kind_of(other))),
        }
    }
    let kind = object::kind(object);
    if !kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(format!("`kind`: {kind:?} is not a kind: only letters, digits and - are allowed"));
    }
    Ok(())
}

/// The manifest of an object with a type. An object without a namespace, of a kind that has one, gets that of the rule.
fn manifest(mut object: Value, origin: Origin, rule: NamespaceRule<'_>) -> Result<Manifest, String> {
    let wrong = |reason: String| Err(format!("{origin}: {reason}"));
    let kind = object::kind(&object);
    let metadata = match object.get("metadata") {
        Some(Value::Object(metadata)) => metadata,
        None | Some(Value::Null) => return wrong(format!("{kind} without `metadata`")),
        Some(other) => return wrong(format!("`metadata`: expected an object, found {}", a_kind_of(other))),
    };
    for key in ["name", "generateName", "namespace"] {
        if let Some(other) = metadata.get(key).filter(|value| !value.is_string() && !value.is_null()) {
            return wrong(format!("`metadata.{key}`: expected a string, found {}", a_kind_of(other)));
        }
    }
    let name = match object::name(&object) {
        "" => object::text(&object, &["metadata", "generateName"]),
        name => name,
    };
    if name.is_empty() {
        return wrong(format!("{kind} without `metadata.name`"));
    }
    if object::is_namespaced(kind) {
        match (object::namespace(&object), rule) {
            ("", NamespaceRule::Default(namespace) | NamespaceRule::Only(namespace)) => {
                object["metadata"]["namespace"] = json!(namespace);
            }
            (namespace, NamespaceRule::Only(only)) if namespace != only => {
                return wrong(format!(
                    "{kind} {name} is in namespace {namespace}, but --namespace is {only}: remove one of the two"
                ));
            }
            _ => {}
        }
    }
    Ok(Manifest { object, origin })
}

/// Whether a document claims to be a Kubernetes object. A file of a tool often has neither field. The configuration
/// of a component or a tool, such as kubeadm, has an API group, but no metadata.
fn is_like_an_object(node: &Node, file: &str) -> bool {
    let object = node.to_value();
    let is_text = |key: &str| object.get(key).is_some_and(Value::is_string);
    let is_configuration =
        object::api_version(&object).contains('/') && object.get("metadata").is_none() && object.get("items").is_none();
    is_kustomization(&object, file) || (is_text("kind") && is_text("apiVersion") && !is_configuration)
}

/// A kustomization is not an object of the cluster. In a file with this name it needs no type.
fn is_kustomization(object: &Value, file: &str) -> bool {
    let file = Path::new(file).file_name();
    let by_name = file.is_some_and(|name| name == "kustomization.yaml" || name == "kustomization.yml");
    object::api_version(object).starts_with("kustomize.config.k8s.io/")
        || (by_name && object.get("kind").is_none() && object.get("apiVersion").is_none())
}

fn a_kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
