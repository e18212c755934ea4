//! Session behaviour under rules: the effect of rules on each command, and on the reading of its message. Pure except
//! for the memory that rules share: the time and the session's number are arguments.
//!
//! Chance is a function of the seed, the rule's place, and either the session's number and the count of that command in
//! the session, or, for a message that is dropped or counted twice, the message's own number. So the same seed does the
//! same to the same sessions and messages, however their commands are interleaved with those of others.
use super::control::{Armed, Memory, Ruleset, lock};
use super::policies::{Domain, Sips, Triplet, tarpit};
use super::rules::{Action, Command, directed};
use smtp::{Path, Reply};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// A session's own state for rules; it exists as soon as rules are evaluated for the session.
#[derive(Debug)]
pub(super) struct Conduct {
    /// The session's number.
    number: u64,
    /// Number of times that it has sent each command.
    said: [u32; Command::ALL.len()],
    /// Commands of any kind.
    commands: u32,
    sender: Vec<u8>,
    roll: Roll,
    /// Places that the open transaction holds under domain caps.
    seats: Seats,
    manners: Option<Box<Manners>>,
}

/// The command or message that rules are evaluated for.
#[derive(Debug)]
pub(super) struct Moment<'a> {
    pub(super) command: Command,
    pub(super) client: IpAddr,
    /// The sender at MAIL, the recipient at RCPT, and at the end of the message if rules are evaluated for each
    /// recipient.
    pub(super) address: Option<Path<'a>>,
    /// The message's own number, if it has a trace.
    pub(super) sequence: Option<u64>,
    pub(super) now: Duration,
    /// Time since the first connection.
    pub(super) since: Duration,
}

/// Decision of the rules.
#[derive(Debug)]
pub(super) struct Judgement {
    /// Least time before the answer.
    pub(super) delay: Duration,
    pub(super) deed: Deed,
    /// The rule that decided; `None` if none did.
    pub(super) by: Option<Arc<Armed>>,
}

/// The effect on a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Deed {
    /// Answered as without rules.
    Grant,
    Refuse(Reply),
    HangUp(Option<Reply>),
    Reset,
    /// The message counts and gets no answer.
    LoseReply,
    /// The message is answered and does not count.
    Drop,
    /// The message counts twice.
    Duplicate,
}

/// The rules for reading the next message.
#[derive(Debug, Default)]
struct Manners {
    sips: Option<Sips>,
    /// Reset (RST) at that byte.
    reset: Option<(u64, Arc<Armed>)>,
    /// Time after which reading stops, with the reply and the rule.
    abort: Option<(Duration, Reply, Arc<Armed>)>,
    octets: u64,
}

/// The session's next read.
#[derive(Debug)]
pub(super) enum Bite {
    All,
    AtMost(usize),
    NotBefore(Duration),
    /// Reading ends.
    Over(Deed, Arc<Armed>),
}

/// The recipients of a transaction, stored if a rule is evaluated for each of them at the end of the message.
#[derive(Debug, Default)]
struct Roll {
    octets: Vec<u8>,
    /// End of each address; an empty one was accepted before there was such a rule.
    ends: Vec<usize>,
}

impl Roll {
    fn enter(&mut self, place: usize, recipient: &Path<'_>) {
        while self.ends.len() < place {
            self.ends.push(self.octets.len());
        }
        self.octets.extend_from_slice(recipient.as_bytes());
        self.ends.push(self.octets.len());
    }

    fn recipient(&self, place: usize) -> Option<Path<'_>> {
        let from = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        let mailbox = self.octets.get(from..*self.ends.get(place)?)?;
        Path::mailbox(mailbox).ok().filter(|path| !path.is_null())
    }
}

/// A transaction's places under domain caps, which are released when it is over.
#[derive(Debug, Default)]
pub(super) struct Seats(Vec<(Arc<Armed>, Domain)>);

impl Conduct {
    pub(super) fn new(number: u64) -> Self {
        let said = [0; Command::ALL.len()];
        let commands = 0;
        let sender = Vec::new();
        let roll = Roll::default();
        let seats = Seats::default();
        Self { number, said, commands, sender, roll, seats, manners: None }
    }

