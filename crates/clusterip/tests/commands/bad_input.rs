//! Unusable input: the program prints one message that says where and why, prints no plan, and exits with status 2.

use crate::command::{Done, Folder};

pub const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: 80}]}\n";

/// Manifests that the program refuses with this message.
struct ManifestCase<'a> {
    name: &'static str,
    manifests: Vec<u8>,
    message: &'a str,
}

#[track_caller]
fn check_manifests(test: &str, rows: &[ManifestCase<'_>]) {
    for ManifestCase { name, manifests, message } in rows {
        let folder = Folder::new(test);
        folder.write("m.yaml", manifests);
        let expected = Done::refused(format!("m.yaml: {message}"));
        for output in ["table", "json", "yaml"] {
            assert_eq!(folder.clusterip(&format!("plan m.yaml -o {output}")), expected, "{name}, {output}");
        }
    }
}

#[test]
fn invalid_text_is_refused_with_document_and_line() {
    check_manifests(
        "bad-yaml",
        &[
            ManifestCase {
                name: "a bracket that is open",
                manifests: b"kind: [Service\nmetadata: x\n".into(),
                message: "document 1, line 2: illegal placement of ':' indicator",
            },
            ManifestCase {
                name: "a tab",
                manifests: b"kind: Service\n\tmetadata: x\n".into(),
                message: "document 1, line 1: while scanning a plain scalar, found a tab",
            },
            ManifestCase {
                name: "in the third document",
                manifests: format!("{SERVICE}---\n{SERVICE}---\na: 'b\n").into(),
                message: "document 3, line 11: while scanning a quoted scalar, found unexpected end of stream",
            },
            ManifestCase {
                name: "a key twice",
                manifests: b"apiVersion: v1\nkind: Service\nkind: Pod\n".into(),
                message: r#"document 1, line 3: duplicate key "kind""#,
            },
            ManifestCase {
                name: "an alias of nothing",
                manifests: b"kind: *a\n".into(),
                message: "document 1, line 1: while parsing node, found unknown anchor",
            },
            ManifestCase {
                name: "an alias of an earlier document",
                manifests: b"apiVersion: v1\nkind: Pod\nmetadata: &m {name: a}\n---\nmetadata: *m\n".into(),
                message: "document 2, line 5: an alias can't refer to an anchor of an earlier document: write the \
                          value out in this document, too",
            },
            ManifestCase {
                name: "text behind JSON objects",
                manifests: b"{}\n{}\nx\n".into(),
                message: "document 1, line 1: no `kind`: not a Kubernetes object\nm.yaml: document 1, line 2: did not \
                          find expected <document start>",
            },
            ManifestCase {
                name: "an alias inside of itself",
                manifests: b"a: &a [*a]\n".into(),
                message: "document 1, line 1: an alias inside of the value it refers to",
            },
            ManifestCase {
                name: "a list as a key",
                manifests: b"? [a]\n: b\n".into(),
                message: "document 1, line 1: a list or an object can't be a key",
            },
            ManifestCase {
                name: "a merge of text",
                manifests: b"<<: a\n".into(),
                message: "document 1, line 1: << takes mappings only",
            },
            ManifestCase {
                name: "no number of JSON",
                manifests: b"a: .nan\n".into(),
                message: "document 1, line 1: .nan can't be written in JSON",
            },
            ManifestCase {
                name: "Latin-1",
                manifests: b"kind: Service\n# caf\xe9\n".into(),
                message: "line 2: not UTF-8 (byte 0xe9)",
            },
        ],
    );
}

#[test]
fn documents_that_are_not_kubernetes_objects_are_refused() {
    let documents = [
        ("[a, b]", "expected a Kubernetes object, found a list"),
        ("hello", "expected a Kubernetes object, found a string"),
        ("42", "expected a Kubernetes object, found a number"),
        ("true", "expected a Kubernetes object, found a boolean"),
        ("{apiVersion: v1}", "no `kind`: not a Kubernetes object"),
        ("{kind: null}", "no `kind`: not a Kubernetes object"),
        ("{kind: 5}", "`kind`: expected a string, found a number"),
        ("{kind: Service}", "no `apiVersion`: not a Kubernetes object"),
        ("{apiVersion: v1, kind: Pod}", "Pod without `metadata`"),
        ("{apiVersion: v1, kind: Pod, metadata: []}", "`metadata`: expected an object, found a list"),
        ("{apiVersion: v1, kind: Pod, metadata: {}}", "Pod without `metadata.name`"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: a, namespace: 5}}",
            "`metadata.namespace`: expected a string, found a number",
        ),
        ("{apiVersion: v1, kind: List, items: {}}", "`items`: expected a list"),
        ("{apiVersion: v1, kind: List, items: [5]}", "expected a Kubernetes object, found a number"),
    ];
    // Each document follows its line with `---`, and an empty one and a Service with four lines come first.
    let manifests = documents.map(|(document, _)| format!("---\n{document}\n")).concat();
    let messages = documents.iter().enumerate();
    let messages =
        messages.map(|(index, (_, message))| format!("document {}, line {}: {message}", index + 3, 2 * index + 8));
    let expected = messages.collect::<Vec<_>>().join("\nm.yaml: ");
    let manifests = format!("---\n---\n{SERVICE}{manifests}").into();
    check_manifests("bad-objects", &[ManifestCase { name: "all", manifests, message: &expected }]);
}

