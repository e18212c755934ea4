//! The language of the rules by which the sink causes faults on purpose. A rule names a fault, the commands to which
//! the fault applies, and how often it occurs. This module only parses rules, and `session_rules` applies them.
//!
//! ```text
//! rule     = command *( [","] command ) [ "to" pattern / "from" pattern ] ":" action [ chance ]
//!            "to" is for RCPT, and for ".": then the rule is evaluated for each recipient
//!            "from" is for MAIL, and "from <>" also for RCPT, DATA and ".": then the rule is for notifications only
//! command  = CONNECT / HELO / EHLO / LHLO / MAIL / RCPT / DATA / "." / RSET / NOOP / VRFY / QUIT / "*"
//! pattern  = local@domain / @domain / local@ / "*"
//! chance   = 0.01 / 1%                                     without: always
//! reply    = DQUOTE 4xx or 5xx, text DQUOTE                 without: smtp-sink's
//!
//! action   = "hang up" [reply]            the connection is closed, after that reply or without one
//!          / "soft reject" [reply]        450
//!          / "hard reject" [reply]        554
//!          / "delay" time [".." time]     the answer is delayed, by a random time between the two
//!          / "stall" time ".." time       no answer between two times after the first connection
//!          / "tarpit" time ["up to" time] the delay of answers grows by that with every command
//!          / "limit" rate ["burst" n] [reply]            451 beyond the rate (100/s, 500/m); 421 ends the session
//! MAIL     / "session cap" n [reply]      beyond n transactions of the session it is closed, after that reply or without one
//!          / "reset" ["at" octets]        RST; "data: reset at N" at that byte of the message
//! RCPT     / "limit" rate ["burst" n] "per" ("recipient" / "domain") [reply]    each has the rate for itself
//!          / "greylist" time ["remember" n] [reply]      450 until the triplet comes again after that time
//!          / "domain cap" n [reply]       451 beyond n transactions that are open for the domain
//! RCPT "." / "directed"                   450-user@…, 550@…: the recipient names the reply
//! DATA     / "abort" ["after" time] [reply]              354, then no more reading, a reply and the end
//!          / "read" octets "/s"           the message is read no faster
//! "."      / "lose reply"                 the message is accepted, and the connection closed instead of the 250
//!          / "drop" / "duplicate" / "corrupt"            250, but not counted, counted twice, a byte changed
//! ```
//! Mail from <> reports what became of other mail, mostly as a bounce. If rules refused such a report, nobody would
//! learn what became of that mail. Therefore, only delays, slow reading and rules with "from <>" apply to mail from <>.
//!
//! Words that Postfix's smtp-sink uses as well have the same meaning in both programs. Rules are evaluated in their
//! order. Delays add up. The first rule that refuses the command, cuts the connection, or drops or duplicates the
//! message decides.
use mailrun_smtp::{AddressPattern, Path, Reply};
use mailrun_text::quantities::{bytes, count_up_to, duration, interval, positive, probability, rate};
use mailrun_text::words::is_misspelling;
use std::fmt;
use std::time::Duration;

const MAX_RULE_BYTES: usize = 1000;
/// Maximum length of a reply's text in bytes. RFC 5321 §4.5.3.1.5 allows 512 octets including code and line end.
const MAX_REPLY_BYTES: usize = 500;
/// Default number of triplets that a greylist remembers, which take 4 MB.
const DEFAULT_TRIPLETS: usize = 100_000;
/// Maximum delay of a tarpit rule that states no maximum itself.
const TARPIT_LIMIT: Duration = Duration::from_secs(10);

/// A command of a client, or another event of a session to which rules can apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RuleCommand {
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
    /// The TLS handshake, before the greeting or after STARTTLS.
    Handshake,
    Auth,
}

impl RuleCommand {
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandSet(u16);

impl CommandSet {
    const EVERY: Self = Self((1 << RuleCommand::ALL.len()) - 1);

    pub(super) fn contain(self, command: RuleCommand) -> bool {
        self.0 & 1 << command as u8 != 0
    }

    fn add(&mut self, command: RuleCommand) {
        self.0 |= 1 << command as u8;
    }

    fn is_only(self, command: RuleCommand) -> bool {
        self.0 == 1 << command as u8
    }

