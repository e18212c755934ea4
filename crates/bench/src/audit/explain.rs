//! `mailrun audit explain` says which parts of a message a power cut destroyed although the server had answered 250,
//! and which system call would have kept the message.
use super::fault::AuditFault;
use super::losses::{LogState, RoundLosses};
use super::restart::restart;
use super::story::{self, Asked, Gap, Story};
use anyhow::{Context, Result, anyhow, bail, ensure};
use mailrun_measurement::ledger::Ledger;
use mailrun_measurement::missing::MAX_MISSING;
use mailrun_measurement::record::{AuditLoss, Record, Role};
use mailrun_measurement::trace::RunId;
use mailrun_text::numbers::{count, counted};
use mailrun_text::printable::printable;
use mailrun_text::table::{Align, Table, plain, right};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of file system calls that the explanation of a message lists. Some servers rename the file of a
/// message at each attempt to deliver it, so a message that was retried for a long time has many calls.
const MAX_LINES: usize = 60;
const LIST_WIDTH: usize = 120;

struct LossyRound {
    place: PathBuf,
    losses: RoundLosses,
}

/// Explains why `message` was lost in the audit or in the round whose directory is `run`. Without a message, lists all
/// lost messages. With `restarts`, also starts the server again on the files that the power cut left.
///
/// # Errors
/// Fails if `run` is not the directory of an audit, if the audit has no such message, or if a file in the directory
/// cannot be read.
pub fn explain(run: &Path, message: Option<u64>, restarts: bool) -> Result<String> {
    let rounds = rounds(run)?;
    let Some(message) = message else { return Ok(list(run, &rounds)) };
    let lost_in: Vec<(&LossyRound, &AuditLoss)> = rounds
        .iter()
        .flat_map(|round| round.losses.losses.iter().map(move |loss| (round, loss)))
        .filter(|(_, loss)| loss.message == message)
        .collect();
    match &lost_in[..] {
        [] => not_lost(run, &rounds, message),
        [(round, loss)] => explain_loss(round, loss, restarts),
        several => {
            let places = several.iter().map(|(round, _)| format!("\n  {}", shown(&round.place)));
            bail!("message {message} was lost in several rounds; name one of them:{}", places.collect::<String>())
        }
    }
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Reads the losses in `run`, which is the directory of an audit, or of a single round with losses.
fn rounds(run: &Path) -> Result<Vec<LossyRound>> {
    ensure!(run.is_dir(), "there is no directory {}", shown(run));
    let round = |place: PathBuf| Ok(RoundLosses::read(&place)?.map(|losses| LossyRound { place, losses }));
    if let Some(round) = round(run.to_owned())? {
        return Ok(vec![round]);
    }
    let path = run.join("run.json");
    let json = fs::read(&path)
        .with_context(|| format!("{} is not the directory of an audit or of its round with losses", shown(run)))?;
    let record = Record::from_json(&json).with_context(|| format!("cannot read {}", shown(&path)))?;
    let audit = record.audit.with_context(|| format!("{} is not the run of an audit", shown(run)))?;
    let entries = fs::read_dir(run).with_context(|| format!("cannot read {}", shown(run)))?;
    let mut places: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    places.sort();
    let found: Result<Vec<Option<LossyRound>>> = places.into_iter().map(round).collect();
    // Skip rounds of an older audit, which may be in the same directory if the user chose it with --out.
    let is_own = |round: &LossyRound| audit.lossy_rounds.contains(&round.losses.run_id);
    let mut found: Vec<LossyRound> = found?.into_iter().flatten().filter(is_own).collect();
    found.sort_by_key(|round| round.losses.losses.first().map(|loss| loss.round));
    Ok(found)
}

fn list(run: &Path, rounds: &[LossyRound]) -> String {
    let columns =
        [("round", Align::Left), right("message"), right("answered at"), right("fault at"), ("reply", Align::Left)];
    let mut table = Table::new(columns);
    for round in rounds {
        let name = round.place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for loss in &round.losses.losses {
            let answered = loss.answered_s.map_or_else(|| "–".to_owned(), time_text);
            let reply = loss.reply.as_deref().map_or_else(|| "–".to_owned(), plain);
            table.row(vec![plain(&name), count(loss.message), answered, time_text(loss.fault_s), reply]);
        }
    }
    let Some((round, loss)) = rounds.iter().find_map(|round| Some((round, round.losses.losses.first()?))) else {
        return format!("{} has no round with lost mail.\n", shown(run));
    };
    format!(
        "{}\n\nThe story of one: mailrun audit explain {} {}\n",
        table.terminal(LIST_WIDTH),
        shown(&round.place),
        loss.message
    )
}

/// Says why there is nothing to explain, for example because `message` arrived or was never answered 250.
fn not_lost(run: &Path, rounds: &[LossyRound], message: u64) -> Result<String> {
    let [round] = rounds else {
        let lost: usize = rounds.iter().map(|round| round.losses.losses.len()).sum();
        return Ok(format!(
            "Message {message} is not listed as lost in any round. Listed: {}. The list: mailrun audit explain {}\n",
            counted(lost as u64, "message"),
            shown(run)
        ));
    };
    let sent = round.losses.sent;
    ensure!(message < sent, "there is no message {message}: the round sent {}, from 0 on", count(sent));
    let units = |role: Role| {
        let path = round.place.join(format!("{}.ledger", role.name()));
        let file = File::open(&path).with_context(|| format!("cannot read {}", shown(&path)))?;
        let [units, bounced, _] =
            Ledger::read_arrivals(BufReader::new(file)).with_context(|| format!("cannot read {}", shown(&path)))?;
        Ok::<_, anyhow::Error>([units, bounced].map(|units| units.units_of(message)))
    };
    let [answered, _] = units(Role::Source)?;
    Ok(format!("Message {message} {}.\n", unlisted_fate(answered, units(Role::Sink)?)))
}

/// Says what became of a message that is not listed as lost. `answered` is the number of its recipients for which the
/// server answered 250. `arrived` and `bounced` count the recipients for which the sink saw the message or a bounce.
fn unlisted_fate(answered: u32, [arrived, bounced]: [u32; 2]) -> String {
    match (answered, arrived) {
        (0, 0) => "was not answered 250, so the server did not promise to keep it".to_owned(),
        (0, _) => "arrived, although the source saw no 250 for it".to_owned(),
        _ if arrived >= answered => "is not lost: it was answered 250, and it arrived".to_owned(),
        _ if bounced > 0 => {
            "is not lost: it was answered 250, and the server gave it back with a notification".to_owned()
        }
        _ => format!(
            "was answered 250 and did not arrive, but the round lists only its first {}",
            count(MAX_MISSING as u64)
        ),
    }
}

fn time_text(seconds: f64) -> String {
    format!("{seconds:.6} s")
}

fn explain_loss(round: &LossyRound, loss: &AuditLoss, restarts: bool) -> Result<String> {
    let losses = &round.losses;
    let mut text = format!("Message {} of round {} ({}) did not arrive.\n\n", loss.message, loss.round, losses.fault);
    let mut line = |name: &str, value: &str| _ = writeln!(text, "  {name:<10} {}", printable(value));
    line("reply", loss.reply.as_deref().unwrap_or("unknown"));
    line("answered", &loss.answered_s.map_or_else(|| "at an unknown time".to_owned(), time_text));
    line("fault", &time_text(loss.fault_s));
    match &losses.log {
        LogState::None => {
            text.push_str("\nThe fault was no power cut, so there is no log of the calls on the disk. ");
            if losses.fault.parse().is_ok_and(AuditFault::needs_disk) {
                text.push_str("The disk was in memory and is gone.\n");
            } else {
                _ = writeln!(text, "What the server had kept is in\n{}", shown(&round.place.join("relay.spool")));
            }
            return Ok(text);
        }
        LogState::Lost(reason) => {
            _ = writeln!(
                text,
                "\nThe calls on the disk are not known: their log was given up, because {reason}. Send fewer messages \
                               (--messages)."
            );
            return Ok(text);
        }
        LogState::Kept => {}
    }
    let origin = Duration::from_nanos(losses.origin_ns);
    let answered = loss.answered_s.map(|seconds| Duration::try_from_secs_f64(seconds).map(|after| origin + after));
    let asked = Asked {
        run: losses.run_id.parse::<RunId>().map_err(|error| anyhow!("{}: {error}", shown(&round.place)))?,
        message: loss.message,
        reply: loss.reply.clone(),
        answered: answered.transpose().context("the time of the answer is none")?,
    };
    let stored = losses.calls(&round.place)?;
    let story =
        story::tell(&stored, &asked).with_context(|| format!("cannot repeat the calls in {}", shown(&round.place)))?;
    write_story(&mut text, &story, origin);
    if let Some(cut) = story.cut.filter(|_| restarts) {
        text.push_str(&restart(losses, &round.place, &stored, (cut, &story.concerned), loss.message)?);
    }
    Ok(text)
}

fn write_story(text: &mut String, story: &Story, origin: Duration) {
    if let Some(id) = &story.queue_id {
        _ = writeln!(text, "  {:<10} {}", "queue id", printable(id));
    }
    text.push_str("\nCalls on the disk that concern it:\n");
    for event in story.events.iter().take(MAX_LINES) {
        let at = event.at.as_secs_f64() - origin.as_secs_f64();
        _ = writeln!(text, "  {:>12}  {}", time_text(at), printable(&event.text));
    }
    if let Some(more @ 1..) = story.events.len().checked_sub(MAX_LINES) {
        _ = writeln!(text, "  and {more} more");
    }
    let mut list = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            _ = writeln!(text, "\n{title}");
            lines.iter().for_each(|line| _ = writeln!(text, "  {}", printable(line)));
        }
    };
    list("Not durable when the 250 came:", story.gaps.iter().flatten().map(Gap::words).collect());
    list("After the power cut:", story.left.clone());
    list("Missing:", story.gaps.iter().flatten().map(|gap| format!("{}.", gap.sentence())).collect());
    if let Some(remark) = remark(story) {
        _ = writeln!(text, "\n{remark}");
    }
}

