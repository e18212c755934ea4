//! Finds the programs that a comparison needs, and records which of them are not installed or do not run.
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

pub(crate) trait ComparedProgram: Copy + PartialEq {
    fn name(self) -> &'static str;

    /// Name of the program's file in PATH. By default, this is the name of the program in reports.
    fn file_name(self) -> &'static str {
        self.name()
    }

    /// Returns true if this is mailrun itself, which is always installed.
    fn is_own(self) -> bool;
}

#[derive(Clone, Debug)]
pub(crate) struct InstalledPrograms<T> {
    found: Vec<(T, PathBuf)>,
    missing: Vec<&'static str>,
    /// Programs that are installed but do not run, for example because a library is missing.
    broken: Vec<&'static str>,
}

impl<T: ComparedProgram> InstalledPrograms<T> {
    /// Searches for the programs to compare, and records which of them are not installed.
    ///
    /// # Errors
    /// Returns an error if none of the programs is installed.
    pub(crate) fn find(wanted: &[T]) -> Result<Self> {
        let own = own_program()?;
        let places = places(&own);
        let mut installed = Self { found: Vec::new(), missing: Vec::new(), broken: Vec::new() };
        for &program in wanted {
            let path = if program.is_own() { Some(own.clone()) } else { find(program.file_name(), &own, &places) };
            match path {
                Some(path) => installed.found.push((program, path)),
                None => installed.missing.push(program.name()),
            }
        }
        installed.ensure_any()
    }

    /// Leaves out the programs for which `does_run` returns false.
    ///
    /// # Errors
    /// Returns an error if no program is left.
    pub(crate) fn keep(mut self, does_run: impl Fn(T, &Path) -> bool) -> Result<Self> {
        let (found, broken): (Vec<_>, Vec<_>) = self.found.into_iter().partition(|(tool, path)| does_run(*tool, path));
        self.found = found;
        self.broken.extend(broken.into_iter().map(|(tool, _)| tool.name()));
        self.ensure_any()
    }

    fn ensure_any(self) -> Result<Self> {
        let why = || self.reasons().map(|(why, programs)| format!("{why}: {programs}")).collect::<Vec<_>>().join("; ");
        ensure!(!self.found.is_empty(), "{}", why());
        Ok(self)
    }

    /// Returns each reason why programs are left out, together with the names of these programs.
    fn reasons(&self) -> impl Iterator<Item = (&'static str, String)> {
        let reasons = [("not installed", &self.missing), ("unable to run, although installed", &self.broken)];
        let reasons = reasons.into_iter().filter(|(_, programs)| !programs.is_empty());
        reasons.map(|(why, programs)| (why, programs.join(", ")))
    }

    /// Returns lines that tell the user which programs are left out of the comparison, and why.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.reasons().map(|(why, programs)| format!("Not compared because {why}: {programs}.")).collect()
    }

    pub(crate) fn list(&self) -> Vec<T> {
        self.found.iter().map(|(program, _)| *program).collect()
    }

    pub(crate) fn path(&self, program: T) -> Result<&Path> {
        let entry = self.found.iter().find(|(known, _)| *known == program);
        entry.map(|(_, path)| path.as_path()).with_context(|| format!("not installed: {}", program.name()))
    }
}

pub(crate) fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find mailrun's own program file")
}

/// Finds a program by its name or path. A `name` with a slash is a path. Any other name is looked up in PATH and in the
/// directories that `places` adds.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| is_program(path));
    }
    let own = own_program().ok()?;
    find(name, &own, &places(&own))
}

/// Returns a PATH in which a shell finds the same programs as `find_program`.
pub(crate) fn search_path() -> OsString {
    own_program().ok().and_then(|own| std::env::join_paths(places(&own)).ok()).unwrap_or_default()
}

/// Returns the directories to search: the directories of PATH, the `sbin` directories, and `target/peers`. Debian puts
/// Postfix's test programs into `sbin`, which is not in a plain user's PATH. `target/peers` contains other mail
/// programs that were built for tests and comparisons.
fn places(own: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let peers = own.parent().and_then(Path::parent).map(|target| target.join("peers"));
    let built = peers.into_iter().chain([PathBuf::from("target/peers")]);
    let built = built.flat_map(|peers| [peers.join("bin"), peers]);
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from))
        .chain(built)
        .filter_map(|place| std::path::absolute(place).ok())
        .collect()
}

/// Returns the path of the program `name` in the first of `places` that contains such a program. Skips links that
/// `mailrun install-links` made under that name, because they would run mailrun itself.
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

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Named(&'static str);

    impl ComparedProgram for Named {
        fn name(self) -> &'static str {
            self.0
        }

        fn is_own(self) -> bool {
            self.0 == "mailrun"
        }
    }

    #[test]
    fn a_program_that_cannot_run_is_not_said_to_be_missing() {
        let wanted = [Named("mailrun"), Named("sh"), Named("no-such-program")];
        let installed = InstalledPrograms::find(&wanted).unwrap().keep(|program, _| program.is_own()).unwrap();
        let notes = [
            "Not compared because not installed: no-such-program.",
            "Not compared because unable to run, although installed: sh.",
        ];
        assert_eq!((installed.list().len(), installed.notes()), (1, notes.map(str::to_owned).to_vec()));
        let refused = InstalledPrograms::find(&wanted).unwrap().keep(|_, _| false).unwrap_err().to_string();
        assert_eq!(refused, "not installed: no-such-program; unable to run, although installed: mailrun, sh");
    }

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

    #[test]
    fn shells_of_recipes_find_what_the_tests_have_installed() {
        assert!(std::env::split_paths(&search_path()).any(|place| place.ends_with("target/peers")));
    }
}
