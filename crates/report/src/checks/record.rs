//! Reads arbitrary bytes as a run record. If they are a record, every export format must produce a text, and its JSON
//! must be readable as a record again.
use crate::exports::{CsvTable, ExportFormat, annotations};
use mailrun_measurement::record::Record;

pub fn check(data: &[u8]) {
    let Ok(record) = Record::from_json(data) else { return };
    let runs = [record];
    for format in ExportFormat::NAMED.into_iter().chain(CsvTable::ALL.map(ExportFormat::Csv)) {
        let text = format.render(&runs);
        if format == ExportFormat::Json {
            assert!(Record::from_json(text.as_bytes()).is_ok());
        }
    }
    assert!(annotations(&runs[0]).lines().all(|line| line.starts_with("::")));
}
