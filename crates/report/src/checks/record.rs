//! Reads any bytes as a run record. If the bytes are a record, every format must write a text for
//! it, and its JSON must be a record again.
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
