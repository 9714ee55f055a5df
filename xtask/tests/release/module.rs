//! The annotated module: the metadata can be read back, and nothing else has changed.

use std::ops::Range;
use std::process::Command;

use serde_json::Value;
use wasmparser::{Parser, Payload};
use xtask::metadata::{Metadata, SECTION, annotate, of_module};

use crate::files::{document, read, workspace};
use crate::missing;
use crate::support::{annotated, metadata, module};

/// The sections of a module: kind and bytes.
fn sections(module: &[u8]) -> Vec<(u8, &[u8])> {
    let section = |payload: Payload<'_>| {
        let bytes = |Range { start, end }: Range<u64>| &module[start.try_into().unwrap()..end.try_into().unwrap()];
        payload.as_section().map(|(id, range)| (id, bytes(range)))
    };
    Parser::new(0).parse_all(module).filter_map(|payload| section(payload.unwrap())).collect()
}

#[test]
fn section_is_the_json_that_kubewarden_reads() {
    let text = "\
        rules: [{apiGroups: [\"\"], apiVersions: [v1], resources: [services], operations: [CREATE]}]\n\
        annotations: {io.kubewarden.policy.title: small}\n\
        mutating: true\n\
        backgroundAudit: false\n\
        executionMode: kubewarden-wapc\n\
        policyType: kubernetes\n\
        contextAwareResources: [{apiVersion: v1, kind: Service}, {apiVersion: apps/v1, kind: Deployment}]\n\
        hostCapabilities: [kubernetes/list_resources_all, kubernetes/get_resource]\n\
        minimumKubewardenVersion: 1.33.0\n";
    let empty = b"\0asm\x01\0\0\0";
    let annotated = annotate(empty, Metadata::from_yaml(text).unwrap(), "How to use it.\n").unwrap();
    let json = r#"{"protocolVersion":"v1","rules":[{"apiGroups":[""],"apiVersions":["v1"],"resources":["services"],"operations":["CREATE"]}],"annotations":{"io.kubewarden.policy.title":"small","io.kubewarden.policy.usage":"How to use it.\n"},"mutating":true,"backgroundAudit":false,"executionMode":"kubewarden-wapc","policyType":"kubernetes","contextAwareResources":[{"apiVersion":"apps/v1","kind":"Deployment"},{"apiVersion":"v1","kind":"Service"}],"hostCapabilities":["kubernetes/get_resource","kubernetes/list_resources_all"],"minimumKubewardenVersion":"1.33.0"}"#;
    let section = [&[SECTION.len() as u8], SECTION.as_bytes(), json.as_bytes()].concat();
    assert_eq!(sections(&annotated), [(0, section.as_slice())]);
}

#[test]
fn annotation_keeps_every_other_byte_of_the_module() {
    let (module, annotated) = (module(), annotated());
    assert_eq!(&annotated[..module.len()], module);
    let (last, others) = sections(&annotated).split_last().map(|(last, others)| (*last, others.to_vec())).unwrap();
    assert_eq!(others, sections(&module));
    assert_eq!(last.0, 0);
}

#[test]
fn unsuitable_module_is_refused() {
    let twice = annotate(&annotated(), metadata(), "").unwrap_err();
    assert_eq!(
        twice.to_string(),
        "the module already has a section io.kubewarden.metadata: annotate the module as it was built"
    );
    let text = annotate(b"(module)", metadata(), "").unwrap_err().to_string();
    assert!(text.starts_with("not a WebAssembly module: "), "{text}");
    let bare = of_module(&module()).unwrap_err().to_string();
    assert_eq!(bare, "the module has no section io.kubewarden.metadata: annotate it first");
}

#[test]
fn invalid_metadata_is_refused() {
    let file = read("policy-metadata.yml");
    struct Case {
        name: &'static str,
        from: &'static str,
        to: &'static str,
        expected: &'static str,
    }
    let cases = [
        Case {
            name: "a misspelt field",
            from: "backgroundAudit:",
            to: "backgroundaudit:",
            expected: "unknown field `backgroundaudit`",
        },
        Case { name: "a missing field", from: "mutating: true\n", to: "", expected: "missing field `mutating`" },
        Case { name: "an incomplete version", from: "1.33.0", to: "1.33", expected: "minimumKubewardenVersion" },
        Case {
            name: "a protocol",
            from: "mutating:",
            to: "protocolVersion: v1\nmutating:",
            expected: "protocolVersion is set: remove it",
        },
        Case {
            name: "a usage",
            from: "annotations:\n",
            to: "annotations:\n  io.kubewarden.policy.usage: x\n",
            expected: "policy.usage is set: remove it",
        },
    ];
    for Case { name, from, to, expected } in cases {
        let error = Metadata::from_yaml(&file.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
}

/// The command of kwctl, if it is installed.
fn kwctl() -> Option<String> {
    let kwctl = std::env::var("KWCTL").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "kwctl".to_owned());
    Command::new(&kwctl).arg("--version").output().ok().map(|_| kwctl)
}

#[test]
fn kwctl_reads_the_same_as_from_its_own_annotation() {
    let Some(kwctl) = kwctl() else {
        return missing::skip("kwctl", "kwctl is missing: put it into PATH, or set KWCTL to its path");
    };
    let folder = tempfile::tempdir().unwrap();
    let (ours, its) = (folder.path().join("ours.wasm"), folder.path().join("its.wasm"));
    std::fs::write(&ours, annotated()).unwrap();
    let run = |arguments: &[&str]| {
        let done = Command::new(&kwctl).args(arguments).current_dir(workspace()).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
        done.stdout
    };
    let bare = folder.path().join("policy.wasm");
    std::fs::write(&bare, module()).unwrap();
    let (bare, output) = (bare.to_str().unwrap(), its.to_str().unwrap());
    run(&["annotate", "-m", "policy-metadata.yml", "-u", "README.md", "-o", output, bare]);
    let inspect = |module: &std::path::Path| -> Value {
        let printed = String::from_utf8(run(&["inspect", "-o", "yaml", module.to_str().unwrap()])).unwrap();
        let mut inspected = document(&printed);
        // The version of kwctl that annotated the module; our module has none.
        inspected["annotations"].as_object_mut().unwrap().remove("io.kubewarden.kwctl");
        inspected
    };
    assert_eq!(inspect(&ours), inspect(&its));
}
