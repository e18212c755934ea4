//! `mailrun locustfile`: prints the locustfile for a master of `mailrun worker`.
use super::say;
use anyhow::Result;
use clap::Args;
use std::process::ExitCode;

/// Prints the locustfile for a Locust master of mailrun's workers
///
/// It turns stages into a shape with a drain at its end, merges the workers' exact histograms, judges thresholds and
/// sets the exit status.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LocustfileArgs {}

const EXAMPLES: &str = "\
Examples:
  mailrun locustfile > locustfile.py
  locust -f locustfile.py --master --headless --mailrun-stages 10s:10,60s:10..200";

impl LocustfileArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        say(mailrun_locust::LOCUSTFILE);
        Ok(ExitCode::SUCCESS)
    }
}
