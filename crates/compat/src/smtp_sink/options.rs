use super::commands::{Command, CommandRules, ReplyDelay};
use super::replies::{AnnouncedExtensions, ConfiguredReplies};
use crate::getopt;
use crate::host_port::Family;
use crate::numbers::{atoi, is_all_digits, positive};
use crate::own_options::{Invocation, OwnOptions};

const OPTION_LETTERS: &str = "468aA:b:B:cCd:D:eEf:Fh:H:Ln:m:M:NpPq:Q:r:R:s:S:t:T:u:vw:W:";

const USAGE: &str = "[-468acCeEFLpPv] [-A abort_delay] [-b soft_bounce_reply] [-B hard_bounce_reply] \
     [-d dump-template] [-D dump-template] [-f commands] [-h hostname] [-m max_concurrency] [-M message_quit_count] \
     [-n quit_count] [-q commands] [-r commands] [-R root-dir] [-s commands] [-S start-string] [-u user_privs] \
     [-w delay] [host]:port backlog";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DumpTemplate {
    /// `-d`: the sink stores each message in a file of its own.
    OwnFile(String),
    /// `-D`: the sink stores all messages in one file.
    SharedFile(String),
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    /// The word by which the program was called (`argv[0]`). All messages of the program begin with this word.
    pub(super) program: String,
    pub(super) own_options: OwnOptions,
    pub(super) address: String,
    pub(super) backlog: i32,
    pub(super) family: Family,
    /// Size of the socket's buffers (SO_SNDBUF and SO_RCVBUF) in bytes, or `None` for the kernel's default.
    pub(super) window_bytes: Option<i32>,
    pub(super) user: Option<String>,
    pub(super) root: Option<String>,
    pub(super) verbosity: u32,
    pub(super) rules: CommandRules,
    pub(super) replies: ConfiguredReplies,
    pub(super) hostname: String,
    pub(super) is_lmtp: bool,
    /// `-A`: seconds from DATA until the sink sends 550 and disconnects, although the message has not ended.
    pub(super) abort_after: Option<u32>,
    /// `-H`: seconds from DATA until the sink begins to read the message.
    pub(super) body_delay: u32,
    pub(super) timeout_s: u32,
    pub(super) max_sessions: usize,
    pub(super) quit_limit: Option<u64>,
    pub(super) message_limit: Option<u64>,
    pub(super) shows_counters: bool,
    pub(super) dump_template: Option<DumpTemplate>,
    pub(super) dump_prefix: Vec<u8>,
}

/// An error that prevents the start, as lines of text. `StderrWriter` puts the program's name before each line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartupError(pub(super) Vec<String>);

impl StartupError {
    pub(super) fn fatal(text: impl AsRef<str>) -> Self {
        Self(vec![format!("fatal: {}", text.as_ref())])
    }
}

#[derive(Debug)]
struct SettingsBuilder {
    settings: Settings,
    extensions: AnnouncedExtensions,
    soft_reply: String,
    hard_reply: String,
    single_template: Option<String>,
    shared_template: Option<String>,
}

impl Settings {
    fn new(called: &str) -> Self {
        Self {
            program: called.to_owned(),
            own_options: OwnOptions::default(),
            address: String::new(),
            backlog: 0,
            family: Family::default(),
            window_bytes: None,
            user: None,
            root: None,
            verbosity: 0,
            rules: CommandRules::default(),
            replies: ConfiguredReplies::new("", &AnnouncedExtensions::default(), "", ""),
            hostname: "smtp-sink".to_owned(),
            is_lmtp: false,
            abort_after: None,
            body_delay: 0,
            timeout_s: 100,
            max_sessions: 256,
            quit_limit: None,
            message_limit: None,
            shows_counters: false,
            dump_template: None,
            dump_prefix: Vec::new(),
        }
    }

    /// Processes the option letters one by one, so that the first of several mistakes is reported, as in Postfix's
    /// smtp-sink.
    pub(super) fn read(call: &Invocation) -> Result<Self, StartupError> {
        let mut settings = Self::new(&call.program);
        let words = settings.own_options.parse_front(&call.arguments).map_err(StartupError::fatal)?;
        let (arguments, error) = getopt::parse_until_error(OPTION_LETTERS, words);
        let mut builder = SettingsBuilder {
            settings,
            extensions: AnnouncedExtensions::default(),
            soft_reply: "450 4.3.0 Error: command failed".to_owned(),
            hard_reply: "500 5.3.0 Error: command failed".to_owned(),
            single_template: None,
            shared_template: None,
        };
        for (letter, argument) in arguments.options {
            builder.set_option(letter, argument.unwrap_or_default())?;
        }
        if let Some(error) = error {
            return Err(builder.usage(Some(error.to_string())));
        }
        builder.build(&arguments.rest)
    }
}