    fn is_within(self, commands: &[RuleCommand]) -> bool {
        commands.iter().fold(self.0, |rest, command| rest & !(1 << *command as u8)) == 0
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum RuleAction {
    HangUp(Option<Reply>),
    Reject(Reply),
    Delay {
        from: Duration,
        to: Duration,
    },
    Stall {
        at: Duration,
        length: Duration,
    },
    Tarpit {
        step: Duration,
        most: Duration,
    },
    Limit {
        rate_per_s: f64,
        burst: u32,
        per: LimitKey,
        reply: Reply,
    },
    SessionCap {
        most: u32,
        reply: Option<Reply>,
    },
    Reset,
    ResetAt {
        octets: u64,
    },
    Greylist {
        delay: Duration,
        remember: usize,
        reply: Reply,
    },
    DomainCap {
        most: u32,
        reply: Reply,
    },
    Directed,
    Abort {
        after: Duration,
        reply: Reply,
    },
    Read {
        octets_per_s: u64,
    },
    /// The sink reads at most `octets` bytes of the message at a time.
    ReadPieces {
        octets: u64,
    },
    LoseReply,
    Drop,
    Duplicate,
    Corrupt,
}

/// Tells which commands share the rate of a `limit` rule. For example, each recipient can have a rate of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitKey {
    /// All commands to which the rule applies share one rate.
    All,
    Recipient,
    Domain,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    pub(super) commands: CommandSet,
    pattern: Option<AddressPattern>,
    /// True if the rule applies only to mail from <>, such as bounces.
    is_for_notices: bool,
    pub(super) action: RuleAction,
    /// Probability with which the rule acts, from 0 to 1. It is 1 if the rule states no probability.
    pub(super) chance: f64,
}

impl Rule {
    /// Parses a rule, for example `rcpt: soft reject 1%`. An error names the mistake and its place.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        if text.len() > MAX_RULE_BYTES {
            return Err(RuleError::at(text, MAX_RULE_BYTES, format!("a rule can have at most {MAX_RULE_BYTES} bytes")));
        }
        let colon = text.split('"').next().unwrap_or_default().find(':');
        let mut words = RuleTokens::of(text, colon.map_or(0, |colon| colon + 1), text.len())?;
        let names_command = |word: &str| word == "*" || RuleCommand::named(word).is_some();
        if colon.is_none() && words.peek().is_none_or(names_command) {
            return Err(RuleError::at(
                text,
                text.len(),
                "write a rule as COMMAND: ACTION, like \"rcpt: soft reject 0.01\"",
            ));
        }
        let named = colon.map(|colon| parse_commands(&mut RuleTokens::of(text, 0, colon)?)).transpose()?;
        let began = words.clone();
        let action = parse_action(&mut words)?;
        let (commands, addresses) = named.unwrap_or_else(|| (usual_command(&action), RuleAddresses::All));
        let is_for_notices = addresses == RuleAddresses::NullSender;
        let pattern = if let RuleAddresses::Pattern(pattern) = addresses { Some(pattern) } else { None };
        check_commands(&action, commands).map_err(|what| began.error(what))?;
        if pattern.is_some() && action == RuleAction::Corrupt {
            return Err(began.error("corrupt changes the message for all its recipients; leave out the address"));
        }
        let chance = words.chance()?;
        words.expect_end()?;
        Ok(Self { text: text.trim().to_owned(), commands, pattern, is_for_notices, action, chance })
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns true if the rule is evaluated for each recipient at the end of the message, instead of once for the
    /// whole message.
    pub(super) fn is_for_each_recipient(&self) -> bool {
        self.commands.contain(RuleCommand::Dot) && (self.pattern.is_some() || self.action == RuleAction::Directed)
    }

    /// Returns true if the rule applies to mail from this sender. `is_notice` is true if the sender is <>.
    pub(super) fn matches_sender(&self, is_notice: bool) -> bool {
        let only_delays = matches!(
            self.action,
            RuleAction::Delay { .. }
                | RuleAction::Stall { .. }
                | RuleAction::Tarpit { .. }
                | RuleAction::Read { .. }
                | RuleAction::ReadPieces { .. }
        );
        if is_notice { self.is_for_notices || only_delays } else { !self.is_for_notices }
    }

