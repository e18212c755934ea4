//! `--dialogue` and `--dialogue-of`: the options of sink and relay that show what clients do.
use anyhow::{Result, bail};
use clap::Args;
use mailrun_net::DialogueFilter;
use mailrun_process::dialogue_output::DialogueOptions;
use mailrun_process::output_file::is_standard_output;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Dialogue with clients")]
pub(crate) struct DialogueArgs {
    /// Print what clients and server say, with times, on standard output or to FILE. Passwords and messages are not shown.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", hide_short_help = true,
          help = "Print what clients and server say, on standard output or to FILE")]
    dialogue: Option<PathBuf>,
    /// Print only the sessions of a client (192.0.2.1, 192.0.2.0/24), sender or recipient (ann@a.example, @a.example,
    /// ann@, or <> for notices), repeatable.
    #[arg(long, value_name = "PATTERN", hide_short_help = true)]
    dialogue_of: Vec<DialogueFilter>,
}

impl DialogueArgs {
    /// Returns the options, if the dialogue is to be shown. `stdout_option` is the option that
    /// already uses standard output, if there is one.
    ///
    /// # Errors
    /// If two outputs want standard output.
    pub(crate) fn options(self, stdout_option: Option<&str>) -> Result<Option<DialogueOptions>> {
        let file = match self.dialogue {
            Some(file) => file,
            None if self.dialogue_of.is_empty() => return Ok(None),
            None => PathBuf::from("-"),
        };
        match stdout_option {
            Some(option) if is_standard_output(&file) => {
                bail!("{option} and --dialogue both want standard output; use --dialogue FILE")
            }
            _ => Ok(Some(DialogueOptions { file: absolute(file), filters: self.dialogue_of })),
        }
    }
}

/// `-` is a name for standard output that the file system does not know.
fn absolute(file: PathBuf) -> PathBuf {
    if file == Path::new("-") { PathBuf::from("/dev/stdout") } else { file }
}
