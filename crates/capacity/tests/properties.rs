//! Checks properties that the search must have for any outcomes of its trials: it ends, its bounds never cross, and the
//! order of the goals does not matter.
use mailrun_capacity::{
    CapacityGoal, CapacityPlan, CapacitySearch, GoalOutcome, PlanningInputs, SearchResult, SearchSettings, SearchStart,
    SearchStep, TrialFigures, TrialLoad, TrialOutcome, VoidCause,
};
use proptest::prelude::*;

/// Numbers that a careless caller may pass, such as NaN and negative numbers.
fn hostile_number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..1.0,
        1 => Just(0.0),
        1 => Just(1.0),
        1 => prop::sample::select(vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300, 1e-300]),
        1 => any::<f64>(),
    ]
}

fn outcomes() -> impl Strategy<Value = TrialOutcome> {
    let figures = (
        prop::collection::vec(hostile_number(), 0..4),
        hostile_number(),
        prop::option::of(hostile_number()),
        any::<bool>(),
        hostile_number(),
    );
    let measured = figures.prop_map(|(loss_ratios, rate, backlog_growth_per_s, is_drained, spent_s)| {
        let figures = TrialFigures::new(loss_ratios, rate * 1_000.0);
        TrialOutcome::Measured(TrialFigures { backlog_growth_per_s, is_drained, spent_s, ..figures })
    });
    let void = (hostile_number(), hostile_number());
    let void = void.prop_map(|(delivered_per_s, spent_s)| TrialOutcome::Void {
        cause: VoidCause::Generator,
        delivered_per_s,
        spent_s,
    });
    prop_oneof![40 => measured, 5 => void, 1 => Just(TrialOutcome::MailLost), 1 => Just(TrialOutcome::Stopped)]
}

fn settings() -> impl Strategy<Value = SearchSettings> {
    let rates = (0.01..1e4_f64, 1.001..1e6_f64);
    (0.1..60.0_f64, 1.0..20.0_f64, 0.0..0.99_f64, 0.001..0.5_f64, rates, 0_u32..10, any::<bool>()).prop_map(
        |(trial_s, trials, exceed_ratio, width, (min, factor), coarse_levels, is_bisection)| SearchSettings {
            trial_s,
            sum_s: trial_s * trials,
            exceed_ratio,
            width,
            min_rate_per_s: min,
            max_rate_per_s: (min * factor).min(1e9),
            time_limit_s: trial_s * 500.0,
            coarse_levels,
            start: if is_bisection { SearchStart::Bisection } else { SearchStart::FlatOut },
            ..SearchSettings::default()
        },
    )
}

/// Checks that the bounds and the trials of a search obey its settings, and that each goal's finding, bounds and
/// throughput fit together.
fn check(result: &SearchResult, settings: &SearchSettings) {
    assert!(result.trials.len() as u64 <= settings.max_trials(), "{} trials", result.trials.len());
    assert!(result.spent_s.is_finite());
    for goal in &result.goals {
        let GoalOutcome { lower_per_s: lower, upper_per_s: upper, throughput_per_s: throughput, finding } = *goal;
        assert!(lower.is_none_or(|lower| upper.is_none_or(|upper| lower < upper)), "bounds cross: {goal:?}");
        assert_eq!(lower.is_some(), throughput.is_some(), "{goal:?}");
        assert!(throughput.is_none_or(|rate| rate.is_finite() && rate >= 0.0), "{goal:?}");
        assert!(!finding.has_capacity() || lower.is_some(), "{goal:?}");
        for rate in [lower, upper].into_iter().flatten() {
            assert!((settings.min_rate_per_s..=settings.max_rate_per_s).contains(&rate), "{rate}");
        }
    }
    for entry in &result.trials {
        assert!(entry.trial.duration_s >= settings.trial_s);
        if let TrialLoad::RatePerS(rate) = entry.trial.load {
            assert!((settings.min_rate_per_s..=settings.max_rate_per_s).contains(&rate), "{rate}");
        }
    }
}

