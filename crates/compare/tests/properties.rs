//! Properties that the result of a comparison must have, whatever values are compared.
use mailrun_compare::{
    CompareSettings, ComparedMetric, Gain, MetricFinding, MetricVerdict, RoundRatios, RunValues, compare_rounds,
    compare_runs,
};
use proptest::prelude::*;

fn metric(gain: Gain) -> ComparedMetric {
    ComparedMetric { name: "m".to_owned(), gain }
}

fn settings() -> CompareSettings {
    CompareSettings { draws: 500, ..CompareSettings::default() }
}

fn paired(pairs: &[(f64, f64)], gain: Gain) -> MetricFinding {
    compare_rounds(&[RoundRatios::new(metric(gain), pairs).expect("all are above 0")], &settings()).remove(0)
}

fn is_close(left: f64, right: f64) -> bool {
    (left / right - 1.0).abs() < 1e-9
}

proptest! {
    #[test]
    fn swapping_the_sides_inverts_all(pairs in prop::collection::vec((0.1..1e6_f64, 0.1..1e6_f64), 1..40)) {
        let forth = paired(&pairs, Gain::Higher);
        let swapped: Vec<_> = pairs.iter().map(|(a, b)| (*b, *a)).collect();
        let back = paired(&swapped, Gain::Higher);
        prop_assert!(is_close(forth.ratio, 1.0 / back.ratio));
        prop_assert_eq!(forth.adjusted_p, back.adjusted_p);
        if let (Some((lower, upper)), Some((back_lower, back_upper))) = (forth.interval, back.interval) {
            prop_assert!(is_close(lower, 1.0 / back_upper) && is_close(upper, 1.0 / back_lower));
            prop_assert!(lower <= forth.ratio && forth.ratio <= upper);
        }
        let expected = match back.verdict {
            MetricVerdict::Better => MetricVerdict::Worse,
            MetricVerdict::Worse => MetricVerdict::Better,
            other => other,
        };
        let differs = matches!((forth.verdict, expected), (MetricVerdict::Undecided { .. }, MetricVerdict::Undecided { .. }));
        prop_assert!(forth.verdict == expected || differs);
    }

    /// A different unit must not change the ratio of the values. If lower instead of higher values count as better, the
    /// verdict "better" must become "worse".
    #[test]
    fn a_unit_changes_nothing(pairs in prop::collection::vec((0.1..1e3_f64, 0.1..1e3_f64), 20..40)) {
        let plain = paired(&pairs, Gain::Higher);
        let scaled: Vec<_> = pairs.iter().map(|(a, b)| (*a * 1024.0, *b * 1024.0)).collect();
        prop_assert!(is_close(plain.ratio, paired(&scaled, Gain::Higher).ratio));
        let lower = paired(&pairs, Gain::Lower);
        prop_assert_eq!(plain.is_better(), lower.verdict == MetricVerdict::Worse);
        prop_assert!(!(plain.is_regression(0.01) && lower.is_regression(0.01)));
    }

    /// Stored runs get a verdict only if each side has at least five runs. The confidence interval always contains the
    /// estimate.
    #[test]
    fn stored_runs_need_five_a_side(a in prop::collection::vec(0.1..1e3_f64, 0..12), b in prop::collection::vec(0.1..1e3_f64, 0..12)) {
        let finding = compare_runs(&[RunValues::new(metric(Gain::Higher), &a, &b).unwrap()], &settings()).remove(0);
        prop_assert_eq!(finding.verdict == MetricVerdict::TooFew, a.len().min(b.len()) < 5);
        prop_assert!(finding.interval.is_none_or(|(lower, upper)| lower <= finding.ratio && finding.ratio <= upper));
        prop_assert!((0.0..=1.0).contains(&finding.adjusted_p));
    }

    #[test]
    fn what_has_no_ratio_is_refused(bad in prop::sample::select(vec![0.0, -1.0, f64::NAN, f64::INFINITY]), place in 0..5_usize) {
        let mut pairs = vec![(1.0, 1.0); 5];
        pairs[place].1 = bad;
        let error = RoundRatios::new(metric(Gain::Higher), &pairs).unwrap_err();
        prop_assert_eq!((error.name.as_str(), error.run), ("m", place + 1));
    }
}

#[test]
fn equal_values_are_the_same_and_few_have_no_verdict() {
    assert_eq!(paired(&[(5.0, 5.0); 20], Gain::Higher).verdict, MetricVerdict::Same);
    assert_eq!(paired(&[(5.0, 50.0); 19], Gain::Higher).verdict, MetricVerdict::TooFew);
    let clear = paired(&[(5.0, 50.0); 20], Gain::Lower);
    assert!(clear.verdict == MetricVerdict::Worse && clear.is_beyond_margin && clear.is_regression(0.05));
    assert!(compare_rounds(&[], &settings()).is_empty());
}
