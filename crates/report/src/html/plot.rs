//! Draws curves and points as inline SVG, which needs no scripts and can be printed.
//!
//! A wider page stretches a drawing, but must not stretch the text of its labels. The lines are therefore in an inner
//! SVG view that is stretched, and the labels in an outer view, with positions in per cent.
use super::escape::escaped;

const VIEW: f64 = 1_000.0;
const TOP: u32 = 10;
const BELOW: u32 = 26;
/// Points of a scatter plot are moved to a grid with this spacing, in thousandths of the width or height. Points at the
/// same place are drawn only once.
const DOT_GRID: i64 = 8;
const MAX_DECADES: i32 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CurveStyle {
    pub(super) colour: &'static str,
    /// Lengths of dashes and gaps in turn, as in SVG's `stroke-dasharray`. Empty for a solid line.
    pub(super) dashes: &'static [u32],
}

impl CurveStyle {
    pub(super) const fn new(colour: &'static str, dashes: &'static [u32]) -> Self {
        Self { colour, dashes }
    }

    /// Dashed style of the baseline's curves, which lie behind the curves of the run.
    pub(super) const GHOST: Self = Self::new("ghost", &[4, 4]);

    fn attributes(self) -> String {
        let dashes: Vec<String> = self.dashes.iter().map(u32::to_string).collect();
        let dashes = match dashes.as_slice() {
            [] => String::new(),
            dashes => format!(" stroke-dasharray=\"{}\"", dashes.join(" ")),
        };
        format!("class=\"k {}\"{dashes}", self.colour)
    }
}

#[derive(Clone, Debug)]
pub(super) struct PlotScale {
    least: f64,
    most: f64,
    is_log: bool,
    labels: Vec<(f64, String)>,
}

impl PlotScale {
    /// Returns a scale from zero to a round value of at least `max`, with labels at round values.
    pub(super) fn linear(max: f64, label: impl Fn(f64) -> String) -> Self {
        let max = if max.is_finite() && max > 0.0 { max } else { 1.0 };
        let step = round_step(max / 4.0);
        let steps = (max / step).ceil().clamp(1.0, 10.0);
        let labels = (0..=steps as u32).map(|at| f64::from(at) * step).map(|value| (value, label(value))).collect();
        Self { least: 0.0, most: steps * step, is_log: false, labels }
    }

    pub(super) fn labelled(least: f64, most: f64, labels: Vec<(f64, String)>) -> Self {
        let most = if most > least { most } else { least + 1.0 };
        Self { least, most, is_log: false, labels }
    }

    /// Returns a scale from a round value below `min` to a round value above `max`. The scale need not contain zero.
    pub(super) fn between(min: f64, max: f64, label: impl Fn(f64) -> String) -> Self {
        let span = (max - min).max(min.abs().max(max.abs()) * 1e-3).clamp(f64::MIN_POSITIVE, 1e18);
        let step = round_step(span / 3.0);
        let first = (min / step).floor();
        let steps = ((max / step).ceil() - first).clamp(1.0, 10.0);
        let labels = (0..=steps as u32).map(|at| (first + f64::from(at)) * step).map(|value| (value, label(value)));
        Self { least: first * step, most: (first + steps) * step, is_log: false, labels: labels.collect() }
    }

    /// Returns a logarithmic scale of whole decades that contains the positive values. If they span more than
    /// `MAX_DECADES`, the scale contains the largest. Zero and negative values have no place on a logarithmic scale.
    pub(super) fn log(values: impl Iterator<Item = f64>, label: impl Fn(f64) -> String) -> Self {
        let positive: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
        let min = positive.iter().copied().reduce(f64::min).unwrap_or(1.0);
        let max = positive.iter().copied().reduce(f64::max).unwrap_or(10.0);
        let last = (max.log10().ceil() as i32).clamp(-12, 18);
        let first = (min.log10().floor() as i32).clamp(last - MAX_DECADES, last - 1);
        let every = if last - first > 6 { 2 } else { 1 };
        let decades = (first..=last).filter(|decade| (last - decade) % every == 0);
        let labels = decades.map(|decade| 10_f64.powi(decade)).map(|value| (value, label(value))).collect();
        Self { least: 10_f64.powi(first), most: 10_f64.powi(last), is_log: true, labels }
    }

