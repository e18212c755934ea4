//! `mailrun sink`: turns the arguments into the options of a sink.
pub(crate) mod capabilities;
pub(crate) mod mailboxes;

use super::report::results::Strictness;
use crate::options::cpus::{CpusArg, ThreadArgs};
use crate::options::keep_awake::KeepAwakeArg;
use crate::options::party_outputs::{DialogueArgs, OutputArgs, exit_with_parent, finish};
use crate::options::values;
use crate::report::messages::say;
use anyhow::{Context, Result, anyhow, ensure};
use capabilities::CapabilityArgs;
use clap::Args;
use mailboxes::MailboxArgs;
use mailrun_load::sink::{self, DumpTarget, Receiver, Rule, Rulebook, SinkOptions};
use mailrun_load::source::AllowedTargets;
use mailrun_process::live::LiveMode;
use mailrun_process::text_file;
use mailrun_smtp::Limits;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Accepts mail at full speed, checks the trace headers of mailrun source and counts every message
///
/// Ends after --max-messages, on Ctrl-C or on SIGTERM, and prints a report.
#[derive(Debug, Args)]
#[command(after_help = RULES)]
pub(crate) struct SinkArgs {
    /// Address to listen on; port 0 picks a free port, unix:PATH makes a unix-domain socket.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:2525", conflicts_with = "mailbox")]
    listen: String,
    /// Address of the HTTP interface. /status, /ledger, /ledger/RUN and /record/RUN give JSON, and PUT /rules replaces
    /// the rules. The Host of a request must be an IP address, localhost, the name of this host, HOST or --hostname;
    /// other requests get 421.
    #[arg(long, value_name = "HOST:PORT")]
    http: Option<String>,
    /// End after this number of messages.
    #[arg(short = 'm', long, visible_short_alias = 'n', value_name = "N", value_parser = values::some)]
    max_messages: Option<u64>,
    /// Host name in the greeting.
    #[arg(long, value_name = "NAME", default_value = "mailrun.example.com", value_parser = values::host_name)]
    hostname: String,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    cpus: CpusArg,
    #[command(flatten)]
    keep_awake: KeepAwakeArg,
    /// Name of the sink in reports.
    #[arg(long, value_name = "NAME", default_value = "sink")]
    label: String,
    #[command(flatten)]
    bounds: SinkLimitArgs,
    #[command(flatten)]
    welcome: CapabilityArgs,
    #[command(flatten)]
    outputs: OutputArgs,
    #[command(flatten)]
    faults: SinkFaultArgs,
    /// Seed of the faults, if the rules file has none [default: 1].
    #[arg(
        long,
        value_name = "N",
        value_parser = values::seed,
        help_heading = "Faults, to test senders and mailrun itself"
    )]
    seed: Option<u64>,
    #[command(flatten)]
    dump: DumpArgs,
    #[command(flatten)]
    dialogue: DialogueArgs,
    #[command(flatten)]
    mailboxes: MailboxArgs,
    /// Watch mailboxes at public addresses, too. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true,
          help_heading = "Mailboxes")]
    allow_public: bool,
}

/// Limits on what a sink accepts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct SinkLimitArgs {
    /// Maximum number of concurrent sessions; more are answered 421.
    #[arg(long, value_name = "N", default_value = "100000", value_parser = values::sessions)]
    max_sessions: u32,
    /// Maximum size of a message, announced with SIZE.
    #[arg(long, value_name = "BYTES", default_value = "1G", value_parser = values::some_bytes)]
    max_message_size: u64,
    /// Maximum length of a line of a message, CRLF included (RFC 5321 §4.5.3.1.6).
    #[arg(long, value_name = "BYTES", default_value = "1000", value_parser = values::some_bytes)]
    max_line_length: u64,
    /// Maximum number of recipients per message.
    #[arg(long, value_name = "N", default_value = "1000", value_parser = values::sessions)]
    max_recipients: u32,
    /// Time limit for a silent client.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = values::some_duration)]
    idle_timeout: Duration,
}

/// Files in which a sink stores messages. The sink removes the dot stuffing, but does not change any other byte.
#[derive(Debug, Args)]
#[group(multiple = false)]
#[command(next_help_heading = "Storing messages, byte for byte; 452 if a message cannot be stored")]
struct DumpArgs {
    /// Write each message to its own file in DIR.
    #[arg(long, value_name = "DIR")]
    dump_dir: Option<PathBuf>,
    /// Append all messages to FILE. Before each message is a line of JSON,
    /// {"bytes":N,"client":…,"sender":…,"recipients":[…]}, and after its N bytes a line feed.
    #[arg(long, value_name = "FILE")]
    dump_file: Option<PathBuf>,
    /// Deliver messages into the Maildir DIR.
    #[arg(long, value_name = "DIR")]
    maildir: Option<PathBuf>,
}

impl DumpArgs {
    fn is_used(&self) -> bool {
        self.dump_dir.is_some() || self.dump_file.is_some() || self.maildir.is_some()
    }

