//! The HTML page of a capacity search: the goals, a plot of latency against offered rate, the loads that longer trials
//! checked, and the plan. The page has no scripts.
use super::escape::{escaped, isolated};
use super::plot::{self, CurveStyle, PlotScale};
use super::tables::PagePart;
use super::{document, tables, verdict};
use crate::capacity::{CapacityRun, judged, rate_of, word};
use crate::headline::Headline;
use crate::workload::quoted;
use mailrun_capacity::TrialOutcome;
use mailrun_measurement::record::Outcome;
use mailrun_text::numbers::{counted, seconds};

const HEIGHT: u32 = 240;
/// The rate axis ends at this multiple of the highest rate, so that no point is at the edge of the plot.
const MARGIN: f64 = 1.05;

#[derive(Clone, Copy, PartialEq, Eq)]
enum TrialKind {
    Good,
    Bad,
    Void,
}

const KINDS: [(TrialKind, &str, &str); 3] = [
    (TrialKind::Good, "good trial", "delivered"),
    (TrialKind::Bad, "bad trial", "failed"),
    (TrialKind::Void, "void trial", "ghost"),
];
const LIMIT: CurveStyle = CurveStyle::new("queued", &[6, 4]);
const OFFERED: CurveStyle = CurveStyle::new("created", &[2, 4]);

struct KneePoint {
    kind: TrialKind,
    offered_per_s: f64,
    delivered_per_s: f64,
    p99_ms: Option<f64>,
}

pub fn capacity_page(run: &CapacityRun) -> String {
    let parts = [Some(goals(run)), knee(run), confirmation(run), plan(run), Some(subject(run))];
    let parts: Vec<PagePart> = parts.into_iter().flatten().collect();
    document::plain_page("Capacity", &top(run), &parts)
}

fn top(run: &CapacityRun) -> String {
    let (outcome, sentence) = judged(run);
    let headline = Headline::Judged(outcome.unwrap_or(Outcome::Inconclusive));
    let (class, stamp) = verdict::stamp(headline, outcome.map_or("INTERRUPTED", word));
    format!(
        "<header class=\"top {class}\"><p class=\"eyebrow\">mailrun {} · capacity</p><h1>{}</h1>\
         <p class=\"verdict\">{stamp} <span class=\"why\">{}</span></p><p class=\"counts\">{} · {}, {}</p>{}</header>",
        env!("CARGO_PKG_VERSION"),
        isolated(&run.directory.file_name().unwrap_or_default().to_string_lossy()),
        isolated(&sentence),
        isolated(run.facts.first().map_or("", |(_, server)| server)),
        counted(run.trials.len() as u64, "trial"),
        escaped(&seconds(run.result.spent_s)),
        verdict::remark_list(&run.remarks),
    )
}

fn goals(run: &CapacityRun) -> PagePart {
    let body = format!(
        "{}<p class=\"note\">The lower bound is the highest rate that met the goal, the upper bound the lowest one that did \
         not; the throughput is what got through at the lower bound.</p>",
        tables::table("Goals", &run.goal_table(), None, None)
    );
    PagePart { id: "goals", title: "Goals", body }
}

/// Draws the latency and the delivered rate of each trial against its offered rate. Returns `None` if no trial had a
/// fixed rate.
fn knee(run: &CapacityRun) -> Option<PagePart> {
    let points = points(run);
    if points.is_empty() {
        return None;
    }
    let highest = points.iter().map(|point| point.offered_per_s).fold(0.0, f64::max);
    let x = PlotScale::linear(highest * MARGIN, plot::number_label);
    let kinds = KINDS.map(|(_, name, colour)| (name, CurveStyle::new(colour, &[])));
    let legend = plot::legend(kinds.into_iter().chain([("limit of a goal", LIMIT), ("delivered = offered", OFFERED)]));
    let marked = run.capacity_per_s().map_or("", |_| "; the upright line is the capacity");
    let stage = run.timed_stage().map_or_else(String::new, |stage| format!("Times are those to {stage}. "));
    let body = format!(
        "{legend}<figure class=\"panel\"><figcaption>p99 <span>against messages offered per second</span></figcaption>{}</figure>\
         <figure class=\"panel\"><figcaption>delivered per second <span>against messages offered per second</span></figcaption>\
         {}</figure>{}<p class=\"note\">{stage}A point is a trial{marked}.</p>",
        times(run, &points, &x),
        delivered(run, &points, &x),
        tables::table("Trials by offered rate", &run.knee_table(), None, None),
    );
    Some(PagePart { id: "knee", title: "Knee", body })
}

fn points(run: &CapacityRun) -> Vec<KneePoint> {
    let confirmed = run.confirmation.iter().map(|load| &load.trial);
    let point = |trial| {
        let offered_per_s = rate_of(trial)?;
        let kind = match (run.is_good(trial), &trial.judged.outcome) {
            (Some(true), _) => TrialKind::Good,
            (Some(false), _) | (None, TrialOutcome::MailLost) => TrialKind::Bad,
            (None, _) => TrialKind::Void,
        };
        let p99_ms = trial.judged.latency_ms.map(|times| times.p99);
        Some(KneePoint { kind, offered_per_s, delivered_per_s: trial.judged.delivered_per_s, p99_ms })
    };
    run.trials.iter().chain(confirmed).filter_map(point).collect()
}

