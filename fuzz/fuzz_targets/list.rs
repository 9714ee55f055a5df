//! Every list of objects is read as a stream, or refused.

#![no_main]

use clusterip_core::label_selector::Labels;
use clusterip_core::workload::TemplateAt;
use clusterip_policy::list::{external_addresses, node_blocks, service_addresses, workloads};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for template in TemplateAt::ALL {
        if let Ok(found) = workloads(bytes, template, "shop", &Labels::new()) {
            for workload in found {
                workload.pod_spec.requires("kubernetes.io/os");
            }
        }
    }
    let mut addresses = Vec::new();
    let read = service_addresses(bytes, &mut |_, _, address| addresses.push(address));
    assert!(read.is_err() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok());
    let read = external_addresses(bytes, &mut |_, _, address| assert_eq!(address, address.to_canonical()));
    assert!(read.is_err() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok());
    let read = node_blocks(bytes, &mut |_, block| assert_eq!(block, block.trunc(), "host bits"));
    assert!(read.is_err() || serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok());
});