    fn target(self) -> Option<DumpTarget> {
        let file = self.dump_file.map(DumpTarget::File).or(self.maildir.map(DumpTarget::Maildir));
        self.dump_dir.map(DumpTarget::Directory).or(file)
    }
}

/// Options for the faults of a sink. The commands sink and bench share them.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Faults, to test senders and mailrun itself")]
pub(crate) struct SinkFaultArgs {
    /// Fault, repeatable: 'drop 1%', 'stall 2s..5s', 'rcpt: soft reject 1%'. `mailrun sink --help` lists all.
    #[arg(long, value_name = "RULE", value_parser = rule)]
    fault: Vec<Rule>,
    /// Read rules from a file: TOML or JSON.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Take the rules of a receiver with documented limits, such as yahoo, instead of a file. `mailrun sink
    /// --rules-like list` shows all receivers, with the sources of their rules.
    #[arg(long, value_name = "NAME", value_parser = rules_like, conflicts_with = "rules")]
    rules_like: Option<RulesLike>,
}

/// The value of `--rules-like`: the name of a mail receiver whose rules the sink imitates, or `list`.
#[derive(Clone, Copy, Debug)]
enum RulesLike {
    List,
    Receiver(Receiver),
}

fn rules_like(name: &str) -> Result<RulesLike, String> {
    if name == "list" { Ok(RulesLike::List) } else { Receiver::named(name).map(RulesLike::Receiver) }
}

pub(crate) fn rule(text: &str) -> Result<Rule, String> {
    Rule::parse(text).map_err(|mistake| mistake.to_string())
}

impl SinkFaultArgs {
    /// Returns a text with the rules of all receivers, if `--rules-like list` asks for it.
    pub(crate) fn list_text(&self) -> Option<String> {
        let text = |receiver: &Receiver| {
            let lines: String = receiver.text().lines().map(|line| format!("  {line}\n")).collect();
            format!("{}\n{lines}", receiver.name)
        };
        matches!(self.rules_like, Some(RulesLike::List)).then(|| Receiver::ALL.iter().map(text).collect())
    }

    /// Returns the sink's rules: first the rules of `--rules` or `--rules-like`, then the rules of `--fault`.
    fn rulebook(&self) -> Result<Rulebook> {
        let file = match (&self.rules, self.rules_like) {
            (Some(path), _) => read_rules(path)?,
            (None, Some(RulesLike::Receiver(receiver))) => receiver.rulebook().map_err(|reason| anyhow!(reason))?,
            (None, _) => Rulebook::default(),
        };
        Ok(Rulebook { seed: file.seed, rules: file.rules.into_iter().chain(self.fault.iter().cloned()).collect() })
    }
}

const MAX_RULES_BYTES: u64 = 2 << 20;

fn read_rules(path: &Path) -> Result<Rulebook> {
    let name = path.display();
    let text = text_file::read(path, MAX_RULES_BYTES).with_context(|| format!("cannot read {name}"))?;
    Rulebook::read_file(&name.to_string(), &text).map_err(|reason| anyhow!(reason))
}

const RULES: &str = "\
Rules: [COMMAND[, COMMAND...] [to|from ADDRESS]:] ACTION [\"REPLY\"] [CHANCE]
  COMMAND  connect helo ehlo lhlo starttls tls auth mail rcpt data . rset noop vrfy quit, or * for all; tls is the
           handshake itself; data includes the first BDAT, and . the last BDAT. Without COMMAND: rcpt or data
           for an action that is only for these, else . (`drop 1%`, `stall 2s..5s`)
  ADDRESS  user@domain, @domain, user@, or * for all; rcpt and . have `to`, mail has `from`
  REPLY    a 4xx or 5xx code and a text in quotes, instead of the default shown here
  CHANCE   0.01 or 1%, default: always. The same seed gives the same faults for the same messages
  On any command:
    hang up, or fail            close the connection, without a reply or after REPLY
    soft reject                 450 4.3.0 Error: command failed
    hard reject, or reject      554 5.3.0 Error: command failed
    delay TIME[..TIME]          delay the reply
    stall FROM..TO              send no replies between two times after the first connection
    tarpit TIME [up to TIME]    delay each reply of a session by TIME more than the last [up to 10s]
    limit RATE [burst N]        451 4.7.1 above RATE (100/s, 500/m); a REPLY of 421 ends the session [burst: 0.1 s]
                                on rcpt also `per recipient` or `per domain`: each has the rate for itself
    reset                       cut the connection with RST
  On mail:
    session cap N               after N messages of a session close it, without a reply or after REPLY
  On rcpt:
    greylist TIME [remember N]  450 4.7.1 until client, sender and recipient return after TIME
    domain cap N                451 4.7.1 above N open transactions for the domain
    directed                    450-user@..., 550@...: the recipient address gives the reply; also on .
  On data:
    abort [after TIME]          354, stop reading, 550 This violates SMTP, close
    read SIZE/s                 limit the speed of reading the message
    read at most SIZE           read the message in pieces of that size
    reset at SIZE               cut the connection with RST at that byte of the message
  On . (the end of the message):
    lose reply                  store the message, and close the connection instead of answering 250
    drop, duplicate, corrupt    answer 250 and lose it, count it twice, change a byte
  On . with `to`, and .: directed, after all other rules, separately for each recipient:
    any of the first list, lose reply, drop, duplicate. LMTP answers each recipient. In SMTP the first rule that
    rejects or disconnects applies to the whole message, and delays add up; drop and duplicate apply to one recipient
  Rules run in order. Delays add up. The first rule that rejects or disconnects wins; later rules are skipped.
  Notices (mail from <>, such as bounces) are only delayed, unless the rule says so: `rcpt from <>: hard reject`.

