//! Builds the record of an audit. The record sums up all rounds as if they were one run, and has a row for each kind of
//! fault, and the verdict.
use super::fault::AuditCase;
use super::options::AuditOptions;
use super::round::{NOTHING_ACCEPTED, RoundAccount, RoundEnd, RoundResult};
use crate::gather::BenchFault;
use jiff::Timestamp;
use mailrun_measurement::account::fates_sum;
use mailrun_measurement::audit::{bound_text, loss_bound};
use mailrun_measurement::judge;
use mailrun_measurement::merge::{join_events, merge_records};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{
    Audit, AuditRow, Cause, Ending, EventRow, FORMAT, LedgerRow, MAX_LOSSES, Party, Record, Role, Verdict,
};
use mailrun_measurement::threshold::Fate;
use mailrun_measurement::union::RecordUnion;
use mailrun_process::host;
use mailrun_text::numbers::{count, counted};
use mailrun_text::words::listed;
use std::path::Path;

pub(super) struct Findings {
    pub(super) rounds: Vec<RoundResult>,
    pub(super) left_out: Vec<String>,
    pub(super) queue_complaint: Option<String>,
    pub(super) is_interrupted: bool,
}

pub(super) fn record(options: &AuditOptions, started_at: Timestamp, directory: &Path, findings: Findings) -> Record {
    let Findings { rounds, left_out, queue_complaint, is_interrupted } = findings;
    let version = options.recipe.version().to_owned();
    let recipe_hash = Some(options.recipe.hash());
    let mut audit = Audit { version, recipe_hash, seed: options.seed, left_out, queue_complaint, ..Audit::default() };
    let (mut sources, mut sinks) = (RecordUnion::default(), RecordUnion::default());
    let mut faults: Vec<BenchFault> = Vec::new();
    let mut never_back = None;
    for round in rounds {
        let row = row_of(&mut audit.faults, round.case);
        let is_remark = round.case.is_remark();
        faults.extend(round.events);
        match round.end {
            RoundEnd::NeverBack(reason) => {
                row.never_back += 1;
                if !is_remark {
                    never_back.get_or_insert(reason);
                }
            }
            RoundEnd::NotSupported(operations) => {
                row.not_supported += 1;
                add_new(&mut row.unsupported, operations);
            }
            RoundEnd::Void(reason) => {
                row.void += 1;
                add_new(&mut row.void_reasons, [reason]);
            }
            RoundEnd::Account(account) => {
                add_account(row, &account);
                if !account.losses.is_empty() {
                    audit.lossy_rounds.push(account.source.run_id.clone());
                }
                audit.losses.extend(account.losses);
                // Ignore errors. Adding a record fails only if the record has an unreadable histogram or another host's
                // clock, and our own records have neither.
                if !is_remark {
                    let _ = sources.add(account.source, "source");
                    account.sink.map(|sink| sinks.add(sink, "sink"));
                }
            }
        }
    }
    for row in &mut audit.faults {
        row.bound = bound_of(row);
    }
    audit.losses.truncate(MAX_LOSSES);
    let source = sources.finish("source").unwrap_or_else(Record::empty);
    let ledger = source.ledger.clone();
    let mut record = merge_records(source, sinks.finish("sink"), ledger);
    record.format = FORMAT.to_owned();
    record.name = format!("audit-{}", options.recipe);
    record.started_at = started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    record.command.clone_from(&options.command);
    record.version = env!("CARGO_PKG_VERSION").to_owned();
    record.host = host::facts(Some(directory));
    record.workload.messages = None;
    record.workload.target = "127.0.0.1".to_owned(); // the port differs in each round
    record.parties = parties(std::mem::take(&mut record.parties), options);
    let events: Vec<EventRow> = faults.iter().map(|fault| fault.event(record.origin_ns)).collect();
    record.events = join_events(std::mem::take(&mut record.events), events);
    record.ending = Some(if is_interrupted { Ending::Interrupted } else { Ending::Complete });
    record.audit = Some(audit);
    record.thresholds = options.thresholds.iter().map(|threshold| threshold.evaluate(&record)).collect();
    record.verdict = verdict(&record, never_back);
    record
}

