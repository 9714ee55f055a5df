use super::*;

#[test]
fn only_ipvs_without_strict_arp_is_lenient() {
    struct Case {
        name: &'static str,
        ipvs: bool,
        /// `arp_ignore` and `arp_announce` of `all`.
        all: (u8, u8),
        /// `arp_ignore` and `arp_announce` of the interface.
        own: (u8, u8),
        expected: Option<(u8, u8)>,
    }
    let cases = [
        Case { name: "not IPVS", ipvs: false, all: (0, 0), own: (0, 0), expected: None },
        Case { name: "IPVS with the defaults", ipvs: true, all: (0, 0), own: (0, 0), expected: Some((0, 0)) },
        Case { name: "strictARP", ipvs: true, all: (1, 2), own: (0, 0), expected: None },
        Case { name: "strict only on the interface", ipvs: true, all: (0, 0), own: (1, 2), expected: None },
        Case { name: "one setting on each scope", ipvs: true, all: (1, 0), own: (0, 2), expected: None },
        Case { name: "stricter than strictARP", ipvs: true, all: (2, 2), own: (0, 0), expected: None },
        Case { name: "arp_announce not strict", ipvs: true, all: (1, 1), own: (0, 0), expected: Some((1, 1)) },
        Case { name: "arp_ignore not strict", ipvs: true, all: (0, 2), own: (0, 0), expected: Some((0, 2)) },
    ];
    for Case { name, ipvs, all, own, expected } in cases {
        let settings = tempfile::tempdir().unwrap();
        for (scope, (ignore, announce)) in [("all", all), ("eth0", own)] {
            fs::create_dir(settings.path().join(scope)).unwrap();
            fs::write(settings.path().join(scope).join("arp_ignore"), format!("{ignore}\n")).unwrap();
            fs::write(settings.path().join(scope).join("arp_announce"), format!("{announce}\n")).unwrap();
        }
        if ipvs {
            fs::create_dir(settings.path().join(IPVS)).unwrap();
        }
        let expected = expected.map(|(ignore, announce)| {
            format!(
                "kube-proxy runs in IPVS mode without strictARP (arp_ignore is {ignore}, at least 1 is needed; \
                 arp_announce is {announce}, 2 is needed): every node answers ARP for every external address. \
                 Set ipvs.strictARP in kube-proxy's configuration"
            )
        });
        assert_eq!(lenient(settings.path(), "eth0").unwrap(), expected, "{name}");
    }
}
