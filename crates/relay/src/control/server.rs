//! The server of the control socket. It answers `mailrun queue` page by page, so that a long queue
//! neither slows deliveries nor takes much memory. The module `protocol` defines the requests and
//! replies.
use crate::control::protocol::{
    CommandScope, ControlReply, ControlRequest, EntryRow, MAX_REQUEST_BYTES, MessageRow, QueueId,
};
use crate::control::queue_stats::collect_queue_stats;
use crate::control::socket;
use crate::message::envelope::MessageEnvelope;
use crate::qmgr::{DestinationId, EntryState, ListedEntry, MessageId, OperatorCommand};
use crate::worker::RelayWorker;
use crate::worker_calls::{RunningRelay, WorkerUnavailable};
use anyhow::{Result, anyhow};
use mailrun_net::clock;
use mailrun_process::reason::reason;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Maximum number of queue entries that a worker lists in one call. Such a call blocks the worker's event loop for a
/// fraction of a millisecond.
const LIST_PAGE_ENTRIES: u32 = 500;
/// Maximum number of queue entries whose messages a worker changes in one call. It is smaller than the limit for lists,
/// because each change may write to the spool.
const CHANGE_PAGE_ENTRIES: u32 = 100;
const MAX_CONNECTIONS: usize = 16;
const IO_TIMEOUT: Duration = Duration::from_secs(60);
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(10);
const BACKLOG_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Pause after a connection could not be accepted, or its thread could not be started. The usual reason is that the
/// process has no file descriptors left, so another attempt at once would fail as well.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The control socket's path. Dropping this value removes the socket's file.
pub(crate) struct ControlSocket(PathBuf);

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // Ignore an error, because the next relay replaces a socket that was not removed.
        let _ = fs::remove_file(&self.0);
    }
}

/// Answers operators on the control socket at this path until the process ends.
///
/// # Errors
/// Fails if another relay uses the socket, or if the socket cannot be created.
pub(crate) fn open(path: &Path, relay: &Arc<RunningRelay>) -> Result<ControlSocket> {
    let cannot = |error: io::Error| anyhow!("cannot create the control socket {}: {}", path.display(), reason(&error));
    let listener = socket::listen(path).map_err(cannot)?;
    let relay = Arc::clone(relay);
    std::thread::Builder::new().name("control".to_owned()).spawn(move || accept_connections(&listener, &relay))?;
    Ok(ControlSocket(path.to_owned()))
}

fn accept_connections(listener: &UnixListener, relay: &Arc<RunningRelay>) {
    // Each connection holds a clone of this `Arc`, so its reference count is the number of connections plus one.
    let connections = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(ACCEPT_RETRY_DELAY);
            continue;
        };
        let connection = (Arc::clone(&connections), Arc::clone(relay));
        if Arc::strong_count(&connections) > MAX_CONNECTIONS + 1 {
            let _ = ReplyWriter(BufWriter::new(&stream)).send_error("too many control connections; try again later");
            continue;
        }
        let started = std::thread::Builder::new().name("operator".to_owned()).spawn(move || {
            // Ignore an error, because it concerns only this operator, who has probably disconnected.
            let _ = serve_connection(&stream, &connection.1);
        });
        if started.is_err() {
            std::thread::sleep(ACCEPT_RETRY_DELAY);
        }
    }
}

fn serve_connection(stream: &UnixStream, relay: &RunningRelay) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut reader = BufReader::new(stream);
    let mut writer = ReplyWriter(BufWriter::new(stream));
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(MAX_REQUEST_BYTES as u64 + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            return writer.send_error(&format!("a request must be one line of at most {MAX_REQUEST_BYTES} bytes"));
        }
        let request = match serde_json::from_slice::<ControlRequest>(&line) {
            Ok(request) => request,
            Err(error) => return writer.send_error(&format!("not a valid request: {error}")),
        };
        match respond(request, relay, &mut writer) {
            Ok(()) => writer.send_last(&ControlReply::End)?,
            Err(ControlError::Rejected(text)) => writer.send_error(&text)?,
            Err(ControlError::Unavailable(unavailable)) => writer.send_error(&unavailable.to_string())?,
            Err(ControlError::Disconnected(error)) => return Err(error),
        }
    }
}

enum ControlError {
    Rejected(String),
    Unavailable(WorkerUnavailable),
    Disconnected(io::Error),
}

impl From<io::Error> for ControlError {
    fn from(error: io::Error) -> Self {
        Self::Disconnected(error)
    }
}

impl From<WorkerUnavailable> for ControlError {
    fn from(unavailable: WorkerUnavailable) -> Self {
        Self::Unavailable(unavailable)
    }
}

struct ReplyWriter<W: Write>(BufWriter<W>);

impl<W: Write> ReplyWriter<W> {
    fn send(&mut self, reply: &ControlReply) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, reply)?;
        self.0.write_all(b"\n")
    }

    fn send_last(&mut self, reply: &ControlReply) -> io::Result<()> {
        self.send(reply)?;
        self.0.flush()
    }

    fn send_error(&mut self, text: &str) -> io::Result<()> {
        self.send_last(&ControlReply::Error { text: text.to_owned() })
    }
}

