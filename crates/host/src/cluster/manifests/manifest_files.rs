//! Finds the files with manifests, and reads their objects.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::manifests::{self, Manifest, ManifestError, ManifestErrors, Source};
use crate::{object, yaml};

/// The manifests of files, folders and standard input.
pub struct Input {
    /// The texts.
    pub sources: Vec<Source>,
    /// Their objects, in their order.
    pub manifests: Vec<Manifest>,
    /// The files of folders that have no Kubernetes objects, such as the values of a Helm chart.
    pub skipped: Vec<String>,
    /// The links in folders that lead out of the folder. They are not followed.
    pub outside: Vec<String>,
}

/// The namespace of objects that name none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace<'n> {
    /// Other objects may name other namespaces.
    Default(&'n str),
    /// Other objects may only name this namespace.
    Only(&'n str),
}

/// Reads the objects of files, of all files below folders (ordered by name, without hidden files), and of standard
/// input for `-`. An object without a namespace, of a kind that has one, gets `namespace`.
///
/// # Errors
/// [`ManifestErrors`] with the mistakes of all files.
pub fn load(paths: &[PathBuf], namespace: Namespace<'_>) -> Result<Input, ManifestErrors> {
    let mut files = Files::default();
    for path in paths {
        files.add(path);
    }
    files.parse(namespace)
}

/// As [`load`], for a text that was read already.
///
/// # Errors
/// [`ManifestErrors`] with all mistakes of the text.
pub fn load_text(source: Source, namespace: Namespace<'_>) -> Result<Input, ManifestErrors> {
    Files { sources: vec![source], ..Files::default() }.parse(namespace)
}

/// The files that were found so far.
#[derive(Default)]
struct Files {
    sources: Vec<Source>,
    skipped: Vec<String>,
    outside: Vec<String>,
    errors: Vec<ManifestError>,
}

impl Files {
    fn parse(self, namespace: Namespace<'_>) -> Result<Input, ManifestErrors> {
        let Self { sources, skipped, outside, mut errors } = self;
        let (Namespace::Default(name) | Namespace::Only(name)) = namespace;
        let mut manifests = Vec::new();
        match manifests::parse(&sources, name) {
            Ok(parsed) => manifests = parsed,
            Err(ManifestErrors(more)) => errors.extend(more),
        }
        for (index, source) in sources.iter().enumerate().filter(|(_, source)| source.name == "-") {
            // An empty list of objects is a document, too.
            if manifests.iter().all(|manifest| manifest.origin.source != index) && is_empty(source) {
                errors.push(ManifestError::EmptyInput);
            }
        }
        if let Namespace::Only(only) = namespace {
            errors.extend(manifests.iter().filter_map(|manifest| other_namespace(manifest, only)));
        }
        if errors.is_empty() { Ok(Input { sources, manifests, skipped, outside }) } else { Err(ManifestErrors(errors)) }
    }

    fn add(&mut self, path: &Path) {
        if path.is_dir() && !manifests::is_standard_input(path) {
            self.add_folder(path);
        } else {
            self.add_source(manifests::read_file(path));
        }
    }

    fn add_source(&mut self, source: Result<Source, ManifestError>) {
        match source {
            Ok(source) => self.sources.push(source),
            Err(error) => self.errors.push(error),
        }
    }

    fn add_folder(&mut self, path: &Path) {
        let folder = path.display().to_string();
        let mut files = Vec::new();
        let failed = |error| ManifestError::Read { file: folder.clone(), error };
        let collected = fs::canonicalize(path).map_err(failed).and_then(|root| collect(path, &root, &mut files));
        if let Err(error) = collected {
            return self.errors.push(error);
        }
        let is_outside = |found: &Found| found.outside;
        let (outside, files): (Vec<Found>, Vec<Found>) = files.into_iter().partition(is_outside);
        self.outside.extend(outside.iter().map(|link| link.path.display().to_string()));
        if files.is_empty() {
            return self.errors.push(ManifestError::Empty { folder });
        }
        let mut skipped = Vec::new();
        for file in &files {
            match manifests::read_file(&file.path) {
                Ok(source) if has_no_objects(&source) => skipped.push(source.name),
                source => self.add_source(source),
            }
        }
        if skipped.len() == files.len() {
            self.errors.push(ManifestError::OnlyOtherFiles { folder });
        }
        self.skipped.append(&mut skipped);
    }
}

/// The error for an object that names another namespace than `only`.
fn other_namespace(manifest: &Manifest, only: &str) -> Option<ManifestError> {
    let object = manifest.object.value();
    let (kind, namespace) = (object::kind(&object), object::namespace(&object));
    let name = match object::name(&object) {
        "" => object::text(&object, &["metadata", "generateName"]),
        name => name,
    };
    let is_other = object::is_namespaced(kind) && namespace != only;
    is_other.then(|| ManifestError::Object {
        origin: manifest.origin.clone(),
        reason: format!("{kind} {name} is in namespace {namespace}, but --namespace is {only}: remove one of the two"),
    })
}

/// Whether a text has no documents, or only empty ones.
fn is_empty(source: &Source) -> bool {
    yaml::documents(&source.text).all(|document| document.is_ok_and(|document| document.is_null()))
}

/// Whether a text has documents, and none of them is a Kubernetes object. A text that is not YAML may have some.
fn has_no_objects(source: &Source) -> bool {
    let mut has_documents = false;
    for document in yaml::documents(&source.text) {
        match document {
            Err(_) => return false,
            Ok(document) if document.is_null() => {}
            Ok(document) if manifests::is_like_an_object(&document, &source.name) => return false,
            Ok(_) => has_documents = true,
        }
    }
    has_documents
}

/// A file of a folder.
struct Found {
    path: PathBuf,
    /// Whether it is a link to a file outside of the folder.
    outside: bool,
}

/// Finds the files in `folder`, which is `root` or below it. `root` is without links.
fn collect(folder: &Path, root: &Path, files: &mut Vec<Found>) -> Result<(), ManifestError> {
    let failed = |error| ManifestError::Read { file: folder.display().to_string(), error };
    let mut entries: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        entries.push(entry.map_err(failed)?.path());
    }
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let manifest = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if hidden {
            continue;
        }
        // Following a link to a parent folder would never end.
        if path.is_dir() && !path.is_symlink() {
            collect(&path, root, files)?;
        } else if manifest && path.is_file() {
            // A link may lead to any file of the user, whose content an error would print.
            let outside = path.is_symlink() && !fs::canonicalize(&path).map_err(failed)?.starts_with(root);
            files.push(Found { path, outside });
        }
    }
    Ok(())
}
