//! Writes metrics in the text formats of Prometheus (0.0.4) and OpenMetrics (1.0).
use crate::printable::printable;
use std::fmt::{Display, Write};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exposition {
    Prometheus,
    OpenMetrics,
}

pub struct MetricsText {
    text: String,
    prefix: &'static str,
    exposition: Exposition,
}

impl MetricsText {
    /// Starts a text in which the name of every metric begins with `prefix`, such as `mailrun_`.
    pub fn new(prefix: &'static str, exposition: Exposition) -> Self {
        Self { text: String::with_capacity(8192), prefix, exposition }
    }

    pub fn family(&mut self, name: &str, kind: &str, meaning: &str) {
        // In OpenMetrics, only the samples of a counter have the suffix `_total`, and the name of its family has none.
        let family = match self.exposition {
            Exposition::OpenMetrics if kind == "counter" => name.trim_end_matches("_total"),
            _ => name,
        };
        let prefix = self.prefix;
        // Ignore the result here and in the other functions, because writing to a `String` cannot fail.
        let _ = writeln!(self.text, "# HELP {prefix}{family} {meaning}\n# TYPE {prefix}{family} {kind}");
    }

    /// Appends a line with a name, labels and a value. Escapes the labels' values, because they may come from peers.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{name}", self.prefix);
        for (number, (label, text)) in labels.iter().enumerate() {
            let _ = write!(self.text, "{}{label}=\"{}\"", if number == 0 { '{' } else { ',' }, label_text(text));
        }
        let value = value.to_string();
        // Rust writes infinity as `inf`, but both formats require `+Inf`.
        let value = match value.as_str() {
            "inf" => "+Inf",
            "-inf" => "-Inf",
            finite => finite,
        };
        let _ = writeln!(self.text, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    /// Adds a counter without labels, and appends `_total` to `name`.
    pub fn counter(&mut self, name: &str, meaning: &str, value: u64) {
        let name = format!("{name}_total");
        self.family(&name, "counter", meaning);
        self.sample(&name, &[], value);
    }

    pub fn gauge(&mut self, name: &str, meaning: &str, value: impl Display) {
        self.family(name, "gauge", meaning);
        self.sample(name, &[], value);
    }

    /// Appends a cumulative sample for each bucket of a histogram, and the histogram's sum and count. `counts` is not
    /// cumulative: it holds the number of values in each single bucket. The last bucket has no upper bound. The caller
    /// must first add the family, with the kind `histogram`.
    pub fn histogram(&mut self, name: &str, labels: &[(&str, &str)], bounds: &[f64], counts: &[u64], sum: f64) {
        let mut total = 0;
        let bounds = bounds.iter().copied().chain([f64::INFINITY]);
        for (bound, count) in bounds.zip(counts) {
            total += count;
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let labels: Vec<(&str, &str)> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &labels, total);
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, total);
    }

    /// Returns the text, which in OpenMetrics ends with `# EOF` to show a reader that nothing is missing.
    pub fn finish(mut self) -> String {
        if self.exposition == Exposition::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

/// Escapes a label value as both formats require. Also makes hidden characters visible, for example
/// as `\\u{202e}`.
pub fn label_text(text: &str) -> String {
    let lines = text.split('\n').map(|line| printable(line).replace('\\', "\\\\").replace('"', "\\\""));
    lines.collect::<Vec<_>>().join("\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_cannot_break_out_and_hides_nothing() {
        let mut text = MetricsText::new("mailrun_", Exposition::Prometheus);
        text.sample("x", &[("hop", "a\"} 1\nb\\\r\u{202e}")], 2);
        assert_eq!(text.finish(), "mailrun_x{hop=\"a\\\"} 1\\nb\\\\\\\\r\\\\u{202e}\"} 2\n");
    }

    #[test]
    fn the_buckets_of_a_histogram_are_cumulative() {
        let mut text = MetricsText::new("m_", Exposition::Prometheus);
        text.histogram("took_seconds", &[("stage", "accepted")], &[0.1, 5.0], &[2, 0, 1], 9.5);
        let lines = [
            "m_took_seconds_bucket{stage=\"accepted\",le=\"0.1\"} 2",
            "m_took_seconds_bucket{stage=\"accepted\",le=\"5\"} 2",
            "m_took_seconds_bucket{stage=\"accepted\",le=\"+Inf\"} 3",
            "m_took_seconds_sum{stage=\"accepted\"} 9.5",
            "m_took_seconds_count{stage=\"accepted\"} 3",
        ];
        assert_eq!(text.finish().lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn values_and_families_are_in_the_words_of_their_format() {
        let mut text = MetricsText::new("m_", Exposition::OpenMetrics);
        text.counter("kept", "messages kept", 3);
        text.gauge("least", "the least", f64::NEG_INFINITY);
        text.sample("most", &[], f64::INFINITY);
        text.sample("none", &[], f64::NAN);
        let lines = [
            "# HELP m_kept messages kept",
            "# TYPE m_kept counter",
            "m_kept_total 3",
            "# HELP m_least the least",
            "# TYPE m_least gauge",
            "m_least -Inf",
            "m_most +Inf",
            "m_none NaN",
            "# EOF",
        ];
        assert_eq!(text.finish().lines().collect::<Vec<_>>(), lines);
    }
}
