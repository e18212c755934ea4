//! The language of rules: the faults of a sink, the commands that they apply to, and their frequency. Text in, rules
//! out; no state.
//!
//! ```text
//! rule     = command *( [","] command ) [ "to" pattern / "from" pattern ] ":" action [ chance ]
//!            "to" is for RCPT, and for ".": then the rule is evaluated for each recipient
//! command  = CONNECT / HELO / EHLO / LHLO / MAIL / RCPT / DATA / "." / RSET / NOOP / VRFY / QUIT / "*"
//! pattern  = local@domain / @domain / local@ / "*"
//! chance   = 0.01 / 1%                                     without: always
//! reply    = DQUOTE 4xx or 5xx, text DQUOTE                 without: smtp-sink's
//!
//! action   = "hang up" [reply]            the connection is closed, after that reply or without one
//!          / "soft reject" [reply]        450
//!          / "hard reject" [reply]        500
//!          / "delay" time [".." time]     the answer is delayed, by a random time between the two
//!          / "stall" time ".." time       no answer between two times after the first connection
//!          / "tarpit" time ["up to" time] the delay of answers grows by that with every command
//!          / "limit" rate ["burst" n] [reply]            451 beyond the rate (100/s, 500/m); 421 ends the session
//!          / "reset" ["at" octets]        RST; "data: reset at N" at that byte of the message
//! RCPT     / "greylist" time ["remember" n] [reply]      450 until the triplet comes again after that time
//!          / "domain cap" n [reply]       451 beyond n transactions that are open for the domain
//! RCPT "." / "directed"                   450-user@…, 550@…: the recipient names the reply
//! DATA     / "abort" ["after" time] [reply]              354, then no more reading, a reply and the end
//!          / "read" octets "/s"           the message is read no faster
//! "."      / "lose reply"                 the message is accepted, and the connection closed instead of the 250
//!          / "drop" / "duplicate" / "corrupt"            250, but not counted, counted twice, a byte changed
//! ```
//! The words are smtp-sink's if it has them. Rules are evaluated in their order: delays add up, and the first that
//! refuses or cuts decides.
use crate::quantities::{bytes, count_up_to, duration, interval, positive, probability, rate};
use crate::slip::is_near;
use smtp::{Path, Reply};
use std::fmt;
use std::time::Duration;

/// The longest rule, in bytes.
const LONGEST: usize = 1000;
/// The longest text of a reply (RFC 5321 §4.5.3.1.5: 512 octets with code and line end).
const LONGEST_REPLY: usize = 500;
/// Number of triplets that a greylist stores by default: 4 MB.
const TRIPLETS: usize = 100_000;
/// Longest delay by a tarpit by default.
const TARPIT_LIMIT: Duration = Duration::from_secs(10);

/// A client's command, or another event of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Command {
    Connect,
    Helo,
    Ehlo,
    Lhlo,
    Mail,
    Recipient,
    Data,
    Dot,
    Reset,
    Noop,
    Verify,
    Quit,
    StartTls,
    /// The TLS handshake: before the greeting, or after STARTTLS.
    Handshake,
    Auth,
}

impl Command {
    pub(super) const ALL: [(Self, &'static str); 15] = [
        (Self::Connect, "connect"),
        (Self::Helo, "helo"),
        (Self::Ehlo, "ehlo"),
        (Self::Lhlo, "lhlo"),
        (Self::Mail, "mail"),
        (Self::Recipient, "rcpt"),
        (Self::Data, "data"),
        (Self::Dot, "."),
        (Self::Reset, "rset"),
        (Self::Noop, "noop"),
        (Self::Verify, "vrfy"),
        (Self::Quit, "quit"),
        (Self::StartTls, "starttls"),
        (Self::Handshake, "tls"),
        (Self::Auth, "auth"),
    ];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, known)| known.eq_ignore_ascii_case(name)).map(|(command, _)| *command)
    }
}

/// The commands that a rule applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Commands(u16);

impl Commands {
    const EVERY: Self = Self((1 << Command::ALL.len()) - 1);

    pub(super) fn contain(self, command: Command) -> bool {
        self.0 & 1 << command as u8 != 0
    }

    fn add(&mut self, command: Command) {
        self.0 |= 1 << command as u8;
    }

