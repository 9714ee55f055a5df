//! The README and the pages of `docs` show what the program prints, and name only files that exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use clusterip::audit::model::Kind;

use crate::command::{Done, Folder};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(workspace().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

const AUDIT: &str =
    "$ clusterip audit --snapshot examples/audit/snapshot.yaml --settings examples/settings/audit.yaml\n";

const CHANGED_POOLS: &str = "$ clusterip plan examples/changed-pools --snapshot examples/audit/snapshot.yaml\n";

/// The text of a page between the first `begin` and the end of its code block.
fn shown<'p>(page: &'p str, begin: &str) -> &'p str {
    page.split(begin).nth(1).and_then(|block| block.split("```").next()).expect("no such block")
}

/// Compares an excerpt, in which `...` stands for left-out lines, with the whole text.
#[track_caller]
fn assert_excerpt(excerpt: &str, whole: &str) {
    let mut rest = whole.lines();
    for line in excerpt.lines().filter(|line| *line != "...") {
        assert!(rest.any(|printed| printed == line), "not printed, or in another order: {line}");
    }
}

#[test]
fn the_page_about_plans_shows_what_the_demo_prints() {
    let (page, demo) = (read("docs/plan.md"), read("crates/clusterip/tests/golden/shop.txt"));
    assert_eq!(shown(&page, "```text\n"), demo);
    assert_eq!(shown(&page, CHANGED_POOLS), read("crates/clusterip/tests/golden/changed-pools.txt"));
}

#[test]
fn the_page_about_audits_shows_what_an_audit_prints() {
    let (page, audit) = (read("docs/audit.md"), read("crates/clusterip/tests/golden/audit.txt"));
    assert_eq!(shown(&page, AUDIT), audit);
}

#[test]
fn the_readme_and_the_quick_start_show_lines_of_the_demo_and_of_an_audit() {
    let (readme, quick_start) = (read("README.md"), read("docs/quick-start.md"));
    assert_excerpt(shown(&readme, "```text\n"), &read("crates/clusterip/tests/golden/shop.txt"));
    assert_excerpt(shown(&quick_start, AUDIT), &read("crates/clusterip/tests/golden/audit.txt"));
}

#[test]
fn the_page_about_evaluations_shows_what_the_module_looks_up() {
    const COMMAND: &str = "clusterip evaluate --module policy.wasm --request examples/requests/cart.yaml \
                           --snapshot examples/shop -o text";
    let args: Vec<&str> = COMMAND.split(' ').skip(1).collect();
    let expected = shown(&read("docs/evaluate.md"), &format!("$ {COMMAND}\n")).to_owned();
    assert_eq!(Folder::workspace().run(&args), Done::ok(expected));
}

#[test]
fn the_page_about_audits_names_every_kind_of_finding() {
    let page = read("docs/audit.md");
    for kind in Kind::value_variants() {
        let name = kind.to_possible_value().expect("a name").get_name().to_owned();
        assert!(page.contains(&format!("\n| `{name}` |")), "{name}");
    }
}

#[test]
fn every_file_that_the_pages_name_exists() {
    let readmes = ["README.md", "CONTRIBUTING.md", "examples/README.md", "e2e-tests/README.md"].map(str::to_owned);
    let files = fs::read_dir(workspace().join("docs")).unwrap().map(|file| file.unwrap().file_name());
    let pages = files.map(|file| format!("docs/{}", file.to_str().unwrap())).filter(|page| page.ends_with(".md"));
    for readme in readmes.into_iter().chain(pages) {
        let folder = Path::new(&readme).parent().unwrap();
        let text = read(&readme);
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
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
fn the_page_about_settings_names_every_setting() {
    let page = read("docs/settings.md");
    let settings = [
        "pools[].name",
        "pools[].cidrs",
        "pools[].reserved",
        "pools[].exclude",
        "pools[].bands",
        "pools[].match",
        "pools[].reservations",
    ];
    let settings = settings.into_iter().chain(["evidence.kinds", "evidence.lookups", "assumeOS", "order", "explicit"]);
    for setting in settings.chain(["whenFull", "annotateReason", "exemptNamespaces", "serviceCIDRs"]) {
        assert!(page.contains(&format!("\n| `{setting}` |")), "{setting}");
    }
}
