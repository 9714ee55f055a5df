//! Finds the files with manifests, and reads their objects.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use serde_json::Value;

use super::large_texts::{self, Keep};
use crate::harmless_text::harmless;
use crate::manifests::{self, Content, Manifest, ManifestText, NamespaceRule, mistakes};
use crate::yaml;

pub struct Input<T> {
    pub sources: Vec<ManifestText>,
    pub manifests: Vec<Manifest<T>>,
    /// The files of folders that have no Kubernetes objects, such as the values of a Helm chart.
    pub skipped: Vec<String>,
    /// The links in folders that lead out of the folder. They are not followed.
    pub outside: Vec<String>,
}

/// Reads the objects of files, of all files below folders (ordered by name, without hidden files), and of standard
/// input for `-`. The namespaces are as `rule` says. `keep` returns what is kept of an object.
pub fn load<T: Send>(
    paths: &[PathBuf],
    rule: NamespaceRule<'_>,
    keep: impl Fn(Value) -> T + Sync,
) -> anyhow::Result<Input<T>> {
    let mut files = Files::new(rule, &keep);
    for path in paths {
        match path.is_dir() && !is_standard_input(path) {
            true => files.add_folder(path),
            false => files.add_file(path),
        }
    }
    files.finish()
}

/// As [`load`] for one text.
pub fn load_text<T: Send>(
    source: ManifestText,
    rule: NamespaceRule<'_>,
    keep: impl Fn(Value) -> T + Sync,
) -> anyhow::Result<Input<T>> {
    let mut files = Files::new(rule, &keep);
    let parsed = files.parse(&source);
    files.add_parsed(source, parsed);
    files.finish()
}

struct Files<'n, T> {
    rule: NamespaceRule<'n>,
    keep: &'n Keep<'n, T>,
    input: Input<T>,
    errors: Vec<String>,
}

type Parsed<T> = (Content, Vec<Manifest<T>>, Vec<String>);

impl<'n, T: Send> Files<'n, T> {
    fn new(rule: NamespaceRule<'n>, keep: &'n Keep<'n, T>) -> Self {
        let input = Input { sources: Vec::new(), manifests: Vec::new(), skipped: Vec::new(), outside: Vec::new() };
        Self { rule, keep, input, errors: Vec::new() }
    }

    fn finish(self) -> anyhow::Result<Input<T>> {
        if self.errors.is_empty() { Ok(self.input) } else { Err(mistakes(&self.errors)) }
    }

    /// Adds standard input, or a file that the command line names.
    fn add_file(&mut self, path: &Path) {
        match read_file(path) {
            Ok(source) => {
                let parsed = self.parse(&source);
                // An empty list of objects is a document, too.
                if parsed.0 == Content::Nothing {
                    let input = if is_standard_input(path) { "standard input" } else { "the file" };
                    self.errors.push(format!("{}: no manifests: {input} has no Kubernetes objects", source.name));
                }
                self.add_parsed(source, parsed);
            }
            Err(error) => self.errors.push(error.to_string()),
        }
    }

    fn parse(&self, source: &ManifestText) -> Parsed<T> {
        let index = self.input.sources.len();
        if let Some((content, manifests)) = large_texts::parse(source, index, self.rule, self.keep) {
            return (content, manifests, Vec::new());
        }
        let (mut manifests, mut mistakes) = (Vec::new(), Vec::new());
        let mut visit = |manifest: Manifest, _: &_| manifests.push(manifest.map(self.keep));
        let documents = yaml::documents(&source.text);
        let content = manifests::visit_documents(documents, source, index, self.rule, &mut visit, &mut mistakes);
        (content, manifests, mistakes)
    }

    fn add_parsed(&mut self, source: ManifestText, (_, manifests, mistakes): Parsed<T>) {
        self.input.sources.push(source);
        self.input.manifests.extend(manifests);
        self.errors.extend(mistakes);
    }