    fn is_only(self, command: Command) -> bool {
        self.0 == 1 << command as u8
    }
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    HangUp(Option<Reply>),
    Reject(Reply),
    Delay { from: Duration, to: Duration },
    Stall { at: Duration, length: Duration },
    Tarpit { step: Duration, most: Duration },
    Limit { rate_per_s: f64, burst: u32, reply: Reply },
    Reset,
    ResetAt { octets: u64 },
    Greylist { delay: Duration, remember: usize, reply: Reply },
    DomainCap { most: u32, reply: Reply },
    Directed,
    Abort { after: Duration, reply: Reply },
    Read { octets_per_s: u64 },
    LoseReply,
    Drop,
    Duplicate,
    Corrupt,
}

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    /// The rule's text.
    text: String,
    pub(super) commands: Commands,
    pattern: Option<Pattern>,
    pub(super) action: Action,
    /// Probability, from 0 to 1.
    pub(super) chance: f64,
}

impl Rule {
    /// Parses a rule.
    ///
    /// # Errors
    /// The mistake, and its place.
    pub(crate) fn parse(text: &str) -> Result<Self, Mistake> {
        if text.len() > LONGEST {
            return Err(Mistake::at(text, LONGEST, format!("a rule can have at most {LONGEST} bytes")));
        }
        let colon = text.find(':').ok_or_else(|| {
            Mistake::at(text, text.len(), "write a rule as COMMAND: ACTION, like \"rcpt: soft reject 0.01\"")
        })?;
        let (commands, pattern) = head(&mut Words::of(text, 0, colon)?)?;
        let mut words = Words::of(text, colon + 1, text.len())?;
        let began = words.clone();
        let action = action(&mut words)?;
        suits(&action, commands).map_err(|what| began.mistake(what))?;
        if pattern.is_some() && action == Action::Corrupt {
            return Err(began.mistake("corrupt changes the message for all its recipients; leave out the address"));
        }
        let chance = words.chance()?;
        words.end()?;
        Ok(Self { text: text.trim().to_owned(), commands, pattern, action, chance })
    }

    /// The rule's text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Reports whether it is evaluated for each recipient after the end of the message, and not once for all of them.
    pub(super) fn is_for_each_recipient(&self) -> bool {
        self.commands.contain(Command::Dot) && (self.pattern.is_some() || self.action == Action::Directed)
    }

    /// Reports whether it applies to that address, if it names a pattern.
    pub(super) fn is_about(&self, address: Option<&Path<'_>>) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| address.is_some_and(|address| pattern.matches(address)))
    }
}

/// A pattern of addresses: the given parts have to be equal, in any case; `*` gives none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pattern {
    local_part: Option<String>,
    domain: Option<String>,
}

impl Pattern {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(Self { local_part: None, domain: None });
        }
        let part = |part: &str| (!part.is_empty()).then(|| part.to_owned());
        let (local_part, domain) = text.rsplit_once('@')?;
        let pattern = Self { local_part: part(local_part), domain: part(domain) };
        (pattern.local_part.is_some() || pattern.domain.is_some()).then_some(pattern)
    }

    fn matches(&self, address: &Path<'_>) -> bool {
        let same = |wanted: &Option<String>, part: Option<&[u8]>| match wanted {
            Some(wanted) => part.is_some_and(|part| part.eq_ignore_ascii_case(wanted.as_bytes())),
            None => true,
        };
        same(&self.local_part, Some(address.local_part())) && same(&self.domain, address.domain())
    }
}

/// The reply that a directed recipient asks for: a 4xx or 5xx code at the start of its local part, alone or before a
/// character that is neither letter nor digit.
pub(super) fn directed(local_part: &[u8]) -> Option<Reply> {
    let [class @ (b'4' | b'5'), ten @ b'0'..=b'5', one @ b'0'..=b'9', rest @ ..] = local_part else { return None };
    if rest.first().is_some_and(u8::is_ascii_alphanumeric) {
        return None;
    }
    let code = [class, ten, one].iter().fold(0, |code, digit| code * 10 + u16::from(**digit - b'0'));
    Some(Reply::new(code, &format!("{}.0.0 Requested by the recipient address", class - b'0')))
}

/// A mistake in a rule, and its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct Mistake {
    /// Bytes of the rule before the mistake.
    pub(super) offset: usize,
    /// Column in characters, from 1.
    column: usize,
    pub(super) what: String,
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.what)
    }
}

