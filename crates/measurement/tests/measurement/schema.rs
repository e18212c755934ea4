use crate::sample;
use mailrun_measurement::Record;
use serde_json::Value;

#[test]
fn every_field_has_a_meaning() {
    let schema: Value = serde_json::from_str(&mailrun_measurement::record::schema()).unwrap();
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
fn keys_of_the_future_are_no_obstacle() {
    let mut value = serde_json::to_value(sample::run()).unwrap();
    value["a_key_of_the_future"] = 1.into();
    assert_eq!(serde_json::from_value::<Record>(value).unwrap(), sample::run());
}
