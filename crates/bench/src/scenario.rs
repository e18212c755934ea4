//! A scenario is a TOML file that says what a bench of several runs measures, or what load a bench of one run offers.
//!
//! A file for several runs has the key `measure`, and may have a `title`. All other keys are names of options. In a
//! file for several runs they are options of that measurement, and in a file for one run they are options of the bench.
//! The caller checks these keys against the options. This module keeps the position of each key and value, so that
//! errors have the form `FILE:LINE:COLUMN: words`.
use super::toml_file::MAX_BYTES;
use mailrun_process::toml_file::{ConfigError, unknown_key};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const MAX_LIST: usize = 100;
const MAX_TITLE: usize = 120;
/// Tables in which a file may group its keys. A key has the same meaning inside and outside of a table.
const TABLES: [&str; 4] = ["workload", "matrix", "search", "targets"];

/// Keys of a table `[[stage]]`, which describes one stage of the load.
const STAGE: [&str; 4] = ["time", "rate", "name", "thresholds"];
/// The two names of the key that lists the thresholds of the whole load. A file may use only one of these names.
/// `join_thresholds` adds the thresholds of single stages to the list.
const THRESHOLDS: [&str; 2] = ["threshold", "thresholds"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scenario {
    file: PathBuf,
    pub title: Option<String>,
    /// Value of the key `measure`, which names the kind of measurement. `None` for the file of a load, which has no
    /// such key.
    pub measure: Option<ScenarioValue>,
    /// All keys except `measure` and `title`, in alphabetical order within their table.
    pub keys: Vec<ScenarioKey>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioKey {
    pub name: String,
    place: Place,
    /// The value of the key or, if the key has a list, all values of the list.
    pub values: Vec<ScenarioValue>,
    pub is_list: bool,
}

/// Value of a key, as the text that users would type on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioValue {
    pub text: String,
    place: Place,
}

/// Line and column of a key or a value, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(usize, usize);

impl Scenario {
    /// Parses the text of a scenario file.
    ///
    /// # Errors
    /// Returns the first mistake as one line: `FILE:LINE:COLUMN: words`.
    pub fn read(text: &str, file: &Path) -> Result<Self, String> {
        let reader = Reader { text, file };
        if text.len() > MAX_BYTES {
            return Err(reader.error(0, format!("a scenario has at most {MAX_BYTES} bytes")));
        }
        let syntax = |error: toml::de::Error| {
            reader.error(error.span().map_or(0, |span| span.start), error.message().replace('\n', ", "))
        };
        let table = DeTable::parse(text).map_err(syntax)?.into_inner();
        if table.contains_key("command") && !table.contains_key("measure") {
            let name = file.display();
            let words =
                format!("it is a recipe; name it in the parties of a scenario, or use mailrun bench --relay {name}");
            return Err(reader.error(0, words));
        }
        let mut keys = Vec::new();
        for (name, value) in table {
            match value.get_ref() {
                DeValue::Table(_) => reader.keys_of_table(&name, value, &mut keys)?,
                _ => reader.key(&name, value, &mut keys)?,
            }
        }
        join_thresholds(&mut keys);
        let mut take = |name: &str| {
            let key = keys.iter().position(|key: &ScenarioKey| key.name == name).map(|at| keys.remove(at));
            key.map(|key| key.single().cloned().map_err(|error| error.in_file(file))).transpose()
        };
        let measure = take("measure")?;
        let title = take("title")?;
        let read = Self { file: file.to_owned(), title: None, measure, keys };
        if read.measure.is_none() && (title.is_some() || read.keys.iter().any(|key| key.name == "parties")) {
            return Err(read.missing_key_error("measure"));
        }
        let title = title.map(|title| read.checked_title(title)).transpose()?;
        Ok(Self { title, ..read })
    }

    fn checked_title(&self, title: ScenarioValue) -> Result<String, String> {
        let is_line = !title.text.chars().any(char::is_control);
        match title.text.chars().count() {
            1..=MAX_TITLE if is_line => Ok(title.text),
            _ => Err(self.value_error(&title, &format!("a title is one line of at most {MAX_TITLE} characters"))),
        }
    }

    pub fn value_error(&self, value: &ScenarioValue, words: &str) -> String {
        self.error(value.place, words)
    }

    pub fn key_error(&self, key: &ScenarioKey, words: &str) -> String {
        self.error(key.place, words)
    }

    pub fn missing_key_error(&self, name: &str) -> String {
        self.error(Place(1, 1), &format!("the key {name:?} is missing"))
    }

    /// Returns the value of a key that must have a single value.
    ///
    /// # Errors
    /// If the key has a list, returns an error that names the place in the file.
    pub fn single<'k>(&self, key: &'k ScenarioKey) -> Result<&'k ScenarioValue, String> {
        key.single().map_err(|error| error.in_file(&self.file))
    }

    fn error(&self, Place(line, column): Place, words: &str) -> String {
        ConfigError { line, column, message: words.to_owned() }.in_file(&self.file)
    }
}

