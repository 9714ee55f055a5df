//! Every manifest is read, or refused with the position of the mistake. A manifest with a filled-in address can be read
//! again.

#![no_main]

use std::net::IpAddr;

use clusterip_cluster::manifests::manifest_edit::{Fields, InsertionPoint, apply};
use clusterip_cluster::manifests::{self, Manifest, ManifestText};
use clusterip_cluster::object;
use clusterip_cluster::snapshot::{Snapshot, addresses};
use libfuzzer_sys::fuzz_target;

/// The manifests, each with the place for its addresses or blocks, if it is of a Service or a Node.
fn parse(sources: &[ManifestText]) -> Result<Vec<(Manifest, Option<InsertionPoint>)>, String> {
    let mut manifests = Vec::new();
    let visit = &mut |manifest: Manifest, node: &_| {
        let service = object::is_service(&manifest.object).then_some(Fields::ClusterIps);
        let fields = service.or(object::is_node(&manifest.object).then_some(Fields::PodCidrs));
        manifests.push((manifest, fields.map(|fields| InsertionPoint::of(node, fields))));
    };
    manifests::each(sources, "default", visit).map_err(|error| error.to_string())?;
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
    for (index, (manifest, place)) in manifests.iter().enumerate() {
        snapshot.insert(&manifest.object);
        let address = IpAddr::from([10, 0, 0, 1]);
        let Some(place) = place else { continue };
        for edits in [place.edits(&[address], "\n"), place.record_edits("10.0.9.1", "\n")].into_iter().flatten() {
            // The report checks whether the text is correct; this target only checks that there is a text.
            let filled = [ManifestText { name: "fuzz".to_owned(), text: apply(text, edits) }];
            if let Some((written, _)) = parse(&filled).ok().as_ref().and_then(|written| written.get(index)) {
                addresses(&written.object);
            }
        }
    }
});
