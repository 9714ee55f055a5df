//! When the change of a settings file counts: at once if the file was replaced as a whole, otherwise when it has stayed
//! as it is for a second, because a program may still write it.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::manifests;

/// How long a file that may still be written must stay as it is until it counts.
const SETTLED_AFTER: Duration = Duration::from_secs(1);

/// The text of a file, or why it can't be read.
pub(super) type Text = Result<String, String>;

/// A file as it was read once.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ReadFile {
    pub text: Text,
    /// `None` if the file can't be read.
    version: Option<FileVersion>,
    /// Whether the text is that of the version: the file did not change while it was read.
    is_whole: bool,
}

/// A version of a file: what was found behind its path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileVersion {
    /// The path without symbolic links.
    real: PathBuf,
    device: u64,
    inode: u64,
    size: u64,
    modified: Time,
    /// When the file was written, renamed or got other permissions.
    changed: Time,
}

/// Seconds and nanoseconds.
type Time = (i64, i64);

impl ReadFile {
    /// Reads through one open file: meanwhile, its path may get another one.
    pub fn read(path: &Path) -> Self {
        let read = || -> io::Result<_> {
            let real = fs::canonicalize(path)?;
            let file = File::open(&real)?;
            Ok((FileVersion::of(&file, &real), file.try_clone()?, file, real))
        };
        match read() {
            Ok((before, file, same, real)) => {
                let text = manifests::read_open_file(file, path).map(|source| source.text);
                let version = FileVersion::of(&same, &real);
                let is_whole = version == before;
                Self { text: text.map_err(|error| without_name(&error, path)), version, is_whole }
            }
            Err(error) => Self { text: Err(error.to_string()), version: None, is_whole: false },
        }
    }
}

/// The message without the name of the file. Every message about settings names their source itself.
pub(super) fn without_name(error: &anyhow::Error, file: &Path) -> String {
    let (text, name) = (error.to_string(), format!("{}: ", file.display()));
    text.strip_prefix(&name).map(str::to_owned).unwrap_or(text)
}

impl FileVersion {
    #[cfg(unix)]
    fn of(file: &File, real: &Path) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        let metadata = file.metadata().ok()?;
        Some(Self {
            real: real.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        })
    }

    /// The standard library does not tell which file this is, so each change must settle.
    #[cfg(not(unix))]
    fn of(_: &File, _: &Path) -> Option<Self> {
        None
    }

    /// Whether this complete file came into the place of `before` in one step.
    ///
    /// A symbolic link leads to another file in one step, as those of a mounted ConfigMap do. Behind the same path,
    /// another inode is not enough, because some editors create a new file and write it there. Each write sets both
    /// times of a file, and a rename only the second one: if they differ, the new file was written before it got its
    /// name. An inode number that is used again looks like a file that is written in place.
    fn has_replaced(&self, before: &Self) -> bool {
        let is_other = (self.device, self.inode) != (before.device, before.inode);
        let is_complete = self.real != before.real || self.changed > self.modified;
        is_other && is_complete && self.size > 0
    }
}

/// Follows a file. Each read is given to [`Self::is_complete`].
#[derive(Default)]
pub(super) struct FollowedFile {
    /// The latest version that was found.
    last: Option<FileVersion>,
    /// The text that counted last.
    counts: Option<Text>,
    /// Another text that does not count yet, and when it was first read.
    changed: Option<(Text, Instant)>,
}

impl FollowedFile {
    /// Whether the text is another one than the one that counts, and is complete. If so, it counts from now on.
    pub fn is_complete(&mut self, read: &ReadFile) -> bool {
        let is_replaced = match (&self.last, &read.version) {
            (Some(last), Some(version)) => read.is_whole && version.has_replaced(last),
            _ => false,
        };
        self.last = read.version.clone().or(self.last.take());
        if self.counts.as_ref() == Some(&read.text) {
            self.changed = None;
            return false;
        }
        let is_settled = match &self.changed {
            Some((same, since)) if *same == read.text => since.elapsed() >= SETTLED_AFTER,
            _ => false,
        };
        if is_replaced || is_settled {
            (self.counts, self.changed) = (Some(read.text.clone()), None);
            return true;
        }
        if self.changed.as_ref().is_none_or(|(same, _)| *same != read.text) {
            self.changed = Some((read.text.clone(), Instant::now()));
        }
        false
    }
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::thread;

    use super::*;

    const OLD: &str = "services: {order: lowest}\n";
    const NEW: &str = "services: {order: random}\n";