fn row_of(rows: &mut Vec<AuditRow>, case: AuditCase) -> &mut AuditRow {
    let fault = case.name();
    let position = rows.iter().position(|row| row.fault == fault).unwrap_or_else(|| {
        rows.push(AuditRow { fault, is_remark: case.is_remark(), ..AuditRow::default() });
        rows.len() - 1
    });
    &mut rows[position]
}

/// Returns an upper bound for the share of faults that lose mail, at 95 % confidence. Returns `None` if a fault has
/// lost or damaged mail. Also returns `None` if a round was dropped because the disk lacks an operation that the server
/// used. Such a round failed or lost mail, so a bound that leaves it out would be too low.
fn bound_of(row: &AuditRow) -> Option<f64> {
    let harm = row.lost + row.not_delivered + row.corrupt + row.not_supported;
    loss_bound(row.rounds).filter(|_| harm == 0)
}

fn add_new(list: &mut Vec<String>, texts: impl IntoIterator<Item = String>) {
    list.extend(texts);
    list.sort();
    list.dedup();
}

fn add_account(row: &mut AuditRow, account: &RoundAccount) {
    let ledger = &account.source.ledger;
    let back_s = account.back.as_secs_f64();
    let number = |field: Option<u64>| field.unwrap_or_default();
    row.rounds += 1;
    row.quiet += u64::from(account.is_quiet);
    row.in_recovery += u64::from(account.is_in_recovery);
    row.after_restart += account.after_restart;
    row.answered += number(ledger.accepted);
    row.lost += number(ledger.lost);
    row.not_delivered += number(ledger.not_delivered);
    row.duplicates += number(ledger.duplicates);
    row.corrupt += number(ledger.corrupt);
    row.bounced += number(ledger.bounced);
    row.back_s = Some(row.back_s.unwrap_or_default().max(back_s));
}

/// Makes the record's entries for the source, the server and the sink. The CPU times of source and
/// sink are summed over all rounds.
fn parties(of_rounds: Vec<Party>, options: &AuditOptions) -> Vec<Party> {
    let server =
        Party { durability: options.recipe.durability(), ..Party::new(Role::Relay, &options.recipe.to_string()) };
    let all = |role: Role| {
        let add = |one: Option<f64>, other: Option<f64>| Some(one? + other?);
        of_rounds.iter().filter(|party| party.role == role).cloned().reduce(|sum, party| Party {
            user_s: add(sum.user_s, party.user_s),
            sys_s: add(sum.sys_s, party.sys_s),
            max_rss_bytes: sum.max_rss_bytes.max(party.max_rss_bytes),
            ..sum
        })
    };
    [all(Role::Source), Some(server), all(Role::Sink)].into_iter().flatten().collect()
}

