//! The HTML page that compares runs. It shows the verdict and the confidence interval of each figure, each run as a
//! point, and the curves of all sides in one plot. The page has no scripts.
use super::escape::{escaped, isolated};
use super::over_time::time_scale;
use super::percentiles::{self, PercentileCurve};
use super::plot::{self, CurveStyle, PlotScale};
use super::tables::{self, BarColumn, PagePart};
use super::time_axis::TimeAxis;
use super::{document, verdict};
use crate::comparison::{ComparedFigure, ComparedSide, ComparisonPage, MetricVerdict};
use crate::headline::Headline;
use mailrun_measurement::Latencies;
use mailrun_text::numbers::median;
use std::collections::BTreeSet;

const DRAWN_POINTS: usize = 160;
const HEIGHT: u32 = 190;
const RUNS_HEIGHT: u32 = 110;
/// Maximum number of runs of a side that are drawn as separate curves. The curve of the side's median is computed from
/// all runs, including the runs that are not drawn.
const MAX_THIN_CURVES: usize = 12;
const MAX_REMARKS: usize = 20;
const MAX_SIDES: usize = 6;
const MAX_FIGURES: usize = 60;
/// Natural logarithm of 4. The drawings of confidence intervals show ratios from 1/4 to 4. Ratios outside this range
/// are drawn at the edge.
const MAX_LOG_RATIO: f64 = 1.386;

struct SideStyle {
    median: CurveStyle,
    single: CurveStyle,
}

const STYLES: [SideStyle; MAX_SIDES] = [
    SideStyle { median: CurveStyle::new("created", &[7, 4]), single: CurveStyle::new("created thin", &[]) },
    SideStyle { median: CurveStyle::new("accepted", &[]), single: CurveStyle::new("accepted thin", &[]) },
    SideStyle { median: CurveStyle::new("queued", &[2, 3]), single: CurveStyle::new("queued thin", &[]) },
    SideStyle { median: CurveStyle::new("delivered", &[10, 3]), single: CurveStyle::new("delivered thin", &[]) },
    SideStyle { median: CurveStyle::new("sent", &[8, 2, 2, 2]), single: CurveStyle::new("sent thin", &[]) },
    SideStyle { median: CurveStyle::new("failed", &[1, 3]), single: CurveStyle::new("failed thin", &[]) },
];

pub fn comparison_page(page: &ComparisonPage) -> String {
    let parts = [Some(figures(page)), runs(page), latency(page), rates(page), sides(page), method(page)];
    let parts: Vec<PagePart> = parts.into_iter().flatten().collect();
    document::plain_page(&page.title, &top(page), &parts)
}

fn top(page: &ComparisonPage) -> String {
    let (headline, word) = match &page.outcome {
        Some((outcome, _)) => {
            let headline = Headline::Judged(*outcome);
            (headline, headline.name())
        }
        None => (Headline::Received, "COMPARED"),
    };
    let (class, stamp) = verdict::stamp(headline, word);
    let summary = page.summary();
    let sentence = page.outcome.as_ref().map_or(&summary, |(_, sentence)| sentence);
    let below = if page.outcome.is_some() { summary.as_str() } else { "" };
    let refusals = page.refused.iter().map(|line| format!("Refused: {line}"));
    let mut remarks: Vec<String> = refusals.chain(page.remarks.iter().cloned()).collect();
    if let Some(more) = remarks.len().checked_sub(MAX_REMARKS + 1) {
        remarks.truncate(MAX_REMARKS);
        remarks.push(format!("And {} more.", more + 1));
    }
    format!(
        "<header class=\"top {class}\"><p class=\"eyebrow\">mailrun {} · comparison</p><h1>{}</h1>\
         <p class=\"verdict\">{stamp} <span class=\"why\">{}</span></p><p class=\"counts\">{}</p>{}</header>",
        env!("CARGO_PKG_VERSION"),
        isolated(&page.title),
        isolated(sentence),
        escaped(below),
        verdict::remark_list(&remarks),
    )
}

