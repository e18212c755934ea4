/// Characters that draw the bars, from the lowest to the highest. Only zero gets the lowest bar, so
/// that a stall is visible.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// How to combine several values into one bar, if there are more values than bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// The mean, which suits rates.
    Mean,
    /// The maximum, which suits latencies and queues, because their peaks must stay visible.
    Peak,
}

/// Draws `values` in at most `width` bars. The scale reaches from 0 to the maximum.
pub fn sparkline(values: &[f64], width: usize, fold: Fold) -> String {
    let bars = folded(values, width, fold);
    let top = bars.iter().copied().fold(0.0, f64::max);
    bars.iter().map(|value| bar(*value, top)).collect()
}

fn bar(value: f64, top: f64) -> char {
    if value <= 0.0 || top <= 0.0 {
        return BARS[0];
    }
    // Never draw a value above zero with the lowest bar, because the lowest bar stands for zero.
    let step = (value / top * (BARS.len() - 1) as f64).ceil() as usize;
    BARS[step.clamp(1, BARS.len() - 1)]
}

fn folded(values: &[f64], width: usize, fold: Fold) -> Vec<f64> {
    let width = width.max(1);
    if values.len() <= width {
        return values.to_vec();
    }
    (0..width)
        .map(|index| {
            // No group is empty, because there are more values than bars.
            let group = &values[index * values.len() / width..(index + 1) * values.len() / width];
            match fold {
                Fold::Mean => group.iter().sum::<f64>() / group.len() as f64,
                Fold::Peak => group.iter().copied().fold(0.0, f64::max),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_from_little() {
        assert_eq!(sparkline(&[0.0, 0.001, 50.0, 100.0], 10, Fold::Mean), "▁▂▅█");
        assert_eq!(sparkline(&[0.0, 0.0], 10, Fold::Mean), "▁▁");
        assert_eq!(sparkline(&[], 10, Fold::Mean), "");
    }

    #[test]
    fn a_peak_survives_folding() {
        let mut values = vec![1.0; 1_000];
        values[500] = 100.0;
        let line = sparkline(&values, 10, Fold::Peak);
        assert_eq!(line.chars().count(), 10);
        assert_eq!(line.chars().nth(5), Some('█'));
    }
}