/// The audit fails if mail that was answered 250 is lost or changed, or if the server does not come
/// back. Mail that was refused while the server was down does not count, because the server did not
/// promise to keep it. Duplicates are only a remark, because a server has to risk them (RFC 1047).
fn verdict(record: &Record, never_back: Option<String>) -> Verdict {
    let all = record.audit.as_ref().map_or(&[][..], |audit| &audit.faults[..]);
    let (remarks, judged): (Vec<_>, Vec<_>) = all.iter().cloned().partition(|row| row.is_remark);
    let rows = &judged[..];
    let ledger = &record.ledger;
    let mut reasons = judge::threshold_reasons(record);
    reasons.extend(remarks.iter().filter_map(remark));
    let mut find =
        |cause: Cause, fate: Option<Fate>, number: fn(&AuditRow) -> u64, text: &dyn Fn(u64, String) -> String| {
            let affected_rows: Vec<&AuditRow> = rows.iter().filter(|row| number(row) > 0).collect();
            let by_fault: Vec<String> =
                affected_rows.iter().map(|row| format!("{} with {}", count(number(row)), row.fault)).collect();
            if !affected_rows.is_empty() && fate.is_none_or(|fate| !judge::has_threshold(record, fate)) {
                let sum = affected_rows.iter().map(|row| number(row)).sum();
                reasons.push(Reason::new(cause, text(sum, listed(&by_fault))));
            }
        };
    let answered = count(ledger.accepted.unwrap_or_default());
    find(Cause::Lost, Some(Fate::Lost), |row| row.lost, &|sum, by| {
        format!("Of {answered} messages that were answered 250, {} are lost: {by}.", count(sum))
    });
    find(Cause::NotDelivered, Some(Fate::NotDelivered), |row| row.not_delivered, &|sum, by| {
        format!(
            "Of {answered} messages that were answered 250, {} did not arrive ({by}), and the server's queue was not \
             empty or could not be asked.",
            count(sum)
        )
    });
    find(Cause::Corrupt, Some(Fate::Corrupt), |row| row.corrupt, &|sum, by| {
        format!("{} arrived changed: {by}.", counted(sum, "message"))
    });
    let reason = never_back.unwrap_or_default();
    find(Cause::ServerGone, None, |row| row.never_back, &|sum, by| {
        format!("The server did not come back after {}: {by}. {reason}", counted(sum, "fault"))
    });
    find(Cause::Remark, Some(Fate::Duplicates), |row| row.duplicates, &|sum, by| {
        format!("{}: {by}.", counted(sum, "duplicate"))
    });
    find(Cause::Remark, Some(Fate::Bounced), |row| row.bounced, &|sum, by| {
        format!("The server gave back {} that it had answered 250, by a notification: {by}.", counted(sum, "message"))
    });
    find(Cause::Remark, None, |row| row.after_restart, &|sum, by| {
        format!("{} arrived only after another start: {by}.", counted(sum, "message"))
    });
    for row in rows.iter().filter(|row| row.not_supported > 0) {
        let text = format!(
            "not supported by {}: {} ({}).",
            row.fault,
            listed(&row.unsupported),
            counted(row.not_supported, "round")
        );
        // A round counts as not supported only if the server failed or lost mail in it, and it is unclear whether the
        // server or the in-memory disk is to blame. So report such rounds even if all other rounds were good.
        reasons.push(Reason::new(Cause::Unfinished, text));
    }
    let has_accepted_nothing = |row: &AuditRow| row.rounds == 0 && row.void_reasons == [NOTHING_ACCEPTED];
    if !rows.is_empty() && rows.iter().all(has_accepted_nothing) {
        reasons.push(Reason::new(Cause::NothingAccepted, "No message was answered 250."));
    }
    for row in rows.iter().filter(|row| row.void > 0) {
        let text =
            format!("{} of {} did not count: {}.", counted(row.void, "round"), row.fault, row.void_reasons.join("; "));
        reasons.push(Reason::new(cause_of_void(row), text));
    }
    if let Some(complaint) = record.audit.as_ref().and_then(|audit| audit.queue_complaint.as_ref()) {
        let text =
            format!("The recipe's [queue] command {complaint}, so missing mail cannot be told from mail that waits.");
        reasons.push(Reason::new(Cause::Unfinished, text));
    }
    if ledger.created.is_some() && !fates_sum(ledger) {
        reasons.push(Reason::new(Cause::Unaccounted, "The fates do not sum to the messages that were sent."));
    }
    if record.ending == Some(Ending::Interrupted) {
        reasons.push(Reason::new(Cause::Interrupted, "The audit was interrupted before its end."));
    }
    let mut verdict = judge::decide(reasons, &pass_text(rows, ledger));
    // Add the faults that the audit left out to the verdict's sentence, because people quote only this sentence.
    for line in record.audit.iter().flat_map(|audit| &audit.left_out) {
        verdict.why = format!("{}; {line}", verdict.why.trim_end_matches('.'));
    }
    verdict
}

