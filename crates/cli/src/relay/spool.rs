//! `mailrun spool`: commands for a spool that no relay has open, with their options and result texts.
use crate::report::results::stdout_written;
use anyhow::Result;
use clap::{Args, Subcommand};
use mailrun_relay::offline::check::check;
use mailrun_relay::offline::export::{ExportSummary, export};
use mailrun_relay::offline::salvage::{SalvageSummary, SalvageTarget, salvage};
use mailrun_relay::offline::{LeftOut, OfflineSpool};
use mailrun_text::numbers::counted;
use serde::Serialize;
use std::fmt::{self, Display};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Checks, salvages and exports a spool that no relay has open
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct SpoolArgs {
    #[command(subcommand)]
    what: SpoolCommand,
    /// Print one JSON object.
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  mailrun spool check /var/lib/mailrun
  mailrun spool salvage /var/lib/mailrun --out spool:/var/lib/mailrun.new
  mailrun spool salvage /var/lib/mailrun --out maildir:/root/salvaged
  mailrun spool export /var/lib/mailrun --out /root/exported

The relay must be stopped, and the output must not exist yet. The spool itself
is never changed.

Exit status:
  0  undamaged, or everything was copied
  1  damaged, or something was lost
  2  the spool could not be read, or the output not written";

#[derive(Debug, Subcommand)]
enum SpoolCommand {
    /// Reports what is in a spool, and what is damaged
    #[command(after_help = "\
Examples:
  mailrun spool check /var/lib/mailrun
  mailrun spool check /var/lib/mailrun --json | jq .sound

Exit status: 0 undamaged; 1 damaged; 2 it could not be read.")]
    Check {
        /// Spool of a stopped relay.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Copies readable mail to a Maildir or a new spool
    ///
    /// Copies the messages that are not fully delivered. A new spool also gets the state of each recipient. A Maildir
    /// gets one file per message.
    #[command(after_help = "\
Examples:
  mailrun spool salvage /var/lib/mailrun --out spool:/var/lib/mailrun.new
  mailrun spool salvage /var/lib/mailrun --out maildir:/root/salvaged

Exit status: 0 everything was copied; 1 something was lost; 2 failed.")]
    Salvage {
        /// Spool of a stopped relay.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Output, which must not exist yet: maildir:DIR or spool:DIR.
        #[arg(long, value_name = "WHERE", value_parser = target)]
        out: SalvageTarget,
    },
    /// Writes each message to a file, and its envelope to another
    ///
    /// ID.eml has the message as received, ID.json its envelope and the state of each recipient. Damaged messages are
    /// included, with zeros for unreadable bytes.
    #[command(after_help = "\
Example:
  mailrun spool export /var/lib/mailrun --out /root/exported

Exit status: 0 everything was written; 1 something was damaged; 2 failed.")]
    Export {
        /// Spool of a stopped relay.
        #[arg(value_name = "DIR")]
        directory: PathBuf,
        /// Directory for ID.eml and ID.json; it must not exist yet.
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

fn target(text: &str) -> Result<SalvageTarget, String> {
    match text.split_once(':') {
        Some(("maildir", place)) if !place.is_empty() => Ok(SalvageTarget::Maildir(place.into())),
        Some(("spool", place)) if !place.is_empty() => Ok(SalvageTarget::Spool(place.into())),
        _ => Err("write maildir:DIR or spool:DIR".to_owned()),
    }
}

impl SpoolArgs {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let is_whole = match &self.what {
            SpoolCommand::Check { directory } => {
                let report = check(&OfflineSpool::open(directory)?);
                self.print(&report, &report)?;
                report.sound
            }
            SpoolCommand::Salvage { directory, out } => {
                let summary = salvage(&OfflineSpool::open(directory)?, out)?;
                self.print(&summary, &SalvagedText { salvaged: &summary, target: out })?;
                summary.is_whole()
            }
            SpoolCommand::Export { directory, out } => {
                let exported = export(&OfflineSpool::open(directory)?, out)?;
                self.print(&exported, &ExportedText { exported: &exported, place: out.display().to_string() })?;
                exported.is_whole()
            }
        };
        Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }

    fn print(&self, json: &impl Serialize, text: &impl Display) -> Result<()> {
        let mut out = io::stdout().lock();
        let written = if self.json { writeln!(out, "{}", serde_json::to_string(json)?) } else { write!(out, "{text}") };
        stdout_written(written)
    }
}

struct SalvagedText<'a> {
    salvaged: &'a SalvageSummary,
    target: &'a SalvageTarget,
}

impl Display for SalvagedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SalvageSummary { messages, recipients, delivered, with_bad_notes, left_out, damage, .. } = self.salvaged;
        let mail = format!(
            "{} for {} {}",
            counted(*messages, "message"),
            counted(*recipients, "recipient"),
            if *messages == 1 { "is" } else { "are" }
        );
        match self.target {
            SalvageTarget::Maildir(place) => {
                writeln!(f, "{mail} in the Maildir {}", place.display())?;
                if *delivered > 0 {
                    writeln!(
                        f,
                        "{delivered} are not there: they were delivered, and only the notification of their senders was missing"
                    )?;
                }
            }
            SalvageTarget::Spool(place) => {
                writeln!(f, "{mail} in the spool {}", place.display())?;
                writeln!(
                    f,
                    "They have new queue ids (--json lists them). To deliver them, start a relay with spool.directory = \
                            {}",
                    place.display()
                )?;
            }
        }
        if !with_bad_notes.is_empty() {
            let all = with_bad_notes.join(", ");
            writeln!(f, "The delivery state of these could not be read, so some recipients may get them twice: {all}")?;
        }
        write_left_out(f, "could not be copied", left_out)?;
        write_damage(f, *damage)
    }
}

struct ExportedText<'a> {
    exported: &'a ExportSummary,
    place: String,
}

impl Display for ExportedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ExportSummary { messages, damaged, damage } = self.exported;
        let are = if *messages == 1 { "is" } else { "are" };
        writeln!(
            f,
            "{} {are} in {}: ID.eml, and ID.json with the envelope",
            counted(*messages, "message"),
            self.place
        )?;
        write_left_out(f, "are damaged", damaged)?;
        write_damage(f, *damage)
    }
}

fn write_left_out(f: &mut fmt::Formatter<'_>, what: &str, all: &[LeftOut]) -> fmt::Result {
    if all.is_empty() {
        return Ok(());
    }
    writeln!(f, "{} {what}:", all.len())?;
    all.iter().try_for_each(|one| writeln!(f, "  {one}"))
}

fn write_damage(f: &mut fmt::Formatter<'_>, damage: u64) -> fmt::Result {
    if damage == 0 {
        Ok(())
    } else {
        writeln!(f, "The spool is damaged in {}; `mailrun spool check` lists them", counted(damage, "place"))
    }
}