    /// Returns true if the rule applies to a command with this address. A rule without a pattern applies to every
    /// address, and to commands that have no address.
    pub(super) fn matches_address(&self, address: Option<&Path<'_>>) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| address.is_some_and(|address| pattern.matches(address)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleAddresses {
    All,
    Pattern(AddressPattern),
    NullSender,
}

/// Returns the reply that a recipient asks for by its address, for example 550 for `550-user@…`. The local part must
/// begin with a code of 4xx or 5xx, and no letter or digit may follow the code.
pub(super) fn directed_reply(local_part: &[u8]) -> Option<Reply> {
    let [class @ (b'4' | b'5'), ten @ b'0'..=b'5', one @ b'0'..=b'9', rest @ ..] = local_part else { return None };
    if rest.first().is_some_and(u8::is_ascii_alphanumeric) {
        return None;
    }
    let code = [class, ten, one].iter().fold(0, |code, digit| code * 10 + u16::from(**digit - b'0'));
    Some(Reply::new(code, &format!("{}.0.0 Requested by the recipient address", class - b'0')))
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RuleError {
    /// Offset of the mistake in the rule, in bytes.
    pub(super) offset: usize,
    /// Column of the mistake in characters, counted from 1, for the user.
    column: usize,
    pub(super) what: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.what)
    }
}

impl RuleError {
    fn at(text: &str, offset: usize, what: impl Into<String>) -> Self {
        let before = text.char_indices().take_while(|(at, _)| *at < offset).count();
        Self { offset, column: before + 1, what: what.into() }
    }
}

/// Parses the part of a rule before the colon: commands and, optionally, an address pattern (`to` or `from`).
fn parse_commands(words: &mut RuleTokens<'_>) -> Result<(CommandSet, RuleAddresses), RuleError> {
    let mut commands = CommandSet::default();
    while let Some(word) = words.peek() {
        if word == "*" {
            commands = CommandSet::EVERY;
        } else if let Some(command) = RuleCommand::named(word) {
            commands.add(command);
        } else {
            break;
        }
        words.next();
    }
    if commands == CommandSet::default() {
        return Err(words.error(unknown_command(words.peek())));
    }
    let wanted =
        [("to", [RuleCommand::Recipient, RuleCommand::Dot], "rcpt and ."), ("from", [RuleCommand::Mail; 2], "mail")];
    let mut addresses = RuleAddresses::All;
    let transaction = [RuleCommand::Mail, RuleCommand::Recipient, RuleCommand::Data, RuleCommand::Dot];
    if words.peek_pair() == "from <>" {
        if !commands.is_within(&transaction) {
            return Err(words.error("\"from <>\" is only for mail, rcpt, data and ."));
        }
        words.eat("from <>");
        addresses = RuleAddresses::NullSender;
    } else if let Some((word, fitting, names)) = wanted.into_iter().find(|(word, ..)| words.peek() == Some(word)) {
        if !fitting.into_iter().any(|command| commands.is_only(command)) {
            return Err(words.error(format!("{word:?} is only for {names}")));
        }
        words.next();
        let message = "an address is missing: local@domain, @domain, local@, or * for all";
        let read = |text: &str| AddressPattern::parse(text).ok_or(message.to_owned());
        addresses = RuleAddresses::Pattern(words.value("an address", read)?);
    }
    match words.peek() {
        Some(word) => Err(words.error(unknown_command(Some(word)))),
        None => Ok((commands, addresses)),
    }
}

fn unknown_command(word: Option<&str>) -> String {
    let known: Vec<&str> = RuleCommand::ALL.iter().map(|(_, name)| *name).collect();
    let nearest = word.and_then(|word| known.iter().find(|name| name.len() > 1 && is_misspelling(word, name)));
    let known = known.join(" ");
    match (word, nearest) {
        (Some(word), Some(nearest)) => format!("{word:?} is not a command of the sink; did you mean {nearest:?}?"),
        (Some(word), None) => format!("{word:?} is not a command of the sink; use {known}, or * for all"),
        (None, _) => format!("a command is missing; use {known}, or * for all"),
    }
}

const ACTIONS: &[(&str, ActionParser)] = &[
    ("hang up", hang_up),
    ("soft reject", |words| Ok(RuleAction::Reject(words.reply_or(b"4", 450, "4.3.0 Error: command failed")?))),
    ("hard reject", hard_reject),
    ("delay", |words| words.value("a time", delay)),
    ("stall", |words| words.value("FROM..TO", stall)),
    ("tarpit", tarpit),
    ("limit", limit),
    ("session cap", session_cap),
    ("reset", reset),
    ("greylist", greylist),
    ("domain cap", domain_cap),
    ("directed", |_| Ok(RuleAction::Directed)),
    ("abort", abort),
    ("read", read),
    ("lose reply", |_| Ok(RuleAction::LoseReply)),
    ("drop", |_| Ok(RuleAction::Drop)),
    ("duplicate", |_| Ok(RuleAction::Duplicate)),
    ("corrupt", |_| Ok(RuleAction::Corrupt)),
    ("reject", hard_reject),
    ("fail", hang_up),
];

type ActionParser = fn(&mut RuleTokens<'_>) -> Result<RuleAction, RuleError>;

fn parse_action(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    for (name, read) in ACTIONS {
        if words.eat(name) {
            return read(words);
        }
    }
    let known: Vec<&str> = ACTIONS.iter().map(|(name, _)| *name).collect();
    let Some(word) = words.peek() else {
        return Err(words.error(format!("an action is missing; use {}", known.join(", "))));
    };
    let pair = words.peek_pair();
    if let Some(nearest) = known.iter().find(|name| is_misspelling(word, name) || is_misspelling(&pair, name)) {
        let typed = if nearest.contains(' ') && !is_misspelling(word, nearest) { &pair } else { word };
        return Err(words.error(format!("{typed:?} is not an action; did you mean {nearest:?}?")));
    }
    Err(words.error(format!("{word:?} is not an action; use {}", known.join(", "))))
}

/// Returns the only command to which the action can apply, or `None` if it can apply to several. For the action
/// `directed`, which can apply to RCPT and to the end of a message (`.`), returns RCPT, the default.
fn own_command(action: &RuleAction) -> Option<RuleCommand> {
    match action {
        RuleAction::Greylist { .. } | RuleAction::DomainCap { .. } | RuleAction::Directed => {
            Some(RuleCommand::Recipient)
        }
        RuleAction::Limit { per, .. } if *per != LimitKey::All => Some(RuleCommand::Recipient),
        RuleAction::SessionCap { .. } => Some(RuleCommand::Mail),
        RuleAction::Abort { .. }
        | RuleAction::Read { .. }
        | RuleAction::ReadPieces { .. }
        | RuleAction::ResetAt { .. } => Some(RuleCommand::Data),
        RuleAction::LoseReply | RuleAction::Drop | RuleAction::Duplicate | RuleAction::Corrupt => {
            Some(RuleCommand::Dot)
        }
        _ => None,
    }
}

/// Returns the command to which a rule applies if the rule names no command. For example, `drop 1%` applies to the end
/// of a message (`.`).
fn usual_command(action: &RuleAction) -> CommandSet {
    let mut commands = CommandSet::default();
    commands.add(own_command(action).unwrap_or(RuleCommand::Dot));
    commands
}

fn check_commands(action: &RuleAction, commands: CommandSet) -> Result<(), &'static str> {
    let is_directed = *action == RuleAction::Directed;
    match own_command(action) {
        None => Ok(()),
        Some(own) if commands.is_only(own) => Ok(()),
        Some(_) if is_directed && commands.is_only(RuleCommand::Dot) => Ok(()),
        Some(_) if is_directed => Err("this is only for rcpt or ."),
        Some(RuleCommand::Recipient) => Err("this is only for rcpt"),
        Some(RuleCommand::Data) => Err("this is only for data"),
        Some(RuleCommand::Mail) => Err("this is only for mail"),
        Some(_) => Err("this is only for . (the end of the message)"),
    }
}

fn hang_up(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    Ok(RuleAction::HangUp(words.reply(b"45")?))
}

fn hard_reject(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    Ok(RuleAction::Reject(words.reply_or(b"5", 554, "5.3.0 Error: command failed")?))
}

fn tarpit(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let step = words.value("a time", positive_duration)?;
    let most = if words.eat("up to") { words.value("a time", positive_duration)? } else { TARPIT_LIMIT };
    Ok(RuleAction::Tarpit { step, most })
}

fn limit(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let rate_per_s = words.value("a rate", |text| positive(text, rate))?;
    // By default, a burst has as many messages as the rate allows in a tenth of a second, because clients send in
    // bursts and real limiters accept small ones.
    let usual = (rate_per_s / 10.0).clamp(1.0, 1e6) as u32;
    let burst =
        if words.eat("burst") { words.value("a number", |text| number(text, 1_000_000))? as u32 } else { usual };
    let per = if words.eat("per") { words.value("recipient or domain", limit_key)? } else { LimitKey::All };
    let reply = words.reply_or(b"45", 451, "4.7.1 Error: rate limit, try again later")?;
    Ok(RuleAction::Limit { rate_per_s, burst, per, reply })
}

fn limit_key(word: &str) -> Result<LimitKey, String> {
    match word.to_ascii_lowercase().as_str() {
        "recipient" => Ok(LimitKey::Recipient),
        "domain" => Ok(LimitKey::Domain),
        _ => Err(format!("{word:?}: a limit is per recipient or per domain")),
    }
}

fn session_cap(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let most = words.value("a number", |text| number(text, 1_000_000))? as u32;
    Ok(RuleAction::SessionCap { most, reply: words.reply(b"45")? })
}

fn reset(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    if !words.eat("at") {
        return Ok(RuleAction::Reset);
    }
    Ok(RuleAction::ResetAt { octets: words.value("a number of bytes", bytes)? })
}

fn greylist(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let delay = words.value("a time", duration)?;
    let remember = if words.eat("remember") {
        words.value("a number", |text| number(text, 10_000_000))?
    } else {
        DEFAULT_TRIPLETS
    };
    let reply = words.reply_or(b"4", 450, "4.7.1 Error: greylisted, try again later")?;
    Ok(RuleAction::Greylist { delay, remember, reply })
}

fn domain_cap(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let most = words.value("a number", |text| number(text, 1_000_000))? as u32;
    let reply = words.reply_or(b"45", 451, "4.7.1 Error: too many transactions for this domain")?;
    Ok(RuleAction::DomainCap { most, reply })
}

fn read(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    match words.eat("at most") {
        true => Ok(RuleAction::ReadPieces { octets: words.value("a size", |text| positive(text, bytes))? }),
        false => Ok(RuleAction::Read { octets_per_s: words.value("a rate", octets_per_s)? }),
    }
}

fn abort(words: &mut RuleTokens<'_>) -> Result<RuleAction, RuleError> {
    let after = if words.eat("after") { words.value("a time", duration)? } else { Duration::ZERO };
    let reply = words.reply_or(b"45", 550, "This violates SMTP")?;
    Ok(RuleAction::Abort { after, reply })
}

fn delay(text: &str) -> Result<RuleAction, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let from = duration(from)?;
    let to = duration(to)?;
    if from <= to { Ok(RuleAction::Delay { from, to }) } else { Err(format!("{text:?}: write the longer time last")) }
}