impl ScenarioKey {
    fn single(&self) -> Result<&ScenarioValue, ConfigError> {
        match self.values.as_slice() {
            [value] if !self.is_list => Ok(value),
            values => {
                let Place(line, column) = values.first().map_or(self.place, |first| first.place);
                Err(ConfigError { line, column, message: format!("{} is one value, not a list", self.name) })
            }
        }
    }

    fn is_threshold(&self) -> bool {
        THRESHOLDS.contains(&self.name.as_str())
    }

    /// Returns true if the key lists thresholds, and each of them applies to a single stage of the load. The file may
    /// have a second list of thresholds, for the whole load.
    fn is_of_stage(&self) -> bool {
        self.is_threshold() && self.values.iter().all(|value| value.text.starts_with("stage "))
    }
}

/// Moves the thresholds of single stages into the list of thresholds for the whole load. If a file has both keys,
/// `threshold` and `thresholds`, for the whole load, keeps both, so that the caller's check refuses the second one.
fn join_thresholds(keys: &mut Vec<ScenarioKey>) {
    let (of_stages, others): (Vec<_>, Vec<_>) = std::mem::take(keys).into_iter().partition(ScenarioKey::is_of_stage);
    *keys = others;
    let of_load = keys.iter().rposition(ScenarioKey::is_threshold).map(|at| keys.remove(at));
    let joined = of_load.into_iter().chain(of_stages).reduce(|mut first, next| {
        first.values.extend(next.values);
        first.is_list = true;
        first
    });
    keys.extend(joined);
}

struct Reader<'t> {
    text: &'t str,
    file: &'t Path,
}

