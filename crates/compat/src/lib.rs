//! Imitations of older tools, called personalities. They have the same command lines, bytes on the wire, texts and exit
//! statuses, but mailrun's engine does the work.
//!
//! A personality is selected by the first argument (`mailrun smtp-source …`) or by the name under which the program is
//! called. A symbolic link can therefore replace the old command (`mailrun install-links DIR`).
#![allow(missing_docs)] // only crates that other programs embed document every public item
#[cfg(any(test, feature = "checks"))]
#[doc(hidden)]
pub mod checks;
mod getopt;
mod go;
mod go_mades_bench;
mod go_smtp_source;
mod help;
mod host_port;
mod hostname;
mod numbers;
mod own_options;
mod reply_reader;
mod smtp_sink;
mod smtp_source;
mod source;
mod stderr;
mod timing;
mod trace_header;

use own_options::Invocation;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

/// The names of all personalities, which are the names of the imitated commands.
pub const NAMES: [&str; 4] = ["smtp-source", "smtp-sink", "go-smtp-source", "go-mades-bench"];

/// Runs an imitated command if the first or second word of the command line names the command. The first word may also
/// be a path, such as `/usr/sbin/smtp-sink`. Returns `None` if neither word names a command.
pub fn run_if_named(words: Vec<String>) -> Option<ExitCode> {
    let mut words = words.into_iter();
    let word = words.next()?;
    if let Some(name) = personality_of(&word) {
        return Some(run(name, Invocation { program: word, arguments: words.collect() }));
    }
    let word = words.next()?;
    let name = NAMES.into_iter().find(|name| *name == word)?;
    Some(run(name, Invocation { program: word, arguments: words.collect() }))
}

fn personality_of(program: &str) -> Option<&'static str> {
    let file = Path::new(program).file_name().and_then(OsStr::to_str)?;
    NAMES.into_iter().find(|name| *name == file)
}

fn run(name: &str, call: Invocation) -> ExitCode {
    if help::is_requested(&call.arguments) {
        help::print(name);
        return ExitCode::SUCCESS;
    }
    if let Err(error) = mailrun_process::output_file::report_size_limit_as_error() {
        mailrun_process::tell!("{name}: {error:#}");
        return ExitCode::FAILURE;
    }
    match name {
        "smtp-source" => smtp_source::run(&call),
        "smtp-sink" => smtp_sink::run(&call),
        "go-mades-bench" => go_mades_bench::run(&call),
        _ => go_smtp_source::run(&call),
    }
}
