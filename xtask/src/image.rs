//! Writes the annotated module as an OCI image layout. The manifest is the same, byte for byte, as that of `kwctl
//! push`, and so is its digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::metadata::{self, SOURCE, VERSION};

pub const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
pub const CONFIG: &str = "application/vnd.wasm.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

const MARKER: &str = "oci-layout";

/// Writes the image of an annotated module to `folder`, and replaces an older layout there. Its tag is `v` and the version
/// of the module. Returns the digest of the manifest, which identifies the image in a registry: `sha256:…`.
pub fn write(module: &[u8], folder: &Path) -> anyhow::Result<String> {
    let metadata = metadata::of_module(module)?;
    let tag = format!("v{}", metadata.annotation(VERSION)?);
    let source = metadata.annotation(SOURCE)?.to_owned();
    // Registries show annotations in one line, so annotations with more lines stay in the module only.
    let mut annotations: BTreeMap<String, String> = metadata
        .annotations
        .into_iter()
        .filter(|(_, value)| value.lines().count() <= 1)
        .map(|(name, value)| (name, value.trim().to_owned()))
        .collect();
    annotations.entry("org.opencontainers.image.source".to_owned()).or_insert(source);

    let config = b"{}".to_vec();
    let descriptor = |media_type: &str, contents: &[u8]| json!({"mediaType": media_type, "digest": format!("sha256:{}", sha256(contents)), "size": contents.len()});
    // `kwctl push` gives the configuration's media type in the descriptor only. The digest must be the same.
    let manifest = bytes(&json!({
        "schemaVersion": 2,
        "config": descriptor(CONFIG, &config),
        "layers": [descriptor(LAYER, module)],
        "annotations": annotations,
    }));
    let mut entry = descriptor(MANIFEST, &manifest);
    entry["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
    let index = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [entry],
    });
    let digest = format!("sha256:{}", sha256(&manifest));

    let blobs = folder.join("blobs/sha256");
    if folder.exists() {
        let mut entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
        if entries.next().is_some() && !folder.join(MARKER).is_file() {
            bail!("{} is neither empty nor an OCI image layout: name another folder, or remove it", folder.display());
        }
        if blobs.exists() {
            fs::remove_dir_all(&blobs).with_context(|| blobs.display().to_string())?;
        }
    }
    fs::create_dir_all(&blobs).with_context(|| blobs.display().to_string())?;
    let contents = [config, module.to_vec(), manifest];
    let files = contents.map(|contents| (blobs.join(sha256(&contents)), contents));
    // The index is written last, when the files that it names exist.
    let marker = (folder.join(MARKER), bytes(&json!({"imageLayoutVersion": "1.0.0"})));
    for (path, contents) in files.into_iter().chain([marker, (folder.join("index.json"), bytes(&index))]) {
        fs::write(&path, contents).with_context(|| path.display().to_string())?;
    }
    Ok(digest)
}

pub fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}
