//! `mailrun bench load.toml`: sends a load that a file describes. The keys of the file are options of `bench`, which
//! are parsed as if the user had typed them. An option that the user does type takes precedence over the file.
use crate::bench::scenarios::{check_keys, is_named, key_name, keys_of, named_file, unreadable};
use crate::options::server::ServerArg;
use crate::report::messages::say;
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, Command};
use mailrun_bench::load_scenario;
use mailrun_bench::scenario::ScenarioKey;
use mailrun_process::output_file;
use mailrun_process::party_options::PartyOptions;
use serde_json::json;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use toml::{Table, Value};

/// Option that writes the other options to a load file instead of running the load.
const WRITE_FILE: &str = "write-file";

/// Replaces the file name in `mailrun bench load.toml` with the options in that file. Other command lines stay as they
/// are. The closure `bench` builds the command `mailrun bench`, whose options are the possible keys of the file. The
/// closure is called only if the command line names the file of a load.
///
/// # Errors
/// Returns an error if the file cannot be read or contains a mistake.
pub(crate) fn expanded(words: Vec<OsString>, bench: impl FnOnce() -> Command) -> Result<Vec<OsString>, clap::Error> {
    let Some(file) = named_file(&words) else { return Ok(words) };
    let load = load_scenario(file).map_err(unreadable)?;
    if load.measure.is_some() {
        return Ok(words);
    }
    let mut bench = bench();
    bench.build();
    let options = keys_of(&bench);
    check_keys(&load, &mut bench, &options, None).map_err(unreadable)?;
    let typed = typed_options(bench.clone(), &words[3..]);
    let is_typed = |option: &Arg| typed.iter().any(|typed| typed == option.get_id().as_str());
    // Also leave out each option of the file that conflicts with a typed option. For example, a typed `--duration`
    // replaces the file's stages.
    let is_in_the_way = |option: &Arg| {
        let excludes = |one: &Arg, other: &Arg| bench.get_arg_conflicts_with(one).contains(&other);
        let others = bench.get_arguments().filter(|other| is_typed(other));
        is_typed(option) || others.into_iter().any(|other| excludes(option, other) || excludes(other, option))
    };
    let from_file = load.keys.iter().flat_map(|key| {
        let option = options.iter().find(|option| is_named(option, &key.name));
        option.filter(|option| !is_in_the_way(option)).map(|option| typed_words(option, key)).unwrap_or_default()
    });
    let from_file: Vec<OsString> = from_file.map(OsString::from).collect();
    Ok([&words[..2], &from_file, &words[3..]].concat())
}

/// Returns the ids of the options that the user typed. Options with a default value that the user did not type are left
/// out.
fn typed_options(bench: Command, words: &[OsString]) -> Vec<String> {
    let bench = bench.no_binary_name(true).ignore_errors(true);
    let Ok(matches) = bench.try_get_matches_from(words) else { return Vec::new() };
    let is_typed = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
    matches.ids().map(clap::Id::as_str).filter(is_typed).map(str::to_owned).collect()
}

/// Converts a key of the file to words of a command line, for example `--to=a@b.example`.
fn typed_words(option: &Arg, key: &ScenarioKey) -> Vec<String> {
    let values = key.values.iter().map(|value| value.text.as_str());
    let Some(long) = option.get_long() else { return values.map(str::to_owned).collect() };
    match option.get_value_delimiter() {
        _ if !option.get_action().takes_values() => {
            values.filter(|value| *value == "true").map(|_| format!("--{long}")).collect()
        }
        Some(delimiter) => vec![format!("--{long}={}", values.collect::<Vec<_>>().join(&delimiter.to_string()))],
        None => values.map(|value| format!("--{long}={value}")).collect(),
    }
}

