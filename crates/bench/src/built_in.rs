//! Scenarios that are built into the program, from the files in `crates/bench/scenarios`.
use super::scenario::Scenario;
use super::toml_file::{self, is_toml_file};
use anyhow::{Result, bail};
use mailrun_text::words::is_misspelling;
use std::path::Path;

#[derive(Clone, Copy, Debug)]
pub struct BuiltInScenario {
    pub name: &'static str,
    pub text: &'static str,
}

macro_rules! built_in {
    ($name:literal) => {
        BuiltInScenario { name: $name, text: include_str!(concat!("../scenarios/", $name, ".toml")) }
    };
}

/// All built-in scenarios, in the order of the help text.
pub const BUILT_IN: &[BuiltInScenario] = &[
    built_in!("smtp-source-table"),
    built_in!("relay-400"),
    built_in!("relay-64k"),
    built_in!("relay-100k"),
    built_in!("relay-latency"),
    built_in!("backlog"),
    built_in!("relay-soak"),
    built_in!("mailbox"),
    built_in!("filter"),
    built_in!("kotlin-profile"),
    built_in!("sizes"),
    built_in!("large-message"),
    built_in!("mades-compare"),
];

impl BuiltInScenario {
    /// Finds the built-in scenario with this name.
    ///
    /// # Errors
    /// Returns an error if there is no such scenario. If another scenario has a similar name, the error suggests this
    /// name.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(scenario) = BUILT_IN.iter().find(|scenario| scenario.name == name) {
            return Ok(*scenario);
        }
        match BUILT_IN.iter().find(|scenario| is_misspelling(name, scenario.name)) {
            Some(suggestion) => bail!("unknown scenario {name:?}; did you mean {:?}?", suggestion.name),
            None => bail!("unknown scenario {name:?}; mailrun bench --list lists them"),
        }
    }
}

/// Reads the scenario in a TOML file, or the built-in scenario with this name.
///
/// # Errors
/// Returns an error if the scenario cannot be read, or if it contains a mistake.
pub fn load_scenario(name: &str) -> Result<Scenario> {
    let text = match is_toml_file(name) {
        true => toml_file::read(Path::new(name))?,
        false => BuiltInScenario::named(name)?.text.to_owned(),
    };
    Scenario::read(&text, Path::new(name)).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_files_are_built_in_and_can_be_read() {
        let names: BTreeSet<String> = BUILT_IN.iter().map(|scenario| format!("{}.toml", scenario.name)).collect();
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).unwrap();
        let files: BTreeSet<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        assert_eq!(names, files);
        for scenario in BUILT_IN {
            let read = load_scenario(scenario.name).unwrap();
            assert!(read.title.is_some() && scenario.text.starts_with("# "), "{}", scenario.name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = BuiltInScenario::named("relay-40").unwrap_err().to_string();
        assert_eq!(error, "unknown scenario \"relay-40\"; did you mean \"relay-400\"?");
        assert!(BuiltInScenario::named("x").unwrap_err().to_string().contains("--list"));
    }
}