fn stall(text: &str) -> Result<RuleAction, String> {
    let (from, to) = interval(text)?;
    Ok(RuleAction::Stall { at: from, length: to - from })
}

fn positive_duration(text: &str) -> Result<Duration, String> {
    positive(text, duration)
}

fn octets_per_s(text: &str) -> Result<u64, String> {
    let octets =
        text.strip_suffix("/s").ok_or_else(|| format!("{text:?} is not a valid rate; use something like 64k/s"))?;
    positive(octets, bytes)
}

fn number(text: &str, max: u64) -> Result<usize, String> {
    count_up_to(text, max).map(|number| number as usize)
}

/// Parses a reply without its quotes: a three-digit code that begins with one of `classes`, a space, and a text.
fn quoted_reply(text: &str, classes: &[u8]) -> Result<Reply, String> {
    let shape = || {
        let class = if classes == b"45" { "4 or 5" } else { std::str::from_utf8(classes).unwrap_or_default() };
        format!(
            "{text:?} is not a reply that begins with {class}; use something like \"{}50 4.2.0 Text\"",
            classes[0] as char
        )
    };
    let [class, b'0'..=b'5', b'0'..=b'9', b' ', ..] = text.as_bytes() else { return Err(shape()) };
    if !classes.contains(class) || text.chars().any(char::is_control) || text.len() > MAX_REPLY_BYTES {
        return Err(shape());
    }
    let code = text[..3].parse().map_err(|_| shape())?;
    Ok(Reply::new(code, &text[4..]))
}

