//! Writes the annotated module as an OCI image layout. The manifest is the same, byte for byte, as that of `kwctl
//! push`, and so is its digest.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

use anyhow::{anyhow, bail};
use oci_spec::OciSpecError;
use oci_spec::image::{
    ANNOTATION_REF_NAME, ANNOTATION_SOURCE, Descriptor, DescriptorBuilder, ImageIndexBuilder, ImageManifestBuilder,
    MediaType, OciLayoutBuilder, SCHEMA_VERSION, Sha256Digest,
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::metadata::{self, SOURCE, VERSION};

/// The media type of the only layer, the module.
pub const LAYER: &str = "application/vnd.wasm.content.layer.v1+wasm";
/// The media type of the configuration, which is empty.
pub const CONFIG: &str = "application/vnd.wasm.config.v1+json";

/// The file that marks a folder as an OCI layout.
const MARKER: &str = "oci-layout";
const BLOBS: &str = "blobs";

/// An image of one module.
#[derive(Clone, Debug)]
pub struct Image {
    /// `oci-layout`
    marker: Vec<u8>,
    /// `index.json`
    index: Vec<u8>,
    /// The contents of `blobs/sha256`: digest in hexadecimal, and bytes.
    blobs: Vec<(String, Vec<u8>)>,
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
        let mut annotations: HashMap<String, String> = metadata
            .annotations
            .into_iter()
            .filter(|(_, value)| value.lines().count() <= 1)
            .map(|(name, value)| (name, value.trim().to_owned()))
            .collect();
        annotations.entry(ANNOTATION_SOURCE.to_owned()).or_insert(source);

        let config = b"{}".to_vec();
        // `kwctl push` gives the configuration's media type in the descriptor only. The digest must be the same.
        let manifest = ImageManifestBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .config(describe(MediaType::Other(CONFIG.to_owned()), &config).map_err(undescribed)?)
            .layers(vec![describe(MediaType::Other(LAYER.to_owned()), module).map_err(undescribed)?])
            .annotations(annotations)
            .build()
            .map_err(undescribed)?;
        let manifest = canonical(&manifest).map_err(undescribed)?;
        let manifest_digest = sha256(&manifest);
        let entry = DescriptorBuilder::default()
            .media_type(MediaType::ImageManifest)
            .digest(Sha256Digest::from_str(&manifest_digest).map_err(undescribed)?)
            .size(manifest.len() as u64)
            .annotations(HashMap::from([(ANNOTATION_REF_NAME.to_owned(), tag)]))
            .build()
            .map_err(undescribed)?;
        let index = ImageIndexBuilder::default()
            .schema_version(SCHEMA_VERSION)
            .media_type(MediaType::ImageIndex)
            .manifests(vec![entry])
            .build()
            .map_err(undescribed)?;
        Ok(Self {
            marker: canonical(
                &OciLayoutBuilder::default().image_layout_version("1.0.0").build().map_err(undescribed)?,
            )?,
            index: canonical(&index).map_err(undescribed)?,
            digest: format!("sha256:{manifest_digest}"),
            blobs: vec![(sha256(&config), config), (sha256(module), module.to_vec()), (manifest_digest, manifest)],
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

/// The SHA-256 of `bytes` in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn describe(media_type: MediaType, contents: &[u8]) -> Result<Descriptor, OciSpecError> {
    Ok(Descriptor::new(media_type, contents.len() as u64, Sha256Digest::from_str(&sha256(contents))?))
}

/// Serialises to JSON with sorted keys and without white space, because annotations have no order of their own.
fn canonical(structure: &impl Serialize) -> Result<Vec<u8>, serde_json::Error> {
    let mut value = serde_json::to_value(structure)?;
    value.sort_all_objects();
    serde_json::to_vec(&value)
}

fn undescribed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("can't describe the image: {error}")
}
