//! Scenarios that are built into the program, from the files in `crates/bench/scenarios`.
use super::scenario::Scenario;
use super::toml_file::{self, is_toml_file};
use anyhow::{Result, bail};
use mailrun_text::misspelling::is_misspelling;
use std::path::Path;

#[derive(Clone, Copy, Debug)]
pub struct BuiltInScenario {
    pub name: &'static str,
    pub text: &'static str,
    /// Set if the scenario only shows that mailrun itself reaches its targets.
    pub is_acceptance_test: bool,
}

macro_rules! built_in {
    ($name:literal, is_acceptance_test: $is_acceptance_test:literal) => {
        BuiltInScenario {
            name: $name,
            text: include_str!(concat!("../scenarios/", $name, ".toml")),
            is_acceptance_test: $is_acceptance_test,
        }
    };
}

/// All built-in scenarios, in the order of the help text.
pub const BUILT_IN: &[BuiltInScenario] = &[
    built_in!("smtp-source-table", is_acceptance_test: false),
    built_in!("smtp-source-check", is_acceptance_test: true),
    built_in!("relay-400", is_acceptance_test: false),
    built_in!("relay-64k", is_acceptance_test: false),
    built_in!("relay-100k", is_acceptance_test: false),
    built_in!("relay-latency", is_acceptance_test: true),
    built_in!("relay-backlog", is_acceptance_test: true),
    built_in!("relay-soak", is_acceptance_test: true),
    built_in!("kotlin-profile", is_acceptance_test: false),
    built_in!("sizes", is_acceptance_test: false),
    built_in!("large-message", is_acceptance_test: false),
    built_in!("mades-compare", is_acceptance_test: false),
];

impl BuiltInScenario {
    /// Finds the built-in scenario with this name.
    ///
    /// # Errors
    /// If there is no such scenario. If another one has a similar name, the error suggests it.
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
/// If the scenario cannot be read, or if it contains a mistake.
pub fn load_scenario(name: &str) -> Result<Scenario> {
    let text = match is_toml_file(name) {
        true => toml_file::read(Path::new(name))?,
        false => BuiltInScenario::named(name)?.text.to_owned(),
    };
    Scenario::read(&text, Path::new(name)).map_err(anyhow::Error::msg)
}

#[cfg(test)]
mod tests {
    use super::super::relays::SustainedLimits;
    use super::super::scenario::{Measure, ScenarioSetting, SpaceBytes};
    use super::*;
    use std::collections::BTreeSet;
    use std::time::Duration;

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
    fn targets_are_those_of_the_files() {
        let Measure::Latency(latency) = load_scenario("relay-latency").unwrap().measure else { panic!() };
        assert_eq!(latency.targets.accept_p99.unwrap().value.0, Duration::from_millis(20));
        let sustained =
            latency.search.max_delay.zip(latency.search.max_delay_share).zip(latency.search.min_sent).unwrap();
        let ((max_delay, max_delay_share), min_sent) = sustained;
        let limits = SustainedLimits {
            max_delay: max_delay.value.0,
            max_delay_share: max_delay_share.value.0,
            min_sent: min_sent.value.0,
        };
        assert_eq!(limits, SustainedLimits::default(), "a file that has no keys is judged as it is by this one");
        let Measure::Soak(soak) = load_scenario("relay-soak").unwrap().measure else { panic!() };
        let idle = Some(ScenarioSetting { value: SpaceBytes(321 << 20) });
        assert_eq!(soak.targets.idle_spool, idle);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let error = BuiltInScenario::named("relay-40").unwrap_err().to_string();
        assert_eq!(error, "unknown scenario \"relay-40\"; did you mean \"relay-400\"?");
        assert!(BuiltInScenario::named("x").unwrap_err().to_string().contains("--list"));
    }
}
