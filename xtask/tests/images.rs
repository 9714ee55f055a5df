//! The images of the Dockerfile: built again they are the same, they run as an unprivileged user, and they contain no
//! shell. `make test-images` builds them in the folder `CLUSTERIP_IMAGES` from the program `CLUSTERIP_PROGRAM`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::{Value, json};
use tempfile::TempDir;

use self::files::{read, workspace};

#[path = "support/files.rs"]
mod files;

/// What an image promises.
struct Promise {
    name: &'static str,
    /// All that can be executed, apart from libraries.
    programs: &'static [&'static str],
    path: &'static str,
    /// A Debian package whose files the image contains.
    package: &'static str,
}

const PROMISES: [Promise; 2] = [
    Promise { name: "clusterip", programs: &["usr/local/bin/clusterip"], path: "/usr/local/bin", package: "libc6" },
    Promise {
        name: "clusterip-agent",
        programs: &["usr/local/bin/clusterip", "usr/sbin/nft"],
        path: "/usr/local/bin:/usr/sbin",
        package: "nftables",
    },
];

fn variable(name: &str) -> PathBuf {
    env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: run `make test-images`")).into()
}

/// The output of a command that must succeed.
fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    assert!(output.status.success(), "{command:?}: {}{}", text(output.stdout), text(output.stderr));
    text(output.stdout)
}

/// An OCI archive, unpacked.
struct Image {
    folder: TempDir,
    digest: String,
    config: Value,
    layer: PathBuf,
}

impl Image {
    /// An image that `make test-images` has built.
    fn built(name: &str) -> Self {
        Self::read(&variable("CLUSTERIP_IMAGES").join(format!("{name}.tar")))
    }

    fn read(archive: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        output(Command::new("tar").arg("--extract").arg("--file").arg(archive).arg("--directory").arg(folder.path()));
        let json =
            |path: &str| -> Value { serde_json::from_slice(&fs::read(folder.path().join(path)).unwrap()).unwrap() };
        let blob = |descriptor: &Value| format!("blobs/{}", descriptor["digest"].as_str().unwrap().replace(':', "/"));
        let index = json("index.json");
        let manifest = &index["manifests"][0];
        let digest = manifest["digest"].as_str().unwrap().to_owned();
        let manifest = json(&blob(manifest));
        assert_eq!(manifest["layers"].as_array().unwrap().len(), 1, "{}: {manifest}", archive.display());
        let config = json(&blob(&manifest["config"]));
        let layer = folder.path().join(blob(&manifest["layers"][0]));
        Self { folder, digest, config, layer }
    }

    /// The lines of `tar --list --verbose`: mode, owner, size, date, time and path of each file.
    fn files(&self) -> Vec<Vec<String>> {
        let list = ["--list", "--verbose", "--numeric-owner", "--gzip", "--utc", "--full-time", "--file"];
        let listed = output(Command::new("tar").args(list).arg(&self.layer));
        listed.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }

    /// The root file system.
    fn unpack(&self) -> PathBuf {
        let root = self.folder.path().join("root");
        fs::create_dir(&root).unwrap();
        output(
            Command::new("tar").args(["--extract", "--gzip", "--file"]).arg(&self.layer).arg("--directory").arg(&root),
        );
        root
    }
}

/// Runs a program in a root file system. Only root may change the root; other users become root of a user namespace.
fn run_in(root: &Path, program: &[&str]) -> String {
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let mut command = Command::new(if is_root { "chroot" } else { "unshare" });
    if is_root {
        command.arg("--userspec=65532:65532");
    } else {
        command.args(["--user", "--map-root-user", "chroot"]);
    }
    output(command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg(root).args(program))
}

#[test]
fn images_of_the_same_program_are_the_same() {
    let again = tempfile::tempdir().unwrap();
    let mut command = Command::new(workspace().join("scripts/images"));
    output(command.arg(variable("CLUSTERIP_PROGRAM")).arg(again.path()));
    for Promise { name, .. } in PROMISES {
        let (first, second) = (Image::built(name), Image::read(&again.path().join(format!("{name}.tar"))));
        assert_eq!(first.files(), second.files(), "{name}");
        assert_eq!(first.digest, second.digest, "{name}");
    }
}

