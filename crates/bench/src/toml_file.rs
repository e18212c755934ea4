use anyhow::{Context, Result};
use mailrun_process::text_file;
use mailrun_process::toml_file::{self, ConfigError};
use serde::de::DeserializeOwned;
use std::path::Path;

/// Size limit for the file of a scenario or a recipe, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 16;

/// Returns true if the word ends in `.toml`, so that it is the path of a file and not the name of a built-in scenario
/// or recipe.
pub fn is_toml_file(word: &str) -> bool {
    Path::new(word).extension().is_some_and(|extension| extension == "toml")
}

/// Reads the file of a scenario or a recipe. Fails if the file is longer than `MAX_BYTES`.
pub(crate) fn read(path: &Path) -> Result<String> {
    text_file::read(path, MAX_BYTES as u64).with_context(|| format!("cannot read {}", path.display()))
}

/// Parses the text of a scenario or a recipe.
///
/// # Errors
/// Returns the first mistake with its position.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, file: &Path) -> Result<T, String> {
    toml_file::read(text).map_err(|error| error.in_file(file))
}

/// Formats an error message with the position of a byte in the file.
pub(crate) fn error_at(text: &str, file: &Path, offset: usize, words: &str) -> String {
    ConfigError::at(text, offset, words.to_owned()).in_file(file)
}