    /// Decides a command by the rules: they are evaluated in their order, delays add up, and the first that refuses or
    /// cuts decides.
    pub(super) fn judge(&mut self, rules: &Ruleset, moment: &Moment<'_>) -> Judgement {
        let nth = self.said[moment.command as usize];
        let judgement = self.weigh(rules, moment, &Draw { seed: rules.seed, session: self.number, nth, recipient: 0 });
        self.said[moment.command as usize] += 1;
        self.commands += 1;
        if let (Command::Mail, Deed::Grant, Some(sender)) = (moment.command, &judgement.deed, moment.address) {
            self.sender.clear();
            self.sender.extend_from_slice(sender.as_bytes());
        }
        judgement
    }

    /// Decides the recipient in that place, from 0, of a message whose end has been decided.
    pub(super) fn judge_recipient(&mut self, rules: &Ruleset, moment: &Moment<'_>, place: usize) -> Judgement {
        let roll = std::mem::take(&mut self.roll);
        let nth = self.said[moment.command as usize].saturating_sub(1);
        let draw = Draw { seed: rules.seed, session: self.number, nth, recipient: place as u64 + 1 };
        let judgement = self.weigh(rules, &Moment { address: roll.recipient(place), ..*moment }, &draw);
        self.roll = roll;
        judgement
    }

    /// Adds a recipient to the transaction, in that place.
    pub(super) fn enter_recipient(&mut self, place: usize, recipient: &Path<'_>) {
        self.roll.enter(place, recipient);
    }

    fn weigh(&mut self, rules: &Ruleset, moment: &Moment<'_>, draw: &Draw) -> Judgement {
        let mut judgement = Judgement { delay: Duration::ZERO, deed: Deed::Grant, by: None };
        let seats = self.seats.0.len();
        let is_asked = |armed: &&Arc<Armed>| {
            let rule = &armed.rule;
            rule.commands.contain(moment.command) && rule.is_for_each_recipient() == (draw.recipient > 0)
        };
        for armed in rules.rules.iter().filter(is_asked) {
            if !armed.rule.is_about(moment.address.as_ref()) || !draw.hits(armed, moment.sequence) {
                continue;
            }
            let delay = self.delay(armed, moment, draw);
            if !delay.is_zero() {
                armed.act();
                judgement.delay += delay;
            }
            if let Some(deed) = self.deed(armed, moment) {
                armed.act();
                self.seats.leave(seats);
                judgement.deed = deed;
                judgement.by = Some(Arc::clone(armed));
                break;
            }
        }
        judgement
    }

    /// Time for which a rule delays the answer.
    fn delay(&self, armed: &Armed, moment: &Moment<'_>, draw: &Draw) -> Duration {
        match armed.rule.action {
            Action::Delay { from, to } if from == to => from,
            Action::Delay { from, to } => from + (to - from).mul_f64(draw.fraction(armed.place | 1 << 40)),
            Action::Tarpit { step, most } => tarpit(step, most, self.commands),
            Action::Stall { at, length } if (at..at.saturating_add(length)).contains(&moment.since) => {
                at + length - moment.since
            }
            _ => Duration::ZERO,
        }
    }

    /// The effect of a rule on the command, if it has any.
    fn deed(&mut self, armed: &Arc<Armed>, moment: &Moment<'_>) -> Option<Deed> {
        match &armed.rule.action {
            Action::HangUp(last_word) => Some(Deed::HangUp(last_word.clone())),
            Action::Reject(reply) => Some(Deed::Refuse(reply.clone())),
            Action::Reset => Some(Deed::Reset),
            Action::LoseReply => Some(Deed::LoseReply),
            Action::Drop => Some(Deed::Drop),
            Action::Duplicate => Some(Deed::Duplicate),
            Action::Directed => moment.address.and_then(|address| directed(address.local_part())).map(Deed::Refuse),
            Action::Limit { reply, .. } | Action::Greylist { reply, .. } | Action::DomainCap { reply, .. } => {
                (!self.passes(armed, moment)).then(|| Deed::Refuse(reply.clone()))
            }
            Action::Read { .. } | Action::ResetAt { .. } | Action::Abort { .. } => {
                self.read_with(armed, moment.now);
                None
            }
            Action::Delay { .. } | Action::Stall { .. } | Action::Tarpit { .. } | Action::Corrupt => None,
        }
    }

