//! Runs every seed of every fuzz target, and variations of each, as a plain test. A fault that fuzzing once found stays
//! found, with any compiler.
//!
//! This program includes the source files of the fuzz targets unchanged. All that the targets need from libFuzzer is a
//! macro around their code. This file defines a macro with the same name, which turns the code into a function. The
//! program does without Rust's test harness, because the files that targets include have tests of their own, which must
//! not run again. Words on the command line select targets by parts of their names.
#![allow(dead_code, unreachable_pub, unused_attributes, unused_imports)] // The targets are written as programs
#![allow(clippy::unwrap_used, clippy::print_stdout)] // The lints exempt only `#[test]` functions

// The fuzz targets import the macro from the crate `libfuzzer_sys`, so give this crate the same name.
extern crate self as libfuzzer_sys;

macro_rules! fuzz_target {
    (|$data:ident: &[u8]| $body:expr) => {
        pub(crate) fn run($data: &[u8]) {
            $body
        }
    };
}
pub(crate) use fuzz_target;

mod targets;

use mailrun_measurement::seeded::SeededRng;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Number of variations of each seed.
const CHANGES: u64 = 40;

/// Changes a seed as a fuzzer does: flips bits, drops and repeats pieces, and inserts pieces of another seed.
fn changed(seed: &[u8], other: &[u8], random: &mut SeededRng) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    let mut below = |count: usize| random.below(count as u64) as usize;
    for _ in 0..=below(4) {
        let at = below(bytes.len() + 1);
        let end = bytes.len().min(at + below(9));
        match below(4) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes[at..end].iter_mut().take(1).for_each(|byte| *byte ^= 1 << below(8)),
            2 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let from = below(other.len() + 1);
                let to = other.len().min(from + below(17));
                bytes.splice(at..end, other[from..to].iter().copied());
            }
        }
    }
    bytes
}

fn below(directory: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(directory)
}

/// The sorted names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Returns what is missing. Each target needs an entry in tests/seeds/targets.rs, a program in fuzz/Cargo.toml, and
/// seeds.
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

/// Runs a target on its seeds and their variations. Returns the number of seeds, or the bytes on which it panics. The
/// variations differ in each run; PROPTEST_RNG_SEED repeats them.
fn replay(name: &str, run: fn(&[u8])) -> Result<usize, String> {
    let directory = below("seeds").join(name);
    let names = names(&directory);
    let seeds: Vec<Vec<u8>> = names.iter().map(|seed| fs::read(directory.join(seed)).unwrap()).collect();
    let chosen = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok());
    let number = chosen.unwrap_or_else(|| std::process::id().into());
    for (place, bytes) in seeds.iter().enumerate() {
        catch_unwind(|| run(bytes)).map_err(|_| format!("{name} panics on fuzz/seeds/{name}/{}", names[place]))?;
        let mut random = SeededRng::new(number, place as u64, 0);
        for _ in 0..CHANGES {
            let other = &seeds[random.below(seeds.len() as u64) as usize];
            let bytes = changed(bytes, other, &mut random);
            catch_unwind(|| run(&bytes)).map_err(|_| format!("{name} panics on b\"{}\"", bytes.escape_ascii()))?;
        }
    }
    if seeds.is_empty() { Err(format!("{name} has no seeds")) } else { Ok(seeds.len()) }
}

/// Runs the targets. cargo-nextest sees each target as a test, because `--list` names the targets and `--exact NAME`
/// runs one.
fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let has = |option: &str| words.iter().any(|word| word == option);
    if has("--list") {
        // nextest asks for ignored tests in a separate call, and there are none.
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
