//! Parses the documents of a large text on all processors.

use std::num::NonZero;
use std::thread::{self, available_parallelism};

use super::{Content, Manifest, ManifestText, json_objects, visit_documents};
use crate::yaml::{self, DocumentGroup, Node};

const MIN_SIZE: usize = 1 << 20;

/// Parses the large source with this index: a list in JSON, or documents. Returns the manifests in their order, or `None`
/// if the text is small or has a mistake. Then the caller parses it with [`visit_documents`], which reports the mistakes.
pub(super) fn parse(source: &ManifestText, index: usize, namespace: &str) -> Option<(Content, Vec<Manifest>)> {
    let threads = available_parallelism().map_or(1, NonZero::get);
    if source.text.len() < MIN_SIZE {
        return None;
    }
    if let Some(manifests) = json_objects::parse(source, index, namespace) {
        return Some((Content::Objects, manifests));
    }
    if threads == 1 { None } else { parse_on_threads(source, index, namespace, threads) }
}

fn parse_on_threads(
    source: &ManifestText,
    index: usize,
    namespace: &str,
    threads: usize,
) -> Option<(Content, Vec<Manifest>)> {
    let parse = |group: DocumentGroup<'_>| {
        let (mut manifests, mut errors, mut documents) = (Vec::new(), Vec::new(), 0);
        let counted = group.documents().inspect(|_| documents += 1);
        let mut visit = |manifest, _: &Node| manifests.push(manifest);
        let content = visit_documents(counted, source, index, namespace, &mut visit, &mut errors);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
            if let Some((content, manifests)) = parse_on_threads(&source, 7, "shop", threads) {
                let (mut expected, mut errors) = (Vec::new(), Vec::new());
                let (documents, visit) = (yaml::documents(&source.text), &mut |manifest, _: &Node| expected.push(manifest));
                let visited = visit_documents(documents, &source, 7, "shop", visit, &mut errors);
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
        let (content, manifests) = parse_on_threads(&source, 0, "shop", 3).unwrap();
        assert_eq!(content, Content::Objects);
        let places: Vec<_> =
            manifests.iter().map(|manifest| (manifest.origin.document, manifest.origin.line)).collect();
        assert_eq!(places, (0..10).map(|nth| (nth + 1, nth * 4 + 1)).collect::<Vec<_>>());
    }
}