#[test]
fn excessive_aliases_and_nesting_are_refused_at_once() {
    let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..40 {
        let before = format!("*a{}", level - 1);
        bomb += &format!("a{level}: &a{level} [{}]\n", vec![before; 10].join(", "));
    }
    let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 3_000].join(", "));
    let long_key = format!("a: &a\n  ? {}\n  : 1\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 20].join(", "));
    let anchors: String = (0..90).map(|level| format!("&a{level} [")).collect();
    let anchored = format!("a:\n  {anchors}{}{}\n", "x, ".repeat(20_000), "]".repeat(90));
    let bottomless: String = (0..1_000).map(|level| format!("{}a:\n", " ".repeat(level))).collect();
    check_manifests(
        "bad-growth",
        &[
            ManifestCase {
                name: "aliases of aliases",
                manifests: bomb.into(),
                message: "document 1, line 5: aliases add more than 16 MiB to all documents together",
            },
            ManifestCase {
                name: "aliases of a long string",
                manifests: long.into(),
                message: "document 1, line 2: aliases add more than 16 MiB to all documents together",
            },
            ManifestCase {
                name: "aliases of a long key",
                manifests: long_key.into(),
                message: "document 1, line 4: aliases add more than 16 MiB to all documents together",
            },
            ManifestCase {
                name: "anchors around a long list",
                manifests: anchored.into(),
                message: "document 1, line 2: anchors add more than 16 MiB to one document",
            },
            ManifestCase {
                name: "brackets",
                manifests: "[".repeat(100_000).into(),
                message: "document 1, line 1: recursion limit exceeded",
            },
            ManifestCase {
                name: "a block",
                manifests: bottomless.into(),
                message: "document 1, line 101: nested deeper than 100 levels",
            },
        ],
    );
}

#[test]
fn unreadable_files_are_named() {
    struct Case {
        args: &'static str,
        message: &'static str,
    }
    let folder = Folder::new("bad-files");
    folder.write("empty/.hidden.yaml", SERVICE).write("mixed/a.yaml", SERVICE).write("mixed/deep/b.yml", "kind: [");
    folder.write("good.yaml", SERVICE);
    folder.write("broken/a.yaml", "kind: [").write("broken/c.yaml", SERVICE);
    folder.write("broken/b.yaml", "apiVersion: v1\nkind: Pod\n---\napiVersion: v1\nkind: Pod\nmetadata: {}\n");
    folder.write("others/values.yaml", "replicas: 2\n").write("others/package.json", "{\"name\": \"web\"}");
    folder.write("kustomized/kustomization.yaml", "resources: [web.yaml]\n").write("kustomized/web.yaml", SERVICE);
    let rows = [
        Case { args: "good.yaml gone.yaml", message: "gone.yaml: No such file or directory (os error 2)" },
        Case { args: "empty", message: "empty: no manifests: no file there, or below, ends in .yaml, .yml or .json" },
        Case {
            args: "mixed",
            message: "mixed/deep/b.yml: document 1, line 2: while parsing a node, did not find expected node content",
        },
        Case {
            args: "broken gone.yaml good.yaml",
            message: "broken/a.yaml: document 1, line 2: while parsing a node, did not find expected node content\n\
                      broken/b.yaml: document 1, line 1: Pod without `metadata`\nbroken/b.yaml: document 2, line 4: \
                      Pod without `metadata.name`\ngone.yaml: No such file or directory (os error 2)",
        },
        Case {
            args: "others",
            message: "others: no manifests: no .yaml, .yml or .json file there, or below, has Kubernetes objects",
        },
        Case {
            args: "kustomized",
            message: "kustomized/kustomization.yaml: document 1, line 1: a kustomization: plan it with --kustomize, or \
                      `kubectl kustomize … | clusterip plan -`",
        },
        Case { args: "good.yaml -s gone.yaml", message: "settings: gone.yaml: No such file or directory (os error 2)" },
        Case {
            args: "good.yaml --snapshot gone.yaml -q",
            message: "snapshot: gone.yaml: No such file or directory (os error 2)",
        },
    ];
    for Case { args, message } in rows {
        assert_eq!(folder.clusterip(&format!("plan {args}")), Done::refused(message), "{args}");
    }
}

#[test]
fn only_the_first_hundred_mistakes_are_printed() {
    let folder = Folder::new("bad-many");
    folder.write("m.yaml", "42\n---\n".repeat(130));
    let done = folder.clusterip("plan m.yaml");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!((done.status, lines.len()), (2, 101), "{done:?}");
    assert_eq!(lines[99], "m.yaml: document 100, line 199: expected a Kubernetes object, found a number");
    assert_eq!(lines[100], "and 30 more");
}

#[test]
fn manifests_of_more_than_64_mib_are_refused() {
    let folder = Folder::new("bad-size");
    folder.write("m.yaml", "");
    std::fs::File::options().write(true).open(folder.path("m.yaml")).unwrap().set_len((64 << 20) + 1).unwrap();
    assert_eq!(folder.clusterip("plan m.yaml"), Done::refused("m.yaml: larger than 64 MiB"));
    std::fs::remove_file(folder.path("m.yaml")).unwrap();
}