#[derive(Clone, Debug)]
struct RuleTokens<'t> {
    text: &'t str,
    /// Words with their byte offsets in the rule. A text in quotes is one word, including the quotes.
    words: Vec<(usize, &'t str)>,
    next_index: usize,
    end: usize,
}

impl<'t> RuleTokens<'t> {
    fn of(text: &'t str, from: usize, to: usize) -> Result<Self, RuleError> {
        let is_between = |c: char| c.is_whitespace() || (c == ',' && from == 0);
        let mut words = Vec::new();
        let mut at = from;
        while let Some(begin) = text[at..to].find(|c| !is_between(c)).map(|skip| at + skip) {
            let rest = &text[begin..to];
            let length = match rest.strip_prefix('"') {
                Some(inner) => {
                    2 + inner.find('"').ok_or_else(|| RuleError::at(text, begin, "a quote is not closed"))?
                }
                None => rest.find(is_between).unwrap_or(rest.len()),
            };
            words.push((begin, &rest[..length]));
            at = begin + length;
        }
        Ok(Self { text, words, next_index: 0, end: to })
    }

    fn peek(&self) -> Option<&'t str> {
        self.words.get(self.next_index).map(|(_, word)| *word)
    }

    /// Returns the next two words in lower case, to compare them with the names of actions such as `hang up`.
    fn peek_pair(&self) -> String {
        let pair: Vec<String> =
            self.words[self.next_index..].iter().take(2).map(|(_, word)| word.to_ascii_lowercase()).collect();
        pair.join(" ")
    }

    fn next(&mut self) -> Option<&'t str> {
        let word = self.peek();
        self.next_index += usize::from(word.is_some());
        word
    }

    /// Skips `words` if they come next, and returns true if they did.
    fn eat(&mut self, words: &str) -> bool {
        let count = words.split(' ').count();
        let ahead = self.words.get(self.next_index..self.next_index + count).unwrap_or_default();
        let matches = ahead.len() == count && words.split(' ').zip(ahead).all(|(a, (_, b))| a.eq_ignore_ascii_case(b));
        if matches {
            self.next_index += count;
        }
        matches
    }

    fn value<T>(&mut self, what: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<T, RuleError> {
        let word = self.peek().ok_or_else(|| self.error(format!("{what} is missing")))?;
        let value = read(word).map_err(|what| self.error(what))?;
        self.next_index += 1;
        Ok(value)
    }

    /// Parses the next word as a reply. If the word is not in quotes, returns `None` and does not consume it.
    fn reply(&mut self, classes: &[u8]) -> Result<Option<Reply>, RuleError> {
        let quoted = self.peek().and_then(|word| word.strip_prefix('"')?.strip_suffix('"'));
        quoted.map(|text| self.value("a reply", |_| quoted_reply(text, classes))).transpose()
    }

    fn reply_or(&mut self, classes: &[u8], code: u16, text: &str) -> Result<Reply, RuleError> {
        Ok(self.reply(classes)?.unwrap_or_else(|| Reply::new(code, text)))
    }

    /// Parses the next word as a probability, for example 0.01 or 1%. If no word is left, the probability is 1.
    fn chance(&mut self) -> Result<f64, RuleError> {
        if self.peek().is_some() { self.value("a probability", probability) } else { Ok(1.0) }
    }

    fn expect_end(&self) -> Result<(), RuleError> {
        match self.peek() {
            Some(word) => Err(self.error(format!("unexpected {word:?} after the end of the rule"))),
            None => Ok(()),
        }
    }

    fn error(&self, what: impl Into<String>) -> RuleError {
        let at = self.words.get(self.next_index).map_or(self.end, |(begin, _)| *begin);
        RuleError::at(self.text, at, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn said(text: &str) -> String {
        match Rule::parse(text) {
            Ok(rule) => {
                let names: Vec<_> = RuleCommand::ALL.iter().filter(|(it, _)| rule.commands.contain(*it)).collect();
                let names: Vec<_> = names.iter().map(|(_, name)| *name).collect();
                let action = match &rule.action {
                    RuleAction::Reject(reply) => format!("Reject {}", String::from_utf8_lossy(reply.wire()).trim()),
                    RuleAction::HangUp(Some(reply)) => format!("HangUp {}", reply.code()),
                    RuleAction::Limit { rate_per_s, burst, per, reply } => {
                        let per = if *per == LimitKey::All { String::new() } else { format!("per {per:?} ") };
                        format!("Limit {rate_per_s} {burst} {per}{}", reply.code())
                    }
                    RuleAction::SessionCap { most, reply } => {
                        format!("SessionCap {most} {:?}", reply.as_ref().map(Reply::code))
                    }
                    RuleAction::Greylist { delay, remember, reply } => {
                        format!("Grey {delay:?} {remember} {}", reply.code())
                    }
                    RuleAction::DomainCap { most, reply } => format!("Cap {most} {}", reply.code()),
                    RuleAction::Abort { after, reply } => format!("Abort {after:?} {}", reply.code()),
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
            ("RCPT:HARD REJECT", "rcpt | Reject 554 5.3.0 Error: command failed | 1"),
            ("mail, rcpt data: hard reject 1%", "mail rcpt data | Reject 554 5.3.0 Error: command failed | 0.01"),
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
            ("rcpt: limit 60/m burst 60 per recipient \"450 4.2.1 x\"", "rcpt | Limit 1 60 per Recipient 450 | 1"),
            ("limit 20/s per Domain 5%", "rcpt | Limit 20 2 per Domain 451 | 0.05"),
            ("mail: session cap 20", "mail | SessionCap 20 None | 1"),
            ("session cap 5 \"421 4.7.0 Enough\" 50%", "mail | SessionCap 5 Some(421) | 0.5"),
            ("ehlo: reset 0.1", "ehlo | Reset | 0.1"),
            ("data: reset at 4k", "data | ResetAt { octets: 4096 } | 1"),
            ("rcpt: greylist 30s", "rcpt | Grey 30s 100000 450 | 1"),
            ("rcpt: greylist 1m remember 5 \"451 4.7.1 x\"", "rcpt | Grey 60s 5 451 | 1"),
            ("rcpt: domain cap 5", "rcpt | Cap 5 451 | 1"),
            ("rcpt: directed", "rcpt | Directed | 1"),
            ("data: abort", "data | Abort 0ns 550 | 1"),
            ("data: abort after 2s \"451 4.0.0 x\" 1%", "data | Abort 2s 451 | 0.01"),
            ("data: read 64k/s", "data | Read { octets_per_s: 65536 } | 1"),
            ("read at most 4k", "data | ReadPieces { octets: 4096 } | 1"),
            (".: lose reply 0.001", ". | LoseReply | 0.001"),
            (".: drop", ". | Drop | 1"),
            (".: duplicate 0", ". | Duplicate | 0"),
            (".: corrupt 1", ". | Corrupt | 1"),
            ("rcpt to @slow.example: delay 1", "rcpt | Delay { from: 1s, to: 1s } | 1"),
            ("mail from a@b: hang up", "mail | HangUp(None) | 1"),
            (". to a@b: hard reject 0.5", ". | Reject 554 5.3.0 Error: command failed | 0.5"),
            (". to *: delay 1s 10%", ". | Delay { from: 1s, to: 1s } | 0.1"),
            ("rcpt to *: reset", "rcpt | Reset | 1"),
            (".: directed 50%", ". | Directed | 0.5"),
            (". to @b: lose reply", ". | LoseReply | 1"),
            ("drop 1%", ". | Drop | 0.01"),
            ("duplicate", ". | Duplicate | 1"),
            ("corrupt 0.1", ". | Corrupt | 0.1"),
            ("reject 50%", ". | Reject 554 5.3.0 Error: command failed | 0.5"),
            ("rcpt: reject", "rcpt | Reject 554 5.3.0 Error: command failed | 1"),
            ("fail 0.5", ". | HangUp(None) | 0.5"),
            ("delay 20ms", ". | Delay { from: 20ms, to: 20ms } | 1"),
            ("stall 2s..3s", ". | Stall { at: 2s, length: 1s } | 1"),
            ("directed", "rcpt | Directed | 1"),
            ("greylist 30s", "rcpt | Grey 30s 100000 450 | 1"),
            ("read 64k/s", "data | Read { octets_per_s: 65536 } | 1"),
            ("hard reject \"554 5.7.1 No: spam\" 1%", ". | Reject 554 5.7.1 No: spam | 0.01"),
            ("*: reset", "connect helo ehlo lhlo mail rcpt data . rset noop vrfy quit starttls tls auth | Reset | 1"),
        ];
        for (text, expected) in rows {
            assert_eq!(said(text), expected, "{text}");
        }
    }

    /// Rules with a mistake, and the beginning of the error that each must cause.
    const MISTAKES: &[(&str, &str)] = &[
        ("", "column 1: write a rule as COMMAND: ACTION"),
        ("rcpt soft reject", "column 17: write a rule as COMMAND: ACTION"),
        (": soft reject", "column 1: a command is missing; use connect helo"),
        ("rctp: soft reject", "column 1: \"rctp\" is not a command of the sink; did you mean \"rcpt\"?"),
        ("fnord: soft reject", "column 1: \"fnord\" is not a command of the sink; use connect"),
        ("mail, rctp: soft reject", "column 7: \"rctp\" is not a command"),
        ("xclient: soft reject", "column 1: \"xclient\" is not a command"),
        ("rcpt:", "column 6: an action is missing; use hang up, soft reject"),
        ("* hang up", "column 10: write a rule as COMMAND: ACTION"),
        ("dorp 1%", "column 1: \"dorp\" is not an action; did you mean \"drop\"?"),
        ("drop 2", "column 6: \"2\" is not a valid probability; write 2% or 0.02"),
        ("stall 3s..2s", "column 7: \"3s..2s\": write the earlier time first"),
        ("rcpt: soft", "column 7: \"soft\" is not an action; use hang up"),
        ("rcpt: Soft rejct", "column 7: \"soft rejct\" is not an action; did you mean \"soft reject\"?"),
        ("rcpt: softreject", "column 7: \"softreject\" is not an action; did you mean \"soft reject\"?"),
        ("rcpt: dely 1s", "column 7: \"dely\" is not an action; did you mean \"delay\"?"),
        ("rcpt: soft reject 2", "column 19: \"2\" is not a valid probability"),
        ("rcpt: soft reject 101%", "column 19: \"101%\" is more than 100%"),
        ("rcpt: soft reject -1%", "column 19: \"-1%\": must not be negative"),
        ("rcpt: soft reject nan%", "column 19: \"nan%\" is not a valid share"),
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
        ("rcpt: limit 5/s per", "column 20: recipient or domain is missing"),
        ("rcpt: limit 5/s per client", "column 21: \"client\": a limit is per recipient or per domain"),
        ("mail: limit 5/s per domain", "column 7: this is only for rcpt"),
        ("rcpt: session cap 5", "column 7: this is only for mail"),
        ("mail: session cap 0", "column 19: \"0\": must be more than zero"),
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

    #[test]
    fn a_table_of_mistakes_with_their_columns() {
        for (text, expected) in MISTAKES {
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
            assert_eq!(directed_reply(local_part).map_or(0, |reply| reply.code()), code, "{local_part:?}");
        }
        let reply = directed_reply(b"550-x").unwrap();
        assert_eq!(reply.wire(), b"550 5.0.0 Requested by the recipient address\r\n");
    }

    #[test]
    fn a_pattern_is_whole_or_half_an_address() {
        let matches = |pattern: &str, address: &str| {
            let rule = Rule::parse(&format!("rcpt to {pattern}: hang up")).unwrap();
            rule.matches_address(Some(&Path::mailbox(address.as_bytes()).unwrap()))
        };
        assert!(matches("a@b.example", "A@B.EXAMPLE") && !matches("a@b.example", "a@c.example"));
        assert!(matches("@b.example", "x@b.example") && !matches("@b.example", "x@c.b.example"));
        assert!(matches("a@", "a@x.example") && matches("postmaster@", "postmaster") && !matches("@b", "postmaster"));
        assert!(!Rule::parse("rcpt to a@: hang up").unwrap().matches_address(None));
        assert!(Rule::parse("rcpt: hang up").unwrap().matches_address(None));
        assert!(matches("*", "x@y.example") && !Rule::parse(". to *: hang up").unwrap().matches_address(None));
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
        fn words_of_the_language_in_any_order_are_read_to_the_end(
            words in proptest::collection::vec(proptest::sample::select(vec![
                "rcpt", "data", ".", "*", ":", "to", "@a", "soft", "reject", "hang", "up", "delay", "1s", "0.5", "5%",
                "\"450 x\"", "\"550 y\"", "limit", "9/s", "burst", "3", "reset", "at", "4k", "domain", "cap", ",", "\"",
                "session", "per", "recipient", "mail",
            ]), 0..10)
        ) {
            crate::sink::checks::rules::check(words.join(" ").as_bytes());
        }
    }
}
