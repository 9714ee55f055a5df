//! Finds the files with manifests, and reads their objects.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cluster::manifests::{self, Manifest, ManifestError, ManifestErrors, Source};
use crate::yaml;

/// The manifests of files, folders and standard input.
pub struct Input {
    /// The texts.
    pub sources: Vec<Source>,
    /// Their objects, in their order.
    pub manifests: Vec<Manifest>,
    /// The files of folders that have no Kubernetes objects, such as the values of a Helm chart.
    pub skipped: Vec<String>,
}

/// Reads the objects of files, of all files below folders (ordered by name, without hidden files), and of standard
/// input for `-`. An object without a namespace, of a kind that has one, gets `namespace`.
///
/// # Errors
/// [`ManifestErrors`] with the mistakes of all files.
pub fn load(paths: &[PathBuf], namespace: &str) -> Result<Input, ManifestErrors> {
    let mut files = Files::default();
    for path in paths {
        files.add(path);
    }
    let Files { sources, skipped, mut errors } = files;
    match manifests::parse(&sources, namespace) {
        Ok(manifests) if errors.is_empty() => Ok(Input { sources, manifests, skipped }),
        Ok(_) => Err(ManifestErrors(errors)),
        Err(ManifestErrors(more)) => {
            errors.extend(more);
            Err(ManifestErrors(errors))
        }
    }
}

/// The files that were found so far.
#[derive(Default)]
struct Files {
    sources: Vec<Source>,
    skipped: Vec<String>,
    errors: Vec<ManifestError>,
}

impl Files {
    fn add(&mut self, path: &Path) {
        if path.as_os_str() == "-" {
            self.add_source(manifests::read_standard_input());
        } else if path.is_dir() {
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
        if let Err(error) = collect(path, &mut files) {
            return self.errors.push(error);
        }
        if files.is_empty() {
            return self.errors.push(ManifestError::Empty { folder });
        }
        let mut skipped = Vec::new();
        for file in &files {
            match manifests::read_file(file) {
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

/// Whether a text has documents, and none of them is an object of Kubernetes. A text that is not YAML may have some.
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

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), ManifestError> {
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
            collect(&path, files)?;
        } else if manifest && path.is_file() {
            files.push(path);
        }
    }
    Ok(())
}
