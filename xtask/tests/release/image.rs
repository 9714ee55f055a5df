//! The OCI image layout and the Artifact Hub package.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use xtask::image::{self, sha256};
use xtask::metadata::{Metadata, annotate};
use xtask::package;

use crate::files::{document, files_below, read};
use crate::support::{annotated, metadata, module};

/// Every file below a folder, by its relative path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let name = |file: &Path| file.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
    files_below(folder).iter().map(|file| (name(file), fs::read(file).unwrap())).collect()
}

/// The bytes are those that `kwctl push` sends: sorted, without white space, and nothing changes from day to day.
#[test]
fn layout_has_the_manifest_that_kwctl_pushes_and_replaces_an_older_layout() {
    let small = |version: &str| {
        let text = format!(
            "\
            rules: []\n\
            annotations:\n  \
              io.kubewarden.policy.version: {version}\n  \
              io.kubewarden.policy.title: small\n  \
              io.kubewarden.policy.source: https://example.com/small\n  \
              several.lines: |\n    one\n    two\n\
            mutating: true\n\
            backgroundAudit: true\n\
            executionMode: kubewarden-wapc\n\
            policyType: kubernetes\n\
            contextAwareResources: []\n\
            hostCapabilities: []\n\
            minimumKubewardenVersion: 1.33.0\n"
        );
        annotate(b"\0asm\x01\0\0\0", Metadata::from_yaml(&text).unwrap(), "one\ntwo\n").unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    image::write(&small("0.0.1"), folder.path()).unwrap();
    let module = small("1.2.3");
    let digest = image::write(&module, folder.path()).unwrap();
    let manifest = format!(
        concat!(
            r#"{{"annotations":{{"io.kubewarden.policy.source":"https://example.com/small","#,
            r#""io.kubewarden.policy.title":"small","io.kubewarden.policy.version":"1.2.3","#,
            r#""org.opencontainers.image.source":"https://example.com/small"}},"#,
            r#""config":{{"digest":"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","#,
            r#""mediaType":"application/vnd.wasm.config.v1+json","size":2}},"#,
            r#""layers":[{{"digest":"sha256:{}","mediaType":"application/vnd.wasm.content.layer.v1+wasm","size":{}}}],"#,
            r#""schemaVersion":2}}"#
        ),
        sha256(&module),
        module.len()
    );
    assert_eq!(digest, format!("sha256:{}", sha256(manifest.as_bytes())));
    let index = format!(
        concat!(
            r#"{{"manifests":[{{"annotations":{{"org.opencontainers.image.ref.name":"v1.2.3"}},"digest":"{}","#,
            r#""mediaType":"application/vnd.oci.image.manifest.v1+json","size":{}}}],"#,
            r#""mediaType":"application/vnd.oci.image.index.v1+json","schemaVersion":2}}"#
        ),
        digest,
        manifest.len()
    );
    let blob = |contents: &[u8]| (format!("blobs/sha256/{}", sha256(contents)), contents.to_vec());
    let expected = BTreeMap::from([
        ("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()),
        ("index.json".to_owned(), index.into_bytes()),
        blob(b"{}"),
        blob(&module),
        blob(manifest.as_bytes()),
    ]);
    assert_eq!(tree(folder.path()), expected);
}

#[test]
fn folder_with_other_files_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious"), "data").unwrap();
    let error = image::write(&annotated(), folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("is neither empty nor an OCI image layout: name another folder, or remove it"), "{error}");
    assert_eq!(tree(folder.path()), BTreeMap::from([("precious".to_owned(), b"data".to_vec())]));
}

const PACKAGE: &str =
    "# A comment.\nversion: 0.1.0\ncreatedAt: \"2020-01-01T00:00:00Z\"\ndigest: \"\"\ninstall: |\n  digest: stays\n";

#[test]
fn package_gets_the_digest_of_the_module_and_the_time() {
    let mut metadata = metadata();
    metadata.annotations.insert("io.kubewarden.policy.version".to_owned(), "0.1.0".to_owned());
    let module = annotate(&module(), metadata, "").unwrap();
    let created = "2026-12-24T19:00:00+01:00".parse().unwrap();
    let completed = package::complete(PACKAGE, &module, created).unwrap();
    let expected = PACKAGE
        .replace("2020-01-01T00:00:00Z", "2026-12-24T18:00:00Z")
        .replace("digest: \"\"", &format!("digest: sha256:{}", sha256(&module)));
    assert_eq!(completed, expected);

    struct Case {
        name: &'static str,
        package: String,
        expected: &'static str,
    }
    let cases = [
        Case {
            name: "another version",
            package: PACKAGE.replace("0.1.0", "0.2.0"),
            expected: "the package has version 0.2.0, and the module has version 0.1.0: they must be equal",
        },
        Case {
            name: "no digest",
            package: PACKAGE.replace("\ndigest: \"\"", ""),
            expected: "the package has 0 lines that begin with \"digest: \", expected one",
        },
    ];
    for Case { name, package, expected } in cases {
        assert_eq!(package::complete(&package, &module, created).unwrap_err().to_string(), expected, "{name}");
    }
}

#[test]
fn package_of_the_repository_can_be_completed() {
    let module = annotated();
    let completed = package::complete(&read("artifacthub-pkg.yml"), &module, "2026-12-24T18:00:00Z".parse().unwrap());
    let completed = document(&completed.unwrap());
    assert_eq!(completed["digest"], format!("sha256:{}", sha256(&module)));
    assert_eq!(completed["createdAt"], "2026-12-24T18:00:00Z");
}
