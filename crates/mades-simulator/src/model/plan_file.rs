//! Reads a plan file of the simulator (TOML), and applies it to a built-in plan. All mistakes in the file are reported
//! with their positions.
use super::SimulatorPlan;
use mailrun_process::toml_file::{ConfigError, ErrorCollector, Section};
use std::path::Path;

const MAX_PLAN_BYTES: usize = 1 << 20;

/// A key of the plan, and an example of its value for error messages.
type PlanKey = (&'static str, &'static str);

const PLAN: &[PlanKey] = &[
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
];
const LEGS: [&str; 3] = ["accept", "network", "acknowledge"];
const LEG: &[PlanKey] = &[("delay", "'lognormal:10ms,0.8'")];
const CAPACITY: &[PlanKey] = &[("rate_per_s", "10.8"), ("bytes_per_s", "'1M'"), ("workers", "4"), ("work", "'20ms'")];
const FAULTS: &[PlanKey] = &[
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
];

/// Reads a plan file of the simulator. The built-in plan `preset` provides all settings that the file leaves out.
///
/// # Errors
/// Fails if the file has mistakes. The error lists them in the order of the file, one per line: `plan.toml:1:8: …`.
pub fn read(text: &str, file: &Path, preset: &SimulatorPlan) -> Result<SimulatorPlan, String> {
    let errors = ErrorCollector::default();
    if let Some(root) = Section::root(text, MAX_PLAN_BYTES, &errors) {
        check_plan(root);
    }
    errors.finish(file, text).map_err(|errors| errors.to_string())?;
    let plan = toml::from_str(text).and_then(|plan: toml::Table| {
        let mut merged = toml::Table::try_from(preset).unwrap_or_default();
        merge(&mut merged, plan);
        merged.try_into::<SimulatorPlan>()
    });
    let plan = plan.map_err(|error| error.message().to_owned());
    plan.and_then(|plan| plan.check().map(|()| plan)).map_err(|reason| ConfigError::at(text, 0, reason).in_file(file))
}

fn check_plan(mut root: Section<'_>) {
    check_keys(&mut root, PLAN);
    for leg in LEGS {
        let Some(mut section) = root.table(leg) else { continue };
        check_keys(&mut section, LEG);
        if let Some(mut section) = section.table("capacity") {
            check_keys(&mut section, CAPACITY);
            section.finish();
        }
        section.finish();
    }
    if let Some(mut section) = root.table("faults") {
        check_keys(&mut section, FAULTS);
        section.finish();
    }
    root.finish();
}

fn check_keys(section: &mut Section<'_>, keys: &[PlanKey]) {
    for (key, example) in keys {
        section.check(key, example, |mut plan: SimulatorPlan| {
            // Each key is checked alone, so `plan` has only the value of `key`. A plan that has `work` but no `workers`
            // is invalid, so add one worker.
            for leg in [&mut plan.accept, &mut plan.network, &mut plan.acknowledge] {
                leg.capacity.workers.get_or_insert(1);
            }
            plan.check()
        });
    }
}

/// Copies the values of the table `from` into the table `into`, where they replace values with the same keys. If both
/// tables contain a table with the same key, merges these two tables.
fn merge(into: &mut toml::Table, from: toml::Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            (_, value) => drop(into.insert(key, value)),
        }
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
        for (text, expected) in [
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
            assert_eq!(complaints(text), expected, "{text}");
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
        let tables = [("", PLAN), ("accept.", LEG), ("accept.capacity.", CAPACITY), ("faults.", FAULTS)];
        for (table, keys) in tables {
            for (key, example) in keys {
                let text = format!("{table}{key} = {example}");
                toml::from_str::<SimulatorPlan>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
            }
        }
        // `read` must accept every key of a plan. Set all optional values, because `to_string` leaves out unset keys.
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
            let messages = complaints(&text);
            let places: Vec<&str> = messages.lines().filter_map(|line| line.get(..12)).collect();
            prop_assert_eq!(places, ["plan.toml:2:", "plan.toml:4:"]);
        }
    }
}
