//! Finds the last audit of a server, so that the tables of other runs can show its outcome.
use super::reading::read_run;
use mailrun_measurement::record::{Audit, AuditRow, Cause, Ending, Record};
use mailrun_text::numbers::{count, counted};
use mailrun_text::table::plain;
use mailrun_text::words::listed;
use std::fs;
use std::path::Path;

/// Finds the newest audit of this version of a server in a directory of results. An audit counts only if the hash of
/// its recipe is `recipe_hash`, because a recipe file may have the name of a built-in recipe and start the same program
/// with other settings.
pub(crate) fn last_audit(results: &Path, recipe: &str, recipe_hash: &str, version: &str) -> Option<Record> {
    let name = format!("audit-{recipe}");
    let paths = fs::read_dir(results).ok()?.flatten().map(|entry| entry.path());
    let audits = paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().contains("-audit-")));
    let is_of_server = |audit: &Audit| audit.version == version && audit.recipe_hash.as_deref() == Some(recipe_hash);
    let records = audits.filter_map(|path| read_run(&path).ok());
    records
        .filter(|record| record.name == name && record.audit.as_ref().is_some_and(is_of_server))
        .max_by(|one, other| one.started_at.cmp(&other.started_at))
}

/// Summarises an audit, for example as `kept`, `kept (incomplete)` or `lost with power-cut`. An audit is incomplete if
/// it ended early, or if one of its kinds of fault was left out or could not be tested.
pub(crate) fn outcome(record: &Record, audit: &Audit) -> String {
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
    let is_empty = |row: &AuditRow| row.rounds == 0 || row.answered == 0;
    let text = match texts.as_slice() {
        [] if audit.faults.iter().all(is_empty) => return "not audited".to_owned(),
        [] => "kept".to_owned(),
        texts => texts.join("; "),
    };
    let is_unknown = |row: &AuditRow| row.not_supported + row.void > 0 || is_empty(row) && row.never_back == 0;
    let ended_early = record.ending == Some(Ending::Interrupted) || record.verdict.causes.contains(&Cause::Unfinished);
    let is_incomplete = ended_early || !audit.left_out.is_empty() || audit.faults.iter().any(is_unknown);
    if is_incomplete { format!("{text} (incomplete)") } else { text }
}

/// Describes an audit in one sentence, for example `audited on 2026-11-26 (Exim version 4.96; seed
/// 7): kill 0 of 344 lost in 2 rounds, …`.
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
    fn only_an_audit_that_has_shown_something_says_kept() {
        let kept = AuditRow { fault: "kill".to_owned(), rounds: 2, answered: 345, ..AuditRow::default() };
        let unsupported = AuditRow { fault: "power-cut".to_owned(), not_supported: 2, ..AuditRow::default() };
        let away = AuditRow { fault: "stop".to_owned(), never_back: 1, ..AuditRow::default() };
        let refused = AuditRow { answered: 0, ..kept.clone() };
        let lost = AuditRow { lost: 3, ..kept.clone() };
        for (faults, expected) in [
            (vec![kept.clone()], "kept"),
            (vec![lost], "lost with kill"),
            (vec![kept.clone(), away.clone()], "never back with stop"),
            (vec![away], "never back with stop"),
            (vec![kept.clone(), unsupported.clone()], "kept (incomplete)"),
            (vec![kept.clone(), AuditRow { fault: "stop".to_owned(), ..refused.clone() }], "kept (incomplete)"),
            (vec![AuditRow { not_supported: 1, ..kept.clone() }], "kept (incomplete)"),
            (vec![unsupported], "not audited"),
            (vec![refused], "not audited"),
            (vec![], "not audited"),
        ] {
            let audit = Audit { faults, ..Audit::default() };
            assert_eq!(outcome(&Record::empty(), &audit), expected, "{audit:?}");
        }
        let interrupted = Record { ending: Some(Ending::Interrupted), ..Record::empty() };
        let audit = Audit { faults: vec![kept], ..Audit::default() };
        assert_eq!(outcome(&interrupted, &audit), "kept (incomplete)");
    }

    #[test]
    fn the_last_audit_of_the_same_version_and_recipe_counts() {
        let results = tempfile::tempdir().unwrap();
        let store = |directory: &str, name: &str, started_at: &str, version: &str, recipe_hash: Option<&str>, lost| {
            let row = |fault: &str, lost| AuditRow {
                fault: fault.to_owned(),
                rounds: 2,
                answered: 345,
                lost,
                ..AuditRow::default()
            };
            let audit = Audit {
                version: version.to_owned(),
                recipe_hash: recipe_hash.map(str::to_owned),
                seed: 7,
                faults: vec![row("kill", 0), row("power-cut", lost)],
                ..Audit::default()
            };
            let record = Record {
                format: mailrun_measurement::record::FORMAT.to_owned(),
                name: name.to_owned(),
                started_at: started_at.to_owned(),
                audit: Some(audit),
                ..Record::empty()
            };
            let path = results.path().join(directory);
            fs::create_dir(&path).unwrap();
            fs::write(path.join("run.json"), record.to_json().unwrap()).unwrap();
        };
        let ours = Some("a1");
        store("1-audit-mta", "audit-mta", "2026-11-24T00:00:00Z", "mta 1", ours, 9);
        store("2-audit-mta", "audit-mta", "2026-11-25T00:00:00Z", "mta 1", ours, 115);
        store("3-audit-mta", "audit-mta", "2026-11-26T00:00:00Z", "mta 2", ours, 0);
        store("4-audit-other", "audit-other", "2026-11-26T00:00:00Z", "mta 1", ours, 0);
        store("5-audit-mta", "audit-mta", "2026-11-26T00:00:00Z", "mta 1", Some("b2"), 0);
        store("6-audit-mta", "audit-mta", "2026-11-26T00:00:00Z", "mta 1", None, 0);
        let found = |version| {
            let record = last_audit(results.path(), "mta", "a1", version)?;
            let audit = record.audit.clone().unwrap();
            Some((outcome(&record, &audit), description(&record, &audit)))
        };
        let description = "audited on 2026-11-25 (mta 1; seed 7): kill 0 of 345 lost in 2 rounds, power-cut 115 of 345 \
                           lost in 2 rounds";
        assert_eq!(found("mta 1"), Some(("lost with power-cut".to_owned(), description.to_owned())));
        assert_eq!(found("mta 2").map(|(outcome, _)| outcome).as_deref(), Some("kept"));
        assert_eq!(found("mta 3"), None);
        assert_eq!(last_audit(&results.path().join("nowhere"), "mta", "a1", "mta 1").map(|record| record.name), None);
    }
}