/// Returns a remark if missing fsync calls do not explain the loss, for example if no file held the message, or if the
/// power was not cut after the 250.
fn remark(story: &Story) -> Option<&'static str> {
    let has_gaps = story.gaps.as_ref().map(|gaps| !gaps.is_empty());
    match (story.was_written, has_gaps, story.was_kept) {
        (false, ..) => Some(
            "No file below the state directory held the trace of the message: it was answered 250 before it was written,\nor the \
             server keeps it in a form that hides the trace.",
        ),
        _ if story.cut.is_none() => Some("The power was not cut after the 250."),
        (_, None, _) => None,
        (_, Some(true), false) if story.was_text_kept => Some(
            "The file with the text of the message is as it was. If the server does not need the other files, it lost the \
             message\nlater, or still has it.",
        ),
        (_, Some(true), false) => None,
        (_, Some(true), true) => Some("The power cut left it all the same. The server lost it later, or still has it."),
        (_, Some(false), true) => Some(
            "All that we found of it was durable when the 250 came, and there after the power cut. The server lost it later,\nstill \
             has it, or needs a file that we did not find, because it has neither the message nor its queue id.",
        ),
        (_, Some(false), false) => Some(
            "All that we found of it was durable when the 250 came. It was changed or removed before the power was cut.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_answered_after_the_last_power_cut_was_not_destroyed_by_it() {
        let story = Story { was_written: true, gaps: Some(Vec::new()), ..Story::default() };
        assert_eq!(remark(&story), Some("The power was not cut after the 250."));
    }

    #[test]
    fn a_loss_that_no_list_has_room_for_is_still_a_loss() {
        for (answered, arrived, bounced, expected) in [
            (0, 0, 0, "was not answered 250"),
            (0, 1, 0, "arrived, although"),
            (1, 1, 0, "is not lost: it was answered 250, and it arrived"),
            (1, 0, 1, "is not lost: it was answered 250, and the server gave it back"),
            (1, 0, 0, "did not arrive, but the round lists only its first 1,000"),
            (2, 1, 0, "did not arrive, but the round lists only its first 1,000"),
        ] {
            let text = unlisted_fate(answered, [arrived, bounced]);
            assert!(text.contains(expected), "{answered} {arrived} {bounced}: {text}");
        }
    }
}
