//! Writes the annotated module as an OCI image layout. The manifest is the same, byte for byte, as that of `kwctl
//! push`, and so is its digest.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::metadata::{self, SOURCE, VERSION};

pub const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
pub const CONFIG: &str = "application/vnd.wasm.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

const MARKER: &str = "oci-layout";
const BLOBS: &str = "blobs";

#[derive(Clone, Debug)]
pub struct Image {
    /// `oci-layout`
    marker: Vec<u8>,
    index: Vec<u8>,
    /// The contents of `blobs/sha256`: digest in hexadecimal, and bytes.
    blobs: [(String, Vec<u8>); 3],
    /// The digest of the manifest, which identifies the image in a registry: `sha256:…`.
    pub digest: String,
}

impl Image {
    /// Builds the image of an annotated module. Its tag is `v` and the version of the module.
    pub fn new(module: &[u8]) -> anyhow::Result<Self> {
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
        Ok(Self {
            marker: bytes(&json!({"imageLayoutVersion": "1.0.0"})),
            index: bytes(&index),
            digest: format!("sha256:{}", sha256(&manifest)),
            blobs: [config, module.to_vec(), manifest].map(|contents| (sha256(&contents), contents)),
        })
    }

    /// Writes the layout to `folder`; replaces an older layout.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| anyhow!("{}: {error}", path.display())
        };
        let blobs = folder.join(BLOBS).join("sha256");
        if folder.exists() {
            let mut entries = fs::read_dir(folder).map_err(failed(folder))?;
            if entries.next().is_some() && !folder.join(MARKER).is_file() {
                bail!(
                    "{} is neither empty nor an OCI image layout: name another folder, or remove it",
                    folder.display()
                );
            }
            let old = folder.join(BLOBS);
            if old.exists() {
                fs::remove_dir_all(&old).map_err(failed(&old))?;
            }
        }
        fs::create_dir_all(&blobs).map_err(failed(&blobs))?;
        let blobs = self.blobs.iter().map(|(digest, contents)| (blobs.join(digest), contents));
        // The index is written last, when the files that it names exist.
        let rest = [(folder.join(MARKER), &self.marker), (folder.join("index.json"), &self.index)];
        for (path, contents) in blobs.chain(rest) {
            fs::write(&path, contents).map_err(failed(&path))?;
        }
        Ok(())
    }
}

pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// JSON with sorted keys and without white space.
fn bytes(document: &Value) -> Vec<u8> {
    document.to_string().into_bytes()
}
