//! Where the node's libcuda is. It belongs to the driver, so never to the image.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use crate::config::{Driver, DriverMode};

/// Where drivers and the clouds put the library, beneath the node's root.
const PLACES: &[&str] = &[
    "home/kubernetes/bin/nvidia/lib64",
    "opt/nvidia/lib64",
    "usr/local/nvidia/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "lib64",
    "usr/local/glibc/usr/lib",
    "run/opengl-driver/lib",
];

/// Where driver containers have their root, beneath the node's.
pub const DRIVER_CONTAINER: &str = "run/nvidia/driver";

const NAME: &str = "libcuda.so.1";

/// What to load, and which places were looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The file, which may be missing; the bare name leaves it to the loader (what a runtime class or
    /// CDI injected).
    pub file: PathBuf,
    /// Every place that was looked at.
    pub tried: Vec<PathBuf>,
}

/// Looks for the library. `kernel` is the version of the loaded kernel module: a library of another
/// version is passed over, and so is a toolkit's stub.
#[must_use]
pub fn find_libcuda(driver: &Driver, kernel: Option<&str>) -> Found {
    let mut tried = Vec::new();
    if driver.mode != DriverMode::Runtime {
        for place in places(&driver.root) {
            let file = place.join(NAME);
            let usable = file.exists() && fits(&file, kernel);
            tried.push(file.clone());
            if usable {
                return Found { file, tried };
            }
        }
    }
    // In mode `host` the loader's own places are the image's or this machine's, never the node's.
    let file = if driver.mode == DriverMode::Host { driver.root.join(NAME) } else { NAME.into() };
    Found { file, tried }
}

fn places(root: &Path) -> Vec<PathBuf> {
    [root.join(DRIVER_CONTAINER), root.to_owned()]
        .iter()
        .flat_map(|root| PLACES.iter().map(move |place| root.join(place)))
        .collect()
}

/// A driver's library is a link to `libcuda.so.VERSION`; a stub is a file in a folder `stubs`.
fn fits(file: &Path, kernel: Option<&str>) -> bool {
    let Ok(real) = fs::canonicalize(file) else { return false };
    if real.components().any(|part| part.as_os_str() == "stubs") {
        return false;
    }
    let version = real.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_prefix("libcuda.so."));
    match (version, kernel) {
        (Some(version), Some(kernel)) if version.contains('.') => version == kernel,
        _ => true,
    }
}

/// Makes a folder of links to just the driver's own files beside `libcuda`, for the child's library
/// path: the node's libc must not meet the image's loader, nor its libibverbs our providers.
pub(super) fn link_folder(libcuda: &Path, folder: &Path) -> io::Result<()> {
    let Some(dir) = libcuda.parent().filter(|dir| dir.is_dir()) else { return Ok(()) };
    for entry in fs::read_dir(dir)?.flatten() {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if (text.starts_with("libcuda.so") || text.starts_with("libnvidia-")) && text.contains(".so") {
            // Through canonicalize, because a link of the node may be absolute there.
            let target = fs::canonicalize(entry.path()).unwrap_or_else(|_| entry.path());
            symlink(target, folder.join(&name))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, dir: &str, version: &str) {
        let dir = root.join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("libcuda.so.{version}")), "").unwrap();
        symlink(format!("libcuda.so.{version}"), dir.join(NAME)).unwrap();
    }

    #[test]
    fn finds_the_library_in_each_of_its_places() {
        for place in PLACES.iter().map(|p| (*p).to_owned()).chain([format!("{DRIVER_CONTAINER}/usr/lib64")]) {
            let root = tempfile::tempdir().unwrap();
            put(root.path(), &place, "535.247.01");
            let driver = Driver { mode: DriverMode::Auto, root: root.path().into() };
            assert_eq!(find_libcuda(&driver, Some("535.247.01")).file, root.path().join(&place).join(NAME), "{place}");
        }
    }

    #[test]
    fn passes_over_another_version_and_a_stub() {
        let root = tempfile::tempdir().unwrap();
        put(root.path(), "run/nvidia/driver/usr/lib64", "550.54.14");
        put(root.path(), "usr/lib64", "535.247.01");
        let stubs = root.path().join("usr/local/nvidia/lib64");
        fs::create_dir_all(stubs.join("stubs")).unwrap();
        fs::write(stubs.join("stubs/libcuda.so"), "").unwrap();
        symlink("stubs/libcuda.so", stubs.join(NAME)).unwrap();
        let driver = Driver { mode: DriverMode::Host, root: root.path().into() };
        let found = find_libcuda(&driver, Some("535.247.01"));
        assert_eq!(found.file, root.path().join("usr/lib64").join(NAME));
        let runtime = Driver { mode: DriverMode::Runtime, ..driver };
        assert_eq!(find_libcuda(&runtime, None), Found { file: NAME.into(), tried: Vec::new() });
    }

    #[test]
    fn leaves_it_to_the_loader_only_where_the_mode_allows() {
        let root = tempfile::tempdir().unwrap();
        let find = |mode| find_libcuda(&Driver { mode, root: root.path().into() }, None).file;
        assert_eq!(find(DriverMode::Auto), Path::new(NAME));
        assert!(find(DriverMode::Host).starts_with(root.path()));
    }

    #[test]
    fn links_only_the_drivers_own_files() {
        let root = tempfile::tempdir().unwrap();
        for name in ["libcuda.so.1", "libnvidia-ptxjitcompiler.so.1", "libc.so.6", "libibverbs.so.1"] {
            fs::write(root.path().join(name), "").unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        link_folder(&root.path().join(NAME), folder.path()).unwrap();
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["libcuda.so.1", "libnvidia-ptxjitcompiler.so.1"]);
    }
}
