//! `mailrun queue`: sends commands of an operator to a running relay, and prints the replies as tables or as JSON
//! lines.
use crate::options::values;
use crate::report::messages::one_line;
use crate::report::results::stdout_written;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use mailrun_measurement::RunId;
use mailrun_process::outputs::write_ledger;
use mailrun_relay::config::{Config, DeliveryScope};
use mailrun_relay::control::client::{ControlClient, ControlOutcome};
use mailrun_relay::control::protocol::{
    CommandScope, ControlReply, ControlRequest, EntryRow, EntryState, HopRow, MessageRow, OperatorCommand, QueueId,
    TotalsRow,
};
use mailrun_relay::offline::leftover;
use mailrun_text::numbers::counted;
use mailrun_text::printable::is_hidden;
use std::fmt::Write as _;
use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Lists and changes the queue of a running relay
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, disable_help_subcommand = true)]
pub(crate) struct QueueArgs {
    #[command(subcommand)]
    what: QueueCommand,
    /// Spool directory of the relay, which contains the control socket.
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "config")]
    spool: Option<PathBuf>,
    /// Configuration file of the relay. The command takes the path of the control socket from this file.
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Control socket of the relay, if it is not in the spool directory.
    #[arg(long, value_name = "PATH", global = true, conflicts_with_all = ["spool", "config"])]
    control: Option<PathBuf>,
    /// Print one JSON object per line.
    #[arg(long, global = true)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  mailrun queue list --spool DIR
  mailrun queue list --state deferred --hop mx:b.example --config relay.toml
  mailrun queue show 00000000000000ff --spool DIR
  mailrun queue flush --spool DIR                     all deferred mail, now
  mailrun queue retry --hop mx:b.example --spool DIR  that of one hop, now
  mailrun queue hold 00000000000000ff --spool DIR     not sent until release
  mailrun queue remove all --spool DIR                senders are not notified
  mailrun queue stats --spool DIR

Coming from Postfix:
  postqueue -p    queue list            postsuper -h ID  queue hold ID
  postqueue -f    queue flush           postsuper -H ID  queue release ID
  postqueue -i ID queue retry ID        postsuper -d ID  queue remove ID
  postqueue -s    queue retry --hop     postcat -q ID    queue show ID

Exit status: 0 done; 1 no such message; 2 the relay does not answer.";

#[derive(Debug, Subcommand)]
enum QueueCommand {
    /// Lists the queue (postqueue -p)
    ///
    /// Each entry has those recipients of one message that share a next hop. If there are no entries, the command
    /// prints "Mail queue is empty".
    #[command(after_help = "\
Examples:
  mailrun queue list --spool DIR
  mailrun queue list --state deferred --hop mx:b.example --spool DIR
  mailrun queue list --max-rows 20 --config relay.toml
  mailrun queue list --json --spool DIR | jq .id")]
    List(QueueListArgs),
    /// Shows a message, without its content (postcat -q)
    #[command(after_help = "\
Example:
  mailrun queue show 00000000000000ff --spool DIR")]
    Show {
        /// Queue id, 16 hexadecimal digits.
        id: QueueId,
    },
    /// Retries all deferred messages now (postqueue -f)
    #[command(after_help = "\
Example:
  mailrun queue flush --spool DIR    the same as queue retry all")]
    Flush,
    /// Retries deferred messages now (postqueue -i)
    #[command(after_help = "\
Examples:
  mailrun queue retry 00000000000000ff --spool DIR
  mailrun queue retry --hop mx:b.example --spool DIR
  mailrun queue retry all --spool DIR")]
    Retry(MessageSelectionArgs),
    /// Holds messages: they are not sent (postsuper -h)
    ///
    /// Held messages stay held over a restart until they are released, but they still expire.
    #[command(after_help = "\
Examples:
  mailrun queue hold 00000000000000ff --spool DIR
  mailrun queue hold all --config relay.toml")]
    Hold(MessageSelectionArgs),
    /// Releases held messages (postsuper -H)
    #[command(after_help = "\
Examples:
  mailrun queue release 00000000000000ff --spool DIR
  mailrun queue release all --spool DIR")]
    Release(MessageSelectionArgs),
    /// Removes messages without notifying anyone (postsuper -d)
    #[command(after_help = "\
Examples:
  mailrun queue remove 00000000000000ff 0000000000000100 --spool DIR
  mailrun queue remove --hop mx:b.example --spool DIR")]
    Remove(MessageSelectionArgs),
    /// Shows totals of the queue, and of each next hop
    #[command(after_help = "\
Example:
  mailrun queue stats --spool DIR")]
    Stats,
    /// For a bench: writes the (message, recipient) pairs of a run that are still in the spool of a stopped relay
    #[command(hide = true)]
    Units {
        /// The run's id, 32 hexadecimal digits.
        #[arg(long, value_name = "HEX")]
        run_id: RunId,
        /// File to write the pairs to, in the ledger format of a bench.
        #[arg(long, value_name = "FILE")]
        ledger: PathBuf,
    },
}

