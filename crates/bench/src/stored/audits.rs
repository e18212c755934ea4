//! The last audit of a server, which is shown in the tables of other runs.
use super::reading::read_run;
use mailrun_journey::record::{Audit, AuditRow, Record};
use mailrun_journey::words::listed;
use mailrun_report::numbers::{count, counted};
use mailrun_report::table::plain;
use std::fs;
use std::path::Path;

/// Finds the newest audit of this version of a server in a directory of results.
pub(crate) fn last_audit(results: &Path, recipe: &str, version: &str) -> Option<Record> {
    let name = format!("audit-{recipe}");
    let paths = fs::read_dir(results).ok()?.flatten().map(|entry| entry.path());
    let audits = paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("-audit-")));
    let is_of_version = |record: &Record| record.audit.as_ref().is_some_and(|audit| audit.version == version);
    let records = audits.filter_map(|path| read_run(&path).ok());
    records
        .filter(|record| record.name == name && is_of_version(record))
        .max_by(|one, other| one.started_at.cmp(&other.started_at))
}

/// For example `kept` or `lost with power-cut`.
pub(crate) fn outcome(audit: &Audit) -> String {
    type Number = fn(&AuditRow) -> u64;
    let outcomes: [(&str, Number); 4] = [
        ("lost", |row| row.lost),
        ("not delivered", |row| row.not_delivered),
        ("changed", |row| row.corrupt),
        ("never back", |row| row.never_back),
    ];
    let texts = outcomes.into_iter().filter_map(|(word, number)| {
        let rows = audit.faults.iter().filter(|row| number(row) > 0);
        let faults: Vec<String> = rows.map(|row| plain(&row.fault)).collect();
        (!faults.is_empty()).then(|| format!("{word} with {}", listed(&faults)))
    });
    let texts: Vec<String> = texts.collect();
    if texts.is_empty() { "kept".to_owned() } else { texts.join("; ") }
}

/// For example `audited on 2026-11-26 (Exim version 4.96; seed 7): kill 0 of 344 lost in 2 rounds,
/// …`.
pub(crate) fn description(record: &Record, audit: &Audit) -> String {
    let row = |row: &AuditRow| {
        let (lost, answered) = (count(row.lost), count(row.answered));
        format!("{} {lost} of {answered} lost in {}", plain(&row.fault), counted(row.rounds, "round"))
    };
    let rows: Vec<String> = audit.faults.iter().map(row).collect();
    let date: String = plain(&record.started_at).chars().take("2026-11-26".len()).collect();
    format!("audited on {date} ({}; seed {}): {}", plain(&audit.version), audit.seed, rows.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_audit_of_the_same_version_counts() {
        let results = tempfile::tempdir().unwrap();
        let store = |directory: &str, name: &str, started_at: &str, version: &str, lost: u64| {
            let row = |fault: &str, lost| AuditRow {
                fault: fault.to_owned(),
                rounds: 2,
                answered: 345,
                lost,
                ..AuditRow::default()
            };
            let audit = Audit {
                version: version.to_owned(),
                seed: 7,
                faults: vec![row("kill", 0), row("power-cut", lost)],
                losses: Vec::new(),
            };
            let record = Record {
                format: mailrun_journey::record::FORMAT.to_owned(),
                name: name.to_owned(),
                started_at: started_at.to_owned(),
                audit: Some(audit),
                ..Record::empty()
            };
            let path = results.path().join(directory);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("run.json"), record.to_json().unwrap()).unwrap();
        };
        store("1-audit-mta", "audit-mta", "2026-11-24T00:00:00Z", "mta 1", 9);
        store("2-audit-mta", "audit-mta", "2026-11-25T00:00:00Z", "mta 1", 115);
        store("3-audit-mta", "audit-mta", "2026-11-26T00:00:00Z", "mta 2", 0);
        store("4-audit-other", "audit-other", "2026-11-26T00:00:00Z", "mta 1", 0);
        let found = |version| {
            let record = last_audit(results.path(), "mta", version)?;
            let audit = record.audit.clone().unwrap();
            Some((outcome(&audit), description(&record, &audit)))
        };
        let description = "audited on 2026-11-25 (mta 1; seed 7): kill 0 of 345 lost in 2 rounds, power-cut 115 of 345 \
                           lost in 2 rounds";
        assert_eq!(found("mta 1"), Some(("lost with power-cut".to_owned(), description.to_owned())));
        assert_eq!(found("mta 2").map(|(outcome, _)| outcome).as_deref(), Some("kept"));
        assert_eq!(found("mta 3"), None);
        assert_eq!(last_audit(&results.path().join("nowhere"), "mta", "mta 1").map(|record| record.name), None);
    }
}