/// Runs a search. `serve` returns the outcome of each trial, which depends on the trial's number, the goals and the
/// load. Each goal has a number, so that `serve` can tell the goals apart even if their order changes.
fn search(
    settings: &SearchSettings,
    goals: &[(usize, f64)],
    mut serve: impl FnMut(usize, &[(usize, f64)], TrialLoad) -> TrialOutcome,
) -> SearchResult {
    let loss_ratios = goals.iter().map(|(_, ratio)| CapacityGoal::new(*ratio).expect("a ratio")).collect();
    let mut search = CapacitySearch::new(settings.clone(), loss_ratios).expect("settings");
    for number in 0.. {
        match search.next_step() {
            SearchStep::Finished(result) => return result,
            SearchStep::Measure(trial) => {
                check(&search.so_far(), settings);
                search.report(trial, serve(number, goals, trial.load));
            }
        }
    }
    unreachable!("a search without an end")
}

fn share(seed: u64, number: usize, goal: usize) -> f64 {
    let mut mixed = seed ^ (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((goal as u64 + 1) << 32);
    for _ in 0..2 {
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^= mixed >> 27;
    }
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_search_ends_and_its_bounds_never_cross(
        settings in settings(),
        ratios in prop::collection::vec(0.0..0.99_f64, 1..4),
        script in prop::collection::vec(outcomes(), 1..40),
    ) {
        let goals: Vec<_> = ratios.into_iter().enumerate().collect();
        let result = search(&settings, &goals, |number, _, _| script[number % script.len()].clone());
        check(&result, &settings);
    }

    #[test]
    fn noise_around_a_capacity_ends_too(settings in settings(), seed in any::<u64>(), capacity in 0.01..1e6_f64) {
        let result = search(&settings, &[(0, 0.01), (1, 0.2)], |number, goals, load| {
            let rate = match load {
                TrialLoad::FlatOut => capacity,
                TrialLoad::RatePerS(rate) => rate,
            };
            let loss = |(goal, _): &(usize, f64)| {
                let noise = 0.6 + 0.8 * share(seed, number, *goal);
                (1.0 - capacity * noise / rate).max(0.0)
            };
            TrialOutcome::Measured(TrialFigures::new(goals.iter().map(loss).collect(), rate.min(capacity)))
        });
        check(&result, &settings);
    }

    #[test]
    fn the_order_of_goals_is_nothing(
        settings in settings(),
        seed in any::<u64>(),
        ratios in prop::collection::vec(prop_oneof![Just(0.0), Just(0.01), 0.0..0.9_f64], 2..5),
        turn in 0_usize..5,
        capacity in 1.0..1e5_f64,
    ) {
        let goals: Vec<(usize, f64)> = ratios.into_iter().enumerate().collect();
        let mut turned = goals.clone();
        turned.rotate_left(turn % goals.len());
        if turn % 2 == 1 {
            turned.reverse();
        }
        let serve = |number: usize, goals: &[(usize, f64)], load: TrialLoad| {
            let rate = match load {
                TrialLoad::FlatOut => capacity,
                TrialLoad::RatePerS(rate) => rate,
            };
            let loss = |(goal, ratio): &(usize, f64)| {
                let own = capacity / (*goal as f64 + 1.0);
                (1.0 - own / rate).max(0.0) + (share(seed, number, *goal) - 0.5) * (0.05 + ratio)
            };
            TrialOutcome::Measured(TrialFigures::new(goals.iter().map(loss).collect(), rate.min(capacity)))
        };
        let one = search(&settings, &goals, serve);
        let other = search(&settings, &turned, serve);
        prop_assert_eq!(one.trials.len(), other.trials.len());
        for (at, (name, _)) in turned.iter().enumerate() {
            prop_assert_eq!(other.goals[at], one.goals[*name]);
        }
    }

    #[test]
    fn a_plan_is_enough_and_not_one_server_too_many(
        capacity_per_s in 0.01..1e6_f64,
        safety in 0.01..=1.0_f64,
        peak in 0.01..1e6_f64,
    ) {
        let inputs = PlanningInputs { capacity_per_s, safety, peak_per_s: Some(peak), messages_per_user: None, cores: None };
        if let Ok(CapacityPlan { stable_per_s, instances: Some(instances), .. }) = inputs.plan() {
            prop_assert!(instances as f64 * stable_per_s >= peak * (1.0 - 1e-6));
            prop_assert!(instances == 1 || (instances - 1) as f64 * stable_per_s < peak);
        }
    }
}