    /// Returns the position of a value on the scale, from 0 to 1. Values outside the scale are at its ends.
    fn place(&self, value: f64) -> f64 {
        let along = if self.is_log {
            (value.max(self.least) / self.least).log10() / (self.most / self.least).log10()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        if along.is_finite() { along.clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Rounds the distance between two labels up to the next number of the series 1, 2, 5, 10, 20, 50 and so on.
fn round_step(step: f64) -> f64 {
    let decade = 10_f64.powf(step.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0];
    factors.into_iter().map(|factor| factor * decade).find(|round| *round >= step * 0.999_999).unwrap_or(decade * 10.0)
}

/// Draws a plot: the shapes, horizontal lines at the values of the vertical scale, and the labels of both scales.
/// `label` describes the plot for screen readers.
pub(super) fn plot(label: &str, height: u32, x: &PlotScale, y: &PlotScale, shapes: &str) -> String {
    let mut lines = String::new();
    let mut labels = String::new();
    for (value, text) in &y.labels {
        let at = 1.0 - y.place(*value);
        lines.push_str(&format!("M0 {:.0}h1000", at * VIEW));
        labels.push_str(&format!(
            "<text x=\"-8\" y=\"{:.1}%\" dy=\".35em\" class=\"y\">{}</text>",
            at * 100.0,
            escaped(text)
        ));
    }
    for (value, text) in &x.labels {
        let at = x.place(*value);
        let end = if at > 0.97 { " class=\"e\"" } else { "" };
        labels.push_str(&format!(
            "<text x=\"{:.1}%\" y=\"100%\" dy=\"1.5em\"{end}>{}</text>",
            at * 100.0,
            escaped(text)
        ));
    }
    format!(
        "<svg class=\"plot\" role=\"img\" aria-label=\"{}\" width=\"100%\" height=\"{}\">\
         <svg y=\"{TOP}\" width=\"100%\" height=\"{height}\" overflow=\"visible\">\
         <svg width=\"100%\" height=\"100%\" viewBox=\"0 0 1000 1000\" preserveAspectRatio=\"none\" overflow=\"visible\">\
         <path class=\"grid\" d=\"{lines}\"/>{shapes}</svg>{labels}</svg></svg>",
        escaped(label),
        height + TOP + BELOW
    )
}

/// Draws a line through the points. NaN interrupts the line.
pub(super) fn curve(
    points: impl Iterator<Item = (f64, f64)>,
    x: &PlotScale,
    y: &PlotScale,
    style: CurveStyle,
) -> String {
    let mut path = String::new();
    let mut last: Option<(i64, i64)> = None;
    for (at, value) in points {
        if !value.is_finite() || !at.is_finite() {
            last = None;
            continue;
        }
        let here = position(at, value, x, y);
        match last {
            None => path.push_str(&format!("M{} {}h0", here.0, here.1)),
            Some(before) if before == here => {}
            Some(before) => path.push_str(&format!("l{} {}", here.0 - before.0, here.1 - before.1)),
        }
        last = Some(here);
    }
    path_element(&path, style)
}

/// Draws a curve in steps: the line stays at each value until the next point. NaN interrupts the line.
pub(super) fn steps(
    points: impl Iterator<Item = (f64, f64)>,
    x: &PlotScale,
    y: &PlotScale,
    style: CurveStyle,
) -> String {
    let mut path = String::new();
    let mut last: Option<(i64, i64)> = None;
    for (at, value) in points {
        let here = position(at, value, x, y);
        if let Some((across, _)) = last {
            path.push_str(&format!("h{}", here.0 - across));
        }
        let is_known = value.is_finite() && at.is_finite();
        match last {
            _ if !is_known => {}
            None => path.push_str(&format!("M{} {}", here.0, here.1)),
            Some((_, down)) if down == here.1 => {}
            Some((_, down)) => path.push_str(&format!("v{}", here.1 - down)),
        }
        last = is_known.then_some(here);
    }
    path_element(&path, style)
}

fn path_element(path: &str, style: CurveStyle) -> String {
    if path.is_empty() { String::new() } else { format!("<path {} d=\"{path}\"/>", style.attributes()) }
}

/// Draws points. Points so close together that a reader could not tell them apart are drawn as one.
pub(super) fn dots(points: impl Iterator<Item = (f64, f64)>, x: &PlotScale, y: &PlotScale, colour: &str) -> String {
    let near = |place: i64| place / DOT_GRID * DOT_GRID;
    let mut places: Vec<(i64, i64)> =
        points.map(|(at, value)| position(at, value, x, y)).map(|(across, down)| (near(across), near(down))).collect();
    places.sort_unstable();
    places.dedup();
    let marks: String = places.iter().map(|(at, value)| format!("M{at} {value}h0")).collect();
    format!("<path class=\"k dots {}\" d=\"{marks}\"/>", escaped(colour))
}

/// Draws a rectangle over the whole height, for example for a period in which the server accepted nothing.
pub(super) fn shade(from: f64, to: f64, x: &PlotScale) -> String {
    let left = x.place(from) * VIEW;
    let width = (x.place(to) * VIEW - left).max(2.0);
    format!("<rect class=\"stall\" x=\"{left:.0}\" y=\"0\" width=\"{width:.0}\" height=\"1000\"/>")
}

/// Draws a vertical line, for example at the time of an event.
pub(super) fn mark(at: f64, x: &PlotScale) -> String {
    format!("<path class=\"event\" d=\"M{:.0} 0v1000\"/>", x.place(at) * VIEW)
}

fn position(at: f64, value: f64, x: &PlotScale, y: &PlotScale) -> (i64, i64) {
    ((x.place(at) * VIEW).round() as i64, ((1.0 - y.place(value)) * VIEW).round() as i64)
}

pub(super) fn legend<'a>(rows: impl Iterator<Item = (&'a str, CurveStyle)>) -> String {
    let row = |(name, style): (&str, CurveStyle)| {
        format!(
            "<li><svg width=\"28\" height=\"10\" aria-hidden=\"true\"><path {} d=\"M1 5h26\"/></svg> {}</li>",
            style.attributes(),
            escaped(name)
        )
    };
    format!("<ul class=\"legend\">{}</ul>", rows.map(row).collect::<String>())
}

pub(super) fn dot_legend<'a>(rows: impl Iterator<Item = (&'a str, &'static str)>) -> String {
    let row = |(name, colour): (&str, &str)| {
        format!(
            "<li><svg width=\"14\" height=\"10\" aria-hidden=\"true\"><path class=\"k dots {colour}\" d=\"M7 5h0\"/></svg> {}</li>",
            escaped(name)
        )
    };
    format!("<ul class=\"legend\">{}</ul>", rows.map(row).collect::<String>())
}

/// Draws a horizontal bar between `from` and `to`, which are shares of the width.
pub(super) fn bar(from: f64, to: f64, colour: &str) -> String {
    let limits = [from, to].map(|share| if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 });
    let width = ((limits[1] - limits[0]) * VIEW).max(4.0);
    let left = (limits[0] * VIEW).min(VIEW - 4.0);
    format!("<path class=\"f {}\" d=\"M{left:.0} 0h{width:.0}v10h-{width:.0}\"/>", escaped(colour))
}