    fn add_folder(&mut self, path: &Path) {
        let folder = shown(path);
        let mut files = Vec::new();
        let failed = |error: io::Error| format!("{folder}: {error}");
        let root = fs::canonicalize(path).map_err(failed);
        if let Err(error) = root.and_then(|root| collect(path, &root, &mut files, &mut self.input.outside)) {
            return self.errors.push(error);
        }
        if files.is_empty() {
            let reason = "no manifests: no file there, or below, ends in .yaml, .yml or .json";
            return self.errors.push(format!("{folder}: {reason}"));
        }
        let mut skipped = Vec::new();
        for file in &files {
            match read_file(file) {
                Ok(source) => match self.parse(&source) {
                    (Content::OtherDocuments, ..) => skipped.push(source.name),
                    parsed => self.add_parsed(source, parsed),
                },
                Err(error) => self.errors.push(error.to_string()),
            }
        }
        if skipped.len() == files.len() {
            let reason = "no manifests: no .yaml, .yml or .json file there, or below, has Kubernetes objects";
            self.errors.push(format!("{folder}: {reason}"));
        }
        self.input.skipped.append(&mut skipped);
    }
}

/// Finds the files in `folder`, which is `root` or below it, and the links that lead out of `root`, which is without
/// links.
fn collect(folder: &Path, root: &Path, files: &mut Vec<PathBuf>, outside: &mut Vec<String>) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", shown(folder));
    let entries = fs::read_dir(folder).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
    let mut entries: Vec<PathBuf> = entries.map_err(failed)?;
    entries.sort();
    for path in entries {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        let manifest = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        if hidden {
            continue;
        }
        // Following a link to a parent folder would never end.
        if path.is_dir() && !path.is_symlink() {
            collect(&path, root, files, outside)?;
        } else if manifest && path.is_file() {
            // A link may lead to any file of the user, whose content an error would print.
            match path.is_symlink() && !fs::canonicalize(&path).map_err(failed)?.starts_with(root) {
                true => outside.push(shown(&path)),
                false => files.push(path),
            }
        }
    }
    Ok(())
}

pub const MAX_FILE: u64 = 64 << 20;

pub fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The path in messages. The name of a file may contain line breaks.
fn shown(path: &Path) -> String {
    harmless(&path.display().to_string())
}

/// Reads the text of one file, which may have 64 MiB, or all of standard input for `-`.
pub fn read_file(path: &Path) -> anyhow::Result<ManifestText> {
    read_at_most(path, MAX_FILE)
}

/// As [`read_file`], of a file that is open already. Messages name `path`.
pub fn read_open_file(file: fs::File, path: &Path) -> anyhow::Result<ManifestText> {
    let name = shown(path);
    let bytes = bytes_of(file, MAX_FILE).map_err(|error| anyhow!("{name}: {error}"))?;
    text_of(bytes, name)
}

/// As [`read_file`] with another limit: there is none for files with the objects of a whole cluster.
pub fn read_at_most(path: &Path, limit: u64) -> anyhow::Result<ManifestText> {
    let name = shown(path);
    let bytes = if is_standard_input(path) {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::File::open(path).and_then(|file| bytes_of(file, limit))
    };
    text_of(bytes.map_err(|error| anyhow!("{name}: {error}"))?, name)
}

fn bytes_of(file: fs::File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    // Growing step by step would copy a large text several times. Not all files have the length that they claim.
    let _ = bytes.try_reserve_exact(usize::try_from(length.min(limit)).unwrap_or_default());
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("larger than {} MiB", limit >> 20)));
    }
    Ok(bytes)
}

fn text_of(bytes: Vec<u8>, name: String) -> anyhow::Result<ManifestText> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let (valid, bytes) = (error.utf8_error().valid_up_to(), error.as_bytes());
        let line = 1 + bytes[..valid].iter().filter(|byte| **byte == b'\n').count();
        let byte = bytes.get(valid).copied().unwrap_or_default();
        anyhow!("{name}: line {line}: not UTF-8 (byte {byte:#04x})")
    })?;
    Ok(ManifestText { text: text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text), name })
}