fn times(run: &CapacityRun, points: &[KneePoint], x: &PlotScale) -> String {
    let limits: Vec<f64> = run.goals.iter().filter_map(|goal| Some(goal.limit()?.as_secs_f64() * 1e3)).collect();
    let y =
        PlotScale::log(points.iter().filter_map(|point| point.p99_ms).chain(limits.iter().copied()), plot::time_label);
    let mut shapes = capacity_mark(run, x);
    for limit in limits {
        shapes.push_str(&plot::curve([(0.0, limit), (f64::MAX, limit)].into_iter(), x, &y, LIMIT));
    }
    for (kind, _, colour) in KINDS {
        let own = points.iter().filter(|point| point.kind == kind);
        let own = own.filter_map(|point| Some((point.offered_per_s, point.p99_ms?)));
        shapes.push_str(&plot::dots(own, x, &y, colour));
    }
    plot::plot(
        "99th percentile of each trial against the offered rate; the table below has the medians",
        HEIGHT,
        x,
        &y,
        &shapes,
    )
}

fn delivered(run: &CapacityRun, points: &[KneePoint], x: &PlotScale) -> String {
    let highest = points.iter().map(|point| point.delivered_per_s.max(point.offered_per_s)).fold(0.0, f64::max);
    let y = PlotScale::linear(highest * MARGIN, plot::number_label);
    let mut shapes = capacity_mark(run, x);
    shapes.push_str(&plot::curve([(0.0, 0.0), (highest, highest)].into_iter(), x, &y, OFFERED));
    for (kind, _, colour) in KINDS {
        let own = points.iter().filter(|point| point.kind == kind);
        shapes.push_str(&plot::dots(own.map(|point| (point.offered_per_s, point.delivered_per_s)), x, &y, colour));
    }
    plot::plot(
        "delivered rate of each trial against the offered rate; the table below has the medians",
        HEIGHT,
        x,
        &y,
        &shapes,
    )
}

fn capacity_mark(run: &CapacityRun, x: &PlotScale) -> String {
    run.capacity_per_s().map_or_else(String::new, |per_s| plot::mark(per_s, x))
}

fn confirmation(run: &CapacityRun) -> Option<PagePart> {
    if run.confirmation.is_empty() {
        return None;
    }
    let resources = run.confirmation.iter().filter(|load| load.share > 0.9);
    let line = |load: &crate::capacity::ConfirmedLoad| {
        format!("<dt>at {:.0} %</dt><dd>{}</dd>", load.share * 100.0, isolated(&load.resources))
    };
    let body = format!(
        "{}<dl>{}</dl>",
        tables::table("Confirmation", &run.compliance_table(), None, None),
        resources.map(line).collect::<String>()
    );
    Some(PagePart { id: "confirmation", title: "Confirmation", body })
}

fn plan(run: &CapacityRun) -> Option<PagePart> {
    let line = run.plan_line()?;
    Some(PagePart { id: "plan", title: "Plan", body: format!("<p>{}</p>", isolated(&line)) })
}

/// Returns the part of the page that lets a reader repeat the capacity search: the server, the load, the host and the
/// command.
fn subject(run: &CapacityRun) -> PagePart {
    let command = ("command", quoted(&run.command));
    let facts = run.facts.iter().cloned().chain([command]);
    let fact = |(name, value): (&str, String)| format!("<dt>{name}</dt><dd>{}</dd>", isolated(&value));
    PagePart {
        id: "subject",
        title: "Server and load",
        body: format!("<dl>{}</dl>", facts.map(fact).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::check_balance;
    use super::*;
    use crate::sample_capacity::{missed, search as run};

    #[test]
    fn the_page_is_whole_and_says_what_was_found() {
        let page = capacity_page(&run("fine"));
        assert_eq!(check_balance(&page), Ok(()));
        for text in [
            "</span> CAPACITY</strong>",
            "1,000/s, confirmed at 80 and 100 %",
            "Knee",
            "5 instances",
            "class=\"event\"",
            "<dt>server</dt><dd><bdi>127.0.0.1:40001, SMTP, no TLS</bdi></dd>",
            "<dt>command</dt><dd><bdi>mailrun capacity fine</bdi></dd>",
            "messages of 400 B",
            "<dt>host</dt>",
            "<bdi>found</bdi>",
        ] {
            assert!(page.contains(text), "{text}");
        }
        assert!(!page.contains("<script") && !page.contains("NaN"));
    }

    #[test]
    fn hostile_texts_are_harmless() {
        let page = capacity_page(&run("<img src=x onerror=alert(1)>\u{202e}"));
        assert_eq!(check_balance(&page), Ok(()));
        assert!(!page.contains("<img") && !page.contains("<b>run") && !page.contains('\u{202e}'));
    }

    #[test]
    fn a_search_without_a_capacity_has_a_page_too() {
        let page = capacity_page(&missed());
        assert_eq!(check_balance(&page), Ok(()));
        assert!(page.contains("</span> FAIL</strong>") && !page.contains("id=\"knee\""), "{page}");
    }
}