/// Describes losses on a file system that the user did not choose. Such losses do not change the verdict.
fn remark(row: &AuditRow) -> Option<Reason> {
    let of_answered = |number: u64, fate: &str| {
        (number > 0).then(|| format!("{} of {} messages {fate}", count(number), count(row.answered)))
    };
    let lost = of_answered(row.lost + row.corrupt, "would be lost or changed");
    let waiting = of_answered(row.not_delivered, "had not arrived when their round ended, but may still arrive");
    let away =
        (row.never_back > 0).then(|| format!("the server did not come back {}", counted(row.never_back, "time")));
    let words: Vec<String> = lost.into_iter().chain(waiting).chain(away).collect();
    (!words.is_empty()).then(|| Reason::new(Cause::Remark, format!("With {}, {}.", row.fault, listed(&words))))
}

/// Decides how rounds that tested nothing (void rounds) change the verdict. If all rounds of a fault were void, the
/// audit is unfinished. Otherwise, the void rounds only cause a remark.
fn cause_of_void(row: &AuditRow) -> Cause {
    if row.rounds == 0 { Cause::Unfinished } else { Cause::Remark }
}

/// Returns the reason for a PASS, such as `no loss in 20 rounds of kill`. How many losses the audit may have missed
/// depends on the number of rounds, not of messages, because a fault hits all messages of a round in the same way.
fn pass_text(rows: &[AuditRow], ledger: &LedgerRow) -> String {
    let answered = count(ledger.accepted.unwrap_or_default());
    let rounds = |(at, row): (usize, &AuditRow)| match at {
        0 => format!("{} of {}", counted(row.rounds, "round"), row.fault),
        _ => format!("{} of {}", count(row.rounds), row.fault),
    };
    let rounds = listed(&rows.iter().enumerate().map(rounds).collect::<Vec<_>>());
    let damaged: u64 = rows.iter().map(|row| row.lost + row.corrupt).sum();
    let waiting: u64 = rows.iter().map(|row| row.not_delivered).sum();
    if damaged + waiting > 0 {
        let fates = if waiting > 0 { "lost, changed or not delivered" } else { "lost or changed" };
        return format!("{} of {answered} messages {fates}, as allowed, in {rounds}", count(damaged + waiting));
    }
    let bound = rows.iter().filter_map(|row| row.bound).max_by(f64::total_cmp);
    let bound = bound.map(|bound| format!(": at 95 % confidence fewer than {} lose mail", bound_text(bound)));
    format!("no loss in {rounds}{}", bound.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_measurement::record::Outcome;
    use mailrun_measurement::threshold::{RunProtocol, Threshold};
    use std::time::Duration;

    /// Makes the record of an audit in which every message is known to be lost, not delivered, bounced or delivered.
    fn audited(faults: Vec<AuditRow>, threshold: Option<&str>) -> Record {
        let sum = |number: fn(&AuditRow) -> u64| faults.iter().map(number).sum::<u64>();
        let (accepted, lost, not_delivered) =
            (sum(|row| row.answered), sum(|row| row.lost), sum(|row| row.not_delivered));
        let ledger = LedgerRow {
            created: Some(accepted),
            accepted: Some(accepted),
            delivered: Some(accepted - lost - not_delivered - sum(|row| row.bounced)),
            lost: Some(lost),
            not_delivered: Some(not_delivered),
            duplicates: Some(sum(|row| row.duplicates)),
            corrupt: Some(sum(|row| row.corrupt)),
            bounced: Some(sum(|row| row.bounced)),
            ..LedgerRow::default()
        };
        let mut record = Record { ledger, audit: Some(Audit { faults, ..Audit::default() }), ..Record::empty() };
        let threshold = threshold.map(|text| Threshold::parse(text, RunProtocol::Smtp).unwrap());
        record.thresholds = threshold.iter().map(|threshold| threshold.evaluate(&record)).collect();
        record
    }

    #[test]
    fn only_mail_that_was_promised_and_is_missing_or_a_server_that_stays_away_fails() {
        let row = |fault: &str| AuditRow { fault: fault.to_owned(), rounds: 2, answered: 500, ..AuditRow::default() };
        let kill = |row: AuditRow| AuditRow { fault: "kill".to_owned(), ..row };
        let rows = [
            (row("kill"), None, Outcome::Pass, "no loss in 2 rounds of kill and 2 of stop"),
            (
                kill(AuditRow { lost: 3, ..row("") }),
                None,
                Outcome::Fail,
                "Of 1,000 messages that were answered 250, 3 are lost: 3 with kill.",
            ),
            (
                kill(AuditRow { lost: 3, ..row("") }),
                Some("lost <= 1%"),
                Outcome::Pass,
                "3 of 1,000 messages lost or changed, as allowed, in 2 rounds of kill",
            ),
            (
                kill(AuditRow { not_delivered: 2, ..row("") }),
                None,
                Outcome::Inconclusive,
                "2 did not arrive (2 with kill)",
            ),
            (kill(AuditRow { corrupt: 1, ..row("") }), None, Outcome::Fail, "1 message arrived changed: 1 with kill."),
            (kill(AuditRow { duplicates: 9, after_restart: 1, ..row("") }), None, Outcome::Pass, "no loss"),
            (
                kill(AuditRow { duplicates: 9, ..row("") }),
                Some("duplicates <= 0.1%"),
                Outcome::Fail,
                "duplicates <= 0.1%",
            ),
            (
                kill(AuditRow { not_supported: 2, unsupported: vec!["link".to_owned()], ..row("") }),
                None,
                Outcome::Inconclusive,
                "not supported by kill: link (2 rounds).",
            ),
            (kill(AuditRow { bounced: 2, ..row("") }), None, Outcome::Pass, "no loss"),
            (kill(AuditRow { bounced: 2, ..row("") }), Some("bounced <= 0"), Outcome::Fail, "bounced <= 0"),
            (
                kill(AuditRow { never_back: 1, ..row("") }),
                None,
                Outcome::Fail,
                "The server did not come back after 1 fault: 1 with kill. it ended",
            ),
        ];
        for (row_of_kill, threshold, outcome, reason) in rows {
            let record = audited(vec![row_of_kill.clone(), row("stop")], threshold);
            let verdict = verdict(&record, Some("it ended".to_owned()));
            assert_eq!(verdict.outcome, Some(outcome), "{row_of_kill:?} {verdict:?}");
            assert!(verdict.why.contains(reason), "{row_of_kill:?}: {}", verdict.why);
        }
        let bounced = verdict(&audited(vec![AuditRow { bounced: 2, ..row("kill") }], None), None);
        let given_back = "The server gave back 2 messages that it had answered 250, by a notification: 2 with kill.";
        assert_eq!(bounced.reasons, [given_back]);
        let unsupported = ["link", "symlink"].map(str::to_owned).to_vec();
        let row_of_cut =
            AuditRow { fault: "power-cut".to_owned(), not_supported: 2, unsupported, ..AuditRow::default() };
        let unaudited = verdict(&audited(vec![row_of_cut], None), None);
        assert_eq!(
            (unaudited.outcome, unaudited.why.as_str()),
            (Some(Outcome::Inconclusive), "not supported by power-cut: link and symlink (2 rounds).")
        );
        let void = |reason: &str| AuditRow {
            fault: "stop".to_owned(),
            void: 3,
            void_reasons: vec![reason.to_owned()],
            ..AuditRow::default()
        };
        let nothing = verdict(&audited(vec![void(NOTHING_ACCEPTED)], None), None);
        assert_eq!((nothing.outcome, nothing.why.as_str()), (Some(Outcome::Fail), "No message was answered 250."));
        for rows in [vec![void("mta (7) lived on")], vec![row("kill"), void("mta (7) lived on")]] {
            let verdict = verdict(&audited(rows, None), None);
            let expected = (Some(Outcome::Inconclusive), "3 rounds of stop did not count: mta (7) lived on.");
            assert_eq!((verdict.outcome, verdict.why.as_str()), expected, "a fault without a round is no PASS");
        }
        let strict = AuditRow { is_remark: true, lost: 7, never_back: 1, ..row("power-cut on strict") };
        let remarked = verdict(&audited(vec![row("kill"), strict], None), Some("it ended".to_owned()));
        let expected = "With power-cut on strict, 7 of 500 messages would be lost or changed and the server did not come back 1 \
                        time.";
        assert_eq!((remarked.outcome, remarked.reasons.as_slice()), (Some(Outcome::Pass), &[expected.to_owned()][..]));
        let in_queue = AuditRow { is_remark: true, not_delivered: 91, ..row("power-cut on btrfs") };
        let remarked = verdict(&audited(vec![row("kill"), in_queue], None), None);
        let expected =
            "With power-cut on btrfs, 91 of 500 messages had not arrived when their round ended, but may still arrive.";
        assert_eq!((remarked.outcome, remarked.reasons.as_slice()), (Some(Outcome::Pass), &[expected.to_owned()][..]));
        let mut sentence = audited(vec![row("kill")], None);
        let audit = sentence.audit.get_or_insert_default();
        audit.left_out = vec!["power-cut was left out: mounting a file system needs root".to_owned()];
        audit.faults[0].bound = loss_bound(2);
        let pass = verdict(&sentence, None);
        assert_eq!(
            (pass.outcome, pass.why.as_str()),
            (
                Some(Outcome::Pass),
                "no loss in 2 rounds of kill: at 95 % confidence fewer than 77.7 % lose mail; power-cut was \
                 left out: mounting a file system needs root"
            )
        );
        sentence.audit.get_or_insert_default().queue_complaint = Some("lies".to_owned());
        assert_eq!(verdict(&sentence, None).outcome, Some(Outcome::Inconclusive));
        let cut = Record { ending: Some(Ending::Interrupted), ..audited(vec![row("kill")], None) };
        assert_eq!(verdict(&cut, None).outcome, Some(Outcome::Inconclusive));
    }

    #[test]
    fn rounds_of_a_fault_are_one_row_with_the_longest_absence() {
        let mut rows = Vec::new();
        for (fault, lost, back_s) in [("kill", Some(1), 0.5), ("stop", None, 0.1), ("kill", Some(2), 0.2)] {
            let ledger = LedgerRow {
                accepted: Some(10),
                lost,
                not_delivered: Some(4),
                bounced: Some(1),
                ..LedgerRow::default()
            };
            let account = RoundAccount {
                source: Record { ledger, ..Record::empty() },
                sink: None,
                back: Duration::from_secs_f64(back_s),
                after_restart: 0,
                is_quiet: fault == "stop",
                is_in_recovery: false,
                losses: Vec::new(),
            };
            let case = AuditCase::new(fault.parse().unwrap(), None);
            add_account(row_of(&mut rows, case), &account);
        }
        let summaries: Vec<_> = rows.iter().map(|row| (row.fault.as_str(), row.rounds, row.lost, row.back_s)).collect();
        assert_eq!(summaries, [("kill", 2, 3, Some(0.5)), ("stop", 1, 0, Some(0.1))]);
        assert_eq!((rows[0].answered, rows[0].not_delivered, rows[0].quiet, rows[1].quiet), (20, 8, 0, 1));
        assert_eq!(rows[0].bounced, 2);
    }

    #[test]
    fn rounds_prove_nothing_if_failed_ones_were_dropped() {
        let good = AuditRow { rounds: 9, answered: 500, ..AuditRow::default() };
        assert!(bound_of(&good).is_some());
        for row in [
            AuditRow { rounds: 0, ..good.clone() },
            AuditRow { lost: 1, ..good.clone() },
            AuditRow { not_supported: 1, ..good },
        ] {
            assert_eq!(bound_of(&row), None, "{row:?}");
        }
    }
}