impl SettingsBuilder {
    fn usage(&self, before: Option<String>) -> StartupError {
        let usage = format!("fatal: usage: {} {USAGE}", self.settings.program);
        StartupError(before.into_iter().chain([usage]).collect())
    }

    fn set_option(&mut self, letter: char, argument: String) -> Result<(), StartupError> {
        let settings = &mut self.settings;
        match letter {
            '4' => settings.family = Family::V4,
            '6' => settings.family = Family::V6,
            'c' => settings.shows_counters = true,
            'd' => self.single_template = Some(argument),
            'D' => self.shared_template = Some(argument),
            'h' => settings.hostname = argument,
            'L' => settings.is_lmtp = true,
            'R' => settings.root = Some(argument),
            'S' => settings.dump_prefix = unescape(&argument),
            'u' => settings.user = Some(argument),
            'v' => settings.verbosity += 1,
            'A' | 'b' | 'B' => return self.set_reply_or_abort(letter, argument),
            'f' | 'q' | 'Q' | 'r' | 's' => return self.set_rules(letter, &argument),
            'H' | 'm' | 'M' | 'n' | 't' | 'T' => return self.set_count(letter, &argument),
            'w' => {
                let seconds = positive(&argument).ok_or_else(|| self.usage(None))?;
                self.settings.rules[Command::Data].delay = Some(ReplyDelay { seconds, odds: 0 });
            }
            'W' => self.set_delay(&argument)?,
            _ => self.withdraw_extension(letter),
        }
        Ok(())
    }

    fn withdraw_extension(&mut self, letter: char) {
        let extensions = &mut self.extensions;
        let rules = &mut self.settings.rules;
        match letter {
            '8' => extensions.eight_bit_mime = false,
            'a' => extensions.auth = false,
            'C' => {
                extensions.xclient = false;
                rules[Command::Xclient].is_enabled = false;
            }
            'e' => extensions.esmtp = false,
            'E' => extensions.enhanced_status_codes = false,
            'F' => {
                extensions.xforward = false;
                rules[Command::Xforward].is_enabled = false;
            }
            'N' => extensions.dsn = false,
            'P' => {
                extensions.pix = true;
                extensions.esmtp = false;
            }
            // The only other letter that the option parser accepts is `p`, which turns off PIPELINING.
            _ => extensions.pipelining = false,
        }
    }

    fn set_reply_or_abort(&mut self, letter: char, argument: String) -> Result<(), StartupError> {
        if letter == 'A' {
            let seconds = is_all_digits(&argument).then(|| u32::try_from(atoi(&argument)).ok()).flatten();
            self.settings.abort_after = Some(seconds.ok_or_else(|| self.usage(None))?);
            return Ok(());
        }
        let (digit, kind) = if letter == 'b' { ('4', "soft") } else { ('5', "hard") };
        let digits = argument.bytes().take_while(u8::is_ascii_digit).count();
        if !argument.starts_with(digit) || digits != 3 {
            return Err(self.usage(Some(format!("error: bad {kind} error reply: {argument}"))));
        }
        *(if letter == 'b' { &mut self.soft_reply } else { &mut self.hard_reply }) = argument;
        Ok(())
    }

    fn set_rules(&mut self, letter: char, list: &str) -> Result<(), StartupError> {
        for name in list.split([',', ' ', '\t', '\r', '\n']).filter(|name| !name.is_empty()) {
            let rule = &mut self.settings.rules[command_named(name)?];
            match letter {
                'f' => rule.rejects_hard = true,
                'q' => rule.hangs_up = true,
                'Q' => rule.sends_421 = true,
                'r' => rule.rejects_soft = true,
                _ => rule.is_logged = true,
            }
        }
        self.extensions.pipelining &= !matches!(letter, 'f' | 'r');
        Ok(())
    }