/// Draws a rectangle, such as a confidence interval, in a bar of a table. `from` and `to` are shares of the bar's
/// width. `top` and `bottom` are distances from its upper edge, in tenths of its height.
pub(super) fn band(from: f64, to: f64, (top, bottom): (u32, u32), colour: &str) -> String {
    let [from, to] = [from, to].map(|share| if share.is_finite() { share.clamp(0.0, 1.0) * VIEW } else { 0.0 });
    let width = (to - from).max(2.0);
    let height = bottom.saturating_sub(top);
    format!("<path class=\"f {}\" d=\"M{from:.0} {top}h{width:.0}v{height}h-{width:.0}\"/>", escaped(colour))
}

pub(super) fn bars(parts: &str) -> String {
    format!(
        "<svg class=\"bar\" viewBox=\"0 0 1000 10\" preserveAspectRatio=\"none\" aria-hidden=\"true\">{parts}</svg>"
    )
}

/// Formats a time for a label, for example `100 µs`, `2 ms` or `10 s`.
pub(super) fn time_label(milliseconds: f64) -> String {
    match milliseconds {
        ms if ms < 0.999 => format!("{} µs", short(ms * 1e3)),
        ms if ms < 999.0 => format!("{} ms", short(ms)),
        ms => format!("{} s", short(ms / 1e3)),
    }
}