#[derive(Debug, Args)]
struct QueueListArgs {
    /// List only entries for this next hop, named as in the output of queue list.
    #[arg(long, value_name = "NAME")]
    hop: Option<String>,
    /// List only entries in this state.
    #[arg(long, value_enum, value_name = "STATE")]
    state: Option<EntryState>,
    /// List at most N entries.
    #[arg(long, value_name = "N", value_parser = values::some)]
    max_rows: Option<u64>,
}

/// The messages that a command applies to.
#[derive(Debug, Args)]
struct MessageSelectionArgs {
    /// Queue ids, 16 hexadecimal digits each, or `all`.
    #[arg(value_name = "ID|all", required_unless_present = "hop", conflicts_with = "hop", value_parser = chosen)]
    ids: Vec<CommandScope>,
    /// Messages with recipients at the next hop NAME, as printed by queue list. Their recipients at other hops are not
    /// affected.
    #[arg(long, value_name = "NAME")]
    hop: Option<String>,
}

fn chosen(text: &str) -> Result<CommandScope, String> {
    if text.eq_ignore_ascii_case("all") { Ok(CommandScope::All) } else { text.parse().map(CommandScope::Id) }
}

impl QueueArgs {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        if let QueueCommand::Units { run_id, ledger } = &self.what {
            return self.write_units(*run_id, ledger);
        }
        let mut operator = ControlClient::connect(&self.control()?)?;
        let mut teller = ReplyPrinter::new(BufWriter::new(io::stdout().lock()), self.json);
        let mut code = ExitCode::SUCCESS;
        for request in self.requests() {
            match operator.send(&request, |reply| teller.print(&reply))? {
                ControlOutcome::Done => {}
                ControlOutcome::Refused(reason) => {
                    mailrun_process::tell!("mailrun: {reason}");
                    code = ExitCode::from(1);
                }
                ControlOutcome::Stopped => return teller.finish(None).map(|()| code),
            }
        }
        if teller.is_empty() {
            let overview = QueueOverview::ask(&mut operator)?;
            if let Some(reason) = self.nothing_found(&overview) {
                mailrun_process::tell!("mailrun: {reason}");
                // Exit with status 1 if a command that should change messages found no such message. An empty list is
                // no failure.
                return Ok(ExitCode::from(if self.queue_order().is_some() { 1 } else { 0 }));
            }
            if overview.entries == 0 && matches!(self.what, QueueCommand::List(_)) {
                teller.print_empty();
            }
        }
        teller.finish(self.queue_order()).map(|()| code)
    }

    /// Explains why a filter matched nothing, and names values that do occur in the queue. Returns `None` if there is
    /// nothing to explain, for example because no filter was given.
    fn nothing_found(&self, overview: &QueueOverview) -> Option<String> {
        let (hop, state) = match &self.what {
            QueueCommand::List(QueueListArgs { hop, state, .. }) => (hop.as_deref(), *state),
            QueueCommand::Retry(selection)
            | QueueCommand::Hold(selection)
            | QueueCommand::Release(selection)
            | QueueCommand::Remove(selection) => (selection.hop.as_deref(), None),
            QueueCommand::Show { .. } | QueueCommand::Flush | QueueCommand::Stats | QueueCommand::Units { .. } => {
                (None, None)
            }
        };
        match (hop, state) {
            (Some(hop), _) if overview.entries == 0 && self.queue_order().is_some() => {
                Some(format!("no messages for the hop {hop:?}; the queue is empty"))
            }
            (Some(hop), _) if overview.entries > 0 && !overview.has(hop) => {
                Some(format!("no messages for the hop {hop:?}; the queue has {}", overview.hops()))
            }
            (hop, Some(state)) if overview.entries > 0 && !self.json => Some(overview.without_state(hop, state)),
            _ => None,
        }
    }

    /// Returns the change that this command makes to messages, or `None` if it only reads the queue.
    fn queue_order(&self) -> Option<OperatorCommand> {
        match self.what {
            QueueCommand::Flush | QueueCommand::Retry(_) => Some(OperatorCommand::Retry),
            QueueCommand::Hold(_) => Some(OperatorCommand::Hold),
            QueueCommand::Release(_) => Some(OperatorCommand::Release),
            QueueCommand::Remove(_) => Some(OperatorCommand::Remove),
            QueueCommand::List(_) | QueueCommand::Show { .. } | QueueCommand::Stats | QueueCommand::Units { .. } => {
                None
            }
        }
    }

    fn write_units(&self, run: RunId, ledger: &Path) -> Result<ExitCode> {
        let spool = self.spool.as_deref().context("no relay named: give --spool DIR")?;
        let units = leftover::units(spool, run)?;
        write_ledger(ledger, &[&units])?;
        Ok(ExitCode::SUCCESS)
    }

    fn control(&self) -> Result<PathBuf> {
        match (&self.control, &self.spool, &self.config) {
            (Some(control), ..) => Ok(control.clone()),
            (_, Some(spool), _) => Ok(spool.join("control.sock")),
            // Accept public next hops in the file, because this command contacts only the control socket.
            (_, _, Some(file)) => Ok(Config::read_within(file, DeliveryScope::Anywhere)?.control),
            (None, None, None) => bail!("no relay named: give --spool DIR, --control PATH or --config FILE"),
        }
    }

    fn requests(&self) -> Vec<ControlRequest> {
        match &self.what {
            QueueCommand::List(QueueListArgs { hop, state, max_rows }) => {
                vec![ControlRequest::List { hop: hop.clone(), state: *state, limit: *max_rows }]
            }
            QueueCommand::Show { id } => vec![ControlRequest::Show { id: *id }],
            QueueCommand::Stats => vec![ControlRequest::Stats],
            QueueCommand::Units { .. } => Vec::new(),
            QueueCommand::Flush => {
                vec![ControlRequest::Change { command: OperatorCommand::Retry, which: CommandScope::All }]
            }
            QueueCommand::Retry(selection) => selection.requests(OperatorCommand::Retry),
            QueueCommand::Hold(selection) => selection.requests(OperatorCommand::Hold),
            QueueCommand::Release(selection) => selection.requests(OperatorCommand::Release),
            QueueCommand::Remove(selection) => selection.requests(OperatorCommand::Remove),
        }
    }
}

