//! The flaws of one run of the bench: missing or changed mail, a source, sink or host that was the
//! bottleneck, and thresholds that were missed or could not be measured.
use super::Defects;
use super::report::distinct_remarks;
use super::runner::{ComparedRun, ComparisonResults, Contestant};
use mailrun_measurement::judge::{self, has_threshold};
use mailrun_measurement::reason::Reason;
use mailrun_measurement::record::{Cause, Outcome, Record};
use mailrun_measurement::stage::Stage;
use mailrun_measurement::threshold::Fate;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunFlaws {
    /// Reason why the run's figures do not count: mail is missing or was changed.
    pub(crate) fault: Option<String>,
    /// Reason why the run's figures are invalid: the source, the sink or the host was the
    /// bottleneck.
    pub(crate) invalid: Option<String>,
    pub(crate) missed: Vec<String>,
    /// Sentence about mail that was accepted but not delivered, and that may be lost or still queued. Set only if the
    /// run is invalid or inconclusive.
    pub(crate) undelivered: Option<String>,
    /// Thresholds that could not be evaluated, because nobody observed their figures.
    pub(crate) unobserved: Vec<String>,
    /// All reasons and remarks of the run's verdict, for example what disturbed the run.
    pub(crate) notes: Vec<String>,
}

impl RunFlaws {
    /// Collects what is wrong with a run from the run's record, for example missed thresholds. `fault` describes
    /// missing or changed mail, and is `None` if the caller found none.
    pub(crate) fn of(record: &Record, fault: Option<String>) -> Self {
        let is_unseen = |reason: &Reason| reason.cause.outcome() == Some(Outcome::Inconclusive);
        let (unseen, missed): (Vec<Reason>, Vec<Reason>) =
            judge::threshold_reasons(record).into_iter().partition(is_unseen);
        let texts = |reasons: Vec<Reason>| reasons.into_iter().map(|reason| reason.text).collect();
        let verdict = &record.verdict;
        let is_open = matches!(verdict.outcome, Some(Outcome::Invalid | Outcome::Inconclusive));
        let undelivered = verdict.causes.iter().position(|cause| is_open && *cause == Cause::NotDelivered);
        Self {
            fault,
            invalid: match verdict.outcome {
                Some(Outcome::Invalid) => Some(verdict.why.clone()),
                _ => judge::behind_schedule(record),
            },
            missed: texts(missed),
            undelivered: undelivered.and_then(|at| verdict.reasons.get(at).cloned()),
            unobserved: texts(unseen),
            notes: verdict.reasons.clone(),
        }
    }

    /// Converts the flaws to the defects of a scenario, for scenarios that consist of a single run. Leaves out `fault`,
    /// because such a scenario has a target for missing or changed mail.
    pub(crate) fn defects(&self) -> Defects {
        Defects {
            invalid: self.invalid.iter().cloned().collect(),
            missed: self.missed.clone(),
            undelivered: self.undelivered.iter().cloned().collect(),
            unobserved: self.unobserved.clone(),
            ..Defects::default()
        }
    }

    /// Adds the targets that the run has missed or that could not be evaluated. If `fault` is `None`, the first text in
    /// `targets.failed` becomes the fault.
    pub(crate) fn add(&mut self, targets: Defects) {
        self.fault = self.fault.take().or_else(|| targets.failed.into_iter().next());
        self.missed.extend(targets.missed);
        self.unobserved.extend(targets.unobserved);
    }
}

/// Counts the messages of each kind of fault, such as loss. Leaves out faults for which the user set a threshold.
pub(crate) fn unexcused_faults(record: &Record) -> impl Iterator<Item = (Fate, u64)> {
    fate_counts(record).filter(move |(fate, _)| fate.is_fault() && !has_threshold(record, *fate))
}

/// Counts the messages that did not reach one of `stages` because of a fault, such as loss, but leaves out faults for
/// which the user has set no threshold.
pub(crate) fn excused_units(record: &Record, stages: &[Stage]) -> u64 {
    let is_excused =
        |fate: Fate| fate.missed_stage().is_some_and(|missed| stages.contains(&missed)) && has_threshold(record, fate);
    fate_counts(record).filter(|(fate, _)| is_excused(*fate)).map(|(_, count)| count).sum()
}

fn fate_counts(record: &Record) -> impl Iterator<Item = (Fate, u64)> {
    let counts = Fate::ALL.map(|fate| (fate, fate.count(&record.ledger).unwrap_or_default()));
    counts.into_iter().filter(|(_, count)| *count > 0)
}