    fn set_count(&mut self, letter: char, argument: &str) -> Result<(), StartupError> {
        let what = match letter {
            'H' => "data read delay",
            'm' => "concurrency limit",
            'M' => "message quit count",
            'n' => "quit count",
            't' => "timeout",
            _ => "TCP window size",
        };
        let count = positive(argument).ok_or_else(|| StartupError::fatal(format!("bad {what}: {argument}")))?;
        let settings = &mut self.settings;
        match letter {
            'H' => settings.body_delay = count,
            'm' => settings.max_sessions = count as usize,
            'M' => settings.message_limit = Some(count.into()),
            'n' => settings.quit_limit = Some(count.into()),
            't' => settings.timeout_s = count,
            _ => settings.window_bytes = Some(count as i32),
        }
        Ok(())
    }

    /// Parses the argument of `-W`, `command:delay[:odds]`. Skips extra colons before the command and before the delay.
    fn set_delay(&mut self, argument: &str) -> Result<(), StartupError> {
        let mut rest = argument;
        let (Some(name), Some(seconds)) = (word(&mut rest), word(&mut rest)) else {
            return Err(StartupError::fatal(format!("invalid command delay argument: {argument}")));
        };
        let command = command_named(name)?;
        let seconds = positive(seconds).ok_or_else(|| StartupError::fatal(format!("non-positive '{name}' delay")))?;
        let odds = u32::try_from(atoi(rest)).ok().filter(|odds| *odds <= 99);
        let odds = odds.ok_or_else(|| StartupError::fatal(format!("delay odds for '{name}' out of range")))?;
        self.settings.rules[command].delay = Some(ReplyDelay { seconds, odds });
        Ok(())
    }

    fn build(mut self, rest: &[String]) -> Result<Settings, StartupError> {
        let [address, backlog] = rest else { return Err(self.usage(None)) };
        let backlog = positive(backlog).ok_or_else(|| self.usage(None))? as i32;
        let dump_template = match (self.single_template.take(), self.shared_template.take()) {
            (Some(_), Some(_)) => return Err(StartupError::fatal("use only one of -d or -D, but not both")),
            (Some(template), None) => Some(DumpTemplate::OwnFile(template)),
            (None, shared) => shared.map(DumpTemplate::SharedFile),
        };
        let Self { mut settings, extensions, soft_reply: soft, hard_reply: hard, .. } = self;
        for command in greeting_commands(settings.is_lmtp, extensions.esmtp) {
            settings.rules[*command].is_enabled = true;
        }
        settings.replies = ConfiguredReplies::new(&settings.hostname, &extensions, &soft, &hard);
        Ok(Settings { address: address.clone(), backlog, dump_template, ..settings })
    }
}

fn greeting_commands(is_lmtp: bool, esmtp: bool) -> &'static [Command] {
    match (is_lmtp, esmtp) {
        (true, _) => &[Command::Lhlo],
        (false, false) => &[Command::Helo],
        (false, true) => &[Command::Helo, Command::Ehlo],
    }
}

fn command_named(name: &str) -> Result<Command, StartupError> {
    Command::named(name.as_bytes()).ok_or_else(|| StartupError::fatal(format!("unknown command: {name}")))
}

/// Removes the next word and the colon after it from `rest`, and returns the word. Skips leading colons.
fn word<'a>(rest: &mut &'a str) -> Option<&'a str> {
    let text = rest.trim_start_matches(':');
    let (word, after) = text.split_once(':').unwrap_or((text, ""));
    *rest = after;
    (!word.is_empty()).then_some(word)
}

/// Replaces escape sequences of C, such as `\n`. The result ends before the first NUL, which would end a C string.
fn unescape(text: &str) -> Vec<u8> {
    let mut octets = text.bytes().peekable();
    let mut result = Vec::with_capacity(text.len());
    while let Some(octet) = octets.next() {
        let octet = match octet {
            b'\\' => match octets.next() {
                None => break,
                Some(digit @ b'0'..=b'7') => octal(digit, &mut octets),
                Some(letter) => escaped(letter),
            },
            octet => octet,
        };
        if octet == 0 {
            break;
        }
        result.push(octet);
    }
    result
}

fn escaped(letter: u8) -> u8 {
    match letter {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        other => other,
    }
}