/// Writes the typed options to a file, so that `mailrun bench FILE.toml` can run them again.
pub(crate) fn write(path: &Path, server: Option<&ServerArg>, options: &PartyOptions) -> Result<ExitCode> {
    let name = path.display();
    let text = format!("# Run it with: mailrun bench {name}\n{}", file_text(server, options));
    output_file::write(path, text)?;
    say(&format!("wrote {name}; run it with mailrun bench {name}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn file_text(server: Option<&ServerArg>, options: &PartyOptions) -> String {
    let mut file = Table::new();
    if let Some(server) = server {
        file.insert("server".to_owned(), Value::String(server.url()));
    }
    for (name, values) in options.iter().filter(|(name, _)| ![WRITE_FILE, "allow-public"].contains(name)) {
        let value = match values {
            [] => Value::Boolean(true),
            [one] => scalar(one),
            several => Value::Array(several.iter().map(|one| scalar(one)).collect()),
        };
        file.insert(name.replace('-', "_"), value);
    }
    file.to_string()
}

/// Converts a value to TOML. A whole number becomes a number if it keeps its digits: `007` stays a string, because it
/// may be a subject or the name of a user.
fn scalar(text: &str) -> Value {
    let number = text.parse().ok().filter(|number: &i64| number.to_string() == text);
    number.map_or_else(|| Value::String(text.to_owned()), Value::Integer)
}

/// Returns the JSON schema of load files. Editors use the schema to check and complete such files.
pub(crate) fn schema(mut bench: Command) -> String {
    bench.build();
    let mut keys = serde_json::Map::new();
    for option in keys_of(&bench) {
        let name = key_name(&option);
        let known: Vec<String> = option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        let one = match known.is_empty() {
            _ if !option.get_action().takes_values() => json!({"type": "boolean"}),
            true => json!({"type": ["string", "number"]}),
            false => json!({"enum": known}),
        };
        let about = option.get_help().map(ToString::to_string).unwrap_or_default();
        let mut key = match option.get_action() {
            ArgAction::Append => json!({"anyOf": [one, {"type": "array", "items": one}]}),
            _ => one,
        };
        if name == "stage" {
            let stage = json!({
                "type": "object", "required": ["time", "rate"], "additionalProperties": false,
                "properties": {
                    "name": {"type": "string"},
                    "time": {"type": ["string", "number"]},
                    "rate": {"type": ["string", "number"]},
                    "thresholds": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
                },
            });
            key = json!({"anyOf": [key, {"type": "array", "items": stage}]});
        }
        key["description"] = json!(about);
        keys.insert(name, key);
    }
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A load for mailrun bench",
        "type": "object",
        "properties": keys,
        "additionalProperties": false,
    });
    format!("{schema:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{BenchArgs, options};
    use clap::FromArgMatches;

    fn words(file: &str, typed: &str) -> String {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("load.toml");
        std::fs::write(&path, file).unwrap();
        let line = ["mailrun", "bench", path.to_str().unwrap()].into_iter().chain(typed.split_whitespace());
        match expanded(line.map(OsString::from).collect(), options) {
            Ok(words) => words[2..].iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string().replace(path.to_str().unwrap(), "load.toml"),
        }
    }

    #[test]
    fn a_file_is_read_as_if_it_were_typed_and_what_is_typed_wins() {
        let file = "server = \"mx.example\"\nto = [\"a@b.example\", \"c@d.example\"]\nrate = 50\nmime = true\nstrict = false\n\
                    threshold = [\"rejected < 1%\"]\n";
        let all = "mx.example --to=a@b.example --to=c@d.example --rate=50 --mime --threshold=rejected < 1%";
        for (typed, expected) in [
            ("", all.to_owned()),
            ("--label x", format!("{all} --label x")),
            ("--rate 9", format!("{} --rate 9", all.replace(" --rate=50", ""))),
            // A typed option must replace each option of the file that conflicts with it. Here, --stage replaces
            // --rate, and --relay replaces the server.
            ("--stage 5s:9/s", format!("{} --stage 5s:9/s", all.replace(" --rate=50", ""))),
            ("--relay none", format!("{} --relay none", all.replace("mx.example ", ""))),
        ] {
            let sorted = |line: &str| {
                let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
                words.sort();
                words
            };
            assert_eq!(sorted(&words(file, typed)), sorted(&expected), "{typed}");
        }
        let staged = "[[stage]]\ntime = \"5s\"\nrate = \"10/s\"\n[[stage]]\ntime = \"9s\"\nrate = \"10/s..90/s\"\n";
        assert_eq!(words(staged, ""), "--stage=5s:10/s --stage=9s:10/s..90/s");
        let named = "threshold = \"rejected < 1%\"\n[[stage]]\nname = \"peak\"\ntime = 5\nrate = 9\nthresholds = [\"accepted.p99 < 1s\"]\n\
                     [[stage]]\ntime = 5\nrate = 9\nthresholds = \"lost <= 0\"\n";
        assert_eq!(
            words(named, ""),
            "--stage=peak=5:9 --stage=5:9 --threshold=rejected < 1% --threshold=stage peak: accepted.p99 < 1s \
             --threshold=stage 2: lost <= 0"
        );
    }

    #[test]
    fn a_mistake_has_its_place() {
        for (file, expected) in [
            ("rate = \"fast\"", "load.toml:1:8: \"fast\" is not a valid rate"),
            ("to = \"a@b\"\nrates = 5", "load.toml:2:1: unknown key \"rates\"; did you mean \"rate\"?"),
            ("allow_public = true", "load.toml:1:1: unknown key \"allow_public\""),
            (
                "password = \"x\"",
                "load.toml:1:1: a password must not be in a file that others may read; use password_file",
            ),
            ("server = \"smtp://\"", "load.toml:1:10: "),
            ("pipelining = \"fast\"", "load.toml:1:14: \"fast\" is not one of off, group, stream"),
            ("mime = 5", "load.toml:1:8: \"5\" is not one of true, false"),
            ("[[stage]]\ntime = \"5s\"\nrate = \"x\"", "load.toml:1:1: "),
        ] {
            let error = words(file, "");
            assert!(error.contains(expected), "{file}: {error}");
        }
    }

    #[test]
    fn a_written_file_is_read_as_what_was_typed() {
        for (typed, read) in [
            (
                "mx.example --rate 50 --mime --threshold accepted.p99<50ms",
                "--mime --rate=50 mx.example:25 --threshold=accepted.p99<50ms",
            ),
            // The file must keep a scheme such as `smtps:` in the server's URL, because it turns on TLS or LMTP.
            ("smtps://mx.example", "smtps://mx.example:465"),
            ("smtps://mx.example:2525", "smtps://mx.example:2525"),
            ("lmtp://localhost", "lmtp://localhost:24"),
            ("lmtp:unix:/run/lmtp.sock", "lmtp:unix:/run/lmtp.sock"),
            ("unix:/run/smtp.sock --sessions 5", "unix:/run/smtp.sock --sessions=5"),
            // The file must keep a text such as 007 or +5 as a text. As a number, it would become 7 or 5.
            ("mx.example --user 00123 --subject 007", "mx.example:25 --subject=007 --user=00123"),
            ("mx.example --subject +5 --to a@b.example", "mx.example:25 --subject=+5 --to=a@b.example"),
        ] {
            let place = tempfile::tempdir().unwrap();
            let path = place.path().join("load.toml");
            let line = ["mailrun", "--write-file", path.to_str().unwrap()];
            let line = line.into_iter().chain(typed.split_whitespace());
            let matches = options().try_get_matches_from(line).unwrap();
            BenchArgs::from_arg_matches(&matches).unwrap().run().unwrap();
            assert_eq!(words(&std::fs::read_to_string(&path).unwrap(), ""), read, "{typed}");
        }
    }

    #[test]
    fn the_schema_knows_each_key() {
        let schema: serde_json::Value = serde_json::from_str(&schema(options())).unwrap();
        for key in ["server", "to", "rate", "stage", "threshold", "fault", "json", "out", "sessions"] {
            assert!(schema["properties"][key]["description"].is_string(), "{key}");
        }
        assert!(schema["properties"]["allow_public"].is_null());
    }
}
