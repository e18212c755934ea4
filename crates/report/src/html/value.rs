//! Formats the numbers of an HTML report. Each number has a text for the reader, its exact value for programs, and its
//! ratio to the baseline.
use super::escape::escaped;
use mailrun_text::numbers::count;

pub(super) fn data(value: f64, text: &str) -> String {
    if !value.is_finite() {
        return escaped(text);
    }
    format!("<data value=\"{value}\">{}</data>", escaped(text))
}

pub(super) fn compared(value: f64, text: &str, baseline: Option<f64>) -> String {
    let ratio = baseline.and_then(|other| ratio(value, other));
    let ratio = ratio.map_or_else(String::new, |text| format!(" <small class=\"ratio\">{}</small>", escaped(&text)));
    format!("{}{ratio}", data(value, text))
}

/// Formats a ratio, for example `1.08×`. Returns `None` if a value is not finite, or if the ratio would be negative.
fn ratio(value: f64, other: f64) -> Option<String> {
    if !value.is_finite() || !other.is_finite() {
        return None;
    }
    if other == 0.0 {
        return Some(if value == 0.0 { "1.00×" } else { "was 0" }.to_owned());
    }
    Some(match value / other {
        ratio if ratio < 0.0 => return None,
        ratio if ratio < 0.005 => "< 0.01×".to_owned(),
        ratio if ratio < 9.995 => format!("{ratio:.2}×"),
        ratio if ratio < 999.5 => format!("{ratio:.0}×"),
        ratio => format!("{}×", count(ratio as u64)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_stands_beside_its_number() {
        assert_eq!(compared(1.5, "1.50", None), "<data value=\"1.5\">1.50</data>");
        assert!(compared(1.08, "1.08 ms", Some(1.0)).ends_with("<small class=\"ratio\">1.08×</small>"));
        let rows = [(0.0, 0.0, "1.00×"), (3.0, 0.0, "was 0"), (1.0, 1e9, "< 0.01×"), (5e6, 1.0, "5,000,000×")];
        for (value, other, text) in rows {
            assert_eq!(ratio(value, other).as_deref(), Some(text));
        }
        assert_eq!(compared(f64::NAN, "–", Some(1.0)), "–");
        assert!(compared(1.0, "1", Some(1e9)).contains(">&lt; 0.01×<"));
    }
}
