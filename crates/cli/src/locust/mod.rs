//! `mailrun locust`: commands for a load that several hosts send, controlled by a Locust master.
pub(crate) mod master;
pub(crate) mod worker;

use crate::report::messages::say;
use anyhow::Result;
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// Sends load from many hosts: prints a locustfile, runs a Locust master, or runs one of its workers
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct LocustArgs {
    #[command(subcommand)]
    command: LocustCommand,
}

#[derive(Debug, Subcommand)]
enum LocustCommand {
    File(LocustfileArgs),
    Master(master::MasterArgs),
    Worker(Box<worker::WorkerArgs>),
}

/// Prints the locustfile for a Locust master of mailrun's workers
///
/// The locustfile turns stages into a load shape that waits for mail in transit at its end. It also merges the exact
/// histograms of the workers, checks thresholds and sets the exit status.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct LocustfileArgs {}

const EXAMPLES: &str = "\
Examples:
  mailrun locust file > locustfile.py
  locust -f locustfile.py --master --headless --mailrun-stages 10s:10,60s:10..200";

impl LocustArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.command {
            LocustCommand::File(_) => {
                say(mailrun_locust::LOCUSTFILE)?;
                Ok(ExitCode::SUCCESS)
            }
            LocustCommand::Master(typed) => typed.run(),
            LocustCommand::Worker(typed) => typed.run(),
        }
    }
}