/// Formats a number for a label, for example `0.5`, `20k` or `3M`.
pub(super) fn number_label(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{}G", short(v / 1e9)),
        v if v >= 1e6 => format!("{}M", short(v / 1e6)),
        v if v >= 1e4 => format!("{}k", short(v / 1e3)),
        v => short(v),
    }
}

/// Formats elapsed time for a label, for example `45 s`, `2:30` or `1:00:00`.
pub(super) fn clock_label(seconds: f64) -> String {
    if seconds < 120.0 {
        return format!("{} s", short(seconds));
    }
    let whole = seconds.min(1e12).round() as u64;
    let hours = whole / 3_600;
    let minutes = whole / 60 % 60;
    let rest = whole % 60;
    if hours > 0 { format!("{hours}:{minutes:02}:{rest:02}") } else { format!("{minutes}:{rest:02}") }
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_labels() {
        let texts = |scale: &PlotScale| scale.labels.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
        assert_eq!(texts(&PlotScale::linear(55_000.0, number_label)), ["0", "20k", "40k", "60k"]);
        assert_eq!(texts(&PlotScale::linear(0.0, number_label)), ["0", "0.5", "1"]);
        let times = PlotScale::log([0.4, 30.0].into_iter(), time_label);
        assert_eq!(texts(&times), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        assert!((times.place(1.0) - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(clock_label(90.0), "90 s");
        assert_eq!(clock_label(3_661.0), "1:01:01");
    }

    #[test]
    fn no_value_leaves_the_drawing() {
        for value in [f64::NAN, f64::INFINITY, -1.0, 0.0, 1e300, 5e-324] {
            for scale in [PlotScale::linear(value, number_label), PlotScale::log([value].into_iter(), time_label)] {
                assert!((0.0..=1.0).contains(&scale.place(value)), "{value}");
                assert!(scale.labels.len() <= 14, "{value}");
            }
        }
    }

    #[test]
    fn a_band_is_as_wide_as_its_share_and_never_too_narrow_to_see() {
        for (to, drawn) in [(0.3, "M100 2h200v6h-200"), (0.1, "M100 2h2v6h-2")] {
            let text = band(0.1, to, (2, 8), "colour");
            assert!(text.contains(drawn), "{text}");
        }
    }

    #[test]
    fn a_step_holds_its_value_until_the_next_one() {
        let scale = PlotScale::linear(4.0, number_label);
        let points = [(0.0, 1.0), (1.0, 3.0), (2.0, f64::NAN), (3.0, 2.0), (4.0, 2.0)];
        let text = steps(points.into_iter(), &scale, &scale, CurveStyle::GHOST);
        assert!(text.contains("d=\"M0 750h250v-500h250M750 500h250\""), "{text}");
    }

    #[test]
    fn a_gap_interrupts_the_line() {
        let scale = PlotScale::linear(4.0, number_label);
        let points = [(0.0, 1.0), (1.0, 1.0), (2.0, f64::NAN), (3.0, 2.0)];
        let text = curve(points.into_iter(), &scale, &scale, CurveStyle::GHOST);
        assert_eq!(text.matches('M').count(), 2, "{text}");
        assert!(text.contains("stroke-dasharray=\"4 4\""), "{text}");
    }
}
