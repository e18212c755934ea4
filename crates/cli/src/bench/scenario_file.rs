//! `mailrun scenario`: the files that `mailrun bench FILE.toml` reads.
use crate::bench;
use crate::bench::load_file;
use anyhow::Result;
use clap::{Args, Subcommand};
use mailrun_bench::BuiltInScenario;
use std::process::ExitCode;

/// Prints a scenario's file, to be changed and run as a scenario of one's own
#[derive(Debug, Args)]
#[command(after_help = SHOW_EXAMPLES, arg_required_else_help = true)]
pub(crate) struct ScenarioFileArgs {
    #[command(subcommand)]
    command: ScenarioFileCommand,
}

#[derive(Debug, Subcommand)]
enum ScenarioFileCommand {
    /// Prints the file of a built-in scenario
    #[command(after_help = SHOW_EXAMPLES)]
    Show {
        /// Its name: mailrun bench --list lists them.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Prints the JSON schema of a load in a file, for editors
    #[command(after_help = SHOW_EXAMPLES)]
    Schema,
}

const SHOW_EXAMPLES: &str = "\
Examples:
  mailrun scenario show relay-400
  mailrun scenario show relay-400 > my.toml    then: mailrun bench my.toml
  mailrun scenario schema > load.schema.json   for the first line of a load: #:schema ./load.schema.json

Exit status: 0 done; 2 no such scenario.";

impl ScenarioFileArgs {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.command {
            ScenarioFileCommand::Show { name } => crate::report::messages::say(BuiltInScenario::named(name)?.text)?,
            ScenarioFileCommand::Schema => crate::report::messages::say(&load_file::schema(bench::options()))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}
