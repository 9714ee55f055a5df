//! Every manifest is read, or refused with the position of the mistake. A manifest with a filled-in address can be read
//! again.

#![no_main]

use std::net::IpAddr;

use clusterip_cluster::snapshot::{Snapshot, addresses};
use clusterip_cluster::manifests::manifest_edit::apply;
use clusterip_cluster::manifests::{self, Manifest, ManifestText};
use libfuzzer_sys::fuzz_target;

fn parse(sources: &[ManifestText]) -> Result<Vec<Manifest>, String> {
    let mut manifests = Vec::new();
    manifests::each(sources, "default", &mut |manifest, _| manifests.push(manifest)).map_err(|error| error.to_string())?;
    Ok(manifests)
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let sources = [ManifestText { name: "fuzz".to_owned(), text: text.to_owned() }];
    let manifests = match parse(&sources) {
        Ok(manifests) => manifests,
        Err(error) => {
            assert!(error.starts_with("fuzz: document "), "{error}");
            return;
        }
    };
    let mut snapshot = Snapshot::default();
    for (index, manifest) in manifests.iter().enumerate() {
        snapshot.insert(&manifest.object.value());
        let address = IpAddr::from([10, 0, 0, 1]);
        let Some(slot) = &manifest.slot else { continue };
        for edits in [slot.edits(&[address], "\n"), slot.record_edits("10.0.9.1", "\n")].into_iter().flatten() {
            // The report checks whether the text is correct; this target only checks that there is a text.
            let filled = [ManifestText { name: "fuzz".to_owned(), text: apply(text, edits) }];
            if let Some(written) = parse(&filled).ok().as_ref().and_then(|written| written.get(index)) {
                addresses(&written.object.value());
            }
        }
    }
});