impl Mistake {
    fn at(text: &str, offset: usize, what: impl Into<String>) -> Self {
        let before = text.char_indices().take_while(|(at, _)| *at < offset).count();
        Self { offset, column: before + 1, what: what.into() }
    }
}

/// The commands before the colon, and the pattern of addresses.
fn head(words: &mut Words<'_>) -> Result<(Commands, Option<Pattern>), Mistake> {
    let mut commands = Commands::default();
    while let Some(word) = words.peek() {
        if word == "*" {
            commands = Commands::EVERY;
        } else if let Some(command) = Command::named(word) {
            commands.add(command);
        } else {
            break;
        }
        words.next();
    }
    if commands == Commands::default() {
        return Err(words.mistake(no_command(words.peek())));
    }
    let wanted = [("to", [Command::Recipient, Command::Dot], "rcpt and ."), ("from", [Command::Mail; 2], "mail")];
    let mut pattern = None;
    if let Some((word, fitting, names)) = wanted.into_iter().find(|(word, ..)| words.peek() == Some(word)) {
        if !fitting.into_iter().any(|command| commands.is_only(command)) {
            return Err(words.mistake(format!("{word:?} is only for {names}")));
        }
        words.next();
        let whose = "an address is missing: local@domain, @domain, local@, or * for all";
        let read = |text: &str| Pattern::parse(text).ok_or(whose.to_owned());
        pattern = Some(words.value("an address", read)?);
    }
    match words.peek() {
        Some(word) => Err(words.mistake(no_command(Some(word)))),
        None => Ok((commands, pattern)),
    }
}

fn no_command(word: Option<&str>) -> String {
    let known: Vec<&str> = Command::ALL.iter().map(|(_, name)| *name).collect();
    let meant = word.and_then(|word| known.iter().find(|name| name.len() > 1 && is_near(word, name)));
    let known = known.join(" ");
    match (word, meant) {
        (Some(word), Some(meant)) => format!("{word:?} is not a command of the sink; did you mean {meant:?}?"),
        (Some(word), None) => format!("{word:?} is not a command of the sink; use {known}, or * for all"),
        (None, _) => format!("a command is missing; use {known}, or * for all"),
    }
}

/// Actions, and the words that they begin with.
const ACTIONS: &[(&str, Reader)] = &[
    ("hang up", |words| Ok(Action::HangUp(words.reply(b"45")?))),
    ("soft reject", |words| Ok(Action::Reject(words.reply_or(b"4", 450, "4.3.0 Error: command failed")?))),
    ("hard reject", |words| Ok(Action::Reject(words.reply_or(b"5", 500, "5.3.0 Error: command failed")?))),
    ("delay", |words| words.value("a time", delay)),
    ("stall", |words| words.value("FROM..TO", stall)),
    ("tarpit", tarpit),
    ("limit", limit),
    ("reset", reset),
    ("greylist", greylist),
    ("domain cap", domain_cap),
    ("directed", |_| Ok(Action::Directed)),
    ("abort", abort),
    ("read", |words| Ok(Action::Read { octets_per_s: words.value("a rate", octets_per_s)? })),
    ("lose reply", |_| Ok(Action::LoseReply)),
    ("drop", |_| Ok(Action::Drop)),
    ("duplicate", |_| Ok(Action::Duplicate)),
    ("corrupt", |_| Ok(Action::Corrupt)),
];

/// Parser of the rest of an action.
type Reader = fn(&mut Words<'_>) -> Result<Action, Mistake>;

fn action(words: &mut Words<'_>) -> Result<Action, Mistake> {
    for (name, read) in ACTIONS {
        if words.eat(name) {
            return read(words);
        }
    }
    let known: Vec<&str> = ACTIONS.iter().map(|(name, _)| *name).collect();
    let Some(word) = words.peek() else {
        return Err(words.mistake(format!("an action is missing; use {}", known.join(", "))));
    };
    let pair = words.peek_pair();
    if let Some(meant) = known.iter().find(|name| is_near(word, name) || is_near(&pair, name)) {
        let typed = if meant.contains(' ') && !is_near(word, meant) { &pair } else { word };
        return Err(words.mistake(format!("{typed:?} is not an action; did you mean {meant:?}?")));
    }
    Err(words.mistake(format!("{word:?} is not an action; use {}", known.join(", "))))
}

/// Checks whether the action is possible on those commands.
fn suits(action: &Action, commands: Commands) -> Result<(), &'static str> {
    let (command, what) = match action {
        Action::Directed if commands.is_only(Command::Dot) => return Ok(()),
        Action::Directed if !commands.is_only(Command::Recipient) => return Err("this is only for rcpt or ."),
        Action::Greylist { .. } | Action::DomainCap { .. } | Action::Directed => (Command::Recipient, "rcpt"),
        Action::Abort { .. } | Action::Read { .. } | Action::ResetAt { .. } => (Command::Data, "data"),
        Action::LoseReply | Action::Drop | Action::Duplicate | Action::Corrupt => (Command::Dot, "."),
        _ => return Ok(()),
    };
    match what {
        _ if commands.is_only(command) => Ok(()),
        "rcpt" => Err("this is only for rcpt"),
        "data" => Err("this is only for data"),
        _ => Err("this is only for . (the end of the message)"),
    }
}