fn figures(page: &ComparisonPage) -> PagePart {
    let shown = ComparisonPage { figures: page.figures.iter().take(MAX_FIGURES).cloned().collect(), ..page.clone() };
    let ends = shown.figures.iter().flat_map(|figure| figure.interval).flat_map(|(lower, upper)| [lower, upper]);
    let ratios = ends.chain(shown.figures.iter().map(|figure| figure.ratio)).chain([1.0 + page.margin * 1.5]);
    let sizes = ratios.map(|ratio| ratio.ln().abs()).filter(|size| size.is_finite());
    let reach = sizes.fold(0.02, f64::max).min(MAX_LOG_RATIO);
    let bars = BarColumn {
        title: "ratio: less ← 1 → more",
        cells: shown.figures.iter().map(|figure| interval_bar(figure, page.margin, reach)).collect(),
    };
    let table = tables::table("Figures", &shown.table(), None, Some(&bars));
    let scale = format!(
        "The bars are the intervals of the ratio, on a scale from {:.3} to {:.3}; the grey band is the margin, within which \
         two figures count as the same.",
        (-reach).exp(),
        reach.exp()
    );
    PagePart { id: "figures", title: "Figures", body: format!("{table}<p class=\"note\">{scale}</p>") }
}

/// Draws a ratio and its confidence interval. A band behind them shows the margin within which two figures count as the
/// same.
fn interval_bar(figure: &ComparedFigure, margin: f64, reach: f64) -> String {
    let place = |ratio: f64| {
        let log = ratio.max(f64::MIN_POSITIVE).ln();
        if log.is_nan() { 0.5 } else { (log / reach).clamp(-1.0, 1.0) / 2.0 + 0.5 }
    };
    let colour = match figure.verdict {
        MetricVerdict::Better => "delivered",
        MetricVerdict::Worse => "failed",
        MetricVerdict::Same => "teal",
        MetricVerdict::Undecided { .. } | MetricVerdict::TooFew => "created",
    };
    let mut shapes = plot::band(place(1.0 / (1.0 + margin)), place(1.0 + margin), (0, 10), "margin");
    if let Some((lower, upper)) = figure.interval {
        shapes.push_str(&plot::band(place(lower), place(upper), (3, 7), colour));
    }
    if figure.ratio.is_finite() {
        let at = place(figure.ratio);
        shapes.push_str(&plot::band(at - 0.004, at + 0.004, (0, 10), colour));
    }
    shapes.push_str(&plot::band(0.499, 0.501, (0, 10), "axis"));
    plot::bars(&shapes)
}

fn runs(page: &ComparisonPage) -> Option<PagePart> {
    let mut drawn: Vec<String> = Vec::new();
    for (place, figure) in page.figures.iter().take(MAX_FIGURES).enumerate() {
        // Draw only one plot for each metric. Each candidate has an entry of its own in `figures`, but the first plot
        // already shows all candidates.
        if page.figures[..place].iter().any(|other| other.name == figure.name) {
            continue;
        }
        let same_figures = page.figures.iter().filter(|other| other.name == figure.name && other.side < STYLES.len());
        let mut values: Vec<(usize, &[f64])> = vec![(0, &figure.reference_values)];
        values.extend(same_figures.map(|figure| (figure.side, figure.values.as_slice())));
        drawn.extend(values_figure(page, &figure.name, &values));
    }
    let names = page.sides.iter().zip(&STYLES).map(|(side, style)| (side.name.as_str(), style.median.colour));
    let body = format!("{}<div class=\"panels small\">{}</div>", plot::dot_legend(names), drawn.concat());
    let title = if page.is_paired { "Each round" } else { "Each run" };
    (!drawn.is_empty()).then_some(PagePart { id: "runs", title, body })
}

