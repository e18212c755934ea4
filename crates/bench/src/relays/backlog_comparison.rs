//! Runs the scenario `backlog` with several relays, one after the other, and reports them in the same tables.
use super::backlog::{self, BacklogOptions, BacklogResults, DrainPhase, FillPhase, MeasuredBacklog, RelayUse};
use super::scenario::{ScenarioOptions, ScenarioRun};
use crate::engine::{
    self, BenchFigures, ComparedRun, Comparison, ComparisonResults, Contestant, ReportParts, RoundOrder, RunFlaws,
    RunPlan, RunTurn, TableColumn, TextReport, bytes, run_remarks,
};
use crate::relay::Relay;
use crate::supervisor::Completeness;
use anyhow::Result;
use mailrun_process::live::LiveMode;
use mailrun_text::numbers::{count, counted, latency, rate, seconds};
use mailrun_text::table::Table;

type Results = ComparisonResults<Relay, MeasuredBacklog>;
type Column<'a> = TableColumn<'a, Relay, MeasuredBacklog>;

/// Runs the backlog scenario once for each relay, each time in a new directory.
///
/// # Errors
/// Returns an error if one of the relays cannot be measured. All relays are checked before the first one is started.
pub fn compare(options: &BacklogOptions, relays: &[Relay]) -> Result<TextReport> {
    relays.iter().try_for_each(backlog::check)?;
    let scenario = ScenarioRun::prepare(&options.scenario)?;
    // Run each relay only once, because a run takes minutes. The runner shows no progress, because each run shows its
    // own progress.
    let plan = RunPlan { compared: relays.len(), rounds: 1, order: RoundOrder::Fixed, live: LiveMode::Off };
    let comparison = BacklogComparison { options, scenario: &scenario };
    let results = engine::run_all(&comparison, relays.to_vec(), plan, &|| scenario.is_stopped());
    scenario.save(report(&results, options))
}

struct BacklogComparison<'o> {
    options: &'o BacklogOptions,
    scenario: &'o ScenarioRun,
}

impl Comparison for BacklogComparison<'_> {
    type Case = Relay;
    type Measurement = MeasuredBacklog;

    fn name(&self, relay: &Relay) -> String {
        relay.to_string()
    }

    fn run(&self, relay: &Relay, turn: &mut RunTurn<'_>) -> Result<Option<ComparedRun<MeasuredBacklog>>> {
        let place = format!("{}-{}", turn.case + 1, relay.file_name());
        let out = Some(self.scenario.run_directory(&place));
        let scenario = ScenarioOptions { out, ..self.options.scenario.clone() };
        self.scenario.print_line(&format!("mailrun: {}", turn.title));
        let measured = backlog::measure(&BacklogOptions { scenario, relay: relay.clone(), ..self.options.clone() });
        if self.scenario.is_stopped() {
            return Ok(None);
        }
        self.scenario.compared(turn, measured, |measured| description(&measured.results)).map(Some)
    }
}

impl BenchFigures for MeasuredBacklog {
    fn flaws(&self) -> &RunFlaws {
        &self.flaws
    }
}

fn description(results: &BacklogResults) -> String {
    let accepted = results.fill.map(|fill| format!("accepted in {}", seconds(fill.took_s)));
    let delivered = results.drain.map(|drain| match drain.all_delivered_s() {
        Some(took_s) => format!("delivered in {}", seconds(took_s)),
        None => format!("only {} delivered in {}", counted(drain.messages, "message"), seconds(drain.took_s)),
    });
    accepted.into_iter().chain(delivered).collect::<Vec<_>>().join(", ")
}

fn report(results: &Results, options: &BacklogOptions) -> TextReport {
    let relays: Vec<Relay> = results.contestants.iter().map(|contestant| contestant.case.clone()).collect();
    let load = options.shape.description(&relays);
    results.report(ReportParts {
        title: format!(
            "{}: {} {load}, accepted while the next hop {}",
            options.scenario.name,
            count(options.messages),
            options.next_hop_text()
        ),
        tables: vec![filled(results), delivered(results, options)],
        runs: None,
        notes: run_remarks(results.contestants.iter()),
        pass: "no mail lost",
        wrong: results.defects(),
        is_strict: true,
    })
}

/// Builds the table that shows at which rate each relay accepted mail while its queue grew, and how long its restart
/// took.
fn filled(results: &Results) -> Table {
    let fill = |figure: fn(FillPhase) -> f64| move |run: &MeasuredBacklog| run.results.fill.map(figure);
    let used = |figure: fn(RelayUse) -> Option<u64>| {
        move |run: &MeasuredBacklog| figure(run.results.fill?.relay).map(|bytes| bytes as f64)
    };
    let accepted = |part: usize| move |run: &MeasuredBacklog| Some(run.accepted_per_s?[part]);
    let columns = [
        Column::words("relay", |contestant| contestant.name.clone()),
        Column::words("durability", |contestant| contestant.case.durability()),
        Column::median("accepted/s", fill(|fill| fill.messages as f64 / fill.took_s), rate),
        Column::median("first tenth", accepted(0), rate),
        Column::median("last tenth", accepted(1), rate),
        Column::median("RSS peak", used(|relay| relay.peak_bytes), bytes),
        Column::median("disk then", used(|relay| relay.disk_bytes), bytes),
        Column::median("stopped", |run| run.results.restart.map(|restart| restart.stop_s), seconds),
        Column::median("greets again", |run| run.results.restart.map(|restart| restart.listen_s), seconds),
        Column::words("ledger", ledger),
    ];
    engine::table(&results.contestants, &columns, &["durability", "disk then", "stopped"])
}

/// Builds the table that shows how fast each relay delivered its queue when the next hop was back.
fn delivered(results: &Results, options: &BacklogOptions) -> Table {
    let drain = |figure: fn(DrainPhase) -> Option<f64>| move |run: &MeasuredBacklog| figure(run.results.drain?);
    let mut columns = vec![
        Column::words("next hop back", |contestant| contestant.name.clone()),
        Column::median("first delivered", drain(|drain| drain.first_s), seconds),
        Column::median("all delivered", drain(DrainPhase::all_delivered_s), seconds),
        Column::median("full rate again", |run| Some(run.recovery?.after_s), seconds),
        Column::median("delivered/s", drain(|drain| Some(drain.messages as f64 / drain.took_s)), rate),
    ];
    if options.fresh_per_s.is_some() {
        columns.extend([
            Column::median("fresh accepted p99", drain(|drain| drain.fresh?.accepted_p99_ms()), latency),
            Column::median("fresh delivered p99", drain(|drain| drain.fresh?.delivered_p99_ms()), latency),
        ]);
    }
    engine::table(&results.contestants, &columns, &[])
}

fn ledger(contestant: &Contestant<Relay, MeasuredBacklog>) -> String {
    let is_incomplete =
        |run: &MeasuredBacklog| run.results.drain.is_some_and(|drain| drain.completeness == Completeness::NotAll);
    let text = match () {
        () if contestant.runs.iter().any(|run| run.fault().is_some()) => "NOT OK",
        () if contestant.measurements().any(is_incomplete) => "not all delivered",
        () => "closed",
    };
    text.to_owned()
}