fn tarpit(words: &mut Words<'_>) -> Result<Action, Mistake> {
    let step = words.value("a time", some_time)?;
    let most = if words.eat("up to") { words.value("a time", some_time)? } else { TARPIT_LIMIT };
    Ok(Action::Tarpit { step, most })
}

fn limit(words: &mut Words<'_>) -> Result<Action, Mistake> {
    let rate_per_s = words.value("a rate", |text| positive(text, rate))?;
    // A tenth of a second's worth: clients come in bursts, and a real limiter accepts some.
    let usual = (rate_per_s / 10.0).clamp(1.0, 1e6) as u32;
    let burst =
        if words.eat("burst") { words.value("a number", |text| number(text, 1_000_000))? as u32 } else { usual };
    let reply = words.reply_or(b"45", 451, "4.7.1 Error: rate limit, try again later")?;
    Ok(Action::Limit { rate_per_s, burst, reply })
}

fn reset(words: &mut Words<'_>) -> Result<Action, Mistake> {
    if !words.eat("at") {
        return Ok(Action::Reset);
    }
    Ok(Action::ResetAt { octets: words.value("a number of bytes", bytes)? })
}

fn greylist(words: &mut Words<'_>) -> Result<Action, Mistake> {
    let delay = words.value("a time", duration)?;
    let remember =
        if words.eat("remember") { words.value("a number", |text| number(text, 10_000_000))? } else { TRIPLETS };
    let reply = words.reply_or(b"4", 450, "4.7.1 Error: greylisted, try again later")?;
    Ok(Action::Greylist { delay, remember, reply })
}

fn domain_cap(words: &mut Words<'_>) -> Result<Action, Mistake> {
    let most = words.value("a number", |text| number(text, 1_000_000))? as u32;
    let reply = words.reply_or(b"45", 451, "4.7.1 Error: too many transactions for this domain")?;
    Ok(Action::DomainCap { most, reply })
}

fn abort(words: &mut Words<'_>) -> Result<Action, Mistake> {
    let after = if words.eat("after") { words.value("a time", duration)? } else { Duration::ZERO };
    let reply = words.reply_or(b"45", 550, "This violates SMTP")?;
    Ok(Action::Abort { after, reply })
}

fn delay(text: &str) -> Result<Action, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let from = duration(from)?;
    let to = duration(to)?;
    if from <= to { Ok(Action::Delay { from, to }) } else { Err(format!("{text:?}: write the longer time last")) }
}

fn stall(text: &str) -> Result<Action, String> {
    let (from, to) = interval(text)?;
    Ok(Action::Stall { at: from, length: to - from })
}

fn some_time(text: &str) -> Result<Duration, String> {
    positive(text, duration)
}

fn octets_per_s(text: &str) -> Result<u64, String> {
    let octets =
        text.strip_suffix("/s").ok_or_else(|| format!("{text:?} is not a valid rate; use something like 64k/s"))?;
    positive(octets, bytes)
}

fn number(text: &str, most: u64) -> Result<usize, String> {
    count_up_to(text, most).map(|number| number as usize)
}

