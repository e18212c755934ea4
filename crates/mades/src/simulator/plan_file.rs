//! Reads a plan file of the stand-in (TOML): reports each mistake with its key and place, and puts a correct plan
//! over a preset.
//!
//! Each value is read by itself, by the same code that reads a whole plan, so that one that is wrong hides no other.
use super::SimulatorPlan;
use mailrun_party::misspelling::is_misspelling;
use mailrun_party::position::line_and_column;
use std::ops::Range;
use std::path::Path;
use strsim::damerau_levenshtein;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The longest file, in bytes.
const MAX_PLAN_BYTES: usize = 1 << 20;

/// A key, and a value that is right.
type PlanKey = (&'static str, &'static str);

/// All keys, by table, in the order in which `--help` has them.
const TABLES: [(&str, &[PlanKey]); 8] = [
    (
        "",
        &[
            ("mode", "'endpoint'"),
            ("tracing_value", "'TRACING'"),
            ("received_on", "'inbox'"),
            ("seed", "1"),
            ("receivers", "['ecp-endpoint']"),
            ("sender_code", "'mailrun-endpoint-a'"),
            ("receive", "'exp:57ms'"),
            ("acknowledgement_documents", "true"),
            ("document_delay", "'exp:2s'"),
            ("slow_start", "'10s'"),
            ("outages", "['A.down 10s..15s']"),
            ("max_payload_size", "'64M'"),
            ("credit", "200"),
            ("max_stored_messages", "'1M'"),
            ("max_stored_size", "'1G'"),
        ],
    ),
    ("accept", LEG),
    ("accept.capacity", CAPACITY),
    ("network", LEG),
    ("network.capacity", CAPACITY),
    ("acknowledge", LEG),
    ("acknowledge.capacity", CAPACITY),
    (
        "faults",
        &[
            ("drop", "'1%'"),
            ("duplicate", "'1%'"),
            ("corrupt", "'1%'"),
            ("reject", "'1%'"),
            ("reject_code", "'E-1'"),
            ("reject_message", "'told to'"),
            ("fail", "'1%'"),
            ("no_reply", "'1%'"),
            ("reorder", "'1%'"),
            ("reorder_by", "'50ms'"),
            ("reject_documents", "'1%'"),
        ],
    ),
];

const LEG: &[PlanKey] = &[("delay", "'lognormal:10ms,0.8'")];
const CAPACITY: &[PlanKey] = &[("rate_per_s", "10.8"), ("bytes_per_s", "'1M'"), ("workers", "4"), ("work", "'20ms'")];

/// Values of the keys that have a choice.
const CHOICES: [(&str, &[&str]); 3] = [
    ("mode", &["endpoint", "toolbox", "tracing"]),
    ("tracing_value", &["TRACING", "DELIVERED"]),
    ("received_on", &["inbox", "consume"]),
];

/// Reads a plan, and puts it over a preset.
///
/// # Errors
/// All that is wrong with it, a line each, in the order of the file: `plan.toml:1:8: …`.
pub fn read(text: &str, file: &Path, preset: &SimulatorPlan) -> Result<SimulatorPlan, String> {
    let mut reader = PlanReader { text, errors: Vec::new(), merged: toml::Table::try_from(preset).unwrap_or_default() };
    if text.len() > MAX_PLAN_BYTES {
        reader.add_error(0..0, format!("a plan has at most {MAX_PLAN_BYTES} bytes"));
        return Err(reader.error_text(file));
    }
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        reader.add_error(
            error.span().unwrap_or(0..0),
            format!("not valid TOML: {}", error.message().replace('\n', ", ")),
        );
    }
    // What does not follow the grammar may have made other values of what comes after it.
    if reader.errors.is_empty() {
        reader.table("", table.into_inner());
    }
    if !reader.errors.is_empty() {
        return Err(reader.error_text(file));
    }
    let plan = reader.merged.clone().try_into::<SimulatorPlan>().map_err(|error| error.message().to_owned());
    plan.and_then(|plan| plan.check().map(|()| plan)).map_err(|why| {
        reader.add_error(0..0, why);
        reader.error_text(file)
    })
}

