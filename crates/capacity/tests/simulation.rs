//! Runs the search against simulated servers with a known capacity. The search must find this capacity, for example
//! even if the servers stall or hide a backlog in their buffers.
use mailrun_capacity::{
    BacklogSample, CapacityGoal, CapacitySearch, GoalFinding, SearchEnding, SearchResult, SearchSettings, SearchStep,
    SearchTrial, TrialFigures, TrialLoad, TrialOutcome, VoidCause, backlog_growth,
};
use std::convert::Infallible;

const SEEDS: u64 = 100;

struct Dice(u64);

impl Dice {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a nearly normally distributed number with mean 0 and variance 1: the sum of twelve uniform numbers, less
    /// 6.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

fn search(
    settings: &SearchSettings,
    loss_ratios: &[f64],
    mut serve: impl FnMut(SearchTrial) -> TrialOutcome,
) -> SearchResult {
    let goals = loss_ratios.iter().map(|ratio| CapacityGoal::new(*ratio).expect("a ratio")).collect();
    let mut search = CapacitySearch::new(settings.clone(), goals).expect("settings");
    search.run(|trial| Ok::<_, Infallible>(serve(trial))).expect("it cannot fail")
}

fn rate_of(trial: SearchTrial, flat_out: f64) -> f64 {
    match trial.load {
        TrialLoad::FlatOut => flat_out,
        TrialLoad::RatePerS(rate) => rate,
    }
}

/// Simulates a trial of a server that accepts `capacity` messages per second. In each second, it stalls with the
/// probability `stall_chance`.
fn limited(trial: SearchTrial, capacity: f64, stall_chance: f64, dice: &mut Dice) -> TrialOutcome {
    let now = capacity * (1.0 + 0.01 * dice.normal());
    let rate = rate_of(trial, now * 0.93);
    let stalls = (0..trial.duration_s.ceil() as u32).filter(|_| dice.uniform() < stall_chance).count();
    let lost_s = (stalls as f64 * 0.6).min(trial.duration_s);
    let loss = (1.0 - now / rate).max(0.0).max(lost_s / trial.duration_s);
    TrialOutcome::Measured(TrialFigures {
        spent_s: trial.duration_s + 0.5,
        ..TrialFigures::new(vec![loss], rate * (1.0 - loss))
    })
}

/// Returns the lowest, the median and the highest result of many searches.
fn spread(mut rates: Vec<f64>) -> (f64, f64, f64) {
    rates.sort_by(f64::total_cmp);
    (rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
}

#[test]
fn a_sink_limited_to_a_rate_reads_that_rate() {
    for capacity in [40.0, 1_000.0, 63_000.0] {
        for (settings, within) in [(SearchSettings::default(), 0.05), (SearchSettings::quick(), 0.08)] {
            let measured_rate = |seed: u64| {
                let mut dice = Dice(seed);
                let result = search(&settings, &[0.01], |trial| limited(trial, capacity, 0.0, &mut dice));
                assert_eq!((result.ending, result.goals[0].finding), (SearchEnding::Complete, GoalFinding::Found));
                assert!(result.spent_s < 600.0, "{} s", result.spent_s);
                result.capacity_per_s().unwrap()
            };
            let (least, middle, most) = spread((0..SEEDS).map(measured_rate).collect());
            let is_near = |rate: f64, within: f64| (rate / capacity - 1.0).abs() <= within;
            let text = format!("{capacity}/s: {least:.0} {middle:.0} {most:.0}");
            assert!(is_near(middle, 0.03) && is_near(least, within) && is_near(most, within), "{text}");
        }
    }
}

#[test]
fn stalls_of_two_percent_a_second_change_nothing() {
    let settings = SearchSettings::default();
    let measured_rate = |seed: u64| {
        let mut dice = Dice(seed);
        let result = search(&settings, &[0.01], |trial| limited(trial, 1_000.0, 0.02, &mut dice));
        result.capacity_per_s().unwrap()
    };
    let rates: Vec<f64> = (0..SEEDS).map(measured_rate).collect();
    let near = rates.iter().filter(|rate| (**rate / 1_000.0 - 1.0).abs() <= 0.05).count();
    let (least, middle, most) = spread(rates);
    let text = format!("{near} of {SEEDS} within 5 %: {least:.0} {middle:.0} {most:.0}");
    assert!(near >= 98 && (950.0..=1_050.0).contains(&middle), "{text}");
}

#[test]
fn the_manner_of_rfc_2544_is_found_out_by_stalls() {
    let settings = SearchSettings { min_rate_per_s: 100.0, max_rate_per_s: 10_000.0, ..SearchSettings::rfc2544() };
    let measured_rate = |stall_chance: f64, seed: u64| {
        let mut dice = Dice(seed);
        let result = search(&settings, &[0.0], |trial| limited(trial, 1_000.0, stall_chance, &mut dice));
        let goal = result.goals[0];
        goal.throughput_per_s.unwrap_or(settings.min_rate_per_s)
    };
    let (least, middle, most) = spread((0..SEEDS).map(|seed| measured_rate(0.0, seed)).collect());
    assert!((950.0..=1_050.0).contains(&least) && (950.0..=1_050.0).contains(&most), "{least} {middle} {most}");
    let (_, middle, _) = spread((0..SEEDS).map(|seed| measured_rate(0.02, seed)).collect());
    assert!(middle < 500.0, "one stalled trial halves the rate for good: {middle}");
}

/// A relay that accepts all messages at once and passes them on at a fixed rate. Until its buffers are full, an
/// overload causes no visible backlog.
struct BufferedRelay {
    capacity: f64,
    /// Number of messages that the buffers can hold. Messages in the buffers do not count as a backlog.
    hidden: f64,
    held: f64,
}

impl BufferedRelay {
    fn serve(&mut self, trial: SearchTrial) -> TrialOutcome {
        let rate = rate_of(trial, self.capacity * 1.5);
        let step_s = 0.25;
        let mut samples = Vec::new();
        let mut seen = 0.0;
        for step in 0..(trial.duration_s / step_s) as u32 {
            let surplus = (rate - self.capacity) * step_s;
            let hidden = (self.held + surplus).clamp(0.0, self.hidden);
            seen += (surplus - (hidden - self.held)).max(0.0);
            self.held = hidden;
            samples.push(BacklogSample { at_s: f64::from(step + 1) * step_s, messages: seen });
        }
        let drain_s = seen / self.capacity;
        TrialOutcome::Measured(TrialFigures {
            backlog_growth_per_s: backlog_growth(&samples, trial.duration_s),
            is_drained: drain_s <= 5.0,
            spent_s: trial.duration_s + drain_s,
            ..TrialFigures::new(vec![0.0], rate - seen / trial.duration_s)
        })
    }
}

#[test]
fn a_backlog_that_begins_after_ten_seconds_is_seen() {
    for capacity in [200.0, 1_000.0, 20_000.0] {
        // If the rate exceeds the capacity by 10 %, the buffers are full after ten seconds. The relay keeps its mail
        // from one trial to the next, so the buffers may be full when a trial begins.
        let mut relay = BufferedRelay { capacity, hidden: capacity, held: 0.0 };
        let result = search(&SearchSettings::default(), &[0.0], |trial| relay.serve(trial));
        let rate = result.capacity_per_s().unwrap();
        assert!((rate / capacity - 1.0).abs() <= 0.05, "{capacity}: {rate} {result:?}");
        // This time, the buffers are empty at the start of each trial, so each trial must last longer than the buffers
        // take to fill.
        let settings = SearchSettings { trial_s: 20.0, sum_s: 60.0, ..SearchSettings::default() };
        let result = search(&settings, &[0.0], |trial| {
            BufferedRelay { capacity, hidden: capacity * 0.1, held: 0.0 }.serve(trial)
        });
        let rate = result.capacity_per_s().unwrap();
        assert!((rate / capacity - 1.0).abs() <= 0.05, "{capacity}, fresh: {rate}");
    }
}

#[test]
fn a_confirmation_that_does_not_hold_sends_the_search_below() {
    // In trials of 5 s, the server reaches 1,000/s, for example because of a cache. In a confirmation trial of a
    // minute, it reaches only 940/s.
    let settings = SearchSettings::default();
    let mut dice = Dice(7);
    let mut search = CapacitySearch::new(settings, vec![CapacityGoal::new(0.01).unwrap()]).unwrap();
    let mut capacities = Vec::new();
    while capacities.len() < 3 {
        let result = search.run(|trial| Ok::<_, Infallible>(limited(trial, 1_000.0, 0.0, &mut dice))).unwrap();
        let capacity = result.capacity_per_s().unwrap();
        capacities.push(capacity);
        for share in [0.8, 1.0] {
            let trial = SearchTrial { load: TrialLoad::RatePerS(capacity * share), duration_s: 60.0 };
            let loss = (1.0 - 940.0 / (capacity * share)).max(0.0);
            let met = search.take_confirmation(trial, &TrialFigures::new(vec![loss], 940.0));
            assert_eq!(met, loss <= 0.01, "{capacity} {share}");
        }
    }
    assert!((960.0..=1_040.0).contains(&capacities[0]), "{capacities:?}");
    assert!(capacities[1] < capacities[0] && capacities[2] <= 952.0 && capacities[2] > 850.0, "{capacities:?}");
}

#[test]
fn a_run_that_fails_or_ends_leaves_the_search_as_it_was() {
    let mut search = CapacitySearch::new(SearchSettings::default(), vec![CapacityGoal::new(0.01).unwrap()]).unwrap();
    let mut dice = Dice(7);
    loop {
        let before = format!("{search:?}");
        let result = search.run(|_| Err(()));
        assert_eq!(format!("{search:?}"), before);
        match search.next_step() {
            SearchStep::Measure(trial) => search.report(trial, limited(trial, 1_000.0, 0.0, &mut dice)),
            SearchStep::Finished(_) => break assert!(result.is_ok()),
        }
    }
}

#[test]
fn loss_that_falls_as_load_rises_gives_a_lower_bound_below_the_bad_loads() {
    // Rates from 600 to 700 are bad, as if a timer in the server got into step with the load. From 700 to 1,000, rates
    // are good again.
    let loss = |rate: f64| if (600.0..700.0).contains(&rate) { 0.2 } else { (1.0 - 1_000.0 / rate).max(0.0) };
    for start in [100.0, 300.0, 620.0, 650.0, 900.0, 2_000.0] {
        let result = search(&SearchSettings::default(), &[0.01], |trial| {
            let rate = rate_of(trial, start);
            let loss = loss(rate);
            TrialOutcome::Measured(TrialFigures::new(vec![loss], rate * (1.0 - loss)))
        });
        let goal = result.goals[0];
        let lower = goal.lower_per_s.unwrap();
        let upper = goal.upper_per_s.unwrap();
        assert!(goal.finding == GoalFinding::Found && lower < upper && upper <= lower * 1.0206, "{start}: {goal:?}");
        let is_edge = (588.0..600.0).contains(&lower) || (980.0..=1_011.0).contains(&lower);
        assert!(is_edge && loss(lower) <= 0.01 && loss(upper) > 0.01, "{start}: {goal:?}");
        let is_bad_below = |entry: &mailrun_capacity::TrialEntry| {
            matches!(entry.trial.load, TrialLoad::RatePerS(rate) if rate < lower) && entry.met == [false]
        };
        assert!(!result.trials.iter().any(is_bad_below), "{start}: a bad load was seen below {lower}");
    }
}

#[test]
fn latencies_that_step_give_each_goal_its_own_rate() {
    // From 300/s on, about 3 % of the messages are late, so p99 exceeds its limit. From 700/s on, about 80 % are late,
    // so p50 exceeds its limit. Up to 1,000/s, no message is missing.
    let late = |rate: f64, step: f64, before: f64, after: f64| if rate < step { before } else { after };
    for seed in 0..SEEDS {
        let mut dice = Dice(seed);
        let result = search(&SearchSettings::default(), &[0.01, 0.5, 0.0], |trial| {
            let rate = rate_of(trial, 1_000.0);
            let chance = 0.001 * dice.uniform();
            let losses = vec![late(rate, 300.0, 0.004, 0.03) + chance, late(rate, 700.0, 0.1, 0.8) + chance, {
                (1.0 - 1_000.0 / rate).max(0.0)
            }];
            TrialOutcome::Measured(TrialFigures::new(losses, rate.min(1_000.0)))
        });
        for (goal, step) in result.goals.iter().zip([300.0, 700.0, 1_000.0]) {
            let lower = goal.lower_per_s.unwrap();
            assert!((step * 0.95..=step).contains(&lower), "{seed}: {step} {goal:?}");
        }
        let alone = |goal: usize| result.goals[goal].throughput_per_s.unwrap();
        assert_eq!(result.capacity_per_s(), Some((0..3).map(alone).fold(f64::MAX, f64::min)));
        assert!(result.trials.len() < 130, "three goals share {} trials", result.trials.len());
    }
}

#[test]
fn a_generator_at_its_limit_ends_the_search_above_what_it_can() {
    let result = search(&SearchSettings::default(), &[0.01], |trial| {
        let rate = rate_of(trial, 800.0);
        if rate > 900.0 {
            TrialOutcome::Void { cause: VoidCause::Generator, delivered_per_s: 900.0, spent_s: 5.0 }
        } else {
            TrialOutcome::Measured(TrialFigures::new(vec![0.0], rate))
        }
    });
    let goal = result.goals[0];
    let lower = goal.lower_per_s.unwrap();
    assert!(goal.finding == GoalFinding::GeneratorLimit && goal.upper_per_s.is_none(), "{goal:?}");
    assert!((828.0..=900.0).contains(&lower) && result.has_capacity(), "{goal:?}");
    let is_void = |entry: &mailrun_capacity::TrialEntry| matches!(entry.outcome, TrialOutcome::Void { .. });
    assert!(result.trials.iter().filter(|entry| is_void(entry)).count() <= 9, "{}", result.trials.len());
}

#[test]
fn one_void_trial_is_repeated_and_decides_nothing() {
    let mut number = 0;
    let mut dice = Dice(7);
    let result = search(&SearchSettings::default(), &[0.01], |trial| {
        number += 1;
        if number % 3 == 0 {
            TrialOutcome::Void { cause: VoidCause::Host, delivered_per_s: 10.0, spent_s: 5.0 }
        } else {
            limited(trial, 1_000.0, 0.0, &mut dice)
        }
    });
    assert_eq!(result.goals[0].finding, GoalFinding::Found);
    let rate = result.capacity_per_s().unwrap();
    assert!((950.0..=1_050.0).contains(&rate), "{rate}");
}

#[test]
fn endings_are_told_apart() {
    let fixed = |outcome: TrialOutcome| search(&SearchSettings::default(), &[0.01], |_| outcome.clone());
    let lost = fixed(TrialOutcome::MailLost);
    assert_eq!((lost.ending, lost.trials.len(), lost.capacity_per_s()), (SearchEnding::MailLost, 1, None));
    let stopped = fixed(TrialOutcome::Stopped);
    assert_eq!((stopped.ending, stopped.goals[0].finding), (SearchEnding::Stopped, GoalFinding::Unfinished));
    let void = fixed(TrialOutcome::Void { cause: VoidCause::Sink, delivered_per_s: 0.0, spent_s: 5.0 });
    assert_eq!((void.ending, void.goals[0].finding), (SearchEnding::Void, GoalFinding::Void));
    assert!(!void.has_capacity());
    let bad = fixed(TrialOutcome::Measured(TrialFigures::new(vec![1.0], 0.0)));
    assert_eq!((bad.ending, bad.goals[0].finding), (SearchEnding::Complete, GoalFinding::LowestRateMissed));
    assert!(bad.capacity_per_s().is_none() && !bad.has_capacity());
    let good = search(&SearchSettings { max_rate_per_s: 5_000.0, ..SearchSettings::default() }, &[0.0], |trial| {
        TrialOutcome::Measured(TrialFigures::new(vec![0.0], rate_of(trial, 100.0)))
    });
    assert_eq!((good.goals[0].finding, good.capacity_per_s()), (GoalFinding::HighestRateHeld, Some(5_000.0)));
    let slow = SearchSettings { time_limit_s: 60.0, ..SearchSettings::default() };
    let mut dice = Dice(1);
    let cut = search(&slow, &[0.01], |trial| limited(trial, 1_000.0, 0.0, &mut dice));
    assert_eq!((cut.ending, cut.goals[0].finding), (SearchEnding::TimeLimit, GoalFinding::Unfinished));
    let known = cut.goals[0].lower_per_s.or(cut.goals[0].upper_per_s);
    assert!(known.is_some_and(|rate| (900.0..1_200.0).contains(&rate)), "what is known is given: {:?}", cut.goals);
}

#[test]
fn a_lower_bound_that_was_known_is_in_every_later_result() {
    let lower_after = |trials: usize| {
        let mut dice = Dice(3);
        let mut left = trials;
        let result = search(&SearchSettings::default(), &[0.01], |trial| {
            left = left.saturating_sub(1);
            if left == 0 { TrialOutcome::Stopped } else { limited(trial, 1_000.0, 0.02, &mut dice) }
        });
        result.goals[0].lower_per_s
    };
    let known: Vec<bool> = (1..40).map(|trials| lower_after(trials).is_some()).collect();
    let first = known.iter().position(|is_known| *is_known).expect("a bound is found");
    assert!(first < 12 && known[first..].iter().all(|is_known| *is_known), "{known:?}");
}
