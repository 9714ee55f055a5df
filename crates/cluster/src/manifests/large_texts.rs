//! Large texts, which are read on all processors: a list or documents in JSON, and documents in YAML. The YAML parser takes
//! longer for JSON, and would keep a text in braces completely until its end.

use std::num::NonZero;
use std::sync::Arc;
use std::thread::{self, available_parallelism};

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::{
    Content, Manifest, ManifestText, NamespaceRule, Origin, check_type, is_kustomization, manifest, visit_documents,
};
use crate::in_order::in_order;
use crate::object;
use crate::watch::partial_object::PartialObject;
use crate::yaml::{self, DocumentGroup, Node};

const MIN_SIZE: usize = 1 << 20;

/// Turns an object into the part of it that is kept.
pub(super) type Keep<'k, T> = dyn Fn(Value) -> T + Sync + 'k;

/// Parses the large source with this index: a list in JSON, or documents. Returns the manifests in their order, or `None`
/// if the text is small or has a mistake. Then the caller parses it with [`visit_documents`], which reports the mistakes.
pub(super) fn parse<T: Send>(
    source: &ManifestText,
    index: usize,
    rule: NamespaceRule<'_>,
    keep: &Keep<'_, T>,
) -> Option<(Content, Vec<Manifest<T>>)> {
    let threads = available_parallelism().map_or(1, NonZero::get);
    if source.text.len() < MIN_SIZE {
        return None;
    }
    if let Some(manifests) = parse_json(source, index, rule, keep) {
        return Some((Content::Objects, manifests));
    }
    if threads == 1 { None } else { parse_on_threads(source, index, rule, keep, threads) }
}

fn parse_on_threads<T: Send>(
    source: &ManifestText,
    index: usize,
    rule: NamespaceRule<'_>,
    keep: &Keep<'_, T>,
    threads: usize,
) -> Option<(Content, Vec<Manifest<T>>)> {
    let parse = |group: DocumentGroup<'_>| {
        let (mut manifests, mut errors, mut documents) = (Vec::new(), Vec::new(), 0);
        let counted = group.documents().inspect(|_| documents += 1);
        let mut visit = |manifest: Manifest, _: &Node| manifests.push(manifest.map(keep));
        let content = visit_documents(counted, source, index, rule, &mut visit, &mut errors);
        errors.is_empty().then_some((content, manifests, documents))
    };
    let groups: Option<Vec<_>> = thread::scope(|scope| {
        // The system may refuse further threads.
        let spawn = |group| thread::Builder::new().spawn_scoped(scope, || parse(group)).ok();
        let groups = yaml::document_groups(&source.text, threads).into_iter();
        let running: Option<Vec<_>> = groups.map(spawn).collect();
        running?.into_iter().map(|group| group.join().ok().flatten()).collect()
    });
    let (mut content, mut all, mut before) = (Content::Nothing, Vec::new(), 0);
    for (of_group, mut manifests, documents) in groups? {
        content = content.max(of_group);
        manifests.iter_mut().for_each(|manifest| manifest.origin.document += before);
        before += documents;
        all.append(&mut manifests);
    }
    Some((content, all))
}

#[derive(Deserialize)]
struct List<'t> {
    kind: String,
    #[serde(rename = "apiVersion", default)]
    api_version: String,
    #[serde(borrow)]
    items: Vec<&'t RawValue>,
}

/// An object in a text. The document and the line at which it begins are counted from 1.
struct Item<'t> {
    text: &'t str,
    document: usize,
    line: usize,
}