/// Reads the rest of an octal number of up to three digits that begins with the digit `first`. A number above 255 wraps
/// around, as in Postfix's smtp-sink.
fn octal(first: u8, rest: &mut std::iter::Peekable<impl Iterator<Item = u8>>) -> u8 {
    let mut value = first - b'0';
    for _ in 0..2 {
        let Some(digit) = rest.next_if(|octet| (b'0'..=b'7').contains(octet)) else { break };
        value = value.wrapping_mul(8).wrapping_add(digit - b'0');
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(words: &[&str]) -> Result<Settings, String> {
        let arguments = words.iter().map(|word| (*word).to_owned()).collect();
        Settings::read(&Invocation { program: "x".to_owned(), arguments }).map_err(|refusal| refusal.0.join("\n"))
    }

    #[test]
    fn the_defaults_are_the_manuals() {
        let settings = read(&[":2525", "10"]).unwrap();
        assert_eq!((settings.address.as_str(), settings.backlog), (":2525", 10));
        assert_eq!((settings.max_sessions, settings.timeout_s, settings.hostname.as_str()), (256, 100, "smtp-sink"));
        assert!(settings.rules[Command::Ehlo].is_enabled && !settings.rules[Command::Lhlo].is_enabled);
    }

    #[test]
    fn a_table_of_complaints() {
        let usage = format!("fatal: usage: x {USAGE}");
        let rows: [(&[&str], &str); 17] = [
            (&[":1"], &usage),
            (&[":1", "0"], &usage),
            (&[":1", "10", "x"], &usage),
            (&["-A", "", ":1", "10"], &usage),
            (&["-A-1", ":1", "10"], &usage),
            (&["-w", "0", ":1", "10"], &usage),
            (&["-b", "550 x", ":1", "10"], &format!("error: bad soft error reply: 550 x\n{usage}")),
            (&["-B", "5501 x", ":1", "10"], &format!("error: bad hard error reply: 5501 x\n{usage}")),
            (&["-n", "x", "-Z"], "fatal: bad quit count: x"),
            (&["-Z"], &format!("invalid option -- 'Z'\n{usage}")),
            (&["-f", "mail,foo"], "fatal: unknown command: foo"),
            (&["-W", "mail"], "fatal: invalid command delay argument: mail"),
            (&["-W", "foo:0"], "fatal: unknown command: foo"),
            (&["-W", "MAIL:0"], "fatal: non-positive 'MAIL' delay"),
            (&["-W", "mail:1:100"], "fatal: delay odds for 'mail' out of range"),
            (&["-T", "0"], "fatal: bad TCP window size: 0"),
            (&["-d", "a", "-D", "b", ":1", "10"], "fatal: use only one of -d or -D, but not both"),
        ];
        for (words, expected) in rows {
            assert_eq!(read(words).unwrap_err(), expected, "{words:?}");
        }
    }

    #[test]
    fn lists_and_delays_reach_their_commands() {
        let settings = read(&["-f", "MAIL, rcpt\t.", "-W", "::noop::3:40", "-w2x", "-eC", ":1", "10"]).unwrap();
        for command in [Command::Mail, Command::Rcpt, Command::Dot] {
            assert!(settings.rules[command].rejects_hard);
        }
        assert_eq!(settings.rules[Command::Noop].delay, Some(ReplyDelay { seconds: 3, odds: 40 }));
        assert_eq!(settings.rules[Command::Data].delay, Some(ReplyDelay { seconds: 2, odds: 0 }));
        assert!(!settings.rules[Command::Ehlo].is_enabled && !settings.rules[Command::Xclient].is_enabled);
        assert!(!String::from_utf8_lossy(&settings.replies.ehlo).contains("PIPELINING"), "-f implies -p");
    }

    #[test]
    fn escapes_are_cs() {
        assert_eq!(unescape(r"From x\n\t\\\101\1012\q\7"), b"From x\n\t\\AA2q\x07");
        assert_eq!(unescape(r"a\"), b"a");
        assert_eq!(unescape(r"a\0b"), b"a");
        assert_eq!(unescape(r"\777"), [0xff]);
    }

    proptest! {
        #[test]
        fn any_command_line_is_read_or_refused(words in proptest::collection::vec("[-a-zA-Z0-9:., \\\\]{0,8}", 0..8)) {
            if let Err(refusal) = read(&words.iter().map(String::as_str).collect::<Vec<_>>()) {
                prop_assert!(refusal.contains("fatal: "), "{refusal}");
            }
        }

        #[test]
        fn text_without_escapes_is_itself(text in "[^\\\\\0]{0,40}") {
            prop_assert_eq!(unescape(&text), text.as_bytes());
        }
    }
}
