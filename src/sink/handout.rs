//! The end of a message whose recipients have different results, because of rules on the dot that are evaluated for
//! each of them.
//!
//! LMTP has a reply for each recipient (RFC 2033 §4.2): each is delayed, refused, counted and answered in its turn.
//! SMTP has one for all of them, so the first recipient that is refused, or ends the session, decides for the whole
//! message, and delays add up; dropping or counting twice applies to each recipient alone there too.
use super::conduct::{Deed, Seats};
use super::dump::Draft;
use super::inbox::{Books, answer};
use journey::Found;
use net::Answer;
use smtp::server::Protocol;
use std::cell::RefCell;
use std::time::Duration;

/// The reply that ends a session after any command (RFC 5321 §3.8).
pub(super) const CLOSING: u16 = 421;

/// The result of a message for a recipient.
#[derive(Debug)]
pub(super) struct Fate {
    pub(super) delay: Duration,
    pub(super) deed: Deed,
}

impl Fate {
    /// Reports whether it is the same as without rules.
    pub(super) fn is_plain(&self) -> bool {
        self.deed == Deed::Grant && self.delay.is_zero()
    }

    /// Reports whether no rules are evaluated for later recipients.
    pub(super) fn ends(&self, protocol: Protocol) -> bool {
        match &self.deed {
            Deed::HangUp(_) | Deed::Reset | Deed::LoseReply => true,
            Deed::Refuse(reply) => protocol == Protocol::Smtp || reply.code() == CLOSING,
            Deed::Grant | Deed::Drop | Deed::Duplicate => false,
        }
    }

    /// Number of times that the recipient counts.
    fn times(&self) -> usize {
        match self.deed {
            Deed::Refuse(_) | Deed::HangUp(_) | Deed::Reset | Deed::Drop => 0,
            Deed::Grant | Deed::LoseReply => 1,
            Deed::Duplicate => 2,
        }
    }
}

/// Combines the fates of a message's recipients into one, and lists the numbers of the recipients that count.
pub(super) fn join(fates: Vec<Fate>, numbers: &mut Vec<u32>) -> Fate {
    let delay = fates.iter().map(|fate| fate.delay).sum();
    if let Some(last) = fates.last().filter(|fate| fate.ends(Protocol::Smtp) && fate.deed != Deed::LoseReply) {
        return Fate { delay, deed: last.deed.clone() };
    }
    let reply = fates.last().filter(|fate| fate.deed == Deed::LoseReply).map_or(Deed::Grant, |_| Deed::LoseReply);
    // Recipients for which no rules were evaluated any more count as without rules.
    let times = fates.iter().map(Fate::times).chain(std::iter::repeat(1));
    *numbers = numbers.iter().zip(times).flat_map(|(number, times)| std::iter::repeat_n(*number, times)).collect();
    Fate { delay, deed: if numbers.is_empty() { Deed::Drop } else { reply } }
}

/// A message in LMTP whose recipients are answered one after the other.
#[derive(Debug)]
pub(super) struct Handout {
    found: Found,
    bytes: u64,
    numbers: Vec<u32>,
    /// Fates, one for each recipient, up to one that ends the session.
    fates: Vec<Fate>,
    holding: RefCell<Holding>,
    /// Places that are held until the last recipient is answered.
    _seats: Seats,
}

/// State of the message so far.
#[derive(Debug)]
enum Holding {
    /// No recipient has it yet: it is neither stored nor counted.
    Due(Option<Draft>),
    Taken,
    /// It could not be stored, so no recipient can have it.
    Lost,
}

impl Handout {
    pub(super) fn new(
        found: Found,
        bytes: u64,
        numbers: Vec<u32>,
        fates: Vec<Fate>,
        mut draft: Option<Draft>,
        seats: Seats,
    ) -> Self {
        if let Some(draft) = &mut draft {
            let mut times = fates.iter().map(Fate::times);
            draft.envelope().recipients.retain(|_| times.next().is_some_and(|times| times > 0));
        }
        Self { found, bytes, numbers, fates, holding: RefCell::new(Holding::Due(draft)), _seats: seats }
    }

    /// Time for which the answer for that recipient is delayed.
    pub(super) fn delay(&self, place: usize) -> Duration {
        self.fates.get(place).map_or(Duration::ZERO, |fate| fate.delay)
    }

    pub(super) fn is_last(&self, place: usize) -> bool {
        place + 1 >= self.fates.len()
    }

    /// Counts the message for that recipient, if the recipient's fate says so, and answers.
    pub(super) fn answer(&self, place: usize, books: &Books, now: Duration) -> Answer {
        let Some((fate, number)) = self.fates.get(place).zip(self.numbers.get(place)) else { return Answer::Yes };
        let numbers = &[*number; 2][..fate.times()];
        books.note_units(&self.found, u64::from(fate.deed == Deed::Drop), u64::from(fate.deed == Deed::Duplicate));
        if !numbers.is_empty()
            && let Err(refusal) = self.count(numbers, books, now)
        {
            return refusal;
        }
        answer(fate.deed.clone())
    }

    fn count(&self, numbers: &[u32], books: &Books, now: Duration) -> Result<(), Answer> {
        let holding = &mut *self.holding.borrow_mut();
        match std::mem::replace(holding, Holding::Lost) {
            Holding::Due(draft) => {
                books.keep(draft)?;
                books.arrive(&self.found, numbers, self.bytes, now, 1);
            }
            Holding::Taken => books.arrive_for(&self.found, numbers, now),
            Holding::Lost => return Err(books.no_room()),
        }
        *holding = Holding::Taken;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smtp::Reply;

    const MS: Duration = Duration::from_millis(1);

    fn joined(deeds: &[Deed]) -> (Duration, Deed, Vec<u32>) {
        let mut numbers = vec![7, 8, 9];
        let fates = deeds.iter().map(|deed| Fate { delay: MS, deed: deed.clone() }).collect();
        let Fate { delay, deed } = join(fates, &mut numbers);
        (delay, deed, numbers)
    }

    #[test]
    fn one_reply_stands_for_all_recipients() {
        let refusal = || Deed::Refuse(Reply::new(550, "5.0.0 no"));
        assert_eq!(joined(&[Deed::Grant, refusal()]).1, refusal());
        assert_eq!(joined(&[Deed::Drop, Deed::HangUp(None)]).1, Deed::HangUp(None));
        assert_eq!(joined(&[Deed::Grant, Deed::Drop, Deed::Grant]), (MS * 3, Deed::Grant, vec![7, 9]));
        assert_eq!(joined(&[Deed::Duplicate, Deed::Drop, Deed::Grant]), (MS * 3, Deed::Grant, vec![7, 7, 9]));
        assert_eq!(joined(&[Deed::Drop, Deed::LoseReply]), (MS * 2, Deed::LoseReply, vec![8, 9]));
        assert_eq!(joined(&[Deed::Drop, Deed::Drop, Deed::Drop]), (MS * 3, Deed::Drop, vec![]));
    }

    #[test]
    fn who_is_asked_last_depends_on_the_protocol() {
        let ends = |deed: Deed| {
            [Protocol::Smtp, Protocol::Lmtp].map(|protocol| Fate { delay: MS, deed: deed.clone() }.ends(protocol))
        };
        assert_eq!(ends(Deed::Refuse(Reply::new(550, "5.0.0 no"))), [true, false]);
        assert_eq!(ends(Deed::Refuse(Reply::new(421, "4.0.0 no"))), [true; 2]);
        assert_eq!(ends(Deed::HangUp(None)), [true; 2]);
        assert_eq!(ends(Deed::Duplicate), [false; 2]);
    }
}
