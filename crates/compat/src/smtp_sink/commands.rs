//! The commands of smtp-sink, and the faults that a user can request for each: disconnect, reject, delay or log.
use std::ops::{Index, IndexMut};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Connect,
    Helo,
    Ehlo,
    Lhlo,
    Xclient,
    Xforward,
    Auth,
    Mail,
    Rcpt,
    Data,
    Dot,
    Rset,
    Noop,
    Vrfy,
    Quit,
}

const COMMAND_COUNT: usize = 15;
/// Length of the longest name of a command. A longer word cannot be a command.
const MAX_NAME_BYTES: usize = 8;

impl Command {
    pub(super) fn named(word: &[u8]) -> Option<Self> {
        let mut name = [0; MAX_NAME_BYTES];
        let name = name.get_mut(..word.len())?;
        name.copy_from_slice(word);
        name.make_ascii_lowercase();
        Some(match &*name {
            b"mail" => Self::Mail,
            b"rcpt" => Self::Rcpt,
            b"data" => Self::Data,
            b"quit" => Self::Quit,
            b"helo" => Self::Helo,
            b"ehlo" => Self::Ehlo,
            b"lhlo" => Self::Lhlo,
            b"rset" => Self::Rset,
            b"noop" => Self::Noop,
            b"vrfy" => Self::Vrfy,
            b"auth" => Self::Auth,
            b"." => Self::Dot,
            b"connect" => Self::Connect,
            b"xclient" => Self::Xclient,
            b"xforward" => Self::Xforward,
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reject {
    Soft,
    Hard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyDelay {
    pub(super) seconds: u32,
    /// Probability in per cent that the sink adds `seconds` to the delay, which starts at zero. After each addition,
    /// the sink draws again with the same probability. If `odds` is 0, the delay is always `seconds`.
    pub(super) odds: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CommandRule {
    pub(super) is_enabled: bool,
    pub(super) is_logged: bool,
    pub(super) hangs_up: bool,
    pub(super) sends_421: bool,
    pub(super) rejects_hard: bool,
    pub(super) rejects_soft: bool,
    pub(super) delay: Option<ReplyDelay>,
}

impl CommandRule {
    pub(super) fn is_plain(&self) -> bool {
        !(self.is_logged || self.hangs_up || self.sends_421 || self.rejects().is_some() || self.delay.is_some())
    }

    /// Returns the kind of error with which the command is rejected, or `None` if it is not rejected. A hard error
    /// takes precedence over a soft one.
    pub(super) fn rejects(&self) -> Option<Reject> {
        let hard = self.rejects_hard.then_some(Reject::Hard);
        hard.or(self.rejects_soft.then_some(Reject::Soft))
    }
}

#[derive(Clone, Debug)]
pub(super) struct CommandRules([CommandRule; COMMAND_COUNT]);

impl Default for CommandRules {
    /// Enables all commands except HELO, EHLO, LHLO and CONNECT. HELO, EHLO and LHLO are enabled later, depending on
    /// the protocol. CONNECT stays disabled, because it stands for a new connection and clients cannot send it.
    fn default() -> Self {
        let mut rules = Self([CommandRule { is_enabled: true, ..CommandRule::default() }; COMMAND_COUNT]);
        for command in [Command::Connect, Command::Helo, Command::Ehlo, Command::Lhlo] {
            rules[command].is_enabled = false;
        }
        rules
    }
}

impl CommandRules {
    pub(super) fn logs_any(&self) -> bool {
        self.0.iter().any(|rule| rule.is_logged)
    }
}

impl Index<Command> for CommandRules {
    type Output = CommandRule;

    fn index(&self, command: Command) -> &CommandRule {
        &self.0[command as usize]
    }
}

impl IndexMut<Command> for CommandRules {
    fn index_mut(&mut self, command: Command) -> &mut CommandRule {
        &mut self.0[command as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; COMMAND_COUNT] = [
        "connect", "helo", "ehlo", "lhlo", "xclient", "xforward", "auth", "mail", "rcpt", "data", ".", "rset", "noop",
        "vrfy", "quit",
    ];

    #[test]
    fn every_name_is_known_in_any_case_and_has_its_own_rule() {
        let mut rules = CommandRules::default();
        assert!(!rules.logs_any());
        for (place, name) in NAMES.iter().enumerate() {
            let command = Command::named(name.as_bytes()).unwrap();
            assert_eq!(Command::named(name.to_uppercase().as_bytes()), Some(command));
            assert_eq!(command as usize, place);
            rules[command].is_logged = true;
        }
        assert!(rules.logs_any() && rules.0.iter().all(|rule| rule.is_logged && !rule.is_plain()));
        for word in ["", "mai", "mail ", "xforwardx", "..", "starttls", "verylongword"] {
            assert_eq!(Command::named(word.as_bytes()), None, "{word}");
        }
    }

    #[test]
    fn hard_wins_over_soft() {
        let rule = |rejects_hard, rejects_soft| CommandRule { rejects_hard, rejects_soft, ..CommandRule::default() };
        assert_eq!(rule(true, true).rejects(), Some(Reject::Hard));
        assert_eq!(rule(false, true).rejects(), Some(Reject::Soft));
        assert!(rule(false, false).is_plain());
    }

    proptest! {
        #[test]
        fn only_the_names_are_known(word in proptest::collection::vec(any::<u8>(), 0..12)) {
            let lower = String::from_utf8_lossy(&word).to_ascii_lowercase();
            prop_assert_eq!(Command::named(&word).is_some(), NAMES.contains(&lower.as_str()));
        }
    }
}
