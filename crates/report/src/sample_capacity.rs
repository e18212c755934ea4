//! Sample results of capacity searches, from which tests write pages. One found a capacity, one contains hostile names,
//! and one missed its goal.
use crate::capacity::{CapacityRun, CapacityTrial, ConfirmedLoad, JudgedTrial};
use mailrun_capacity::{
    GoalFinding, GoalOutcome, PlanningInputs, SearchEnding, SearchResult, SearchTrial, TrialFigures, TrialLoad,
    TrialOutcome, VoidCause,
};
use mailrun_measurement::record::LatencyMs;
use mailrun_measurement::threshold::{RunProtocol, Threshold};

pub fn searches() -> Vec<(&'static str, CapacityRun)> {
    let hostile = "<img src=x onerror=alert(1)>\u{202e}</p><script>alert(2)</script>";
    vec![("capacity-found", search("fine")), ("capacity-hostile", search(hostile)), ("capacity-missed", missed())]
}

/// A search that found no capacity, because the server missed the goal even at the lowest rate.
pub fn missed() -> CapacityRun {
    let mut nothing = search("slow");
    nothing.result.goals[0] = GoalOutcome {
        finding: GoalFinding::LowestRateMissed,
        lower_per_s: None,
        upper_per_s: Some(10.0),
        throughput_per_s: None,
    };
    nothing.trials.clear();
    nothing.confirmation.clear();
    nothing
}

fn trial(rate: f64, outcome: TrialOutcome, p99: f64, reason: &str) -> CapacityTrial {
    let judged = JudgedTrial {
        outcome,
        latency_ms: Some(LatencyMs { p50: p99 / 2.0, p99, ..LatencyMs::default() }),
        delivered_per_s: rate.min(1_050.0),
        why: reason.to_owned(),
    };
    let load = TrialLoad::RatePerS(rate);
    CapacityTrial { trial: SearchTrial { load, duration_s: 2.0 }, judged, directory: "trial-001".into() }
}

fn measured(loss: f64) -> TrialOutcome {
    TrialOutcome::Measured(TrialFigures::new(vec![loss], 1_000.0))
}

/// Returns a search that found a capacity. It contains `text` wherever a server or a user could choose the text.
pub fn search(text: &str) -> CapacityRun {
    let goal =
        Threshold::parse("delivered.p99 < 1s", RunProtocol::Smtp).expect("a threshold").loss_goal().expect("a goal");
    let void = TrialOutcome::Void { cause: VoidCause::Host, delivered_per_s: 1.0, spent_s: 2.0 };
    let confirmed = |share: f64, loss| ConfirmedLoad {
        share,
        trial: trial(1_000.0 * share, measured(loss), 30.0, text),
        resources: text.to_owned(),
    };
    CapacityRun {
        command: ["mailrun", "capacity", text].map(str::to_owned).to_vec(),
        facts: crate::workload::search_facts(&crate::sample::held(), false),
        goals: vec![goal],
        min_rate_per_s: 10.0,
        planning: PlanningInputs {
            capacity_per_s: 0.0,
            safety: 0.6,
            peak_per_s: Some(3_000.0),
            messages_per_user: None,
            cores: Some(2.0),
        },
        result: SearchResult {
            ending: SearchEnding::Complete,
            goals: vec![GoalOutcome {
                finding: GoalFinding::Found,
                lower_per_s: Some(1_000.0),
                upper_per_s: Some(1_020.0),
                throughput_per_s: Some(1_000.0),
            }],
            flat_out_per_s: Some(1_100.0),
            trials: Vec::new(),
            spent_s: 12.0,
        },
        trials: vec![
            trial(1_000.0, measured(0.0), 20.0, text),
            trial(1_020.0, measured(0.4), 2_000.0, text),
            trial(1_500.0, void, 20.0, text),
        ],
        confirmation: vec![confirmed(0.8, 0.0), confirmed(1.0, 0.0), confirmed(1.2, 0.3)],
        remarks: vec![text.to_owned()],
        lost: None,
        interrupted: false,
        directory: "/tmp/<b>run</b>".into(),
    }
}