fn values_figure(page: &ComparisonPage, name: &str, sides: &[(usize, &[f64])]) -> Option<String> {
    let numbers = || sides.iter().flat_map(|(_, values)| values.iter().copied()).filter(|value| value.is_finite());
    let min = numbers().reduce(f64::min)?;
    let max = numbers().reduce(f64::max)?;
    let longest = sides.iter().map(|(_, values)| values.len()).max().unwrap_or_default().max(2);
    let x = PlotScale::labelled(1.0, longest as f64, [1, longest].map(|at| (at as f64, at.to_string())).to_vec());
    let y = PlotScale::between(min, max, plot::number_label);
    let draw = |(side, values): &(usize, &[f64])| {
        let points = values.iter().enumerate().map(|(at, value)| ((at + 1) as f64, *value));
        plot::dots(points.filter(|(_, value)| value.is_finite()), &x, &y, STYLES[*side].median.colour)
    };
    let shapes: String = sides.iter().map(draw).collect();
    let label = format!("{name} in each {}", page.noun());
    Some(format!(
        "<figure class=\"panel\"><figcaption>{}</figcaption>{}</figure>",
        isolated(name),
        plot::plot(&label, RUNS_HEIGHT, &x, &y, &shapes)
    ))
}

fn latency(page: &ComparisonPage) -> Option<PagePart> {
    let mut curves = Vec::new();
    let mut medians = Vec::new();
    for (side, style) in page.sides.iter().zip(&STYLES) {
        let times: Vec<&Latencies> = side.runs.iter().filter_map(|run| run.latencies.as_ref()).collect();
        let points = |times: &&Latencies| {
            percentiles::histogram_points(times, percentiles::last_place(times.count()))
                .into_iter()
                .filter(|(_, ms)| *ms > 0.0)
                .collect::<Vec<_>>()
        };
        let all: Vec<Vec<(f64, f64)>> = times.iter().map(points).collect();
        let shortest = all.iter().map(Vec::len).min().unwrap_or_default();
        let at = |place: usize| {
            Some((all.first()?.get(place)?.0, median(all.iter().map(|points| points[place].1).collect())?))
        };
        let median: Vec<(f64, f64)> = (0..shortest).filter_map(at).collect();
        let curve = |points, style| PercentileCurve { name: side.name.clone(), style, points };
        if all.len() > 1 {
            curves.extend(all.iter().take(MAX_THIN_CURVES).map(|points| curve(points.clone(), style.single)));
        }
        if !median.is_empty() {
            medians.push(curve(median, style.median));
        }
    }
    if medians.is_empty() {
        return None;
    }
    curves.extend(medians);
    let label = "Latency by percentile of each side, both scales logarithmic.";
    let body = format!("{}{}", percentiles::figure(label, &curves, &legend(page)), note(page));
    Some(PagePart { id: "percentiles", title: "Latency by percentile", body })
}

fn rates(page: &ComparisonPage) -> Option<PagePart> {
    let of_runs = || page.sides.iter().zip(&STYLES).flat_map(|(side, _)| side.runs.iter());
    let seconds: BTreeSet<u64> = of_runs().flat_map(|run| run.rates.iter().map(|(second, _)| *second)).collect();
    if seconds.len() < 2 {
        return None;
    }
    let axis = TimeAxis::new(seconds.iter().copied(), DRAWN_POINTS);
    let times = axis.times();
    let rates = of_runs().flat_map(|run| run.rates.iter().map(|(_, rate)| *rate)).filter(|rate| rate.is_finite());
    let x = time_scale(times.last().copied().unwrap_or_default());
    let y = PlotScale::linear(rates.fold(0.0, f64::max), plot::number_label);
    let mut behind = String::new();
    let mut before = String::new();
    for (side, style) in page.sides.iter().zip(&STYLES) {
        let rows: Vec<Vec<f64>> = side
            .runs
            .iter()
            .filter(|run| !run.rates.is_empty())
            .map(|run| axis.values(run.rates.iter().copied()))
            .collect();
        let draw =
            |values: &[f64], style| plot::steps(times.iter().copied().zip(values.iter().copied()), &x, &y, style);
        if rows.len() > 1 {
            behind.extend(rows.iter().take(MAX_THIN_CURVES).map(|values| draw(values, style.single)));
        }
        let median: Vec<f64> = (0..times.len())
            .map(|at| {
                let finite = rows.iter().map(|values| values[at]).filter(|value| value.is_finite());
                median(finite.collect()).unwrap_or(f64::NAN)
            })
            .collect();
        before.push_str(&draw(&median, style.median));
    }
    let drawing = plot::plot("Messages per second over time of each side.", HEIGHT, &x, &y, &(behind + &before));
    let body = format!("<figure class=\"panel\">{drawing}{}</figure>{}", legend(page), note(page));
    Some(PagePart { id: "time", title: "Messages per second over time", body })
}