struct PlanReader<'t> {
    text: &'t str,
    /// Mistakes found so far: offset and text.
    errors: Vec<(usize, String)>,
    /// The preset, and over it all values that are right.
    merged: toml::Table,
}

impl PlanReader<'_> {
    fn add_error(&mut self, at: Range<usize>, what: String) {
        self.errors.push((at.start, what));
    }

    /// The keys of the table of that name.
    fn table(&mut self, name: &str, table: DeTable<'_>) {
        let known = TABLES.iter().find(|(table, _)| *table == name).map_or(&[][..], |(_, keys)| *keys);
        for (key, value) in table {
            let at = key.span();
            let path = if name.is_empty() { key.get_ref().to_string() } else { format!("{name}.{}", key.get_ref()) };
            if TABLES.iter().any(|(table, _)| *table == path) {
                self.inner_table(&path, value);
            } else if let Some((key, example)) = known.iter().find(|(known, _)| known == key.get_ref()) {
                self.value(name, key, example, &value);
            } else {
                let what = unknown_key(name, key.get_ref(), known);
                self.add_error(at, what);
            }
        }
    }

    fn inner_table(&mut self, path: &str, value: Spanned<DeValue<'_>>) {
        let at = value.span();
        match value.into_inner() {
            DeValue::Table(table) => self.table(path, table),
            _ => self.add_error(at, format!("{path} is a table; write [{path}], and its keys in the lines below it")),
        }
    }

    /// Reads a value; of a list each item, since each has its own place in the file.
    fn value(&mut self, table: &str, key: &str, example: &str, value: &Spanned<DeValue<'_>>) {
        let known = self.errors.len();
        if let DeValue::Array(items) = value.get_ref() {
            for item in items.iter() {
                let written = format!("[{}]", self.text.get(item.span()).unwrap_or_default());
                self.check(table, key, example, item.span(), &written);
            }
        }
        let written = self.text.get(value.span()).unwrap_or_default();
        if self.errors.len() == known {
            self.check(table, key, example, value.span(), written);
        }
        if self.errors.len() == known {
            self.keep(table, key, written);
        }
    }

    /// Notes what is wrong with a value, if anything is.
    fn check(&mut self, table: &str, key: &str, example: &str, at: Range<usize>, written: &str) {
        let choices = CHOICES.iter().find(|(known, _)| table.is_empty() && *known == key);
        let text = toml::from_str::<SingleValue>(&format!("value = {written}")).map(|single| single.value);
        let said = match (choices, text) {
            (Some((_, choices)), Ok(text)) => choice_error(key, &text, choices),
            (Some(_), Err(_)) => Some(type_error(key, example)),
            _ => value_error(table, key, example, written),
        };
        if let Some(said) = said {
            self.add_error(at, said);
        }
    }

    /// Puts a value that is right into the whole.
    fn keep(&mut self, table: &str, key: &str, written: &str) {
        let Ok(mut read) = toml::from_str::<toml::Table>(&format!("value = {written}")) else { return };
        let mut into = &mut self.merged;
        for name in table.split('.').filter(|name| !name.is_empty()) {
            let inner = into.entry(name).or_insert_with(|| toml::Value::Table(toml::Table::new()));
            let Some(inner) = inner.as_table_mut() else { return };
            into = inner;
        }
        if let Some(value) = read.remove("value") {
            into.insert(key.to_owned(), value);
        }
    }

    /// Lists the mistakes, one per line.
    fn error_text(mut self, file: &Path) -> String {
        self.errors.sort();
        let line = |(offset, what): &(usize, String)| {
            let (line, column) = line_and_column(self.text, *offset);
            format!("{}:{line}:{column}: {what}", file.display())
        };
        self.errors.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A value that is text.
#[derive(serde::Deserialize)]
struct SingleValue {
    value: String,
}

/// Complains of a text that is not among the choices.
fn choice_error(key: &str, text: &str, choices: &[&str]) -> Option<String> {
    if choices.contains(&text) {
        return None;
    }
    let near = choices.iter().find(|choice| is_misspelling(text, choice) || text.eq_ignore_ascii_case(choice));
    Some(match near {
        Some(near) => format!("{key} {text:?} is unknown; did you mean {near:?}?"),
        None => format!("{key} {text:?} is unknown; known are {}", choices.join(", ")),
    })
}

/// Complains of a value that is wrong by itself.
fn value_error(table: &str, key: &str, example: &str, written: &str) -> Option<String> {
    let path = if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") };
    let mut plan = match toml::from_str::<SimulatorPlan>(&format!("{path} = {written}")) {
        Ok(plan) => plan,
        Err(error) => {
            let words = error.message();
            // Texts of serde; all others are our own, about a text that is no such quantity.
            let is_type = ["invalid type", "invalid value", "did not match"].iter().any(|word| words.contains(word));
            let said = || format!("{key}: {}", words.replace('\n', ", "));
            return Some(if is_type { type_error(key, example) } else { said() });
        }
    };
    // Work needs workers; their number may stand in another line.
    for leg in [&mut plan.accept, &mut plan.network, &mut plan.acknowledge] {
        leg.capacity.workers.get_or_insert(1);
    }
    plan.check().err()
}

fn type_error(key: &str, example: &str) -> String {
    format!("{key} has the wrong type; use something like {key} = {example}")
}

/// Complains of a key that does not exist.
fn unknown_key(table: &str, key: &str, known: &[PlanKey]) -> String {
    let place = if table.is_empty() { String::new() } else { format!(" in [{table}]") };
    let tables = TABLES.iter().filter_map(|(name, _)| match (table, name.rsplit_once('.')) {
        ("", None) if !name.is_empty() => Some(*name),
        (table, Some((outer, inner))) if outer == table => Some(inner),
        _ => None,
    });
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).chain(tables).collect();
    let nearest = names.iter().min_by_key(|name| damerau_levenshtein(name, key));
    match nearest.filter(|name| is_misspelling(key, name)) {
        Some(name) => format!("unknown key {key:?}{place}; did you mean {name:?}?"),
        None => format!("unknown key {key:?}{place}; known keys: {}", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complaints(text: &str) -> String {
        read(text, Path::new("plan.toml"), &SimulatorPlan::default()).expect_err(text)
    }

    #[test]
    fn each_mistake_has_its_line_and_its_place() {
        for (text, said) in [
            ("mode = 'endpont'", "plan.toml:1:8: mode \"endpont\" is unknown; did you mean \"endpoint\"?"),
            ("mode = 'smtp'", "plan.toml:1:8: mode \"smtp\" is unknown; known are endpoint, toolbox, tracing"),
            ("mode = 5", "plan.toml:1:8: mode has the wrong type; use something like mode = 'endpoint'"),
            (
                "tracing_value = 'tracing'",
                "plan.toml:1:17: tracing_value \"tracing\" is unknown; did you mean \"TRACING\"?",
            ),
            ("seeds = 1", "plan.toml:1:1: unknown key \"seeds\"; did you mean \"seed\"?"),
            ("seed = -1", "plan.toml:1:8: seed has the wrong type; use something like seed = 1"),
            (
                "[faults]\nlost = 1",
                "plan.toml:2:1: unknown key \"lost\" in [faults]; known keys: drop, duplicate, corrupt, reject, reject_code, reject_message, fail, no_reply, reorder, reorder_by, reject_documents",
            ),
            ("faults = 1", "plan.toml:1:10: faults is a table; write [faults], and its keys in the lines below it"),
            (
                "outages = ['A.down 1s..2s', 'C.down 1s..2s']",
                "plan.toml:1:29: outages: \"C.down 1s..2s\" is not a valid outage; use something like 'A.down 10s..15s' (A, B or net)",
            ),
            (
                "receive = 'exp:x'\n[network]\ndelay = 'uniform:1s'",
                "plan.toml:1:11: receive: \"x\" is not a valid time; use something like 250ms, 10s or 1m\nplan.toml:3:9: delay: \"uniform\" is not a distribution; use exp, lognormal or file",
            ),
            ("credit = 0", "plan.toml:1:10: credit, max_stored_messages and max_stored_size must be more than 0"),
            ("[accept.capacity]\nworkers = 0", "plan.toml:2:11: accept: at least one worker is required"),
            ("[accept]\ncapacity = { work = '1s' }", "plan.toml:1:1: accept: work requires workers; add their number"),
            (
                "[accept]\ncapacity = { rate = 1 }",
                "plan.toml:2:14: unknown key \"rate\" in [accept.capacity]; known keys: rate_per_s, bytes_per_s, workers, work",
            ),
        ] {
            assert_eq!(complaints(text), said, "{text}");
        }
        assert!(complaints("mode = \n").starts_with("plan.toml:1:8: not valid TOML: "), "{}", complaints("mode = \n"));
        assert!(complaints("seed = 1\nseed = 2").starts_with("plan.toml:2:1: not valid TOML: "));
    }

    #[test]
    fn a_plan_goes_over_the_preset_key_by_key() {
        let preset = SimulatorPlan::preset("ecp-2022").unwrap();
        let text =
            "seed = 5\nnetwork.capacity.rate_per_s = 9.0\n[accept]\ndelay = '1ms'\n[faults]\ndrop = 0.5\nfail = 0\n";
        let plan = read(text, Path::new("p"), &preset).unwrap();
        assert_eq!((plan.seed, plan.faults.drop), (5, 0.5));
        let rates = [&plan.accept, &plan.network, &plan.acknowledge].map(|leg| leg.capacity.rate_per_s);
        assert_eq!(rates, [Some(10.8), Some(9.0), Some(6.5)]);
        assert_eq!(read("", Path::new("p"), &preset), Ok(preset));
    }

    #[test]
    fn quantities_may_be_written_as_people_write_them() {
        let text = "max_payload_size = '64k'\nmax_stored_messages = '10k'\n[faults]\ndrop = '1%'\nreject = '0.5'\n\
                    [accept.capacity]\nrate_per_s = '30/m'\nbytes_per_s = '1M'\n";
        let plan = read(text, Path::new("p"), &SimulatorPlan::default()).unwrap();
        assert_eq!((plan.max_payload_size, plan.max_stored_messages), (65_536, 10_000));
        assert_eq!((plan.faults.drop, plan.faults.reject), (0.01, 0.5));
        let capacity = &plan.accept.capacity;
        assert_eq!((capacity.rate_per_s, capacity.bytes_per_s), (Some(0.5), Some(1_048_576.0)));
    }

    #[test]
    fn all_keys_are_those_of_a_plan() {
        for (table, keys) in TABLES {
            for (key, example) in keys {
                let text =
                    if table.is_empty() { format!("{key} = {example}") } else { format!("{table}.{key} = {example}") };
                toml::from_str::<SimulatorPlan>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
        }
        for (key, choices) in CHOICES {
            for choice in choices {
                toml::from_str::<SimulatorPlan>(&format!("{key} = '{choice}'"))
                    .unwrap_or_else(|error| panic!("{key}: {error}"));
            }
        }
        // A plan with all that may be left out is written with all keys, and each of them is known.
        let mut plan = SimulatorPlan::default();
        for leg in [&mut plan.accept, &mut plan.network, &mut plan.acknowledge] {
            *leg = toml::from_str(
                "delay = '1ms'\ncapacity = { rate_per_s = 1.0, bytes_per_s = 1.0, workers = 1, work = '1s' }",
            )
            .unwrap();
        }
        assert_eq!(read(&toml::to_string(&plan).unwrap(), Path::new("p"), &SimulatorPlan::default()), Ok(plan));
    }

    proptest! {
        #[test]
        fn one_wrong_value_hides_no_other(drop in 1.01_f64..9.0, credit in -9_i64..0, seed in any::<u32>()) {
            let text = format!("seed = {seed}\ncredit = {credit}\n[faults]\ndrop = {drop}\nreject = '1%'\n");
            let why = complaints(&text);
            let places: Vec<&str> = why.lines().filter_map(|line| line.get(..12)).collect();
            prop_assert_eq!(places, ["plan.toml:2:", "plan.toml:4:"]);
        }
    }
}
