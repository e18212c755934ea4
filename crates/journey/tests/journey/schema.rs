use crate::sample;
use mailrun_journey::Record;
use mailrun_journey::account::fates_sum;
use mailrun_journey::judge;
use mailrun_journey::merge::merge_records;
use mailrun_journey::record::{ErrorRow, LedgerRow, SeriesRow};
use mailrun_journey::threshold::{RunProtocol, Threshold};
use serde_json::Value;

#[test]
fn every_field_has_a_meaning() {
    let schema: Value = serde_json::from_str(&mailrun_journey::record::schema()).unwrap();
    let definitions = schema["$defs"].as_object().unwrap().iter().map(|(name, one)| (name.as_str(), one));
    let mut without = Vec::new();
    for (name, one) in definitions.chain([("record", &schema)]) {
        let fields = one["properties"].as_object().into_iter().flatten();
        without.extend(fields.filter(|(_, field)| !field["description"].is_string()).map(|(field, _)| (name, field)));
    }
    assert!(without.is_empty(), "without a comment in record.rs: {without:?}");
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = sample::run();
    let text = serde_json::to_string(&record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
}

#[test]
fn keys_that_came_later_are_no_obstacle() {
    let mut value = serde_json::to_value(sample::run()).unwrap();
    value["ledger"].as_object_mut().unwrap().remove("overflow");
    value["a_key_of_the_future"] = 1.into();
    assert_eq!(serde_json::from_value::<Record>(value).unwrap().ledger.overflow, None);
}

#[test]
fn records_of_earlier_versions_have_no_fields_for_reports() {
    let today = sample::run();
    let mut value = serde_json::to_value(Record {
        errors: vec![ErrorRow::default()],
        series: vec![SeriesRow { sent: 1, ..sample::second(3) }],
        ..today.clone()
    })
    .unwrap();
    let remove = |value: &mut Value, keys: &[&str]| {
        keys.iter().for_each(|key| drop(value.as_object_mut().unwrap().remove(*key)));
    };
    remove(&mut value, &["usage", "events", "slowest", "domains"]);
    for row in value["stages"].as_array_mut().unwrap() {
        remove(row, &["service_ms", "service_histogram"]);
    }
    remove(&mut value["series"][0], &["created", "p95_ms", "p999_ms", "max_ms"]);
    remove(&mut value["errors"][0], &["first_s", "last_s", "sample"]);
    let earlier: Record = serde_json::from_value(value).unwrap();
    assert_eq!((earlier.errors[0].first_s, earlier.series[0].max_ms), (None, 0.0));
    let merged = merge_records(earlier.clone(), Some(sample::sink()), today.ledger.clone());
    assert!(merged.slowest.is_empty() && merged.domains.is_empty() && merged.usage.is_empty());
    assert_eq!(merged.series[0].second, 3, "what an older party wrote is joined as ever");
}

#[test]
fn rejected_of_an_earlier_version_is_what_was_rejected_and_what_failed() {
    let ledger = LedgerRow { rejected: Some(4), failed: Some(6), ..sample::run().ledger };
    let today = LedgerRow { accepted: Some(90), delivered: Some(90), ..ledger };
    let mut value = serde_json::to_value(Record { ledger: today.clone(), ..sample::run() }).unwrap();
    for key in ["failed", "queued"] {
        value["ledger"].as_object_mut().unwrap().remove(key);
    }
    value["ledger"]["rejected"] = 10.into();
    let earlier: Record = serde_json::from_value(value).unwrap();
    let written = LedgerRow { rejected: Some(10), failed: None, queued: None, ..today };
    assert_eq!(earlier.ledger, written, "nobody knows how many of the ten failed");
    assert!(fates_sum(&earlier.ledger));
    assert_eq!(judge::pass_text(&earlier), "90 of 100 delivered, 10 rejected");
    let asked = |expression: &str| Threshold::parse(expression, RunProtocol::Smtp).unwrap().evaluate(&earlier);
    let rejected = asked("rejected <= 9");
    assert_eq!((rejected.value, rejected.passed), (Some(10.0), false));
    let failed = asked("failed <= 0");
    assert_eq!((failed.value, failed.passed), (None, false), "what is not known is not met");
}