fn respond<W: Write>(
    request: ControlRequest,
    relay: &RunningRelay,
    writer: &mut ReplyWriter<W>,
) -> Result<(), ControlError> {
    if !matches!(request, ControlRequest::Stats) {
        await_backlog(relay)?;
    }
    match request {
        ControlRequest::List { hop, state, limit } => list(relay, writer, &EntryFilter { hop, state }, limit),
        ControlRequest::Show { id } => show(relay, writer, id),
        ControlRequest::Change { command, which } => {
            let mark = relay.context.spool.notes_mark();
            let messages = execute(relay, command, &which)?;
            // Sync the changes to disk before the reply, because a crash must not undo a change that was reported to
            // the operator.
            relay.context.spool.sync_notes(mark).wait().map_err(|error| not_durable(messages, &error))?;
            Ok(writer.send(&ControlReply::Changed { messages })?)
        }
        ControlRequest::Stats => {
            let stats = collect_queue_stats(relay)?;
            writer.send(&ControlReply::Totals(stats.totals))?;
            for hop in stats.hops {
                writer.send(&ControlReply::Hop(hop))?;
            }
            Ok(())
        }
    }
}

/// Waits until the mail that a former run left in the spool is queued. Before that, a command would miss the messages
/// that are only in the spool. Fails after `BACKLOG_TIMEOUT`.
fn await_backlog(relay: &RunningRelay) -> Result<(), ControlError> {
    let latest = Instant::now() + BACKLOG_TIMEOUT;
    while !relay.context.is_backlog_queued() {
        if Instant::now() >= latest {
            return Err(ControlError::Rejected("the relay is still reading its spool; try again later".to_owned()));
        }
        std::thread::sleep(BACKLOG_POLL_INTERVAL);
    }
    Ok(())
}

fn not_durable(messages: u64, error: &mailrun_spool::Error) -> ControlError {
    ControlError::Rejected(format!(
        "{messages} changed, but a restart may undo it because the change could not be stored: {error}"
    ))
}

#[derive(Clone)]
struct EntryFilter {
    hop: Option<String>,
    state: Option<EntryState>,
}

impl EntryFilter {
    fn matches(&self, worker: &RelayWorker, entry: &ListedEntry) -> bool {
        self.state.is_none_or(|state| state == entry.state)
            && self.hop.as_deref().is_none_or(|hop| *worker.destinations().borrow().name(entry.destination) == *hop)
    }
}

/// Lists the entries of one worker after the other, page by page. The next page is fetched after
/// the operator's client has read the current page.
fn list<W: Write>(
    relay: &RunningRelay,
    writer: &mut ReplyWriter<W>,
    filter: &EntryFilter,
    limit: Option<u64>,
) -> Result<(), ControlError> {
    let mut remaining = limit.unwrap_or(u64::MAX);
    for number in 0..relay.workers.count() {
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| remaining > 0) {
            let filter = filter.clone();
            let (rows, then) = relay.workers.call(number, move |worker| page(worker, &filter, from))?;
            for row in rows {
                if remaining > 0 {
                    remaining -= 1;
                    writer.send(&ControlReply::Entry(row))?;
                }
            }
            next = then;
        }
    }
    Ok(())
}

fn page(worker: &Rc<RelayWorker>, filter: &EntryFilter, from: u32) -> (Vec<EntryRow>, Option<u32>) {
    let page = worker.queue.borrow().page(from, LIST_PAGE_ENTRIES, clock::now());
    let wanted = page.entries.iter().filter(|entry| filter.matches(worker, entry));
    (wanted.map(|entry| row(worker, entry)).collect(), page.next)
}

fn row(worker: &RelayWorker, entry: &ListedEntry) -> EntryRow {
    EntryRow {
        id: QueueId(entry.id.0),
        hop: worker.destinations().borrow().name(entry.destination).to_string(),
        state: entry.state,
        recipients: entry.recipients.len() as u64,
        attempts: entry.attempts,
        received_unix_s: entry.received_unix_s,
        age_s: clock::wall().as_secs().saturating_sub(entry.received_unix_s),
        next_unix_s: entry.next_unix_s,
        expires_unix_s: entry.expires_unix_s,
        refusal: entry.refusal.as_deref().map(Into::into),
        hop_is_shut: entry.is_in_backoff,
        to: Vec::new(),
    }
}