Rules file, and the body of PUT http://ADDR/rules, in TOML or JSON (GET shows the active rules):
  seed = 7
  rules = [
    'rcpt to @slow.example: delay 200ms..2s 10%',
    'rcpt: greylist 30s',
    'mail: limit 100/s burst 20 \"421 4.7.0 Too fast\"',
    '.: lose reply 0.001',
    '. to @full.example: soft reject \"452 4.2.2 Mailbox full\"',
  ]

Examples:
  mailrun sink --listen 127.0.0.1:2525
  mailrun sink --http 127.0.0.1:8025 -m 10000 --json sink.json
  mailrun sink -m 10000 --tls starttls --tls-write-cert sink.pem
  mailrun sink --fault 'drop 0.1%' --seed 1   loses one message in a thousand
  mailrun sink --fault 'rcpt: soft reject 0.01' --fault '.: hard reject \"554 5.7.1 Spam\" 1%'
  mailrun sink --mailbox 'imaps://user{0..99}@mail.example' --mailbox-password-file FILE
  mailrun sink --rules FILE --seed 7 --http 127.0.0.1:8025
  mailrun sink --rules-like yahoo               20 messages per connection; list shows others
  mailrun sink --dialogue-of @a.example         shows how a server delivers to a.example
  curl -X PUT --data-binary @FILE http://127.0.0.1:8025/rules
  curl -X PUT --data '{\"rules\": [\"rcpt: domain cap 5\"]}' http://127.0.0.1:8025/rules
  mailrun bench --fault '.: lose reply 0.01'";

impl SinkArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if let Some(text) = self.faults.list_text() {
            say(text.trim_end())?;
            return Ok(ExitCode::SUCCESS);
        }
        self.cpus.place()?;
        let outputs = self.outputs.outputs()?;
        let report = self.outputs.report.clone();
        let details = self.outputs.out.clone();
        let live = outputs.live;
        ensure!(
            live != LiveMode::Dashboard,
            "a sink has no dashboard: use --progress line; its figures are at --http ADDRESS"
        );
        let dialogue = self.dialogue.options(report.stdout_use(live)?)?;
        exit_with_parent(live);
        let allowed = if self.allow_public { AllowedTargets::Public } else { AllowedTargets::Local };
        let mailboxes = self.mailboxes.options(self.outputs.run_id, allowed)?;
        let rules = self.faults.rulebook()?;
        let capabilities = self.welcome.options()?;
        if mailboxes.is_some() {
            let is_server =
                capabilities.is_used() || !rules.rules.is_empty() || self.dump.is_used() || dialogue.is_some();
            ensure!(
                !is_server,
                "a sink that watches mailboxes (--mailbox) is no server: it offers no TLS, AUTH, LMTP, PROXY \
                 and XCLIENT, has no faults, and stores no messages"
            );
        }
        let _awake = self.keep_awake.begin(false)?;
        let finished = sink::run(SinkOptions {
            name: self.label,
            listen: self.listen,
            http: self.http,
            messages: self.max_messages,
            workers: self.threads.workers.or(self.cpus.workers()).unwrap_or_else(mailrun_net::worker::default_count),
            busy_poll: self.threads.busy_poll.value(),
            sessions: self.bounds.max_sessions as usize,
            limits: Limits {
                text_line_bytes: usize::try_from(self.bounds.max_line_length).unwrap_or(usize::MAX),
                message_bytes: self.bounds.max_message_size,
                recipients: self.bounds.max_recipients as usize,
                idle_timeout: self.bounds.idle_timeout,
                // Do not disconnect clients that send no message or fail to log in, because a sink only measures.
                no_message_timeout: Duration::MAX,
                login_failures: u32::MAX,
                // Allow any number of invalid commands, because people type commands into a sink to see its replies.
                // The limit `idle_commands` still ends a session after 1,000 commands without a message.
                junk_commands: u32::MAX,
                ..Limits::default()
            },
            hello: self.hostname,
            rules,
            seed: self.seed.unwrap_or(1),
            dump: self.dump.target(),
            dialogue,
            run: self.outputs.run_id,
            capabilities,
            mailboxes,
            outputs,
        })?;
        finish(finished, &report, live, Strictness::Lenient, details.as_deref())
    }
}
