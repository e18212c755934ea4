use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;
use std::process::ExitCode;

/// Writes the completion script for a shell to standard output.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell for which the script is printed.
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  mailrun completions bash > ~/.local/share/bash-completion/completions/mailrun
  mailrun completions zsh > /usr/local/share/zsh/site-functions/_mailrun
  mailrun completions fish > ~/.config/fish/completions/mailrun.fish

Exit status: 0 done.";

impl CompletionsArgs {
    /// Prints the completion script. `whole` must be the top-level command, because the script completes all
    /// subcommands.
    pub(crate) fn run(self, whole: &mut Command) -> Result<ExitCode> {
        crate::report::messages::say(&script(self.shell, whole))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn script(shell: Shell, whole: &mut Command) -> String {
    let mut bytes = Vec::new();
    clap_complete::generate(shell, whole, "mailrun", &mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{CommandFactory, ValueEnum};

    fn options(command: &Command, names: &mut Vec<String>) {
        let shown = command.get_arguments().filter(|option| !option.is_hide_set());
        names.extend(shown.filter_map(|option| option.get_long().map(str::to_owned)));
        command.get_subcommands().filter(|inner| !inner.is_hide_set()).for_each(|inner| options(inner, names));
    }

    #[test]
    fn each_script_knows_each_command_and_option() {
        let mut expected = Vec::new();
        options(&Cli::all_commands(), &mut expected);
        for shell in Shell::value_variants() {
            let text = script(*shell, &mut Cli::command());
            for long in &expected {
                let dashed = format!("--{long}");
                let fish = format!("-l {long}");
                assert!(text.contains(&dashed) || text.contains(&fish), "{shell}: no {dashed}");
            }
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(text.contains(command.get_name()), "{shell}: no {}", command.get_name());
            }
        }
    }
}