/// Reads the objects of a list as `kubectl get -o json` prints it, or of documents, on other threads, and calls `visit`
/// with what `read` makes of each, in their order. Returns whether the text is in JSON. If it returns false, for an
/// invalid text too, the objects that were visited don't count; the YAML parser reads the text again and reports where a
/// mistake is.
pub fn visit<R: Send>(
    text: &str,
    namespace: &str,
    read: impl Fn(ObjectText<'_>) -> Option<R> + Sync,
    mut visit: impl FnMut(R),
) -> bool {
    let Some(items) = items_of_list(text, |_| true).or_else(|| documents(text)) else { return false };
    let mut is_json = true;
    in_order(
        &items,
        |item| read(ObjectText { text: item.text, namespace }),
        |_, item| match item {
            Some(item) => visit(item),
            None => is_json = false,
        },
    );
    is_json
}

/// The manifests of such a text, the source with this index; `None` if it is not in JSON, or if the YAML parser has to
/// say what is wrong with it.
fn parse_json<T: Send>(
    source: &ManifestText,
    index: usize,
    rule: NamespaceRule<'_>,
    keep: &Keep<'_, T>,
) -> Option<Vec<Manifest<T>>> {
    let text = source.text.as_str();
    let file: Arc<str> = source.name.as_str().into();
    let items = items_of_list(text, |api_version| !api_version.is_empty()).or_else(|| documents(text))?;
    let read = |item: &Item<'_>| {
        let object = with_name(serde_json::from_str(item.text).ok()?)?;
        let is_right = check_type(&object).is_ok() && !is_kustomization(&object, &file);
        let origin = Origin { source: index, file: Arc::clone(&file), document: item.document, line: item.line };
        is_right.then(|| Some(manifest(object, origin, rule).ok()?.map(keep))).flatten()
    };
    let (mut manifests, mut is_json) = (Vec::with_capacity(items.len()), true);
    in_order(&items, read, |_, manifest| match manifest {
        Some(manifest) => manifests.push(manifest),
        None => is_json = false,
    });
    is_json.then_some(manifests)
}

/// The items of a `List` with such a version; `None` if the text is no such list.
fn items_of_list(text: &str, is_version: impl Fn(&str) -> bool) -> Option<Vec<Item<'_>>> {
    let list: Option<List<'_>> = text.trim_start().starts_with('{').then(|| serde_json::from_str(text).ok()).flatten();
    let List { items, .. } = list.filter(|list| list.kind == "List" && is_version(&list.api_version))?;
    let (mut line, mut before) = (1, 0);
    let item = |item: &'_ RawValue| {
        let at = item.get().as_ptr().addr() - text.as_ptr().addr();
        line += lines(&text[before..at]);
        before = at;
        Item { text: &text[at..at + item.get().len()], document: 1, line }
    };
    Some(items.into_iter().map(item).collect())
}

/// The documents of a text, as `jsonnet -y` prints them: each in braces, and lines of `---` between them and before the
/// first one. `None` if the text is another one. In valid JSON, no line of a document begins with `---`.
fn documents(text: &str) -> Option<Vec<Item<'_>>> {
    const MARK: &str = "---\n";
    let (text, mut line) = text.strip_prefix(MARK).map_or((text, 1), |text| (text, 2));
    let documents = text.split("\n---\n").zip(1..).map(|(part, document)| {
        let text = part.trim_start();
        let before = lines(&part[..part.len() - text.len()]);
        let item = text.starts_with('{').then_some(Item { text, document, line: line + before });
        line += lines(part) + 2;
        item
    });
    documents.collect()
}

fn lines(text: &str) -> usize {
    text.bytes().filter(|byte| *byte == b'\n').count()
}

/// An object in JSON, and its namespace if it names none.
pub struct ObjectText<'t> {
    text: &'t str,
    namespace: &'t str,
}

/// Both are `None` if the text is no object with a type and a name.
impl ObjectText<'_> {
    pub fn whole(&self) -> Option<Value> {
        self.in_namespace(serde_json::from_str(self.text).ok()?)
    }

    /// See [`PartialObject::fields`].
    pub fn fields(&self) -> Option<Value> {
        let mut reader = serde_json::Deserializer::from_str(self.text);
        let fields = PartialObject::fields(&mut reader).ok()?;
        reader.end().ok()?;
        self.in_namespace(fields)
    }

    fn in_namespace(&self, object: Value) -> Option<Value> {
        let mut object = with_name(object)?;
        if object::is_namespaced(object::kind(&object)) && object::namespace(&object).is_empty() {
            object["metadata"]["namespace"] = json!(self.namespace);
        }
        Some(object)
    }
}

