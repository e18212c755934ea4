//! The report as a page, `report.html`, in a single file. The page shows everything important even if the browser runs
//! no scripts.
//!
//! ```text
//! Record ─→ PageRuns ─→ verdict · thresholds · over_time · percentiles · … ─→ PagePart ─→ document
//!                       └ texts and numbers of the other reports (Section, Table), drawings by plot
//! ```
mod capacity;
mod comparison;
mod disclosure;
mod document;
mod environment;
mod errors;
mod escape;
mod ledger;
mod over_time;
mod percentiles;
mod plot;
mod rate_latency;
mod slowest;
mod steps;
mod tables;
mod time_axis;
mod value;
mod verdict;

pub use capacity::capacity_page;
pub use comparison::comparison_page;

use crate::headline::Headline;
use mailrun_measurement::record::{Outcome, Record};
use tables::{PagePart, PageRuns};

/// Returns the report of a run as an HTML page. If there is a baseline, its curves are drawn behind the curves of the
/// run, and each number has its ratio to the baseline beside it.
pub fn page(record: &Record, baseline: Option<&Record>) -> String {
    let runs = PageRuns { record, baseline };
    document::page(runs, &verdict::top(runs), &answer(runs), &details(runs))
}

fn answer(runs: PageRuns<'_>) -> Vec<PagePart> {
    let parts = [
        environment::audit_faults(runs),
        environment::audit_losses(runs),
        environment::thresholds(runs),
        over_time::events(runs.record),
    ];
    parts.into_iter().flatten().chain(worst(runs).filter(|_| !is_passed(runs.record))).collect()
}

fn worst(runs: PageRuns<'_>) -> impl Iterator<Item = PagePart> {
    let parts = [slowest::missing(runs), slowest::part(runs), errors::part(runs), steps::outages(runs)];
    parts.into_iter().flatten()
}

fn is_passed(record: &Record) -> bool {
    Headline::of(record) == Headline::Judged(Outcome::Pass)
}