pub(crate) trait BenchFigures {
    fn flaws(&self) -> &RunFlaws;
}

impl<M: BenchFigures> ComparedRun<M> {
    /// Decides whether a run that ended normally is sound. If mail is undelivered and nobody can read the server's
    /// queue, the run is undecided, because the mail may still be in the queue.
    pub(crate) fn of_bench(measured: M) -> Self {
        let RunFlaws { fault, undelivered, .. } = measured.flaws();
        match (fault.clone(), undelivered) {
            (Some(fault), Some(_)) => Self::Undecided(measured, fault),
            (fault, _) => Self::of(measured, fault),
        }
    }
}

impl<C, M: BenchFigures> Contestant<C, M> {
    fn flaws(&self) -> impl Iterator<Item = (&String, &RunFlaws)> {
        self.measurements().map(|measured| (&self.name, measured.flaws()))
    }
}

impl<C, M: BenchFigures> ComparisonResults<C, M> {
    pub(crate) fn defects(&self) -> Defects {
        named_defects(self.contestants.iter().flat_map(Contestant::flaws))
    }
}

/// Collects the remarks on the runs of these cases, and joins similar remarks as
/// [`distinct_remarks`] does.
pub(crate) fn run_remarks<'s, C: 's, M: BenchFigures + 's>(
    contestant: impl Iterator<Item = &'s Contestant<C, M>>,
) -> Vec<String> {
    let notes = contestant.flat_map(Contestant::flaws);
    distinct_remarks(notes.flat_map(|(name, flaws)| flaws.notes.iter().map(move |note| (name.as_str(), note.as_str()))))
}

/// Collects the defects of several runs. Each text begins with the name of its run.
pub(crate) fn named_defects<'m>(runs: impl Iterator<Item = (&'m String, &'m RunFlaws)>) -> Defects {
    let mut defects = Defects::default();
    for (name, flaws) in runs {
        let named = |text: &String| format!("{name}: {text}");
        defects.invalid.extend(flaws.invalid.as_ref().map(named));
        defects.missed.extend(flaws.missed.iter().map(named));
        defects.undelivered.extend(flaws.undelivered.as_ref().map(named));
        defects.unobserved.extend(flaws.unobserved.iter().map(named));
    }
    defects
}

#[cfg(test)]
mod tests {
    use super::*;
    use mailrun_report::sample;

    impl BenchFigures for RunFlaws {
        fn flaws(&self) -> &RunFlaws {
            self
        }
    }

    #[test]
    fn a_run_whose_only_fault_is_mail_in_a_queue_has_not_failed() {
        let text = |text: &str| Some(text.to_owned());
        let run = |fault, undelivered| ComparedRun::of_bench(RunFlaws { fault, undelivered, ..RunFlaws::default() });
        assert!(matches!(run(None, None), ComparedRun::Sound(_)));
        assert!(matches!(run(None, text("1 was not delivered")), ComparedRun::Sound(_)));
        assert!(matches!(run(text("lost 1"), None), ComparedRun::Faulty(_, reason) if reason == "lost 1"));
        let queued = run(text("not delivered 1"), text("1 was not delivered"));
        assert!(matches!(queued, ComparedRun::Undecided(_, reason) if reason == "not delivered 1"));
    }

    #[test]
    fn each_flaw_has_the_name_of_its_run() {
        let mut record = sample::held();
        let notes = record.verdict.reasons.clone();
        assert_eq!(RunFlaws::of(&record, None), RunFlaws { notes, ..RunFlaws::default() });
        record.verdict.outcome = Some(Outcome::Invalid);
        record.verdict.why = "The sink was the limit.".to_owned();
        record.verdict.causes = vec![Cause::Busy, Cause::NotDelivered];
        record.verdict.reasons = vec!["The sink was the limit.".to_owned(), "24 were not delivered.".to_owned()];
        assert_eq!(RunFlaws::of(&record, None).undelivered.as_deref(), Some("24 were not delivered."));
        let names = ["one".to_owned(), "other".to_owned()];
        let flaws = [RunFlaws::of(&record, None), RunFlaws { missed: vec!["late".to_owned()], ..RunFlaws::default() }];
        let defects = named_defects(names.iter().zip(&flaws));
        assert_eq!(defects.invalid, ["one: The sink was the limit."]);
        assert_eq!((defects.missed, defects.unobserved), (vec!["other: late".to_owned()], Vec::new()));
    }
}