/// The object, if it has a type and a name, and is no list.
fn with_name(object: Value) -> Option<Value> {
    let (kind, name) = (object::kind(&object), object::name(&object));
    let has_both = !kind.is_empty() && !object::api_version(&object).is_empty() && !name.is_empty();
    (has_both && !kind.ends_with("List")).then_some(object)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SHOP: NamespaceRule<'_> = NamespaceRule::Default("shop");

    #[test]
    fn only_complete_json_is_accepted() {
        let web = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}}"#;
        let list = |items: &str| format!(r#"{{"kind": "List", "items": [{items}]}}"#);
        let untyped = r#"{"kind": "ServiceList", "items": [{"metadata": {"name": "web"}}]}"#;
        let kind_last = format!(r#"{{"items": [{web}], "metadata": {{}}, "kind": "List"}}"#);
        for (name, text, expected) in [
            ("a list", list(web), Some("default/web")),
            ("a list with its kind after the items", kind_last, Some("default/web")),
            ("an empty list", list(""), Some("")),
            ("an object", web.to_owned(), Some("default/web")),
            ("documents", format!("---\n{web}\n---\n{web}\n"), Some("default/web, default/web")),
            ("a document in YAML", format!("{web}\n---\nkind: Service\n"), None),
            ("a list whose items have no kind", untyped.to_owned(), None),
            ("a list in a list", list(r#"{"kind": "PodList", "apiVersion": "v1"}"#), None),
            ("YAML", "{kind: List, items: []}".to_owned(), None),
            ("a list with more text after it", list(web) + " x", None),
            ("a list that is cut off", list(web).trim_end_matches("]}").to_owned(), None),
        ] {
            let mut seen = Vec::new();
            let shown = |item| format!("{}/{}", object::namespace(&item), object::name(&item));
            let is_json = visit(&text, "default", |item| item.whole().map(shown), |item| seen.push(item));
            assert_eq!(is_json.then(|| seen.join(", ")).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn json_is_parsed_as_the_yaml_parser_parses_it() {
        let web = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "uid": "ü"}}"#;
        let node = "{\n\"apiVersion\": \"v1\",\n\"kind\": \"Node\",\n\"metadata\": {\"name\": \"a\"}}";
        let list = |items: &[&str]| {
            format!(r#"{{"apiVersion": "v1",{}"items": [{}], "kind": "List"}}"#, "\n", items.join(",\n"))
        };
        let with = |item: &'static str| list(&[web, item, node]);
        for (name, text, is_parsed) in [
            ("objects", list(&[web, node, node, web]), true),
            ("no objects", list(&[]), true),
            ("an item without a name", with(r#"{"apiVersion": "v1", "kind": "A", "metadata": {}}"#), false),
            ("a name that is no text", with(r#"{"apiVersion": "v1", "kind": "A", "metadata": {"name": 1}}"#), false),
            ("a kind with a blank", with(r#"{"apiVersion": "v1", "kind": "A B", "metadata": {"name": "a"}}"#), false),
            (
                "a kustomization",
                with(r#"{"apiVersion": "kustomize.config.k8s.io/v1", "kind": "A", "metadata": {"name": "a"}}"#),
                false,
            ),
            ("a list in the list", with(r#"{"apiVersion": "v1", "kind": "List", "items": []}"#), false),
            ("a list without a version", r#"{"kind": "List", "items": []}"#.to_owned(), false),
            ("a list and a document", format!("{}\n---\n{web}", list(&[web])), false),
            ("an object", format!("\n {web}\n"), true),
            ("documents", format!("{web}\n---\n\n{node}\n\n---\n{web}\n"), true),
            ("documents after a line", format!("---\n{node}\n---\n{web}"), true),
            ("two objects in one document", format!("{web}\n{web}\n---\n{web}"), false),
            ("an empty document", format!("{web}\n---\n---\n{web}\n"), false),
            ("a document in YAML", format!("{web}\n---\na: b\n"), false),
            ("a text after the mark", format!("{web}\n--- # x\n{web}\n"), false),
            ("an end of a document", format!("{web}\n...\n---\n{web}\n"), false),
        ] {
            let source = ManifestText { name: "list.json".to_owned(), text };
            let (mut expected, mut errors) = (Vec::new(), Vec::new());
            let documents = yaml::documents(&source.text);
            let visit = &mut |manifest: Manifest, _: &Node| expected.push(manifest);
            visit_documents(documents, &source, 7, SHOP, visit, &mut errors);
            let shown = |manifest: Manifest| (manifest.object, manifest.origin);
            let found = parse_json(&source, 7, SHOP, &|object| object)
                .map(|found| found.into_iter().map(shown).collect::<Vec<_>>());
            let expected: Vec<_> = expected.into_iter().map(shown).collect();
            assert_eq!(found, is_parsed.then_some(expected), "{name}: {errors:?}");
        }
    }

    /// Lines whose meaning depends on the lines before them.
    const LINES: [&str; 25] = [
        "---",
        "---",
        "---",
        "--- # comment",
        "--- |",
        "--- !!null |",
        "---x",
        "...",
        "",
        "# --- comment",
        "%TAG ! tag:example.com,2026:",
        "{kind: A, apiVersion: v1, metadata: {name: ä}}",
        "kind: A",
        "apiVersion: v1",
        "metadata: {name: b}",
        "metadata: {name: \"",
        "metadata: &anchor {name: c}",
        "spec: *anchor",
        "text: |",
        "  --- text",
        "other: \"",
        "{\"kind\": \"B\", \"apiVersion\": \"v1\", \"metadata\": {\"name\": \"d\"}}",
        "items: [",
        "]",
        "tagged: !value 1",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn text_without_mistakes_is_parsed_as_on_one_processor(
            lines in proptest::collection::vec(proptest::sample::select(&LINES[..]), 0..20),
            threads in 1..5_usize,
        ) {
            let source = ManifestText { name: "a.yaml".to_owned(), text: lines.join("\n") };
            if let Some((content, manifests)) = parse_on_threads(&source, 7, SHOP, &|object| object, threads) {
                let (mut expected, mut errors) = (Vec::new(), Vec::new());
                let (documents, visit) = (yaml::documents(&source.text), &mut |manifest, _: &Node| expected.push(manifest));
                let visited = visit_documents(documents, &source, 7, SHOP, visit, &mut errors);
                prop_assert!(errors.is_empty(), "{errors:?}");
                prop_assert_eq!(content, visited);
                let shown = |Manifest { object, origin, .. }: Manifest| (object, origin);
                let all = |manifests: Vec<Manifest>| manifests.into_iter().map(shown).collect::<Vec<_>>();
                prop_assert_eq!(all(manifests), all(expected));
            }
        }
    }

    #[test]
    fn documents_are_counted_in_all_groups() {
        let document = |name: usize| format!("kind: A\napiVersion: v1\nmetadata: {{name: n{name}}}\n");
        let text = (0..10).map(document).collect::<Vec<_>>().join("---\n");
        let source = ManifestText { name: "a.yaml".to_owned(), text };
        let (content, manifests) = parse_on_threads(&source, 0, SHOP, &|object| object, 3).unwrap();
        assert_eq!(content, Content::Objects);
        let places: Vec<_> =
            manifests.iter().map(|manifest| (manifest.origin.document, manifest.origin.line)).collect();
        assert_eq!(places, (0..10).map(|nth| (nth + 1, nth * 4 + 1)).collect::<Vec<_>>());
    }
}
