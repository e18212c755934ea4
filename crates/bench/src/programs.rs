//! Programs that are compared, as far as they are installed.
use anyhow::{Context, Result, ensure};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) trait ComparedProgram: Copy + PartialEq {
    /// Its name, in reports and in PATH.
    fn name(self) -> &'static str;

    /// Reports whether it is this program, which is always there.
    fn is_own(self) -> bool;
}

/// The programs that were found, and those that this machine lacks.
#[derive(Clone, Debug)]
pub(crate) struct InstalledPrograms<T> {
    found: Vec<(T, PathBuf)>,
    pub(crate) missing: Vec<&'static str>,
}

impl<T: ComparedProgram> InstalledPrograms<T> {
    /// Looks for the programs that are wanted.
    ///
    /// # Errors
    /// If none is installed.
    pub(crate) fn find(wanted: &[T]) -> Result<Self> {
        let own = own_program()?;
        let places = places(&own);
        let mut installed = Self { found: Vec::new(), missing: Vec::new() };
        for &program in wanted {
            let path = if program.is_own() { Some(own.clone()) } else { find(program.name(), &own, &places) };
            match path {
                Some(path) => installed.found.push((program, path)),
                None => installed.missing.push(program.name()),
            }
        }
        ensure!(!installed.found.is_empty(), "not installed: {}", installed.missing.join(", "));
        Ok(installed)
    }

    /// Those that were found, in the order in which they are wanted.
    pub(crate) fn list(&self) -> Vec<T> {
        self.found.iter().map(|(program, _)| *program).collect()
    }

    /// Path of a program.
    ///
    /// # Errors
    /// If it was not found.
    pub(crate) fn path(&self, program: T) -> Result<&Path> {
        let found = self.found.iter().find(|(known, _)| *known == program);
        found.map(|(_, path)| path.as_path()).with_context(|| format!("not installed: {}", program.name()))
    }
}

/// A note about programs that are missing; none if all are there.
pub(crate) fn missing_note(missing: &[&str]) -> Option<String> {
    (!missing.is_empty()).then(|| format!("Not compared because not installed: {}.", missing.join(", ")))
}

/// Path of this program.
///
/// # Errors
/// If it cannot be found.
pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find mailrun's own program file")
}

/// Finds a program by its path, or by its name in PATH and the other places.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let own = own_program().ok()?;
    find(name, &own, &places(&own))
}

/// PATH; where Debian puts Postfix's test programs, which a plain user's PATH leaves out; and where the tests build
/// peers of their own (`target/peers`, beside `target/release`).
fn places(own: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = own.parent().and_then(Path::parent).map(|target| target.join("peers"));
    let built = beside.into_iter().chain([PathBuf::from("target/peers")]);
    let built = built.flat_map(|peers| [peers.join("bin"), peers]);
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .chain(built)
        .filter_map(|place| std::path::absolute(place).ok())
        .collect()
}

/// The first program of that name that is not this one under the older tool's name (`mailrun install-links`).
fn find(name: &str, own: &Path, places: &[PathBuf]) -> Option<PathBuf> {
    places.iter().map(|place| place.join(name)).find(|path| is_program(path) && !is_ours(path, own))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn is_ours(path: &Path, own: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == own || path.file_name() == own.file_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn our_own_links_are_not_taken_for_the_original() {
        let place = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let links = directory("links");
        let plain = directory("plain");
        let real = directory("real");
        let own = place.path().canonicalize().unwrap().join("mailrun");
        for path in [&own, &real.join("smtp-source"), &plain.join("smtp-source")] {
            fs::write(path, "").unwrap();
        }
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&own, 0o755);
        mode(&real.join("smtp-source"), 0o755);
        mode(&plain.join("smtp-source"), 0o644);
        symlink(&own, links.join("smtp-source")).unwrap();
        let places = [links, plain, real.clone()];
        assert_eq!(find("smtp-source", &own, &places), Some(real.join("smtp-source")));
        assert_eq!(find("smtp-sink", &own, &places), None);
    }
}
