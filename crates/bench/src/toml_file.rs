//! Reads scenarios and recipes.
use anyhow::{Context, Result};
use mailrun_party::toml_file::{self, ConfigError};
use serde::de::DeserializeOwned;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Length of the longest file, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 16;

/// Reports whether the word is the name of a TOML file.
pub fn is_toml_file(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|extension| extension == "toml")
}

/// Reads at most one byte more than is allowed, which is enough to refuse the file.
pub(crate) fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    let file = File::open(path);
    let read = file.and_then(|file| file.take(MAX_BYTES as u64 + 1).read_to_string(&mut text));
    read.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text)
}

/// Parses a file's text.
///
/// # Errors
/// The first mistake.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, String> {
    toml_file::read(text).map_err(|error| error.in_file(file))
}

/// An error at a byte of the file's text.
pub(crate) fn error_at(text: &str, file: &Path, offset: usize, words: &str) -> String {
    ConfigError::at(text, offset, words.to_owned()).in_file(file)
}