fn show<W: Write>(relay: &RunningRelay, writer: &mut ReplyWriter<W>, id: QueueId) -> Result<(), ControlError> {
    let entries = move |worker: &Rc<RelayWorker>| -> Vec<(EntryRow, Vec<u16>)> {
        let queue_entries = worker.queue.borrow().show(MessageId(id.0), clock::now());
        queue_entries.iter().map(|entry| (row(worker, entry), entry.recipients.to_vec())).collect()
    };
    let mut statistics = Vec::new();
    for rows in relay.workers.call_all(entries) {
        statistics.extend(rows?);
    }
    if statistics.is_empty() {
        return Err(ControlError::Rejected(format!("no message {id} in the queue")));
    }
    // If the message has been delivered meanwhile, it is no longer in the spool, so the reply contains only the queue
    // entries, without recipients.
    let draft = relay.context.spool.fetch(mailrun_spool::Id(id.0)).ok();
    let envelope = draft.as_ref().and_then(|draft| MessageEnvelope::decode(&draft.envelope).ok());
    if let (Some(draft), Some(envelope)) = (&draft, &envelope) {
        writer.send(&ControlReply::Message(message(id, draft, envelope)))?;
    }
    for (mut row, numbers) in statistics {
        let recipients = envelope.as_ref().map_or(&[][..], |envelope| &envelope.recipients);
        let row_recipients = numbers.iter().filter_map(|number| recipients.get(usize::from(*number)));
        row.to = row_recipients.map(|recipient| String::from_utf8_lossy(&recipient.address).into_owned()).collect();
        writer.send(&ControlReply::Entry(row))?;
    }
    Ok(())
}

fn message(id: QueueId, draft: &mailrun_spool::NewMessage, envelope: &MessageEnvelope) -> MessageRow {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    MessageRow {
        id,
        sender: text(&envelope.sender),
        recipients: envelope.recipients.len() as u64,
        bytes: draft.body.len() as u64,
        received_unix_s: draft.received_ns / 1_000_000_000,
        client_name: text(&envelope.client_name),
        client_address: envelope.client.text(),
        user: envelope.user.as_deref().map(text),
    }
}

fn execute(relay: &RunningRelay, command: OperatorCommand, which: &CommandScope) -> Result<u64, ControlError> {
    if let CommandScope::Id(id) = which {
        let id = MessageId(id.0);
        let answers = relay.workers.call_all(move |worker| {
            (change(worker, command, id, None), !worker.queue.borrow().show(id, clock::now()).is_empty())
        });
        let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        if !answers.iter().any(|(is_changed, is_there)| *is_changed || *is_there) {
            return Err(ControlError::Rejected(format!("no message {id} in the queue")));
        }
        return Ok(answers.iter().filter(|(is_changed, _)| *is_changed).count() as u64);
    }
    let hop = match which {
        CommandScope::Hop(hop) => Some(hop.clone()),
        CommandScope::Id(_) | CommandScope::All => None,
    };
    let mut messages = 0;
    for number in 0..relay.workers.count() {
        let mut next = Some(0);
        while let Some(from) = next {
            let hop = hop.clone();
            let is_by_hop = hop.is_some();
            let (changed, then) =
                relay.workers.call(number, move |worker| change_page(worker, command, hop.as_deref(), from))?;
            messages += changed.len() as u64;
            next = then;
            if is_by_hop && matches!(command, OperatorCommand::Hold | OperatorCommand::Release) {
                // Hold or release each message at all workers, because other workers may have some of its recipients.
                let changed: Arc<[MessageId]> = changed.into();
                let change_all = move |worker: &Rc<RelayWorker>| {
                    changed.iter().for_each(|id| _ = change(worker, command, *id, None))
                };
                relay.workers.call_all(change_all).into_iter().collect::<Result<Vec<()>, _>>()?;
            }
        }
    }
    Ok(messages)
}

/// Executes a command for the messages of up to `CHANGE_PAGE_ENTRIES` queue entries, beginning at position `from` of
/// the queue. With `hop`, changes only the recipients at this next hop. Returns the changed messages, and the position
/// at which the next call must begin. Several calls may execute the command for the same message, but repeating a
/// command has no effect.
fn change_page(
    worker: &Rc<RelayWorker>,
    command: OperatorCommand,
    hop: Option<&str>,
    from: u32,
) -> (Vec<MessageId>, Option<u32>) {
    let page = worker.queue.borrow().page(from, CHANGE_PAGE_ENTRIES, clock::now());
    let mut meant: Vec<(MessageId, Option<DestinationId>)> = {
        let hops = worker.destinations().borrow();
        let is_meant = |key: DestinationId| hop.is_none_or(|hop| *hops.name(key) == *hop);
        let entries = page.entries.iter().filter(|entry| is_meant(entry.destination));
        entries.map(|entry| (entry.id, hop.map(|_| entry.destination))).collect()
    };
    meant.dedup();
    let changed = meant.into_iter().filter(|(id, only)| change(worker, command, *id, *only));
    (changed.map(|(id, _)| id).collect(), page.next)
}

fn change(worker: &Rc<RelayWorker>, command: OperatorCommand, id: MessageId, only: Option<DestinationId>) -> bool {
    let actions = worker.queue.borrow_mut().apply_command_at(command, id, only, clock::now());
    let is_changed = actions.is_some();
    if let Some(actions) = actions {
        worker.apply_actions(actions, None);
    }
    worker.drive();
    is_changed
}