impl MessageSelectionArgs {
    fn requests(&self, command: OperatorCommand) -> Vec<ControlRequest> {
        let all = self.ids.iter().cloned().chain(self.hop.clone().map(CommandScope::Hop));
        all.map(|which| ControlRequest::Change { command, which }).collect()
    }
}

/// Prints the relay's replies as they arrive. Collecting them first would need much memory, because a queue may have a
/// million messages.
struct ReplyPrinter<W: Write> {
    out: W,
    json: bool,
    entries: u64,
    /// Number of messages that commands have changed, or `None` before the first reply to a command that changes
    /// messages.
    changed: Option<u64>,
    /// The first error when writing to standard output. After this error, nothing more is printed.
    failure: Option<io::Error>,
}

impl<W: Write> ReplyPrinter<W> {
    fn new(out: W, json: bool) -> Self {
        Self { out, json, entries: 0, changed: None, failure: None }
    }

    /// Prints a reply. If standard output fails while the queue is listed, returns `Break`, so that no more entries are
    /// requested. A command that changes messages continues, because it must reach all of them.
    fn print(&mut self, reply: &ControlReply) -> ControlFlow<()> {
        let is_first = self.entries == 0;
        match reply {
            ControlReply::End | ControlReply::Error { .. } => {}
            ControlReply::Changed { messages } => *self.changed.get_or_insert(0) += messages,
            _ => self.entries += 1,
        }
        let text = match reply {
            _ if self.json => serde_json::to_string(reply).expect("a reply is always JSON") + "\n",
            ControlReply::Entry(entry) if entry.to.is_empty() => printable(&list_line(entry, is_first)),
            ControlReply::Entry(entry) => printable(&entry_text(entry)),
            ControlReply::Message(message) => printable(&message_head(message)),
            ControlReply::Totals(totals) => printable(&totals_text(totals)),
            ControlReply::Hop(hop) => printable(&hop_line(hop)),
            ControlReply::Changed { .. } | ControlReply::End | ControlReply::Error { .. } => String::new(),
        };
        self.write(&text);
        match self.failure {
            Some(_) if self.changed.is_none() => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }

    fn write(&mut self, text: &str) {
        if self.failure.is_none() {
            self.failure = self.out.write_all(text.as_bytes()).err();
        }
    }

    fn is_empty(&self) -> bool {
        self.entries == 0 && self.changed.unwrap_or_default() == 0
    }

    /// Prints that the queue is empty, with the words of Postfix's mailq.
    fn print_empty(&mut self) {
        if !self.json {
            self.write("Mail queue is empty\n");
        }
    }

    /// Prints how many messages a command has changed.
    ///
    /// # Errors
    ///
    /// Returns an error if standard output could not be written. If the reader closes the pipe, this is not an error,
    /// because it has read enough.
    fn finish(mut self, command: Option<OperatorCommand>) -> Result<()> {
        if let (Some(changed), Some(command), false) = (self.changed, command, self.json) {
            let what = match command {
                OperatorCommand::Hold => "held",
                OperatorCommand::Release => "released",
                OperatorCommand::Remove => "removed",
                OperatorCommand::Retry => "scheduled for an immediate retry",
            };
            self.write(&format!("{} {what}\n", counted(changed, "message")));
        }
        stdout_written(self.failure.map_or_else(|| self.out.flush(), Err))
    }
}

/// How many entries the whole queue has, and for which next hops. If a filter matches nothing, the error message
/// suggests these hops.
#[derive(Debug, Default)]
struct QueueOverview {
    entries: u64,
    /// Next hops with at least one entry, beginning with the hop that has the most entries.
    hops: Vec<HopRow>,
}

impl QueueOverview {
    fn ask(operator: &mut ControlClient) -> Result<Self> {
        let mut overview = Self::default();
        operator.send(&ControlRequest::Stats, |reply| {
            overview.add(reply);
            ControlFlow::Continue(())
        })?;
        Ok(overview)
    }

