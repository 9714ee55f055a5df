//! The README and the documentation agree with the current output and files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clusterip::audit::model::Kind;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn readme_shows_the_output_of_the_demo() {
    let (readme, demo) = (read("README.md"), read("crates/clusterip/tests/golden/shop.txt"));
    let shown = readme.split("```text\n").nth(1).and_then(|block| block.split("```").next()).expect("no block of text");
    assert_eq!(shown, demo);
}

#[test]
fn readme_shows_the_output_of_an_audit() {
    let (readme, audit) = (read("README.md"), read("crates/clusterip/tests/golden/audit.txt"));
    let command = "$ clusterip audit --snapshot examples/audit/snapshot.yaml --settings examples/settings/audit.yaml\n";
    let shown = readme.split(command).nth(1).and_then(|block| block.split("```").next()).expect("the command");
    assert_eq!(shown, audit);
}

#[test]
fn audit_page_names_every_kind_of_finding() {
    let page = read("docs/audit.md");
    for kind in Kind::value_variants() {
        let name = kind.to_possible_value().expect("a name").get_name().to_owned();
        assert!(page.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

#[test]
fn files_named_in_readmes_exist() {
    for readme in ["README.md", "CONTRIBUTING.md", "examples/README.md", "e2e-tests/README.md"] {
        let folder = Path::new(readme).parent().unwrap();
        let text = read(readme);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let words = text.split(|c: char| c.is_whitespace() || "`|()".contains(c));
        let named = words.filter(|word| {
            let word = word.trim_end_matches(['.', ',', ':', ';']);
            ["examples/", "e2e-tests/", "crates/"]
                .iter()
                .any(|place| word.starts_with(place) && word.len() > place.len())
        });
        let paths = links.filter(|link| !link.contains("://")).map(|link| folder.join(link));
        let paths = paths.chain(named.map(|word| PathBuf::from(word.trim_end_matches(['.', ',', ':', ';']))));
        for path in paths {
            assert!(workspace().join(&path).exists(), "{readme} names {}", path.display());
        }
    }
}

#[test]
fn readme_names_every_setting() {
    let readme = read("README.md");
    let settings =
        ["pools[].name", "pools[].cidrs", "pools[].reserved", "pools[].exclude", "pools[].bands", "pools[].match"];
    let settings = settings.into_iter().chain(["evidence.kinds", "evidence.lookups", "assumeOS", "order", "explicit"]);
    for setting in settings.chain(["whenFull", "exemptNamespaces", "serviceCIDRs"]) {
        assert!(readme.contains(&format!("\n| `{setting}` |")), "{setting}");
    }
}
