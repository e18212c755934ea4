//! What a person must see at once: did it hold, how much arrived, how fast.
use super::numbers::{counted, known, latency, megabytes, rate, seconds};
use super::table::plain;
use journey::record::{LedgerRow, Record, Role, StageRow};
use journey::stage::Stage;

/// How the run came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Every unit is accounted for and the figures may be believed.
    Held,
    /// Every unit is accounted for, but the generator or the sink was the limit, or the pacing slipped.
    Doubtful,
    /// Accepted, and nobody watched the far end.
    Unwatched,
    /// Something is lost, doubled or corrupt, a goal was missed, or nothing was accepted.
    Failed,
    /// A sink's own view: it knows what came and not what was meant to come.
    Received,
}

impl Outcome {
    /// Judges a record.
    pub(crate) fn of(record: &Record) -> Self {
        if !record.parties.iter().any(|party| party.role == Role::Source) {
            return Self::Received;
        }
        match (journey::account::held(record), record.ledger.delivered, record.verdict.valid) {
            (false, _, _) => Self::Failed,
            (true, None, _) => Self::Unwatched,
            (true, Some(_), false) => Self::Doubtful,
            (true, Some(_), true) => Self::Held,
        }
    }

    /// In a word or three.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Held => "HELD",
            Self::Doubtful => "HELD, FIGURES NOT VALID",
            Self::Unwatched => "ACCEPTED, DELIVERY UNKNOWN",
            Self::Failed => "DID NOT HOLD",
            Self::Received => "RECEIVED",
        }
    }
}

/// The counts: `200,000 of 200,000 messages delivered · 0 lost · 0 duplicates · 0 corrupt`.
pub(crate) fn counts(record: &Record, outcome: Outcome) -> String {
    let ledger = &record.ledger;
    let several = record.workload.recipients > 1;
    let noun = if several { "copies" } else { "messages" };
    let mut parts = vec![match outcome {
        Outcome::Received => received(record),
        _ if ledger.delivered.is_none() => {
            format!("{} of {} {noun} accepted", known(ledger.accepted), known(ledger.created))
        }
        _ => format!("{} of {} {noun} delivered", known(ledger.delivered), known(ledger.created)),
    }];
    if ledger.delivered.is_none() {
        parts.push("what became of them is unknown".to_owned());
    }
    parts.extend(blemishes(ledger));
    if several {
        let each = record.workload.recipients_varied.as_ref().map(|varied| plain(&varied.expression));
        parts.push(format!("{} recipients each", each.unwrap_or_else(|| record.workload.recipients.to_string())));
    }
    parts.join(" · ")
}

fn received(record: &Record) -> String {
    let delivered = final_stage(record).map_or(0, |row| row.count);
    format!("{} received", counted(delivered, "message"))
}

/// Lost, duplicate and corrupt are said even when they are nought; the rest only when there is something.
fn blemishes(ledger: &LedgerRow) -> Vec<String> {
    let always = [(ledger.lost, "lost"), (ledger.duplicates, "duplicate"), (ledger.corrupt, "corrupt")];
    let seldom = [
        (ledger.rejected, "rejected"),
        (ledger.expired, "expired"),
        (ledger.in_flight.filter(|_| ledger.delivered.is_some()), "in flight"),
        (ledger.foreign, "foreign"),
        (ledger.converted, "converted to 7 bits"),
    ];
    let always = always.into_iter().filter_map(|(number, name)| number.map(|number| (number, name)));
    let seldom = seldom.into_iter().filter_map(|(number, name)| Some((number.filter(|n| *n > 0)?, name)));
    always.chain(seldom).map(|(number, name)| format!("{} {name}", super::numbers::count(number))).collect()
}

/// The figures: rate, octets, median and 99th percentile of the last stage that was observed.
pub(crate) fn figures(record: &Record) -> String {
    if let Some(mades) = &record.mades {
        return super::mades::figures(record, mades);
    }
    let Some(last) = final_stage(record) else {
        return seconds(record.duration_s);
    };
    let mut parts = vec![format!("{} msg/s", rate(last.rate_per_s)), format!("{} MB/s", megabytes(last.bytes_per_s))];
    if let (Some(times), Some(since)) = (last.latency_ms, last.since) {
        parts.push(format!("p50 {}", latency(times.p50)));
        parts.push(format!("p99 {} ({} to {})", latency(times.p99), since.name(), last.name.name()));
    }
    parts.push(seconds(last.duration_s));
    parts.join(" · ")
}

/// The furthest stage of the journey that anybody observed.
pub(crate) fn final_stage(record: &Record) -> Option<&StageRow> {
    let on_the_path = |name: Stage| record.stages.iter().find(|row| row.name == name && row.count > 0);
    [Stage::Delivered, Stage::Accepted, Stage::Sent].into_iter().find_map(on_the_path)
}

#[cfg(test)]
mod tests {
    use super::super::sample;
    use super::*;

    #[test]
    fn a_closed_ledger_holds() {
        let record = sample::held();
        assert_eq!(Outcome::of(&record), Outcome::Held);
        let text = counts(&record, Outcome::Held);
        assert_eq!(text, "200,000 of 200,000 messages delivered · 0 lost · 0 duplicate · 0 corrupt");
        let text = figures(&record);
        assert_eq!(text, "54,321 msg/s · 21.73 MB/s · p50 1.42 ms · p99 3.10 ms (created to delivered) · 3.68 s");
    }

    #[test]
    fn what_was_lost_is_named() {
        let record = sample::lossy();
        assert_eq!(Outcome::of(&record), Outcome::Failed);
        assert!(counts(&record, Outcome::Failed).contains("199,800 of 200,000 messages delivered · 200 lost"));
    }

    #[test]
    fn nobody_at_the_far_end_is_unknown_and_not_nought() {
        let record = sample::unwatched();
        assert_eq!(Outcome::of(&record), Outcome::Unwatched);
        let text = counts(&record, Outcome::Unwatched);
        assert_eq!(text, "200,000 of 200,000 messages accepted · what became of them is unknown");
        assert!(figures(&record).contains("created to accepted"), "{}", figures(&record));
    }

    #[test]
    fn doubtful_figures_are_not_called_held() {
        let mut record = sample::held();
        record.verdict.valid = false;
        assert_eq!(Outcome::of(&record), Outcome::Doubtful);
        assert_eq!(Outcome::Doubtful.name(), "HELD, FIGURES NOT VALID");
    }

    #[test]
    fn a_sink_alone_says_what_it_received() {
        let record = sample::sink_alone();
        assert_eq!(Outcome::of(&record), Outcome::Received);
        assert!(counts(&record, Outcome::Received).starts_with("200,000 messages received"));
    }

    #[test]
    fn copies_are_told_from_messages() {
        let mut record = sample::held();
        record.workload.recipients = 2;
        record.ledger.created = Some(400_000);
        record.ledger.delivered = Some(400_000);
        let text = counts(&record, Outcome::Held);
        assert!(text.starts_with("400,000 of 400,000 copies delivered"), "{text}");
        assert!(text.ends_with("2 recipients each"), "{text}");
    }
}
