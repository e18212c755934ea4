//! `mailrun recipe` lists and prints the built-in recipes, which tell how benches and audits run a server. `mailrun
//! scenario` prints the files of built-in scenarios, and the JSON schema of load files.
use super::load_file;
use crate::bench;
use anyhow::Result;
use clap::{Args, Subcommand};
use mailrun_bench::BuiltInScenario;
use mailrun_bench::recipe::{self, Recipe};
use mailrun_text::table::{Align, Table};
use std::process::ExitCode;

const LIST_WIDTH: usize = 160;

/// Lists the recipes with which mailrun starts servers, or prints one of them
#[derive(Debug, Args)]
#[command(after_help = KEYS_AND_EXAMPLES)]
pub(crate) struct RecipeArgs {
    #[command(subcommand)]
    command: Option<RecipeCommand>,
}

#[derive(Debug, Subcommand)]
enum RecipeCommand {
    /// Lists the built-in recipes, and tells whether their servers are installed or how to get them
    #[command(after_help = KEYS_AND_EXAMPLES)]
    List,
    /// Prints a built-in recipe, to be changed and used as one of your own
    #[command(after_help = KEYS_AND_EXAMPLES)]
    Show {
        /// Name of the recipe. mailrun recipe list lists all of them.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

const KEYS_AND_EXAMPLES: &str = "\
Keys of a recipe (NAME.toml):
  durability     when the server answers 250, by its documentation: sync, write,
                 memory, unknown
  command        the server, word by word; stays in the foreground, SIGTERM stops it
  prepare        commands that are run before it
  environment    variables of all commands
  [[file]]       path in the state directory, text, executable = true
  [queue]        command that lists the queue, and what it prints if that is empty;
                 without it, missing mail is not delivered instead of lost; flush:
                 command that makes the server try again what waits in it
  [mailboxes]    of a server that delivers: url as for --mailbox, with {read} as its
                 address; recipients as for --to; password; lmtp = true. Then the
                 bench sends to them, and its sink reads them
  ready_within   limit of the time until a client is greeted with 220 (60s)
  root, other_users, own_session    true: must be root; its processes run as other
                 users; it begins a session, setsid(2)
  variants       values of {variant}, chosen by NAME:VARIANT; the first is the default
  [variant.NAME] what is different in one: title, install and command replace those of
                 the recipe; programs, prepare and [[variant.NAME.file]] are added, and
                 the text of a file that exists is appended
  debian         name of a root: exim-trixie is what packaging/tests/debian-root.sh exim
                 trixie makes; a copy of it is {dir}/root
  programs, install, version, log, title
                 programs that must be there; how to get them; a command that prints
                 the version; its log file; a description

Placeholders: {dir} state directory, {state} directory in it for the mail (an audit
may put it on a disk that loses power), {listen} address to take mail at, {to} next hop,
{read} address to read mailboxes at (each also as {listen_host}, {listen_port} …),
{mailrun} this program.

Examples:
  mailrun recipe list
  mailrun recipe show postfix
  mailrun recipe show postfix > my.toml    then: mailrun bench --relay my.toml

Exit status: 0 done; 2 no such recipe.";

impl RecipeArgs {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        match &self.command {
            None | Some(RecipeCommand::List) => crate::report::messages::say(&list_text()?)?,
            Some(RecipeCommand::Show { name }) => crate::report::messages::say(Recipe::built_in_text(name)?)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn list_text() -> Result<String> {
    let columns = ["recipe", "durability", "is here", ""].map(|title| (title, Align::Left));
    let mut table = Table::new(columns);
    let own = std::env::current_exe()?;
    for name in recipe::names_and_variants() {
        let recipe = Recipe::load(&name)?;
        let presence = match recipe.first_missing(&own) {
            None => "yes".to_owned(),
            Some(missing) => missing.remedy.unwrap_or(missing.words),
        };
        table.row(vec![name, recipe.durability(), presence, recipe.title().to_owned()]);
    }
    Ok(table.terminal(LIST_WIDTH) + "\n")
}

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
        /// Name of the scenario. mailrun bench --list lists all of them.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Prints the JSON schema of load files, for use in editors
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