/// A reply in quotes: three digits, of which the first is one of `classes`, a blank, text.
fn quoted_reply(text: &str, classes: &[u8]) -> Result<Reply, String> {
    let shape = || {
        let class = if classes == b"45" { "4 or 5" } else { std::str::from_utf8(classes).unwrap_or_default() };
        format!(
            "{text:?} is not a reply that begins with {class}; use something like \"{}50 4.2.0 Text\"",
            classes[0] as char
        )
    };
    let [class, b'0'..=b'5', b'0'..=b'9', b' ', ..] = text.as_bytes() else { return Err(shape()) };
    if !classes.contains(class) || text.chars().any(char::is_control) || text.len() > LONGEST_REPLY {
        return Err(shape());
    }
    let code = text[..3].parse().map_err(|_| shape())?;
    Ok(Reply::new(code, &text[4..]))
}

/// The words of a part of a rule; quoted text is one word.
#[derive(Clone, Debug)]
struct Words<'t> {
    text: &'t str,
    /// Each word with its offset, quotes included.
    words: Vec<(usize, &'t str)>,
    place: usize,
    end: usize,
}

impl<'t> Words<'t> {
    fn of(text: &'t str, from: usize, to: usize) -> Result<Self, Mistake> {
        let is_between = |c: char| c.is_whitespace() || (c == ',' && from == 0);
        let mut words = Vec::new();
        let mut at = from;
        while let Some(begin) = text[at..to].find(|c| !is_between(c)).map(|skip| at + skip) {
            let rest = &text[begin..to];
            let length = match rest.strip_prefix('"') {
                Some(inner) => 2 + inner.find('"').ok_or_else(|| Mistake::at(text, begin, "a quote is not closed"))?,
                None => rest.find(is_between).unwrap_or(rest.len()),
            };
            words.push((begin, &rest[..length]));
            at = begin + length;
        }
        Ok(Self { text, words, place: 0, end: to })
    }