    fn add(&mut self, reply: ControlReply) {
        match reply {
            ControlReply::Totals(totals) => self.entries = totals.entries,
            ControlReply::Hop(hop) if hop.entries() > 0 => self.hops.push(hop),
            _ => {}
        }
    }

    fn has(&self, hop: &str) -> bool {
        self.hops.iter().any(|known| known.hop == hop)
    }

    fn hops(&self) -> String {
        hop_names(&self.hops.iter().collect::<Vec<_>>())
    }

    /// Explains why nothing matches: no entry is in this state, or all entries in this state are for other next hops.
    fn without_state(&self, hop: Option<&str>, state: EntryState) -> String {
        let name = state.name();
        let others: Vec<&HopRow> = self.hops.iter().filter(|other| in_state(other, state) > 0).collect();
        match hop {
            Some(hop) if !others.is_empty() => {
                let all = counted_entries(others.iter().map(|other| in_state(other, state)).sum());
                let others = hop_names(&others);
                format!("no entry for the hop {hop:?} is in the state {name}; the queue has {all} in it, for {others}")
            }
            _ => format!("no entry is in the state {name}; the queue has {}", counted_entries(self.entries)),
        }
    }
}

fn in_state(hop: &HopRow, state: EntryState) -> u64 {
    hop.by_state().into_iter().filter(|(of, _)| *of == state).map(|(_, count)| count).sum()
}

fn counted_entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

fn hop_names(hops: &[&HopRow]) -> String {
    let first: Vec<String> = hops.iter().take(MAX_HOPS_NAMED).map(|hop| printable(&hop.hop)).collect();
    match hops.len().saturating_sub(MAX_HOPS_NAMED) {
        0 => first.join(", "),
        more => format!("{}, and {more} more (queue stats)", first.join(", ")),
    }
}

const MAX_HOPS_NAMED: usize = 5;

/// Replaces hidden characters with `?`. Addresses and replies come from other hosts, so they must not be able to move
/// the terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) && c != '\n' { '?' } else { c }).collect()
}