impl Reader<'_> {
    fn error(&self, offset: usize, words: String) -> String {
        ConfigError::at(self.text, offset, words).in_file(self.file)
    }

    fn place(&self, span: &Range<usize>) -> Place {
        let ConfigError { line, column, .. } = ConfigError::at(self.text, span.start, String::new());
        Place(line, column)
    }

    fn keys_of_table(
        &self,
        name: &Spanned<impl AsRef<str>>,
        value: Spanned<DeValue<'_>>,
        keys: &mut Vec<ScenarioKey>,
    ) -> Result<(), String> {
        if !TABLES.contains(&name.get_ref().as_ref()) {
            let words = unknown_key(name.get_ref().as_ref(), "", TABLES.into_iter());
            return Err(self.error(name.span().start, words));
        }
        let DeValue::Table(inner) = value.into_inner() else { return Ok(()) };
        inner.into_iter().try_for_each(|(name, value)| self.key(&name, value, keys))
    }

    fn key(
        &self,
        name: &Spanned<impl AsRef<str>>,
        value: Spanned<DeValue<'_>>,
        keys: &mut Vec<ScenarioKey>,
    ) -> Result<(), String> {
        let (span, text) = (value.span(), name.get_ref().as_ref());
        if keys.iter().any(|key| key.name == text && !key.is_of_stage()) {
            return Err(self.error(name.span().start, format!("the key {text:?} is there twice")));
        }
        let is_list = value.get_ref().is_array();
        let values = match value.into_inner() {
            DeValue::Array(list) if list.is_empty() => {
                return Err(self.error(span.start, "the list must have at least one value".to_owned()));
            }
            DeValue::Array(list) if list.len() > MAX_LIST => {
                return Err(self.error(span.start, format!("the list must have at most {MAX_LIST} values")));
            }
            DeValue::Array(list) if text == "stage" && list.iter().all(|item| item.get_ref().is_table()) => {
                let stages = list.into_iter().enumerate();
                stages.map(|(place, stage)| self.stage(place + 1, stage, &mut *keys)).collect::<Result<_, _>>()?
            }
            DeValue::Array(list) => list.into_iter().map(|one| self.value(one)).collect::<Result<_, _>>()?,
            value => vec![self.value(Spanned::new(span, value))?],
        };
        keys.push(ScenarioKey { name: text.to_owned(), place: self.place(&name.span()), values, is_list });
        Ok(())
    }

    /// Converts a table `[[stage]]` to the form in which users type a stage, `NAME=TIME:RATE`. Adds its thresholds to
    /// the thresholds of the whole load, as `stage NAME: EXPRESSION`.
    fn stage(
        &self,
        number: usize,
        table: Spanned<DeValue<'_>>,
        whole: &mut Vec<ScenarioKey>,
    ) -> Result<ScenarioValue, String> {
        let (span, mut keys) = (table.span(), Vec::new());
        if let DeValue::Table(table) = table.into_inner() {
            table.into_iter().try_for_each(|(name, value)| self.key(&name, value, &mut keys))?;
        }
        let place = self.place(&span);
        if let Some(key) = keys.iter().find(|key| !STAGE.contains(&key.name.as_str())) {
            let Place(line, column) = key.place;
            let message = unknown_key(&key.name, " in [[stage]]", STAGE.into_iter());
            return Err(ConfigError { line, column, message }.in_file(self.file));
        }
        let single = |name: &str| {
            let value = keys.iter().find(|key| key.name == name).map(ScenarioKey::single).transpose();
            value.map(|value| value.map(|value| &value.text)).map_err(|error| error.in_file(self.file))
        };
        let (time, rate, name) = (single("time")?, single("rate")?, single("name")?);
        for key in keys.iter().filter(|key| key.name == "thresholds") {
            let stage = name.map_or_else(|| number.to_string(), Clone::clone);
            let of_stage = |value: &ScenarioValue| ScenarioValue {
                text: format!("stage {stage}: {}", value.text),
                place: value.place,
            };
            let values = key.values.iter().map(of_stage).collect();
            whole.push(ScenarioKey { name: key.name.clone(), place: key.place, values, is_list: true });
        }
        let prefix = name.map(|name| format!("{name}=")).unwrap_or_default();
        match (time, rate) {
            (Some(time), Some(rate)) => Ok(ScenarioValue { text: format!("{prefix}{time}:{rate}"), place }),
            _ => Err(self.error(span.start, "a [[stage]] needs the keys time and rate".to_owned())),
        }
    }

    fn value(&self, value: Spanned<DeValue<'_>>) -> Result<ScenarioValue, String> {
        let span = value.span();
        let text = match value.into_inner() {
            DeValue::String(text) => text.into_owned(),
            DeValue::Integer(number) if number.radix() == 10 => number.as_str().to_owned(),
            DeValue::Float(number) => number.as_str().to_owned(),
            DeValue::Boolean(flag) => flag.to_string(),
            _ => return Err(self.error(span.start, "it must be a number or a text".to_owned())),
        };
        Ok(ScenarioValue { text, place: self.place(&span) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = "measure = \"throughput\"\nparties = [\"mailrun\"]\nrounds = 2\nthresholds = [\"rejected < 1%\"]\n\
                         [workload]\nmessages = 10_0\nmessage_size = \"1k\"\nmemory_growth = 1.0\n";

    fn read(text: &str) -> Result<Scenario, String> {
        Scenario::read(text, Path::new("my.toml"))
    }

    #[test]
    fn values_are_kept_as_they_are_typed() {
        let read = read(SMALL).unwrap();
        assert_eq!((read.measure.unwrap().text.as_str(), read.title), ("throughput", None));
        let keys: Vec<(&str, &str)> =
            read.keys.iter().map(|key| (key.name.as_str(), key.values[0].text.as_str())).collect();
        let expected = [
            ("parties", "mailrun"),
            ("rounds", "2"),
            ("thresholds", "rejected < 1%"),
            ("memory_growth", "1.0"),
            ("message_size", "1k"),
            ("messages", "100"),
        ];
        assert!(keys.len() == 6 && expected.iter().all(|key| keys.contains(key)), "{keys:?}");
    }

    #[test]
    fn a_recipe_is_no_scenario() {
        let error = read("durability = \"sync\"\ncommand = [\"mta\", \"{listen}\", \"{to}\"]\n").unwrap_err();
        let text =
            "my.toml:1:1: it is a recipe; name it in the parties of a scenario, or use mailrun bench --relay my.toml";
        assert_eq!(error, text);
    }

    #[test]
    fn a_load_has_stages_and_no_measure() {
        let load = read(
            "to = \"a@b\"\n[[stage]]\ntime = \"10s\"\nrate = 50\n[[stage]]\ntime = \"5s\"\nrate = \"50/s..9/s\"\n",
        );
        let load = load.unwrap();
        let stage = load.keys.iter().find(|key| key.name == "stage").unwrap();
        let texts: Vec<&str> = stage.values.iter().map(|value| value.text.as_str()).collect();
        assert_eq!((load.measure, texts), (None, vec!["10s:50", "5s:50/s..9/s"]));
        for (text, reason) in [
            ("[[stage]]\ntime = 1\n", "my.toml:1:1: a [[stage]] needs the keys time and rate"),
            ("[[stage]]\ntime = 1\nrate = [1, 2]\n", "my.toml:3:9: rate is one value, not a list"),
            ("[[stage]]\ntime = [1]\nrate = 1\n", "my.toml:2:9: time is one value, not a list"),
            ("[[stage]]\ntime = 1\nrate = 1\nname = [\"a\", \"b\"]\n", "my.toml:4:9: name is one value, not a list"),
            ("[[stage]]\ntime = 1\nrat = 1\n", "my.toml:3:1: unknown key \"rat\" in [[stage]]; did you mean \"rate\"?"),
        ] {
            assert_eq!(read(text).unwrap_err(), reason);
        }
    }

    #[test]
    fn thresholds_of_stages_join_those_of_the_load_in_either_spelling() {
        let stage = "[[stage]]\ntime = 1\nrate = 1\nthresholds = [\"rejected < 2%\"]\n";
        for name in THRESHOLDS {
            let load = read(&format!("{name} = \"rejected < 1%\"\n{stage}")).unwrap();
            let keys = load.keys.iter().filter(|key| key.is_threshold());
            let texts: Vec<Vec<&str>> =
                keys.map(|key| key.values.iter().map(|value| value.text.as_str()).collect()).collect();
            assert_eq!(texts, [["rejected < 1%", "stage 1: rejected < 2%"]], "{name}");
        }
    }

    #[test]
    fn a_mistake_has_its_place_and_its_remedy() {
        for (from, to, reason) in [
            ("messages = 10_0", "messages = {}", "my.toml:6:12: it must be a number or a text"),
            ("messages = 10_0", "messages = 0x10", "my.toml:6:12: it must be a number or a text"),
            ("messages = 10_0", "messages = [[1]]", "my.toml:6:13: it must be a number or a text"),
            ("messages = 10_0", "rounds = 1", "my.toml:6:1: the key \"rounds\" is there twice"),
            ("[\"mailrun\"]", "[]", "my.toml:2:11: the list must have at least one value"),
            ("measure = \"throughput\"\n", "", "my.toml:1:1: the key \"measure\" is missing"),
            ("[workload]", "[workload", "my.toml:5:"),
            ("[workload]", "[wrkload]", "my.toml:5:2: unknown key \"wrkload\"; did you mean \"workload\"?"),
            ("rounds = 2", "title = \"\"", "my.toml:3:9: a title is one line of at most 120 characters"),
            ("rounds = 2", "title = [\"a\", \"b\"]", "my.toml:3:10: title is one value, not a list"),
            ("\"throughput\"", "[\"throughput\", \"soak\"]", "my.toml:1:12: measure is one value, not a list"),
        ] {
            let error = read(&SMALL.replace(from, to)).expect_err(to);
            assert!(error.contains(reason) && !error.contains('\n'), "{to}: {error}");
        }
        let long = SMALL.replace("[\"mailrun\"]", &format!("[{}]", "1,".repeat(MAX_LIST + 1)));
        assert!(read(&long).is_err_and(|error| error.contains("at most 100 values")));
        assert!(read(&" ".repeat(MAX_BYTES + 1)).is_err_and(|error| error.contains("at most")));
    }

    proptest! {
        #[test]
        fn whatever_is_cut_out_it_is_read_or_refused_in_a_line_with_a_place(from in 0..200_usize, length in 0..40_usize,
                                                                            put in "[a-z0-9\\[\\]\"= \n]{0,12}") {
            let mut text: Vec<char> = SMALL.chars().collect();
            let from = from.min(text.len());
            text.splice(from..(from + length).min(text.len()), put.chars());
            let text: String = text.into_iter().collect();
            crate::checks::scenario::check(text.as_bytes());
        }
    }
}