    fn peek(&self) -> Option<&'t str> {
        self.words.get(self.place).map(|(_, word)| *word)
    }

    /// The next two words, in lower case.
    fn peek_pair(&self) -> String {
        let pair: Vec<String> =
            self.words[self.place..].iter().take(2).map(|(_, word)| word.to_ascii_lowercase()).collect();
        pair.join(" ")
    }

    fn next(&mut self) -> Option<&'t str> {
        let word = self.peek();
        self.place += usize::from(word.is_some());
        word
    }

    /// Skips those words, if they are next.
    fn eat(&mut self, words: &str) -> bool {
        let count = words.split(' ').count();
        let ahead = self.words.get(self.place..self.place + count).unwrap_or_default();
        let matches = ahead.len() == count && words.split(' ').zip(ahead).all(|(a, (_, b))| a.eq_ignore_ascii_case(b));
        if matches {
            self.place += count;
        }
        matches
    }

    /// The next word as a value.
    fn value<T>(&mut self, what: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, Mistake> {
        let word = self.peek().ok_or_else(|| self.mistake(format!("{what} is missing")))?;
        let value = read(word).map_err(|what| self.mistake(what))?;
        self.place += 1;
        Ok(value)
    }

    /// The next word as a reply, if it is quoted.
    fn reply(&mut self, classes: &[u8]) -> Result<Option<Reply>, Mistake> {
        let quoted = self.peek().and_then(|word| word.strip_prefix('"')?.strip_suffix('"'));
        quoted.map(|text| self.value("a reply", |_| quoted_reply(text, classes))).transpose()
    }

    fn reply_or(&mut self, classes: &[u8], code: u16, text: &str) -> Result<Reply, Mistake> {
        Ok(self.reply(classes)?.unwrap_or_else(|| Reply::new(code, text)))
    }

    /// The last word as a probability: 0.01 or 1%.
    fn chance(&mut self) -> Result<f64, Mistake> {
        if self.peek().is_some() { self.value("a probability", probability) } else { Ok(1.0) }
    }

    fn end(&self) -> Result<(), Mistake> {
        match self.peek() {
            Some(word) => Err(self.mistake(format!("unexpected {word:?} after the end of the rule"))),
            None => Ok(()),
        }
    }

    /// A mistake at the next word.
    fn mistake(&self, what: impl Into<String>) -> Mistake {
        let at = self.words.get(self.place).map_or(self.end, |(begin, _)| *begin);
        Mistake::at(self.text, at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(text: &str) -> String {
        match Rule::parse(text) {
            Ok(rule) => {
                let names: Vec<_> = Command::ALL.iter().filter(|(it, _)| rule.commands.contain(*it)).collect();
                let names: Vec<_> = names.iter().map(|(_, name)| *name).collect();
                let action = match &rule.action {
                    Action::Reject(reply) => format!("Reject {}", String::from_utf8_lossy(reply.wire()).trim()),
                    Action::HangUp(Some(reply)) => format!("HangUp {}", reply.code()),
                    Action::Limit { rate_per_s, burst, reply } => {
                        format!("Limit {rate_per_s} {burst} {}", reply.code())
                    }
                    Action::Greylist { delay, remember, reply } => {
                        format!("Grey {delay:?} {remember} {}", reply.code())
                    }
                    Action::DomainCap { most, reply } => format!("Cap {most} {}", reply.code()),
                    Action::Abort { after, reply } => format!("Abort {after:?} {}", reply.code()),
                    other => format!("{other:?}"),
                };
                format!("{} | {action} | {}", names.join(" "), rule.chance)
            }
            Err(mistake) => mistake.to_string(),
        }
    }

    #[test]
    fn a_table_of_rules() {
        let rows = [
            ("rcpt: soft reject 0.01", "rcpt | Reject 450 4.3.0 Error: command failed | 0.01"),
            ("RCPT:HARD REJECT", "rcpt | Reject 500 5.3.0 Error: command failed | 1"),
            ("mail, rcpt data: hard reject 1%", "mail rcpt data | Reject 500 5.3.0 Error: command failed | 0.01"),
            ("  . : soft reject \"452 4.3.1 No: room\" 50% ", ". | Reject 452 4.3.1 No: room | 0.5"),
            ("connect: hang up", "connect | HangUp(None) | 1"),
            ("quit: hang up \"421 4.0.0 Bye\" 0.5", "quit | HangUp 421 | 0.5"),
            ("noop: delay 200ms", "noop | Delay { from: 200ms, to: 200ms } | 1"),
            ("noop: delay 200ms..1s 0.1", "noop | Delay { from: 200ms, to: 1s } | 0.1"),
            ("helo ehlo: stall 2s..2500ms", "helo ehlo | Stall { at: 2s, length: 500ms } | 1"),
            ("rset: tarpit 100ms", "rset | Tarpit { step: 100ms, most: 10s } | 1"),
            ("vrfy: tarpit 100ms up to 1s", "vrfy | Tarpit { step: 100ms, most: 1s } | 1"),
            ("mail: limit 100/s", "mail | Limit 100 10 451 | 1"),
            ("mail: limit 36k/h burst 1k", "mail | Limit 10 1000 451 | 1"),
            ("mail: limit 0.5 burst 3 \"421 4.7.0 No\"", "mail | Limit 0.5 3 421 | 1"),
            ("ehlo: reset 0.1", "ehlo | Reset | 0.1"),
            ("data: reset at 4k", "data | ResetAt { octets: 4096 } | 1"),
            ("rcpt: greylist 30s", "rcpt | Grey 30s 100000 450 | 1"),
            ("rcpt: greylist 1m remember 5 \"451 4.7.1 x\"", "rcpt | Grey 60s 5 451 | 1"),
            ("rcpt: domain cap 5", "rcpt | Cap 5 451 | 1"),
            ("rcpt: directed", "rcpt | Directed | 1"),
            ("data: abort", "data | Abort 0ns 550 | 1"),
            ("data: abort after 2s \"451 4.0.0 x\" 1%", "data | Abort 2s 451 | 0.01"),
            ("data: read 64k/s", "data | Read { octets_per_s: 65536 } | 1"),
            (".: lose reply 0.001", ". | LoseReply | 0.001"),
            (".: drop", ". | Drop | 1"),
            (".: duplicate 0", ". | Duplicate | 0"),
            (".: corrupt 1", ". | Corrupt | 1"),
            ("rcpt to @slow.example: delay 1", "rcpt | Delay { from: 1s, to: 1s } | 1"),
            ("mail from a@b: hang up", "mail | HangUp(None) | 1"),
            (". to a@b: hard reject 0.5", ". | Reject 500 5.3.0 Error: command failed | 0.5"),
            (". to *: delay 1s 10%", ". | Delay { from: 1s, to: 1s } | 0.1"),
            ("rcpt to *: reset", "rcpt | Reset | 1"),
            (".: directed 50%", ". | Directed | 0.5"),
            (". to @b: lose reply", ". | LoseReply | 1"),
            ("*: reset", "connect helo ehlo lhlo mail rcpt data . rset noop vrfy quit starttls tls auth | Reset | 1"),
        ];
        for (text, expected) in rows {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    #[test]
    fn a_table_of_mistakes_with_their_columns() {
        let rows = [
            ("", "column 1: write a rule as COMMAND: ACTION"),
            ("rcpt soft reject", "column 17: write a rule as COMMAND: ACTION"),
            (": soft reject", "column 1: a command is missing; use connect helo"),
            ("rctp: soft reject", "column 1: \"rctp\" is not a command of the sink; did you mean \"rcpt\"?"),
            ("fnord: soft reject", "column 1: \"fnord\" is not a command of the sink; use connect"),
            ("mail, rctp: soft reject", "column 7: \"rctp\" is not a command"),
            ("xclient: soft reject", "column 1: \"xclient\" is not a command"),
            ("rcpt:", "column 6: an action is missing; use hang up, soft reject"),
            ("rcpt: reject", "column 7: \"reject\" is not an action"),
            ("rcpt: soft", "column 7: \"soft\" is not an action; use hang up"),
            ("rcpt: Soft rejct", "column 7: \"soft rejct\" is not an action; did you mean \"soft reject\"?"),
            ("rcpt: softreject", "column 7: \"softreject\" is not an action; did you mean \"soft reject\"?"),
            ("rcpt: dely 1s", "column 7: \"dely\" is not an action; did you mean \"delay\"?"),
            ("rcpt: soft reject 2", "column 19: \"2\" is not a valid probability"),
            ("rcpt: soft reject 101%", "column 19: \"101%\" is not a valid probability"),
            ("rcpt: soft reject -1%", "column 19: \"-1%\" is not a valid probability"),
            ("rcpt: soft reject nan%", "column 19: \"nan%\" is not a valid probability"),
            ("rcpt: soft reject 0.1 0.2", "column 23: unexpected \"0.2\""),
            ("rcpt: soft reject \"550 x\"", "column 19: \"550 x\" is not a reply that begins with 4"),
            ("rcpt: hard reject \"450 x\"", "column 19: \"450 x\" is not a reply that begins with 5"),
            ("rcpt: hang up \"250 x\"", "column 15: \"250 x\" is not a reply that begins with 4 or 5"),
            ("rcpt: hang up \"4x0 x\"", "column 15: \"4x0 x\" is not a reply"),
            ("rcpt: hang up \"450x\"", "column 15: \"450x\" is not a reply"),
            ("rcpt: hang up \"450 x", "column 15: a quote is not closed"),
            ("rcpt: hang up \"450 x\ty\"", "column 15: \"450 x\\ty\" is not a reply"),
            ("rcpt: delay", "column 12: a time is missing"),
            ("rcpt: delay soon", "column 13: \"soon\" is not a valid time"),
            ("rcpt: delay 2s..1s", "column 13: \"2s..1s\": write the longer time last"),
            ("rcpt: stall 2s", "column 13: \"2s\" is not a valid interval"),
            ("rcpt: stall 2s,1s", "column 13: \"2s,1s\": write 2s..3s"),
            ("rcpt: stall 2s..2s", "column 13: \"2s..2s\": write the earlier time first"),
            ("rcpt: tarpit 0s", "column 14: \"0s\": must be more than zero"),
            ("rcpt: limit 0/s", "column 13: \"0/s\": must be more than zero"),
            ("rcpt: limit 5/x", "column 13: \"5/x\" is not a valid rate"),
            ("rcpt: limit -5/s", "column 13: \"-5/s\": must be positive"),
            ("rcpt: limit 5/s burst 0", "column 23: \"0\": must be more than zero"),
            ("rcpt: limit 5/s burst x", "column 23: \"x\" is not a valid count"),
            ("rcpt: domain cap 2M", "column 18: \"2M\" is too large; at most 1000000"),
            ("rcpt: read 5/s", "column 7: this is only for data"),
            ("data: read 5", "column 12: \"5\" is not a valid rate"),
            ("data: read 0/s", "column 12: \"0\": must be more than zero"),
            ("mail: greylist 5s", "column 7: this is only for rcpt"),
            ("rcpt, mail: domain cap 3", "column 13: this is only for rcpt"),
            ("data: lose reply", "column 7: this is only for ."),
            ("*: drop", "column 4: this is only for ."),
            ("mail to a@b: drop", "column 6: \"to\" is only for rcpt"),
            ("rcpt, . to a@b: delay 1s", "column 9: \"to\" is only for rcpt and ."),
            (". from a@b: drop", "column 3: \"from\" is only for mail"),
            (". to a@b: corrupt", "column 11: corrupt changes the message"),
            (". to a@b: greylist 5s", "column 11: this is only for rcpt"),
            ("rcpt, .: directed", "column 10: this is only for rcpt or ."),
            ("rcpt to: drop", "column 8: an address is missing"),
            ("rcpt to nobody: drop", "column 9: an address is missing"),
            ("rcpt to @: drop", "column 9: an address is missing"),
            ("größe: drop", "column 1: \"größe\" is not a command"),
            ("rcpt: größe", "column 7: \"größe\" is not an action"),
            ("rcpt: hang up \"450 größe\" so", "column 27: \"so\" is not a valid probability"),
        ];
        for (text, expected) in rows {
            let said = said(text);
            assert!(said.starts_with(expected), "{text}: {said}");
        }
        assert!(said(&"x".repeat(1001)).starts_with("column 1001: a rule can have at most 1000 bytes"));
    }

    #[test]
    fn directed_recipients_begin_with_a_code() {
        let rows: [(&[u8], u16); 12] = [
            (b"450-user", 450),
            (b"550", 550),
            (b"421", 421),
            (b"452.a", 452),
            (b"553+x", 553),
            (b"450user", 0),
            (b"4500", 0),
            (b"250-user", 0),
            (b"470-user", 0),
            (b"45", 0),
            (b"user-450", 0),
            (b"", 0),
        ];
        for (local_part, code) in rows {
            assert_eq!(directed(local_part).map_or(0, |reply| reply.code()), code, "{local_part:?}");
        }
        let reply = directed(b"550-x").unwrap();
        assert_eq!(reply.wire(), b"550 5.0.0 Requested by the recipient address\r\n");
    }

    #[test]
    fn a_pattern_is_whole_or_half_an_address() {
        let matches = |pattern: &str, address: &str| {
            let rule = Rule::parse(&format!("rcpt to {pattern}: hang up")).unwrap();
            rule.is_about(Some(&Path::mailbox(address.as_bytes()).unwrap()))
        };
        assert!(matches("a@b.example", "A@B.EXAMPLE") && !matches("a@b.example", "a@c.example"));
        assert!(matches("@b.example", "x@b.example") && !matches("@b.example", "x@c.b.example"));
        assert!(matches("a@", "a@x.example") && matches("postmaster@", "postmaster") && !matches("@b", "postmaster"));
        assert!(!Rule::parse("rcpt to a@: hang up").unwrap().is_about(None));
        assert!(Rule::parse("rcpt: hang up").unwrap().is_about(None));
        assert!(matches("*", "x@y.example") && !Rule::parse(". to *: hang up").unwrap().is_about(None));
    }

    #[test]
    fn a_rule_on_the_dot_with_an_address_is_for_each_recipient() {
        for (text, expected) in [
            (". to a@: soft reject", true),
            (". to *: delay 1s", true),
            (".: directed", true),
            (".: soft reject", false),
            ("*: delay 1s", false),
            ("rcpt to a@: soft reject", false),
            ("rcpt: directed", false),
        ] {
            assert_eq!(Rule::parse(text).unwrap().is_for_each_recipient(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_rule_or_a_mistake_within_it(text in "\\PC{0,60}") {
            if let Err(mistake) = Rule::parse(&text) {
                prop_assert!(mistake.offset <= text.len() && mistake.column <= text.chars().count() + 1);
            }
        }

        #[test]
        fn words_of_the_language_in_any_order_are_read_to_the_end(
            words in proptest::collection::vec(proptest::sample::select(vec![
                "rcpt", "data", ".", "*", ":", "to", "@a", "soft", "reject", "hang", "up", "delay", "1s", "0.5", "5%",
                "\"450 x\"", "\"550 y\"", "limit", "9/s", "burst", "3", "reset", "at", "4k", "domain", "cap", ",", "\"",
            ]), 0..10)
        ) {
            let text = words.join(" ");
            match Rule::parse(&text) {
                Ok(rule) => {
                    prop_assert_eq!(Rule::parse(rule.text()).unwrap(), rule.clone());
                    prop_assert!((0.0..=1.0).contains(&rule.chance));
                }
                Err(mistake) => prop_assert!(mistake.offset <= text.len()),
            }
        }
    }
}
