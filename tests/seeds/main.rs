//! Every seed of every fuzz target, as a plain test: what fuzzing has found once stays found, on any compiler.
//!
//! The targets are included as they are. They know libFuzzer by one macro, which here makes a function of a target's
//! body. There is no harness: the files that targets include have tests of their own, which are not to be run again.
//! Words on the command line choose targets by parts of their names.
#![allow(dead_code, unreachable_pub, unused_attributes, unused_imports)] // a target is a program of its own elsewhere
#![allow(clippy::unwrap_used, clippy::print_stdout)] // as in tests
#![allow(clippy::duplicate_mod, clippy::module_inception)] // several targets include the same file, or one of their name

// The name under which targets find the macro.
extern crate self as libfuzzer_sys;

/// A target's body as a function.
macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:block) => {
        pub(crate) fn run($data: &[u8]) $body
    };
}
pub(crate) use fuzz_target;

mod targets;

// Where files of the program that targets include look for others.
use targets::bounce::message;
use targets::config::{local_address, misspelling, own_addresses, position, qmgr, reason, routing, users};

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn below(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(directory)
}

/// The names in a directory, in order.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Everything that is amiss with the list of targets: each has a file, a program in fuzz/Cargo.toml and seeds.
fn gaps() -> Vec<String> {
    let manifest = fs::read_to_string(below("Cargo.toml")).unwrap();
    let listed: Vec<&str> = targets::ALL.iter().map(|(name, _)| *name).collect();
    let mut gaps = Vec::new();
    for file in names(&below("fuzz_targets")) {
        let name = file.trim_end_matches(".rs");
        if !listed.contains(&name) {
            gaps.push(format!("{name} is not in tests/seeds/targets.rs"));
        }
        if !manifest.contains(&format!("path = \"fuzz_targets/{file}\"")) {
            gaps.push(format!("{name} is not in fuzz/Cargo.toml"));
        }
        if !below("seeds").join(name).is_dir() {
            gaps.push(format!("{name} has no seeds in fuzz/seeds/{name}"));
        }
    }
    gaps
}

/// Runs a target on its seeds; how many they were, or the one that it panics on.
fn replay(name: &str, run: fn(&[u8])) -> Result<usize, String> {
    let directory = below("seeds").join(name);
    let seeds = names(&directory);
    for seed in &seeds {
        let bytes = fs::read(directory.join(seed)).unwrap();
        catch_unwind(|| run(&bytes)).map_err(|_| format!("{name} panics on fuzz/seeds/{name}/{seed}"))?;
    }
    if seeds.is_empty() { Err(format!("{name} has no seeds")) } else { Ok(seeds.len()) }
}

/// Runs the targets, each of which is a test to cargo-nextest: `--list` names them, and `--exact NAME` runs one.
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |option: &str| words.iter().any(|word| word == option);
    if has("--list") {
        // nextest asks for ignored tests separately.
        targets::ALL.iter().filter(|_| !has("--ignored")).for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let names: Vec<&String> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_named = |name: &str, word: &str| if has("--exact") { name == word } else { name.contains(word) };
    let is_chosen = |name: &str| names.is_empty() || names.iter().any(|word| is_named(name, word));
    let mut failures = gaps();
    let mut replayed = 0;
    let mut seeds = 0;
    for (name, run) in targets::ALL.iter().filter(|(name, _)| is_chosen(name)) {
        match replay(name, *run) {
            Ok(count) => {
                replayed += 1;
                seeds += count;
            }
            Err(why) => failures.push(why),
        }
    }
    failures.iter().for_each(|failure| eprintln!("{failure}"));
    let result = if failures.is_empty() { "ok" } else { "FAILED" };
    eprintln!("\ntest result: {result}. {replayed} fuzz targets passed on {seeds} seeds; {} failed", failures.len());
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