    /// Reports whether a policy accepts the command.
    fn passes(&mut self, armed: &Arc<Armed>, moment: &Moment<'_>) -> bool {
        let recipient = moment.address.as_ref();
        match &*armed.memory {
            Memory::Nothing => true,
            Memory::Bucket(bucket) => lock(bucket).take(moment.now),
            Memory::Greylist(list) => {
                let recipient = recipient.map_or(&[][..], Path::as_bytes);
                lock(list).passes(Triplet { client: moment.client, sender: &self.sender, recipient }, moment.now)
            }
            Memory::Domains(domains) => {
                let mut domains = lock(domains);
                let domain = domains.named(recipient.and_then(Path::domain).unwrap_or_default());
                if self
                    .seats
                    .0
                    .iter()
                    .any(|(holder, seat)| Arc::ptr_eq(&holder.memory, &armed.memory) && *seat == domain)
                {
                    return true;
                }
                let has_room = domains.enter(domain);
                if has_room {
                    self.seats.0.push((Arc::clone(armed), domain));
                }
                has_room
            }
        }
    }

    /// Applies a rule to the reading of the next message. The first rule of a kind decides.
    fn read_with(&mut self, armed: &Arc<Armed>, now: Duration) {
        let manners = self.manners.get_or_insert_default();
        match &armed.rule.action {
            Action::Read { octets_per_s } if manners.sips.is_none() => {
                armed.act();
                manners.sips = Some(Sips::new(*octets_per_s, now));
            }
            Action::ResetAt { octets } if manners.reset.is_none() => manners.reset = Some((*octets, Arc::clone(armed))),
            Action::Abort { after, reply } if manners.abort.is_none() => {
                manners.abort = Some((now.saturating_add(*after), reply.clone(), Arc::clone(armed)));
            }
            _ => {}
        }
    }

    /// Reports whether the next message is changed.
    pub(super) fn corrupts(&self, rules: &Ruleset) -> bool {
        let nth = self.said[Command::Data as usize];
        let draw = Draw { seed: rules.seed, session: self.number, nth, recipient: 0 };
        let hit = rules.rules.iter().find(|armed| armed.rule.action == Action::Corrupt && draw.hits(armed, None));
        hit.inspect(|armed| armed.act()).is_some()
    }

    /// Records that this many bytes of the message have been read.
    pub(super) fn read(&mut self, octets: usize, now: impl FnOnce() -> Duration) {
        if let Some(manners) = &mut self.manners {
            manners.octets += octets as u64;
            if let Some(sips) = &mut manners.sips {
                sips.read(octets, now());
            }
        }
    }

    /// The next read.
    pub(super) fn bite(&mut self, now: impl FnOnce() -> Duration) -> Bite {
        let Some(manners) = &mut self.manners else { return Bite::All };
        if let Some((deed, by)) = manners.cut() {
            return Bite::Over(deed, by);
        }
        let now = now();
        if let Some((then, reply, by)) = &manners.abort {
            let over = || Bite::Over(Deed::HangUp(Some(reply.clone())), Arc::clone(by));
            return if now < *then { Bite::NotBefore(*then) } else { over() };
        }
        match manners.sips.as_ref().map(|sips| sips.next(now)) {
            None => Bite::All,
            Some(Ok(most)) => Bite::AtMost(most),
            Some(Err(then)) => Bite::NotBefore(then),
        }
    }

    /// Completes the message; returns an effect if a rule was to cut its reading.
    pub(super) fn whole(&mut self) -> Option<(Deed, Arc<Armed>)> {
        let manners = self.manners.take()?;
        let abort = |(_, reply, by)| (Deed::HangUp(Some(reply)), by);
        manners.cut().or_else(|| manners.abort.map(abort))
    }

    /// Ends the transaction, or begins to answer its message; returns the places that it holds.
    pub(super) fn close(&mut self) -> Seats {
        self.manners = None;
        self.roll = Roll::default();
        std::mem::take(&mut self.seats)
    }
}

impl Manners {
    fn cut(&self) -> Option<(Deed, Arc<Armed>)> {
        let (at, by) = self.reset.as_ref()?;
        (self.octets >= *at).then(|| (Deed::Reset, Arc::clone(by)))
    }
}

impl Seats {
    /// Releases all but the first `kept` places.
    fn leave(&mut self, kept: usize) {
        for (armed, domain) in self.0.drain(kept..) {
            if let Memory::Domains(domains) = &*armed.memory {
                lock(domains).leave(domain);
            }
        }
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        self.leave(0);
    }
}

