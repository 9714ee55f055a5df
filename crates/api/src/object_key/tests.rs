use serde_json::json;

use super::*;

#[test]
fn messages_name_objects_and_their_fields() {
    struct Case {
        name: &'static str,
        of_document: &'static str,
        of_objects: &'static str,
    }
    let document = json!({
        "services": {"pools": [{"name": "linux"}, {"name": "windows"}]},
        "external": {"pools": [{"name": "public"}]},
        "nodes": {"pools": [{"name": "pods"}]},
    });
    let cases = [
        Case {
            name: "a pool of Services",
            of_document: "services.pools[1].match.os: unknown",
            of_objects: "ServicePool windows: spec.match.os: unknown",
        },
        Case {
            name: "a pool of external addresses",
            of_document: "external.pools[0].ranges[2]: wrong",
            of_objects: "ExternalPool public: spec.ranges[2]: wrong",
        },
        Case {
            name: "a pool of Nodes as a whole",
            of_document: "nodes.pools[0]: wrong",
            of_objects: "NodeBlockPool pods: spec: wrong",
        },
        Case {
            name: "a setting of Services, with its value",
            of_document: "services.whenFull: unmanaged with pools by os",
            of_objects: "ClusterIPPolicy default: spec.whenFull: Unmanaged with pools by os",
        },
        Case {
            name: "a setting of Nodes",
            of_document: "nodes.explicit: wrong",
            of_objects: "ClusterIPPolicy default: spec.nodes.explicit: wrong",
        },
        Case {
            name: "all pools",
            of_document: "services.pools: no pool matches",
            of_objects: "ClusterIPPolicy default: spec.assumeOS: no pool matches",
        },
        Case {
            name: "a field in a sentence",
            of_document: "Service shop/web: the pool is full; set services.whenFull: unmanaged",
            of_objects: "Service shop/web: the pool is full; set spec.whenFull: Unmanaged in ClusterIPPolicy default",
        },
        Case { name: "another text", of_document: "servicesx: y\nz", of_objects: "servicesx: y\nz" },
    ];
    for Case { name, of_document, of_objects } in cases {
        assert_eq!(mistakes_of_objects(of_document, &document), of_objects, "{name}");
    }
}
