//! An output directory that appears completely or not at all. It is created under a temporary name
//! beside its final path, and gets its final name when it is complete.
use anyhow::{Context, Result, anyhow, bail};
use mailrun_process::reason::reason;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub(super) struct OutputDirectory {
    target: PathBuf,
    partial: PathBuf,
}

impl OutputDirectory {
    /// Creates the directory with access for its owner only.
    ///
    /// # Errors
    /// Fails if something exists at the path, if the directory would lie inside the spool that is
    /// read, or if it cannot be created.
    pub(super) fn create(place: &Path, spool: &Path) -> Result<Self> {
        if fs::symlink_metadata(place).is_ok() {
            bail!("{} already exists; choose a name that does not exist", place.display());
        }
        let name = place.file_name().with_context(|| format!("{} is not a directory name", place.display()))?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot = |path: &Path, error: &std::io::Error| anyhow!("{}: {}", path.display(), reason(error));
        let resolved = parent.canonicalize().map_err(|error| cannot(parent, &error))?;
        if resolved.starts_with(spool.canonicalize().map_err(|error| cannot(spool, &error))?) {
            bail!("{} is inside the spool, which must not be changed; choose another directory", place.display());
        }
        let mut draft_name = name.to_owned();
        draft_name.push(".partial");
        let draft = parent.join(draft_name);
        DirBuilder::new().mode(0o700).create(&draft).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                anyhow!("{} is left over from an earlier attempt; remove it first", draft.display())
            }
            _ => cannot(&draft, &error),
        })?;
        Ok(Self { target: place.to_owned(), partial: draft })
    }

    /// Returns the error for a failed write, with the path and what the operator must do before
    /// another attempt.
    pub(super) fn error(&self, reason: impl Display) -> anyhow::Error {
        anyhow!("{}: {reason}; remove {}, which is incomplete", self.target.display(), self.partial.display())
    }

    pub(super) fn partial_path(&self) -> &Path {
        &self.partial
    }

    /// Moves the complete directory to its final path.
    ///
    /// # Errors
    /// Fails if the directory cannot be synced or moved, for example because something else has
    /// appeared at its final path.
    pub(super) fn finish(self) -> Result<()> {
        let Self { target: place, partial: draft } = self;
        File::open(&draft)?.sync_all()?;
        renameat_with(CWD, &draft, CWD, &place, RenameFlags::NOREPLACE).map_err(|error| {
            let cause = reason(&error.into());
            anyhow!("cannot move {} to {}: {cause}", draft.display(), place.display())
        })?;
        let parent = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()?;
        Ok(())
    }
}