fn legend(page: &ComparisonPage) -> String {
    plot::legend(page.sides.iter().zip(&STYLES).map(|(side, style)| (side.name.as_str(), style.median)))
}

fn note(page: &ComparisonPage) -> String {
    let noun = page.noun();
    format!(
        "<p class=\"note\">Thick: the median over all {noun}s of a side. Thin: single {noun}s, at most {MAX_THIN_CURVES} of each.</p>"
    )
}

fn sides(page: &ComparisonPage) -> Option<PagePart> {
    let side = |side: &ComparedSide| {
        let facts: String = side
            .facts
            .iter()
            .map(|(name, fact)| format!("<dt>{}</dt><dd>{}</dd>", escaped(name), isolated(fact)))
            .collect();
        format!("<h3>{}</h3><dl>{facts}</dl>", isolated(&side.name))
    };
    let with_facts = || page.sides.iter().filter(|side| !side.facts.is_empty());
    let body: String = with_facts().map(side).collect();
    (!body.is_empty()).then_some(PagePart { id: "sides", title: "Sides", body })
}

fn method(page: &ComparisonPage) -> Option<PagePart> {
    let rows: String = page.method.iter().map(|text| format!("<li>{}</li>", escaped(text))).collect();
    (!rows.is_empty()).then(|| PagePart { id: "method", title: "Method", body: format!("<ul>{rows}</ul>") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_comparison;

    #[test]
    fn each_part_is_there_and_nothing_runs() {
        for (name, page) in sample_comparison::comparisons() {
            let text = comparison_page(&page);
            assert_eq!(super::super::tests::check_balance(&text), Ok(()), "{name}");
            for id in ["figures", "runs", "percentiles", "time", "sides", "method"] {
                assert!(text.contains(&format!("<section id=\"{id}\"")), "{name}: {id}");
            }
            assert!(!text.contains("<script") && !text.contains("<img") && !text.contains("script-src"), "{name}");
            assert!(!text.contains("NaN") || name == "compared-hostile", "{name}");
            assert!(text.len() < 300_000, "{name}: {} bytes", text.len());
        }
    }

    #[test]
    fn verdicts_stand_in_words_with_their_intervals() {
        let text = comparison_page(&sample_comparison::of_runs());
        for words in
            ["0.781 to 0.822", "undecided: about 18 more runs a side", "Left out: after/4: 3 lost", "FAIL</strong>"]
        {
            assert!(text.contains(words), "{words}");
        }
        let rounds = comparison_page(&sample_comparison::of_rounds());
        assert!(rounds.contains("COMPARED</strong>") && rounds.contains("<bdi>go-smtp-source</bdi>"));
    }

    #[test]
    fn an_interval_stays_in_its_drawing() {
        let mut figure = sample_comparison::of_runs().figures.remove(0);
        for ratio in [f64::NAN, 0.0, -1.0, 1e300, f64::INFINITY] {
            figure.ratio = ratio;
            figure.interval = Some((ratio, ratio));
            let drawn = interval_bar(&figure, 0.02, 0.3);
            assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{ratio}: {drawn}");
        }
    }

    #[test]
    fn nothing_at_all_has_a_page() {
        let text = comparison_page(&ComparisonPage::default());
        assert!(text.contains("Nothing could be compared."));
        assert_eq!(super::super::tests::check_balance(&text), Ok(()));
    }
}