fn details(runs: PageRuns<'_>) -> Vec<PagePart> {
    let figures = [
        environment::stage_counts(runs),
        environment::load_stages(runs),
        over_time::part(runs),
        percentiles::part(runs),
        rate_latency::part(runs),
        steps::waterfall(runs),
        steps::phases(runs),
    ];
    let parts = [
        ledger::part(runs),
        ledger::domains(runs),
        ledger::rewrites(runs),
        steps::truth(runs),
        environment::server(runs),
        environment::between(runs),
        environment::handshakes(runs),
        environment::processes(runs),
        environment::offered(runs),
        environment::host(runs),
        Some(disclosure::part(runs.record)),
    ];
    let worst = worst(runs).filter(|_| is_passed(runs.record));
    figures.into_iter().flatten().chain(worst).chain(parts.into_iter().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{sample, sample_runs};
    use mailrun_measurement::record::{Audit, AuditLoss};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Fails unless all HTML elements of the page are closed in the right order.
    pub(super) fn check_balance(page: &str) -> Result<(), String> {
        const VOID: [&str; 2] = ["meta", "!doctype"];
        let mut open: Vec<&str> = Vec::new();
        let mut rest = page;
        while let Some(at) = rest.find('<') {
            let end = rest[at..].find('>').ok_or("a tag without an end")? + at;
            let tag = &rest[at + 1..end];
            let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
            rest = &rest[end + 1..];
            match tag.strip_prefix('/') {
                Some(name) if open.pop() != Some(name) => {
                    return Err(format!("</{name}> ends something else: {open:?}"));
                }
                Some(_) => {}
                None if VOID.contains(&name) || tag.ends_with('/') => {}
                None => open.push(name),
            }
            if ["script", "style"].contains(&tag.split(' ').next().unwrap_or_default()) {
                rest = &rest[rest.find(&format!("</{name}>")).ok_or("a script without an end")?..];
            }
        }
        if open.is_empty() { Ok(()) } else { Err(format!("open at the end: {open:?}")) }
    }

    #[test]
    fn the_page_of_each_kind_of_run_is_whole() {
        let mut runs = sample_runs::kinds();
        runs.extend([("sink", sample::sink_alone()), ("lossy", sample::lossy()), ("unwatched", sample::unwatched())]);
        for (name, record) in runs {
            let text = page(&record, None);
            assert_eq!(check_balance(&text), Ok(()), "{name}");
            assert!(text.len() < 300_000, "{name}: {} bytes", text.len());
            assert!(!text.contains("<img") && !text.contains("\"NaN") && !text.contains(">NaN"), "{name}");
            let word = crate::headline::Headline::of(&record).name();
            assert!(text.contains(&format!("</span> {word}</strong>")), "{name}");
        }
    }

    #[test]
    fn a_page_says_that_the_load_went_over_no_network() {
        for (target, way) in [
            ("127.0.0.1:25", Some("over the loopback interface")),
            ("amqp://guest@127.0.0.1:5672", Some("over the loopback interface")),
            ("amqp://[::1]", Some("over the loopback interface")),
            ("unix:/run/lmtp", Some("through a Unix-domain socket")),
            ("amqp://broker.example:5672", None),
        ] {
            let mut record = sample::mades();
            record.workload.target = target.to_owned();
            let text = page(&record, None);
            let said = text.split("The load went ").nth(1).and_then(|rest| rest.split(':').next());
            assert_eq!(said, way, "{target}");
        }
    }

    #[test]
    fn the_parts_are_in_the_order_of_reading() {
        let record = sample_runs::failed();
        let names = |record: &Record| -> Vec<&str> {
            let runs = PageRuns { record, baseline: None };
            answer(runs).iter().chain(&details(runs)).map(|part| part.id).collect()
        };
        let expected = [
            "thresholds",
            "events",
            "missing",
            "slowest",
            "errors",
            "stages",
            "time",
            "percentiles",
            "phases",
            "ledger",
            "domains",
            "relay",
            "processes",
            "workload",
            "host",
            "limits",
        ];
        assert_eq!(names(&record), expected);
        let mades = sample_runs::mades();
        let of_mades = names(&mades);
        assert!(of_mades.contains(&"steps") && of_mades.contains(&"outages"), "{of_mades:?}");
        assert!(!of_mades.contains(&"phases"), "{of_mades:?}");
        assert!(names(&sample_runs::hour()).contains(&"rate"), "it has several rates");
        let passed = sample_runs::passed();
        let of_passed = names(&passed);
        let place = |id| of_passed.iter().position(|name| *name == id);
        assert!(place("slowest") > place("percentiles"), "a run that passed shows its curves first: {of_passed:?}");
    }

    #[test]
    fn passed_thresholds_are_folded_below_the_missed_ones() {
        let text = page(&sample_runs::failed(), None);
        let [missed, fold, passed] = ["delivered.p99 &lt; 50ms", "1 of 3 thresholds passed", "errors &lt; 1%"]
            .map(|words| text.find(words).unwrap_or_else(|| panic!("{words}")));
        assert!(missed < fold && fold < passed);
        assert!(page(&sample_runs::passed(), None).contains("2 of 2 thresholds passed"));
    }

    #[test]
    fn ten_messages_that_a_server_lost_are_shown_and_the_others_folded() {
        let lost = |count: u64| {
            let losses = (0..count).map(|message| AuditLoss { message: 500 + message, ..AuditLoss::default() });
            let audit = Audit { losses: losses.collect(), ..Audit::default() };
            let record = Record { audit: Some(audit), ..sample_runs::failed() };
            environment::audit_losses(PageRuns { record: &record, baseline: None }).map(|part| part.body)
        };
        let body = lost(12).unwrap();
        let (shown, folded) = body.split_once("<details>").unwrap();
        assert!(shown.contains(">509<") && !shown.contains(">510<"), "{shown}");
        assert!(folded.contains("2 more") && folded.contains(">511<"), "{folded}");
        assert!(!lost(10).unwrap().contains("<details>") && lost(0).is_none());
    }

    #[test]
    fn an_idle_generator_has_no_curves() {
        let mut record = sample_runs::failed();
        record.usage.iter_mut().flat_map(|party| &mut party.seconds).for_each(|row| row.cores = 0.04);
        let names = |record: &Record| {
            let text = page(record, None);
            let panel =
                text.split("id=\"panel-cpu\"").nth(1).map(|rest| rest.split("</figure>").next().unwrap_or(rest));
            panel.map(|panel| ["source:", "mailrun:", "sink:"].map(|name| panel.contains(name)))
        };
        assert_eq!(names(&record), Some([false, true, false]), "the relay is what is measured");
        record.usage.retain(|party| party.party != "mailrun");
        assert_eq!(names(&record), None);
        record.usage[0].seconds[3].cores = 0.2;
        assert_eq!(names(&record), Some([true, false, false]));
    }

    #[test]
    fn a_baseline_gives_ratios_and_grey_curves() {
        let alone = page(&sample_runs::failed(), None);
        let compared = page(&sample_runs::failed(), Some(&sample_runs::passed()));
        assert!(!alone.contains("class=\"ratio\"") && !alone.contains("k ghost"));
        assert!(compared.contains("class=\"ratio\">1.00×") && compared.contains("k ghost"));
        assert!(compared.contains("Compared with <b><bdi>through the relay</bdi></b> (PASS"));
    }

    #[test]
    fn an_interrupted_run_without_anything_has_a_page() {
        let mut record = sample::held();
        record.series.clear();
        record.stages.clear();
        record.phases.clear();
        record.parties.clear();
        record.ledger = mailrun_measurement::record::LedgerRow::default();
        assert_eq!(check_balance(&page(&record, Some(&record))), Ok(()));
    }

    /// Replaces some numbers by extreme values, and appends markup to some texts, as `choices` decides.
    fn disturb(value: &mut Value, choices: &mut impl Iterator<Item = u8>) {
        match value {
            Value::Array(entries) => entries.iter_mut().for_each(|entry| disturb(entry, choices)),
            Value::Object(fields) => fields.values_mut().for_each(|field| disturb(field, choices)),
            Value::Number(number) => {
                let extreme = match (choices.next(), number.is_f64()) {
                    (Some(0), false) => json!(u64::MAX),
                    (Some(1), false) => json!(0),
                    (Some(0), true) => json!(1e308),
                    (Some(1), true) => json!(-5.0),
                    (Some(2), true) => json!(0.0),
                    (Some(3), true) => json!(5e-324),
                    _ => return,
                };
                *value = extreme;
            }
            Value::String(text) if choices.next() == Some(0) => text.push_str("</script><b onclick='x'>&\"\u{202e}"),
            _ => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn no_record_breaks_the_page(kind in 0_usize..7, seed in proptest::collection::vec(0_u8..24, 1..400)) {
            let kinds = [
                sample_runs::second, sample_runs::passed, sample_runs::failed, sample::mades, sample::sink_alone,
                sample::unwatched, sample::relayed,
            ];
            let mut value = serde_json::to_value(kinds[kind]()).expect("it is JSON");
            disturb(&mut value, &mut seed.iter().copied().cycle());
            // Skip a value that is no longer a valid record, for example because a number became too large for its
            // field.
            if let Ok(record) = serde_json::from_value::<Record>(value) {
                let text = page(&record, Some(&sample_runs::passed()));
                prop_assert_eq!(check_balance(&text), Ok(()));
                prop_assert!(!text.contains("<b onclick"));
            }
        }
    }
}