    /// Writes a file as the data of a mounted ConfigMap: `settings.yaml` leads to a folder through the link `..data`.
    fn mounts(folder: &Path, version: &str, text: &str) {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("settings.yaml"), text).unwrap();
        symlink(version, folder.join("..data_tmp")).unwrap();
        fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    }

    fn renames(folder: &Path, text: &str) {
        fs::write(folder.join("new"), text).unwrap();
        // The clock of a file system may advance in steps of 10 ms.
        thread::sleep(Duration::from_millis(30));
        fs::rename(folder.join("new"), folder.join("settings.yaml")).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn change_counts_when_the_file_is_complete() {
        struct Case {
            name: &'static str,
            is_mounted: bool,
            change: fn(&Path),
            /// After how many milliseconds the change counts; `None` if the text is the same.
            counts_after: Option<u64>,
        }
        const fn case(name: &'static str, change: fn(&Path), counts_after: Option<u64>) -> Case {
            Case { name, is_mounted: false, change, counts_after }
        }
        const fn mounted(name: &'static str, change: fn(&Path), counts_after: Option<u64>) -> Case {
            Case { is_mounted: true, ..case(name, change, counts_after) }
        }
        let file = |folder: &Path| folder.join("settings.yaml");
        let cases = [
            mounted("a new version of a ConfigMap", |folder| mounts(folder, "..2", NEW), Some(0)),
            mounted("the same text in a new version", |folder| mounts(folder, "..2", OLD), None),
            mounted(
                "a new version of a ConfigMap, after which the old one is removed",
                |folder| {
                    mounts(folder, "..2", NEW);
                    fs::remove_dir_all(folder.join("..1")).unwrap();
                },
                Some(0),
            ),
            mounted(
                "written in place, through the links",
                |folder| fs::write(folder.join("..1/settings.yaml"), NEW).unwrap(),
                Some(1000),
            ),
            case("renamed", |folder| renames(folder, NEW), Some(0)),
            case("renamed, but empty", |folder| renames(folder, ""), Some(1000)),
            case("renamed, with the same text", |folder| renames(folder, OLD), None),
            case("written in place", |folder| fs::write(folder.join("settings.yaml"), NEW).unwrap(), Some(1000)),
            case(
                "kept under another name, and created again",
                |folder| {
                    fs::rename(folder.join("settings.yaml"), folder.join("settings.yaml~")).unwrap();
                    fs::write(folder.join("settings.yaml"), NEW).unwrap();
                },
                Some(1000),
            ),
            case(
                "removed and created again, perhaps with the same inode number",
                |folder| {
                    fs::remove_file(folder.join("settings.yaml")).unwrap();
                    fs::write(folder.join("settings.yaml"), NEW).unwrap();
                },
                Some(1000),
            ),
            case("removed", |folder| fs::remove_file(folder.join("settings.yaml")).unwrap(), Some(1000)),
            case(
                "other permissions",
                |folder| {
                    let permissions = fs::Permissions::from_mode(0o600);
                    fs::set_permissions(folder.join("settings.yaml"), permissions).unwrap();
                },
                None,
            ),
        ];
        for Case { name, is_mounted, change, counts_after } in cases {
            let folder = tempfile::tempdir().unwrap();
            let folder = folder.path();
            let path = file(folder);
            if is_mounted {
                mounts(folder, "..1", OLD);
                symlink("..data/settings.yaml", &path).unwrap();
            } else {
                fs::write(&path, OLD).unwrap();
            }
            let mut followed = FollowedFile::default();
            let mut counts = || followed.is_complete(&ReadFile::read(&path));
            assert!(!counts(), "{name}: read for the first time");
            tokio::time::advance(SETTLED_AFTER).await;
            assert!(counts(), "{name}: the first text");
            change(folder);
            let mut counted = None;
            for after in [0, 999, 1000, 2000] {
                if counts() {
                    assert_eq!(counted.replace(after), None, "{name}: counts once");
                }
                tokio::time::advance(Duration::from_millis(if after == 0 { 999 } else { 1 })).await;
            }
            assert_eq!(counted, counts_after, "{name}");
        }
    }

    #[test]
    fn another_inode_alone_does_not_show_that_a_file_is_complete() {
        struct Case {
            name: &'static str,
            now: FileVersion,
            expected: bool,
        }
        let version = |real: &str, device, inode, modified, changed| FileVersion {
            real: real.into(),
            device,
            inode,
            size: 9,
            modified: (modified, 0),
            changed: (changed, 0),
        };
        let before = version("/a", 1, 1, 10, 11);
        let cases = [
            Case { name: "the same", now: before.clone(), expected: false },
            Case { name: "renamed", now: version("/a", 1, 2, 20, 21), expected: true },
            Case { name: "of another file system", now: version("/a", 2, 1, 20, 21), expected: true },
            Case { name: "created and written", now: version("/a", 1, 2, 20, 20), expected: false },
            Case { name: "written in the future, as its time says", now: version("/a", 1, 2, 30, 21), expected: false },
            Case { name: "with a used inode number", now: version("/a", 1, 1, 20, 21), expected: false },
            Case { name: "behind another link", now: version("/b", 1, 2, 20, 20), expected: true },
            Case { name: "another name of the same file", now: version("/b", 1, 1, 10, 12), expected: false },
            Case { name: "empty", now: FileVersion { size: 0, ..version("/b", 1, 2, 20, 21) }, expected: false },
        ];
        for Case { name, now, expected } in cases {
            assert_eq!(now.has_replaced(&before), expected, "{name}");
        }
    }
}