#[test]
fn images_run_the_program_as_an_unprivileged_user() {
    for Promise { name, path, .. } in PROMISES {
        let image = Image::built(name);
        let mut expected = json!({
            "User": "65532:65532",
            "Env": [format!("PATH={path}")],
            "Entrypoint": ["/usr/local/bin/clusterip"],
            "Labels": {"org.opencontainers.image.source": env!("CARGO_PKG_REPOSITORY")},
        });
        if name == "clusterip" {
            expected["ExposedPorts"] = json!({"8443/tcp": {}});
        }
        assert_eq!(image.config["config"], expected, "{name}");
        assert_eq!(image.config["os"], "linux", "{name}");
    }
}

#[test]
fn images_contain_no_shell_and_nothing_that_can_be_changed() {
    for Promise { name, programs, .. } in PROMISES {
        let image = Image::built(name);
        let mut found = Vec::new();
        for file in image.files() {
            let [mode, owner, _, date, time, path] = &file[..] else { panic!("{name}: {file:?}") };
            let described = format!("{name}: {file:?}");
            assert_eq!(
                (owner.as_str(), date.as_str(), time.as_str()),
                ("0/0", "1970-01-01", "00:00:00"),
                "{described}"
            );
            assert!(["drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"].contains(&mode.as_str()), "{described}");
            if mode == "-rwxr-xr-x" && !path.starts_with("lib") {
                found.push(path.clone());
            }
        }
        found.sort();
        assert_eq!(found, programs, "{name}");
    }
}

/// The programs find all their libraries in the image.
#[test]
fn programs_of_the_images_run() {
    let expected = read("crates/clusterip/tests/golden/shop.txt");
    for Promise { name, programs, .. } in PROMISES {
        let image = Image::built(name);
        let root = image.unpack();
        output(Command::new("cp").arg("--recursive").arg(workspace().join("examples")).arg(&root));
        let plan = ["plan", "examples/shop", "--settings", "examples/settings/k2s.yaml"];
        let program = &["/usr/local/bin/clusterip"][..];
        assert_eq!(run_in(&root, &[program, &plan].concat()), expected, "{name}");
        if programs.contains(&"usr/sbin/nft") {
            let nft = run_in(&root, &["/usr/sbin/nft", "--version"]);
            assert!(nft.starts_with("nftables v"), "{name}: {nft}");
        }
    }
}

/// A scanner finds the crates in the image and the packages in dpkg's records. The list beside the image has both.
#[test]
fn contents_of_the_images_are_listed() {
    for Promise { name, package, .. } in PROMISES {
        let image = Image::built(name);
        let root = image.unpack();
        let purls = |file: PathBuf| -> Vec<String> {
            let list: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            assert_eq!(list["bomFormat"], "CycloneDX", "{}", file.display());
            let program = &list["metadata"]["component"];
            assert_eq!([&program["name"], &program["version"]], ["clusterip", env!("CARGO_PKG_VERSION")]);
            let components = list["components"].as_array().unwrap().iter();
            components.filter_map(|component| component["purl"].as_str().map(str::to_owned)).collect()
        };
        let inside = purls(root.join("usr/share/sbom/clusterip.cdx.json"));
        let beside = purls(variable("CLUSTERIP_IMAGES").join(format!("{name}.cdx.json")));
        let has = |purls: &[String], begin: &str| purls.iter().any(|purl| purl.starts_with(begin));
        // A crate of the program, and one that the module shares with it.
        for wanted in ["pkg:cargo/wasmi@", "pkg:cargo/ipnet@"] {
            assert!(has(&inside, wanted) && has(&beside, wanted), "{name}: {wanted}");
        }
        assert!(
            !has(&inside, "pkg:deb/") && beside.iter().any(|purl| purl.contains(&format!("/{package}@"))),
            "{name}"
        );
        let records = fs::read_dir(root.join("var/lib/dpkg/status.d")).unwrap().count();
        assert_eq!(beside.iter().filter(|purl| purl.starts_with("pkg:deb/")).count(), records, "{name}");
        assert!(root.join("var/lib/dpkg/status.d").join(package).is_file(), "{name}: {package}");
    }
}