fn list_line(entry: &EntryRow, is_first: bool) -> String {
    let mut text = String::new();
    if is_first {
        let _ = writeln!(
            text,
            "{:<16}  {:<24}  {:<8}  {:>5}  {:>4}  {:>5}  {:>5}  LAST REFUSAL",
            "ID", "HOP", "STATE", "TRIES", "RCPT", "AGE", "NEXT"
        );
    }
    let _ = writeln!(
        text,
        "{:<16}  {:<24}  {:<8}  {:>5}  {:>4}  {:>5}  {:>5}  {}",
        entry.id.to_string(),
        one_line(&entry.hop),
        entry.state.name(),
        entry.attempts,
        entry.recipients,
        short_duration(entry.age_s),
        next(entry),
        entry.refusal.as_ref().map(|refusal| one_line(&refusal.to_string())).unwrap_or_default(),
    );
    text
}

/// Formats the time until the next attempt, or `-` if there is none.
fn next(entry: &EntryRow) -> String {
    let now = entry.received_unix_s + entry.age_s;
    entry.next_unix_s.map_or_else(|| "-".to_owned(), |next| short_duration(next.saturating_sub(now)))
}

/// Formats a duration in a few characters, for example `90s` or `3h`. The number is rounded down: 7,199 seconds are
/// `119m`.
fn short_duration(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

fn timestamp(unix_s: u64) -> String {
    let second = i64::try_from(unix_s).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(second).map_or_else(|_| unix_s.to_string(), |moment| moment.to_string())
}

fn message_head(message: &MessageRow) -> String {
    let mut text =
        format!("{}  {}, {}\n", message.id, counted(message.bytes, "byte"), counted(message.recipients, "recipient"));
    let _ = writeln!(text, "  from      <{}>", one_line(&message.sender));
    let _ = writeln!(text, "  received  {}", timestamp(message.received_unix_s));
    let name = one_line(&message.client_name);
    let client = message.client_address.as_ref().map(|address| format!("{name} [{address}]"));
    let user = message.user.as_ref().map(|user| format!(", logged in as {}", one_line(user))).unwrap_or_default();
    let _ = writeln!(text, "  client    {}{user}", client.unwrap_or_else(|| format!("{name} (this host)")));
    text
}

fn entry_text(entry: &EntryRow) -> String {
    let tries = if entry.attempts == 1 { "1 try".to_owned() } else { format!("{} tries", entry.attempts) };
    let mut text = format!("  at {}: {}, {tries}", one_line(&entry.hop), entry.state.name());
    match (entry.next_unix_s, entry.hop_is_shut) {
        (None, _) => {}
        (Some(_), false) => drop(write!(text, ", the next in {}", next(entry))),
        (Some(_), true) => drop(write!(text, ", no connection attempt for {}", next(entry))),
    }
    let _ = writeln!(text, ", expires {}", timestamp(entry.expires_unix_s));
    if let Some(refusal) = &entry.refusal {
        let by = if refusal.by.is_empty() { String::new() } else { format!(" (said {})", one_line(&refusal.by)) };
        let _ = writeln!(text, "    {}{by}", one_line(&refusal.to_string()));
    }
    for to in &entry.to {
        let _ = writeln!(text, "    to <{}>", one_line(to));
    }
    text
}

fn totals_text(totals: &TotalsRow) -> String {
    let rows: [(&str, String); 10] = [
        ("messages in the queue", totals.messages.to_string()),
        ("entries, one per message and hop", totals.entries.to_string()),
        ("connections to next hops", totals.connections.to_string()),
        ("bytes in memory", totals.message_bytes.to_string()),
        ("bytes of incoming messages", totals.incoming_bytes.to_string()),
        ("messages in the spool", format!("{} (durability: {})", totals.spool_messages, totals.durability)),
        ("bytes of the spool on disk", totals.spool_disk_bytes.to_string()),
        ("messages accepted so far", totals.accepted.to_string()),
        ("recipients delivered so far", totals.delivered.to_string()),
        ("recipients rejected permanently", totals.failed.to_string()),
    ];
    let mut text: String = rows.iter().map(|(what, value)| format!("{what:<28} {value}\n")).collect();
    let _ = writeln!(
        text,
        "\n{:<32}  {:>7} {:>8} {:>7} {:>7} {:>7} {:>5}  {:>6}  {:>5}  REFUSAL",
        "HOP", "READY", "DEFERRED", "SENDING", "HELD", "TELLING", "CONNS", "OLDEST", "SHUT"
    );
    text
}

fn hop_line(hop: &HopRow) -> String {
    let oldest = hop.oldest_unix_s.map_or_else(|| "-".to_owned(), |oldest| short_duration(seconds_since(oldest)));
    format!(
        "{:<32}  {:>7} {:>8} {:>7} {:>7} {:>7} {:>5}  {:>6}  {:>5}  {}\n",
        one_line(&hop.hop),
        hop.ready,
        hop.deferred,
        hop.sending,
        hop.held,
        hop.awaiting_dsn,
        hop.connections,
        oldest,
        hop.shut_for_s.map_or_else(|| "-".to_owned(), short_duration),
        hop.refusal.as_ref().map(|refusal| one_line(&refusal.to_string())).unwrap_or_default(),
    )
}

fn seconds_since(unix_s: u64) -> u64 {
    u64::try_from(jiff::Timestamp::now().as_second()).unwrap_or(0).saturating_sub(unix_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use mailrun_relay::control::protocol::RefusalRow;

    #[derive(Debug, Parser)]
    struct QueueTestCli {
        #[command(flatten)]
        typed: QueueArgs,
    }

    fn parse(words: &[&str]) -> Result<QueueArgs, clap::Error> {
        QueueTestCli::try_parse_from([&["queue"], words].concat()).map(|line| line.typed)
    }

    #[test]
    fn words_become_requests() {
        let command = |command, which| ControlRequest::Change { command, which };
        let rows: [(&[&str], Vec<ControlRequest>); 7] = [
            (&["list"], vec![ControlRequest::List { hop: None, state: None, limit: None }]),
            (
                &["list", "--hop", "mx:a", "--state", "held", "--max-rows", "9"],
                vec![ControlRequest::List { hop: Some("mx:a".into()), state: Some(EntryState::Held), limit: Some(9) }],
            ),
            (&["show", "00000000000000ff"], vec![ControlRequest::Show { id: QueueId(255) }]),
            (
                &["hold", "0000000000000001", "0000000000000002"],
                vec![
                    command(OperatorCommand::Hold, CommandScope::Id(QueueId(1))),
                    command(OperatorCommand::Hold, CommandScope::Id(QueueId(2))),
                ],
            ),
            (&["retry", "--hop", "mx:a"], vec![command(OperatorCommand::Retry, CommandScope::Hop("mx:a".into()))]),
            (&["remove", "ALL"], vec![command(OperatorCommand::Remove, CommandScope::All)]),
            (&["flush"], vec![command(OperatorCommand::Retry, CommandScope::All)]),
        ];
        for (words, requests) in rows {
            assert_eq!(parse(&[words, &["--spool", "s"]].concat()).unwrap().requests(), requests, "{words:?}");
        }
    }

    #[test]
    fn what_could_be_meant_otherwise_is_refused() {
        for words in [
            &["hold"][..],
            &["hold", "1"],
            &["remove", "--hop", "a", "all"],
            &["show", "all"],
            &["list", "--state", "odd"],
            &["list", "--max-rows", "0"],
            &["flush", "all"],
            &["list", "--spool", "s", "--control", "c"],
            &[],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
        let error = parse(&["list"]).unwrap().control().unwrap_err().to_string();
        assert!(error.contains("--spool"), "{error}");
        assert_eq!(parse(&["--spool", "s", "list"]).unwrap().control().unwrap(), PathBuf::from("s/control.sock"));
        assert_eq!(parse(&["list", "--control", "c"]).unwrap().control().unwrap(), PathBuf::from("c"));
    }

    #[test]
    fn a_filter_that_matches_nothing_is_explained() {
        let mut overview = QueueOverview::default();
        for (name, deferred, held) in [("smtp:a", 1, 0), ("smtp:b", 0, 2)] {
            let mut hop = HopRow::default();
            (hop.hop, hop.deferred, hop.held) = (name.to_owned(), deferred, held);
            overview.entries += hop.entries();
            overview.add(ControlReply::Hop(hop));
        }
        for (words, expected) in [
            ("--state ready", "no entry is in the state ready; the queue has 3 entries"),
            ("--state ready --hop smtp:a", "no entry is in the state ready; the queue has 3 entries"),
            (
                "--state held --hop smtp:a",
                "no entry for the hop \"smtp:a\" is in the state held; the queue has 2 entries in it, for smtp:b",
            ),
            ("--state held --hop smtp:c", "no messages for the hop \"smtp:c\"; the queue has smtp:a, smtp:b"),
        ] {
            let line: Vec<&str> = ["list"].into_iter().chain(words.split(' ')).collect();
            let list = parse(&line).unwrap();
            assert_eq!(list.nothing_found(&overview).as_deref(), Some(expected), "{words}");
        }
    }

    #[test]
    fn a_list_has_a_head_and_a_line_an_entry_whatever_a_reply_says() {
        let refusal = RefusalRow {
            code: 450,
            enhanced: Some("4.2.0".into()),
            text: "no\u{1b}[2J\nfoo".into(),
            by: String::new(),
        };
        let entry = EntryRow {
            id: QueueId(31),
            hop: "smtp:127.0.0.1:25".into(),
            state: EntryState::Deferred,
            recipients: 2,
            attempts: 3,
            received_unix_s: 1_000,
            age_s: 7_200,
            next_unix_s: Some(8_500),
            expires_unix_s: 9_000,
            refusal: Some(refusal),
            hop_is_shut: false,
            to: Vec::new(),
        };
        let mut teller = ReplyPrinter::new(Vec::new(), false);
        assert!(teller.print(&ControlReply::Entry(entry.clone())).is_continue());
        assert!(teller.print(&ControlReply::Entry(entry)).is_continue());
        let text = String::from_utf8(teller.out).unwrap();
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0][..3], ["ID", "HOP", "STATE"]);
        assert_eq!(lines[1][..7], ["000000000000001f", "smtp:127.0.0.1:25", "deferred", "3", "2", "2h", "5m"]);
        assert_eq!(lines[1][7..].join(" "), "450 4.2.0 no?[2J foo");
        assert_eq!(lines[1], lines[2]);
    }

    struct Failing(io::ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_gone_ends_a_list_but_no_change() {
        let hop = ControlReply::Hop(HopRow::default());
        let changed = ControlReply::Changed { messages: 1 };
        for (kind, succeeds) in [(io::ErrorKind::BrokenPipe, true), (io::ErrorKind::StorageFull, false)] {
            let mut list = ReplyPrinter::new(Failing(kind), true);
            assert!(list.print(&hop).is_break());
            assert_eq!(list.finish(None).is_ok(), succeeds);
            let mut removal = ReplyPrinter::new(Failing(kind), true);
            assert!(removal.print(&changed).is_continue() && removal.print(&changed).is_continue());
            assert!(!removal.is_empty());
            assert_eq!(removal.finish(Some(OperatorCommand::Remove)).is_ok(), succeeds);
        }
    }

    #[test]
    fn times_are_short() {
        let rows = [(0, "0s"), (119, "119s"), (120, "2m"), (7_199, "119m"), (7_200, "2h"), (200_000, "2d")];
        rows.iter().for_each(|(seconds, text)| assert_eq!(short_duration(*seconds), *text));
    }
}
