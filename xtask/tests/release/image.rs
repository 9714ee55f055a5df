//! The OCI image layout, read back, and the Artifact Hub package.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;

use oci_spec::image::{Descriptor, ImageIndex, ImageManifest, MediaType, OciLayout};
use xtask::image::{self, CONFIG, LAYER, sha256};
use xtask::metadata::{Metadata, annotate};
use xtask::package;

use crate::support::{annotated, metadata, module, read};

/// Every file below a folder, by its relative path.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

#[test]
fn layout_can_be_read_back() {
    let (folder, module) = (tempfile::tempdir().unwrap(), annotated());
    let digest = image::write(&module, folder.path()).unwrap();

    assert_eq!(OciLayout::from_file(folder.path().join("oci-layout")).unwrap().image_layout_version(), "1.0.0");
    let blob = |descriptor: &Descriptor| {
        let contents = fs::read(folder.path().join("blobs/sha256").join(descriptor.digest().digest())).unwrap();
        assert_eq!(descriptor.digest().to_string(), format!("sha256:{}", sha256(&contents)));
        assert_eq!(descriptor.size(), contents.len() as u64);
        contents
    };
    let index = ImageIndex::from_file(folder.path().join("index.json")).unwrap();
    let [entry] = index.manifests().as_slice() else { panic!("{index:?}") };
    let tag = format!("v{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(entry.media_type(), &MediaType::ImageManifest);
    assert_eq!(entry.digest().to_string(), digest);
    assert_eq!(entry.annotations(), &Some(HashMap::from([("org.opencontainers.image.ref.name".to_owned(), tag)])));

    let manifest = ImageManifest::from_reader(blob(entry).as_slice()).unwrap();
    assert_eq!(manifest.config().media_type().to_string(), CONFIG);
    assert_eq!(blob(manifest.config()), b"{}");
    let [layer] = manifest.layers().as_slice() else { panic!("{manifest:?}") };
    assert_eq!(layer.media_type().to_string(), LAYER);
    assert_eq!(blob(layer), module);

    let annotations = manifest.annotations().clone().unwrap();
    let mut expected: HashMap<String, String> = metadata().annotations.into_iter().collect();
    expected.insert("org.opencontainers.image.source".to_owned(), env!("CARGO_PKG_REPOSITORY").to_owned());
    assert_eq!(annotations, expected);
    // The marker, the index and three blobs.
    assert_eq!(tree(folder.path()).len(), 5);
}

#[test]
fn same_module_gives_the_same_bytes_over_an_older_layout() {
    let (fresh, used) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut older = metadata();
    older.annotations.insert("io.kubewarden.policy.version".to_owned(), "0.0.1".to_owned());
    image::write(&annotate(&module(), older, "").unwrap(), used.path()).unwrap();
    for folder in [&fresh, &used] {
        image::write(&annotated(), folder.path()).unwrap();
    }
    assert_eq!(tree(fresh.path()), tree(used.path()));
}

/// The manifest is sorted, has no white space, and contains nothing that changes from day to day.
#[test]
fn manifest_is_the_one_that_kwctl_pushes() {
    let text = "\
        rules: []\n\
        annotations:\n  \
          io.kubewarden.policy.version: 1.2.3\n  \
          io.kubewarden.policy.title: small\n  \
          io.kubewarden.policy.source: https://example.com/small\n  \
          several.lines: |\n    one\n    two\n\
        mutating: true\n\
        backgroundAudit: true\n\
        executionMode: kubewarden-wapc\n\
        policyType: kubernetes\n\
        contextAwareResources: []\n\
        hostCapabilities: []\n\
        minimumKubewardenVersion: 1.33.0\n";
    let module = annotate(b"\0asm\x01\0\0\0", Metadata::from_yaml(text).unwrap(), "one\ntwo\n").unwrap();
    let folder = tempfile::tempdir().unwrap();
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
    let written = tree(folder.path());
    let found = &written[&digest.replace("sha256:", "blobs/sha256/")];
    assert_eq!(String::from_utf8_lossy(found), manifest);
}

#[test]
fn folder_with_other_files_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("precious"), "data").unwrap();
    let error = image::write(&annotated(), folder.path()).unwrap_err().to_string();
    assert!(error.ends_with("is neither empty nor an OCI image layout: name another folder, or remove it"), "{error}");
    assert_eq!(tree(folder.path()), BTreeMap::from([("precious".to_owned(), b"data".to_vec())]));
}

#[test]
fn module_without_annotations_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let error = image::write(&module(), folder.path()).unwrap_err().to_string();
    assert_eq!(error, "the module has no section io.kubewarden.metadata: annotate it first");
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
    let completed = clusterip_cluster::yaml::single(&completed.unwrap()).unwrap();
    assert_eq!(completed["digest"], format!("sha256:{}", sha256(&module)));
    assert_eq!(completed["createdAt"], "2026-12-24T18:00:00Z");
}
