//! Tests the recipe's queue command in a round without a fault. An audit calls missing mail lost only if the command
//! says that the queue is empty, so the command must not say so while the server still holds mail.
use super::round::{QUEUE_POLL, Round, SETTLE};
use crate::gather;
use crate::parties::PartyCommand;
use crate::supervisor::Supervisor;
use anyhow::{Result, anyhow};
use mailrun_measurement::record::Role;
use mailrun_process::interrupt::{Interrupted, StopRequest};
use std::time::{Duration, Instant};

/// Maximum time that the trial waits for the server to retry the deferred mail. If the server waits longer, the trial
/// ends without a complaint, and does not test whether the command notices an empty queue.
const RETRY_LIMIT: Duration = Duration::from_secs(4);
/// After all mail has arrived, the command must say within this time that the queue is empty.
const EMPTY_LIMIT: Duration = Duration::from_secs(4);

/// Judges the answers of the recipe's queue command, one after another.
#[derive(Debug, Default)]
struct QueueTrial {
    /// Time when the queue command began to answer "empty", although some mail had not arrived yet. Any other answer
    /// resets the field to `None`, but a failure of the command does not.
    empty_since: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finding {
    /// Although some mail had not arrived, the queue command answered "empty" for half a second (`SETTLE`).
    HidesMail,
    /// All mail has arrived, and the command says that the queue is empty.
    Sound,
}

impl QueueTrial {
    /// Checks an answer of the queue command against the mail that has arrived. `is_empty` is what the command says, or
    /// `None` if it failed. `is_held` is set if some mail has not arrived yet. Arrivals are reported late, so a single
    /// answer "empty" while mail seems to be missing proves nothing.
    fn answer(&mut self, at: Duration, is_empty: Option<bool>, is_held: bool) -> Option<Finding> {
        let since = is_empty?.then(|| self.empty_since.unwrap_or(at));
        self.empty_since = since.filter(|_| is_held);
        match since {
            Some(_) if !is_held => Some(Finding::Sound),
            Some(since) if at.saturating_sub(since) >= SETTLE => Some(Finding::HidesMail),
            _ => None,
        }
    }
}

impl Round<'_> {
    /// Tests the recipe's command that tells whether the server's queue is empty, in a round without a fault. Returns a
    /// defect of the command, or `None` if no defect was found or the recipe has no such command.
    ///
    /// # Errors
    /// Fails if the server does not start or does not stay up, or if the user interrupts the trial.
    pub(super) fn try_queue(&self) -> Result<Option<&'static str>> {
        let (ground, mut supervisor) = self.start(None)?;
        if !self.options.recipe.knows_its_queue() {
            return Ok(None);
        }
        let bench = self.bench();
        let source = PartyCommand::source(self.program, &bench, ground.run, self.directory, &ground.target);
        supervisor.follow_source(source)?.map_or(Ok(()), Err)?;
        let accepted = gather::accepted_messages(&gather::read_party(self.directory, Role::Source)?.record);
        if accepted == 0 {
            return Ok(None);
        }
        let (mut trial, began) = (QueueTrial::default(), Instant::now());
        let mut complete_at: Option<Instant> = None;
        loop {
            self.pause(&mut supervisor)?;
            let is_empty = self.options.recipe.is_queue_empty(&ground.places);
            let is_held = supervisor.settled() < accepted;
            match trial.answer(began.elapsed(), is_empty, is_held) {
                Some(Finding::Sound) => return Ok(None),
                Some(Finding::HidesMail) => {
                    return Ok(Some("says that the queue is empty while mail waits for the next attempt"));
                }
                None => {}
            }
            if is_held && began.elapsed() > RETRY_LIMIT {
                return Ok(None);
            }
            complete_at = complete_at.filter(|_| !is_held).or_else(|| (!is_held).then(Instant::now));
            if complete_at.is_some_and(|since| since.elapsed() > EMPTY_LIMIT) {
                return Ok(Some("does not say that the queue is empty after all mail has arrived"));
            }
        }
    }

    /// Waits for `QUEUE_POLL` before the queue command is run again. Fails if the user interrupts the trial or if the
    /// server ends.
    fn pause(&self, supervisor: &mut Supervisor) -> Result<()> {
        let began = Instant::now();
        while began.elapsed() < QUEUE_POLL {
            supervisor.process_events();
        }
        if supervisor.asked() != StopRequest::Nothing {
            return Err(anyhow!(Interrupted::BEFORE_LOAD));
        }
        supervisor.ensure_relay_alive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_must_show_mail_that_is_held_back_and_an_empty_queue_afterwards() {
        let (empty, full, failed) = (Some(true), Some(false), None);
        for (answers, expected) in [
            (&[(0, full, true), (250, full, true), (500, empty, false)][..], Some(Finding::Sound)),
            (&[(0, empty, true), (250, empty, true), (500, empty, true)], Some(Finding::HidesMail)),
            (&[(0, empty, true), (250, failed, true), (500, empty, true)], Some(Finding::HidesMail)),
            // The first answer "empty" was right: all mail had already arrived, but the sink reported this later.
            (&[(0, empty, true), (250, empty, false)], Some(Finding::Sound)),
            // A single answer "empty" does not show that the command hides mail, because mail that is being delivered
            // may be in no queue for a moment.
            (&[(0, empty, true), (250, full, true), (500, empty, true)], None),
            (&[(0, full, true), (250, full, false), (500, full, false)], None),
        ] {
            let mut trial = QueueTrial::default();
            let findings = answers
                .iter()
                .map(|(at, is_empty, is_held)| trial.answer(Duration::from_millis(*at), *is_empty, *is_held));
            assert_eq!(findings.last().flatten(), expected, "{answers:?}");
        }
    }
}