/// Inputs of a random choice.
struct Draw {
    seed: u64,
    session: u64,
    /// Number of times that the session has sent the command before.
    nth: u32,
    /// The recipient that the rule is evaluated for, from 1; 0 for the whole message.
    recipient: u64,
}

impl Draw {
    /// Reports whether a rule's chance occurs. A message that is dropped or doubled is chosen by its own number, so
    /// that the choice is the same in whatever order messages come; one that is refused is chosen by its place in the
    /// session, so that it may get through when it is sent again.
    fn hits(&self, armed: &Armed, sequence: Option<u64>) -> bool {
        let chance = armed.rule.chance;
        if chance >= 1.0 {
            return true;
        }
        let by_message = sequence.filter(|_| matches!(armed.rule.action, Action::Drop | Action::Duplicate));
        chance > 0.0
            && by_message
                .map_or_else(|| self.fraction(armed.place), |number| self.of(armed.place, number, self.recipient))
                < chance
    }

    fn fraction(&self, place: u64) -> f64 {
        // A session's numbers begin where no message's numbers are.
        self.of(place, self.session | 1 << 63, u64::from(self.nth) | self.recipient << 32)
    }

    /// A number from 0 to 1 that depends on its arguments and the seed only.
    fn of(&self, place: u64, number: u64, nth: u64) -> f64 {
        let mixed = mix(mix(mix(self.seed ^ place.rotate_left(32)) ^ number) ^ nth);
        (mixed >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// SplitMix64's output function (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::super::control::Control;
    use super::super::rulebook::Rulebook;
    use super::super::rules::Rule;
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn control(seed: u64, rules: &[&str]) -> Control {
        let rules = rules.iter().map(|text| Rule::parse(text).unwrap()).collect();
        Control::new(Rulebook { seed: None, rules }, seed)
    }

    fn moment(command: Command) -> Moment<'static> {
        let address = None;
        let sequence = None;
        let now = Duration::ZERO;
        let since = Duration::ZERO;
        Moment { command, client: [127, 0, 0, 1].into(), address, sequence, now, since }
    }

    fn to(address: &str) -> Moment<'_> {
        Moment { address: Some(Path::mailbox(address.as_bytes()).unwrap()), ..moment(Command::Recipient) }
    }

    /// The reply's code, or 0.
    fn code(judgement: &Judgement) -> u16 {
        match &judgement.deed {
            Deed::Refuse(reply) | Deed::HangUp(Some(reply)) => reply.code(),
            _ => 0,
        }
    }

    #[test]
    fn delays_add_up_and_the_first_refusal_decides() {
        let control = control(
            1,
            &[
                "*: delay 10ms",
                "rcpt: delay 5ms",
                "mail: hang up",
                "rcpt: hard reject",
                "rcpt: soft reject",
                "rcpt: delay 1s",
            ],
        );
        let rules = control.in_force().unwrap();
        let mut conduct = Conduct::new(0);
        let judgement = conduct.judge(&rules, &to("a@b"));
        assert_eq!((judgement.delay, code(&judgement)), (MS * 15, 500));
        assert_eq!(judgement.by.unwrap().rule.text(), "rcpt: hard reject");
        let judgement = conduct.judge(&rules, &moment(Command::Noop));
        assert_eq!((judgement.delay, judgement.deed), (MS * 10, Deed::Grant));
        let counts: Vec<u64> = control.deeds().iter().map(|deeds| deeds.count).collect();
        assert_eq!(counts, [2, 1, 0, 1, 0, 0]);
    }

    #[test]
    fn a_tarpit_counts_the_sessions_own_commands() {
        let control = control(1, &["*: tarpit 100ms up to 250ms"]);
        let rules = control.in_force().unwrap();
        let mut conduct = Conduct::new(0);
        let delays = [Command::Connect, Command::Ehlo, Command::Mail, Command::Quit]
            .map(|command| conduct.judge(&rules, &moment(command)).delay);
        assert_eq!(delays, [Duration::ZERO, MS * 100, MS * 200, MS * 250]);
    }

