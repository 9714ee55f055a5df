//! A release pushes exactly the images that `deploy`, the chart and the documentation name.

use std::collections::{BTreeMap, BTreeSet};

use crate::files::{files_below, read, read_yaml, workspace};

const REGISTRY: &str = "ghcr.io/clusterip-policy/";

/// The policy, which a release pushes with kwctl.
const POLICY: &str = "clusterip-policy";

/// The tag of this release.
const TAG: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// An image of this project that a file names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Reference {
    name: String,
    /// Empty if the file names only the repository of the image.
    tag: String,
}

/// The images of this project that a text names.
fn references(text: &str) -> BTreeSet<Reference> {
    let reference = |rest: &str| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"-._:".contains(c)).unwrap_or(rest.len());
        // The end of a sentence is no part of a name.
        let (name, tag) = rest[..end].trim_end_matches(['.', ':']).split_once(':').unwrap_or((&rest[..end], ""));
        Reference { name: name.trim_end_matches(['.', ':']).to_owned(), tag: tag.to_owned() }
    };
    text.split(REGISTRY).skip(1).map(reference).collect()
}

/// The images that the release workflow pushes with buildah.
fn pushed() -> BTreeSet<String> {
    let workflow = read_yaml(".github/workflows/release.yml");
    let job = &workflow["jobs"]["images"];
    assert_eq!(job["env"]["IMAGE"], "ghcr.io/${{ github.repository_owner }}/${{ matrix.image }}");
    let names = job["strategy"]["matrix"]["image"].as_array().expect("jobs.images.strategy.matrix.image");
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

fn names(references: &BTreeSet<Reference>) -> BTreeSet<String> {
    references.iter().map(|reference| reference.name.clone()).collect()
}

#[test]
fn release_pushes_every_image_of_the_dockerfile() {
    let dockerfile = read("Dockerfile");
    let targets = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM scratch AS "));
    assert_eq!(targets.map(str::to_owned).collect::<BTreeSet<_>>(), pushed());
    assert_eq!(names(&references(&dockerfile)), pushed());
}

/// Every image that is pushed is used, too.
#[test]
fn deploy_names_the_images_of_the_release() {
    let mut found = BTreeMap::new();
    for file in files_below(&workspace().join("deploy")) {
        for reference in references(&read(&file)) {
            found.entry(reference).or_insert_with(|| file.clone());
        }
    }
    let expected: BTreeSet<String> = pushed().into_iter().chain([POLICY.to_owned()]).collect();
    assert_eq!(names(&found.keys().cloned().collect()), expected);
    for (Reference { name, tag }, file) in found {
        // The chart names the repositories of its images, and its templates add the tag.
        let has_tag = if file.ends_with("deploy/chart/values.yaml") { tag.is_empty() } else { tag == TAG };
        assert!(has_tag, "{}: {name}:{tag} is not of the release {TAG}", file.display());
    }
}

/// No Pod of `deploy` runs an image of another project.
#[test]
fn deploy_names_no_other_images() {
    let mut count = 0;
    for file in files_below(&workspace().join("deploy")) {
        for line in read(&file).lines() {
            let Some(image) = line.trim_start().trim_start_matches("- ").strip_prefix("image: ") else { continue };
            assert!(image.starts_with(REGISTRY), "{}: {image}", file.display());
            count += 1;
        }
    }
    assert_eq!(
        count, 3,
        "the server, the agents and the renumbering have images; the chart takes the first two from there"
    );
}

/// Pages show upgrades, and therefore also other tags.
#[test]
fn documentation_names_only_images_of_a_release() {
    let expected: BTreeSet<String> = pushed().into_iter().chain([POLICY.to_owned()]).collect();
    let pages = files_below(&workspace().join("docs"))
        .into_iter()
        .filter(|file| file.extension().is_some_and(|end| end == "md"));
    let pages = pages.chain(["README.md", "artifacthub-pkg.yml"].map(|file| workspace().join(file)));
    let mut found = BTreeSet::new();
    for page in pages {
        let named = names(&references(&read(&page)));
        assert!(named.is_subset(&expected), "{}: {named:?}", page.display());
        found.extend(named);
    }
    assert!(found.contains(POLICY) && found.contains("clusterip"), "{found:?}");
}
