//! Help, man pages, completions, and the texts about mistakes on the command line. The module also has `mailrun
//! install-links`, which makes this program available under the names of older tools.
pub(crate) mod completions;
#[cfg(test)]
pub(crate) mod examples;
pub(crate) mod man;
pub(crate) mod misuse;
pub(crate) mod other_names;
pub(crate) mod summary;

use anyhow::{Context, Result};
use clap::Args;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Creates symbolic links named smtp-source, smtp-sink, go-smtp-source and go-mades-bench in DIR. Called by such a
/// name, mailrun behaves like the original program.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct InstallLinksArgs {
    /// Directory for the links to mailrun; in PATH, it must precede the original programs.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  mailrun install-links ~/mailrun-bin
  PATH=~/mailrun-bin:$PATH smtp-source -m 100 127.0.0.1:2525

Exit status: 0 done; 2 a link could not be made.";

impl InstallLinksArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let program = std::env::current_exe().context("cannot find the path of this program")?;
        fs::create_dir_all(&self.directory).with_context(|| format!("cannot create {}", self.directory.display()))?;
        for name in mailrun_compat::NAMES {
            let link = self.directory.join(name);
            make_link(&program, &link)?;
            // Ignore the error, because the link has been made even if standard output is closed.
            let _ = writeln!(io::stdout(), "{} -> {}", link.display(), program.display());
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Creates or replaces a symbolic link. Refuses to replace anything else, because it may be the older tool itself.
fn make_link(program: &Path, link: &Path) -> Result<()> {
    match fs::symlink_metadata(link) {
        Ok(old) if old.is_symlink() => {
            fs::remove_file(link).with_context(|| format!("cannot replace {}", link.display()))?
        }
        Ok(_) => anyhow::bail!(
            "{} exists and is not a symbolic link; remove it first, or choose another directory",
            link.display()
        ),
        Err(_) => {}
    }
    symlink(program, link).with_context(|| format!("cannot create {}", link.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_and_renewed_and_files_stay() {
        let place = tempfile::tempdir().unwrap();
        let link = place.path().join("smtp-source");
        make_link(Path::new("/old"), &link).unwrap();
        make_link(Path::new("/new"), &link).unwrap();
        assert_eq!(fs::read_link(&link).unwrap(), Path::new("/new"));
        let file = place.path().join("smtp-sink");
        fs::write(&file, "tool").unwrap();
        assert!(
            make_link(Path::new("/new"), &file).unwrap_err().to_string().contains("exists and is not a symbolic link")
        );
        assert_eq!(fs::read_to_string(&file).unwrap(), "tool");
    }
}