    #[test]
    fn a_stall_holds_what_falls_into_it_until_its_end() {
        let control = control(1, &[".: delay 100ms", ".: stall 2s..3s"]);
        let rules = control.in_force().unwrap();
        let delay = |since| Conduct::new(0).judge(&rules, &Moment { since, ..moment(Command::Dot) }).delay;
        assert_eq!([1000, 2500, 3000].map(|ms| delay(MS * ms)), [MS * 100, MS * 600, MS * 100]);
    }

    #[test]
    fn a_domain_is_held_until_the_transaction_is_over() {
        let control = control(1, &["rcpt: domain cap 1", "rcpt to no@: hard reject"]);
        let rules = control.in_force().unwrap();
        let mut one = Conduct::new(0);
        let mut other = Conduct::new(1);
        assert_eq!(code(&one.judge(&rules, &to("a@x.example"))), 0);
        assert_eq!(code(&one.judge(&rules, &to("b@X.example"))), 0, "its own transaction has the domain already");
        assert_eq!(code(&other.judge(&rules, &to("a@x.example"))), 451);
        assert_eq!(code(&other.judge(&rules, &to("no@y.example"))), 500);
        assert_eq!(code(&one.judge(&rules, &to("a@y.example"))), 0, "a recipient that was refused holds nothing");
        let seats = one.close();
        assert_eq!(code(&other.judge(&rules, &to("a@x.example"))), 451, "held while the message is being answered");
        drop(seats);
        assert_eq!(code(&other.judge(&rules, &to("a@x.example"))), 0);
        drop(other);
        assert_eq!(code(&one.judge(&rules, &to("a@x.example"))), 0, "a session that is gone holds nothing");
    }

    #[test]
    fn a_message_is_cut_at_its_octet_and_not_before() {
        let control = control(1, &["data: reset at 100"]);
        let rules = control.in_force().unwrap();
        let mut conduct = Conduct::new(0);
        assert_eq!(conduct.judge(&rules, &moment(Command::Data)).deed, Deed::Grant);
        conduct.read(99, || MS);
        assert!(matches!(conduct.bite(|| MS), Bite::All));
        assert_eq!(control.deeds()[0].count, 0, "it counts when it acts");
        conduct.read(1, || MS);
        assert!(matches!(conduct.bite(|| MS), Bite::Over(Deed::Reset, _)));
        conduct.close();
        conduct.judge(&rules, &moment(Command::Data));
        conduct.read(99, || MS);
        assert!(conduct.whole().is_none(), "a shorter message is whole");
    }

    #[test]
    fn an_abort_waits_and_speaks() {
        let control = control(1, &["data: abort after 20ms"]);
        let rules = control.in_force().unwrap();
        let mut conduct = Conduct::new(0);
        conduct.judge(&rules, &moment(Command::Data));
        assert!(matches!(conduct.bite(|| MS), Bite::NotBefore(then) if then == MS * 20));
        let Bite::Over(Deed::HangUp(Some(reply)), _) = conduct.bite(|| MS * 20) else { panic!("it is over") };
        assert_eq!(reply.wire(), b"550 This violates SMTP\r\n");
    }

    #[test]
    fn chances_are_as_told_and_repeat_with_the_seed() {
        let outcomes = |seed, rule: &str, traced: bool| -> Vec<bool> {
            let control = control(seed, &[rule]);
            let rules = control.in_force().unwrap();
            (0..20_000_u64)
                .map(|number| {
                    let sequence = traced.then_some(number);
                    let moment = Moment { sequence, ..moment(Command::Dot) };
                    Conduct::new(if traced { 0 } else { number }).judge(&rules, &moment).deed != Deed::Grant
                })
                .collect()
        };
        for (rule, traced) in [(".: drop 0.1", true), (".: soft reject 0.1", false), (".: lose reply 10%", false)] {
            let one = outcomes(1, rule, traced);
            let again = outcomes(1, rule, traced);
            let other = outcomes(2, rule, traced);
            let count = one.iter().filter(|hit| **hit).count();
            assert!((1800..2200).contains(&count), "{rule}: {count}");
            assert!(one == again && one != other, "{rule}");
        }
        assert!(outcomes(1, ".: drop 0", true).iter().all(|hit| !hit));
        assert!(outcomes(1, ".: drop 1", true).iter().all(|hit| *hit));
    }

    #[test]
    fn a_message_is_refused_by_its_place_and_dropped_by_its_number() {
        let deeds = |rule: &str| -> Vec<Deed> {
            let control = control(1, &[rule]);
            let rules = control.in_force().unwrap();
            let mut conduct = Conduct::new(0);
            (0..200)
                .map(|_| conduct.judge(&rules, &Moment { sequence: Some(5), ..moment(Command::Dot) }).deed)
                .collect()
        };
        let refused = deeds(".: soft reject 0.5");
        assert!(refused.contains(&Deed::Grant) && refused.len() > 1, "what is sent again may get through");
        assert!(refused.iter().any(|deed| *deed != Deed::Grant));
        let dropped = deeds(".: drop 0.5");
        assert!(dropped.iter().all(|deed| *deed == dropped[0]), "the same message meets the same fate");
    }

    #[test]
    fn a_recipient_is_asked_for_after_the_dot_by_its_place() {
        let control = control(1, &[". to no@: hard reject", ".: directed", ". to *: delay 5ms", ".: delay 1s"]);
        let rules = control.in_force().unwrap();
        let mut conduct = Conduct::new(0);
        let said = ["a@x", "no@x", "452-b@x"];
        for (place, recipient) in said.iter().enumerate().skip(1) {
            conduct.enter_recipient(place, &Path::mailbox(recipient.as_bytes()).unwrap());
        }
        let whole = conduct.judge(&rules, &moment(Command::Dot));
        assert_eq!((whole.delay, code(&whole)), (MS * 1000, 0), "rules for each recipient are not the message's");
        let mut of = |place| {
            let judgement = conduct.judge_recipient(&rules, &moment(Command::Dot), place);
            (judgement.delay, code(&judgement))
        };
        assert_eq!(of(0), (Duration::ZERO, 0), "taken before there was such a rule");
        assert_eq!([of(1), of(2), of(3)], [(Duration::ZERO, 500), (Duration::ZERO, 452), (Duration::ZERO, 0)]);
        conduct.close();
        conduct.enter_recipient(0, &Path::mailbox(b"a@x").unwrap());
        assert_eq!(conduct.judge_recipient(&rules, &moment(Command::Dot), 0).delay, MS * 5);
    }

    #[test]
    fn each_recipient_has_a_chance_of_its_own() {
        let refused = |rule: &str, seed: u64| -> Vec<bool> {
            let control = control(seed, &[rule]);
            let rules = control.in_force().unwrap();
            let mut conduct = Conduct::new(0);
            (0..1000).for_each(|place| conduct.enter_recipient(place, &Path::mailbox(b"a@x").unwrap()));
            let moment = Moment { sequence: Some(5), ..moment(Command::Dot) };
            conduct.judge(&rules, &moment);
            let mut hit = |place| conduct.judge_recipient(&rules, &moment, place).deed != Deed::Grant;
            (0..1000).map(&mut hit).collect()
        };
        for rule in [". to *: soft reject 0.1", ". to *: drop 10%"] {
            let one = refused(rule, 1);
            let again = refused(rule, 1);
            let other = refused(rule, 2);
            let count = one.iter().filter(|hit| **hit).count();
            assert!((60..140).contains(&count), "{rule}: {count}");
            assert!(one == again && one != other, "{rule}");
        }
    }

    proptest! {
        /// However the commands of sessions are interleaved, the effects on each session are the same.
        #[test]
        fn a_session_meets_the_same_whatever_others_do(
            seed in any::<u64>(), turns in proptest::collection::vec((0..4_usize, 0..11_usize), 1..100)
        ) {
            let texts = ["*: soft reject 0.2", "rcpt, data: delay 1ms..9ms 0.5", "*: hang up 10%"];
            let meet = |order: &[(usize, usize)]| {
                let control = control(seed, &texts);
                let rules = control.in_force().unwrap();
                let mut sessions: Vec<_> = (0..4).map(Conduct::new).collect();
                let mut met = vec![Vec::new(); 4];
                for (session, command) in order {
                    let judgement = sessions[*session].judge(&rules, &moment(Command::ALL[*command].0));
                    met[*session].push((judgement.delay, judgement.deed));
                }
                met
            };
            let mut sorted = turns.clone();
            sorted.sort_by_key(|(session, _)| *session);
            prop_assert_eq!(meet(&turns), meet(&sorted));
        }
    }
}
