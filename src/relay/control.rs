//! The control socket: answers `mailrun queue` page by page, so that a long queue slows no delivery and takes no
//! memory. `protocol` has the requests and replies.
use super::envelope::Envelope;
use super::inquiry::Silent;
use super::office::Office;
use super::protocol::{Chosen, EntryRow, LONGEST_REQUEST, MessageRow, QueueId, Reply, Request, StateWord};
use super::queue::{HopKey, ListedEntry, MessageId, Order, Which};
use super::setting::Setting;
use super::socket;
use super::survey::survey;
use crate::reason::reason;
use anyhow::{Result, anyhow};
use net::clock;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Entries of a queue that are visited in one turn of its worker: a fraction of a millisecond.
const PAGE: u32 = 500;
/// Messages that are changed in one turn: each of them may write a note.
const ORDERS: u32 = 100;
/// Operators at a time.
const OPERATORS: usize = 16;
/// Time-out of an operator, for reading and for writing.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after a connection could not be accepted because there were no descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// The socket; dropping this removes it.
pub(super) struct Control(PathBuf);

impl Drop for Control {
    fn drop(&mut self) {
        // A socket that is left behind is taken over by the next relay.
        let _ = fs::remove_file(&self.0);
    }
}

/// Answers operators at that path until the process ends.
///
/// # Errors
/// If another relay does, or it cannot be.
pub(super) fn open(path: &Path, setting: &Arc<Setting>) -> Result<Control> {
    let cannot = |error: io::Error| anyhow!("cannot create the control socket {}: {}", path.display(), reason(&error));
    let listener = socket::listen(path).map_err(cannot)?;
    let setting = Arc::clone(setting);
    std::thread::Builder::new().name("control".to_owned()).spawn(move || welcome(&listener, &setting))?;
    Ok(Control(path.to_owned()))
}

fn welcome(listener: &UnixListener, setting: &Arc<Setting>) {
    let seats = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(BREATH);
            continue;
        };
        let seat = (Arc::clone(&seats), Arc::clone(setting));
        if Arc::strong_count(&seats) > OPERATORS + 1 {
            let _ = Paper(BufWriter::new(&stream)).fail("too many control connections; try again later");
            continue;
        }
        let attended = std::thread::Builder::new().name("operator".to_owned()).spawn(move || {
            // An operator who has disconnected needs no answer.
            let _ = attend(&stream, &seat.1);
        });
        if attended.is_err() {
            std::thread::sleep(BREATH);
        }
    }
}

/// Answers one operator, request by request.
fn attend(stream: &UnixStream, setting: &Setting) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut paper = Paper(BufWriter::new(stream));
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(LONGEST_REQUEST as u64 + 1).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if !line.ends_with(b"\n") {
            return paper.fail(&format!("a request must be one line of at most {LONGEST_REQUEST} bytes"));
        }
        let request = match serde_json::from_slice::<Request>(&line) {
            Ok(request) => request,
            Err(error) => return paper.fail(&format!("not a valid request: {error}")),
        };
        match respond(request, setting, &mut paper) {
            Ok(()) => paper.end(&Reply::End)?,
            Err(Trouble::Said(text)) => paper.fail(&text)?,
            Err(Trouble::Silent(silent)) => paper.fail(&silent.to_string())?,
            Err(Trouble::Gone(error)) => return Err(error),
        }
    }
}

/// Reason why an answer ends early.
enum Trouble {
    /// The operator reads this text.
    Said(String),
    Silent(Silent),
    /// The operator has disconnected.
    Gone(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Gone(error)
    }
}

impl From<Silent> for Trouble {
    fn from(silent: Silent) -> Self {
        Self::Silent(silent)
    }
}

/// Output to which replies are written.
struct Paper<W: Write>(BufWriter<W>);

impl<W: Write> Paper<W> {
    fn say(&mut self, reply: &Reply) -> io::Result<()> {
        serde_json::to_writer(&mut self.0, reply)?;
        self.0.write_all(b"\n")
    }

    fn end(&mut self, reply: &Reply) -> io::Result<()> {
        self.say(reply)?;
        self.0.flush()
    }

    fn fail(&mut self, text: &str) -> io::Result<()> {
        self.end(&Reply::Error { text: text.to_owned() })
    }
}

fn respond<W: Write>(request: Request, setting: &Setting, paper: &mut Paper<W>) -> Result<(), Trouble> {
    match request {
        Request::List { hop, state, limit } => list(setting, paper, &Filter { hop, state }, limit),
        Request::Show { id } => show(setting, paper, id),
        Request::Order { order, which } => {
            let mark = setting.spool.notes_mark();
            let messages = carry_out(setting, order.into(), &which)?;
            // No operator may read of a change that a crash could undo.
            setting.spool.sync_notes(mark).wait().map_err(|error| not_durable(messages, &error))?;
            Ok(paper.say(&Reply::Changed { messages })?)
        }
        Request::Stats => {
            let survey = survey(setting)?;
            paper.say(&Reply::Totals(survey.totals))?;
            for hop in survey.hops {
                paper.say(&Reply::Hop(hop))?;
            }
            Ok(())
        }
    }
}

fn not_durable(messages: u64, error: &spool::Error) -> Trouble {
    Trouble::Said(format!(
        "{messages} changed, but a restart may undo it because the change could not be stored: {error}"
    ))
}

/// Selects the entries to list.
#[derive(Clone)]
struct Filter {
    hop: Option<String>,
    state: Option<StateWord>,
}

impl Filter {
    fn wants(&self, office: &Office, entry: &ListedEntry) -> bool {
        self.state.is_none_or(|state| state == entry.state.into())
            && self.hop.as_deref().is_none_or(|hop| *office.hops.borrow().name(entry.hop) == *hop)
    }
}

/// Lists worker by worker, page by page: the next page is fetched when the operator has read this one.
fn list<W: Write>(setting: &Setting, paper: &mut Paper<W>, filter: &Filter, limit: Option<u64>) -> Result<(), Trouble> {
    let mut left = limit.unwrap_or(u64::MAX);
    for worker in 0..setting.inquiries.workers() {
        let mut next = Some(0);
        while let Some(from) = next.filter(|_| left > 0) {
            let filter = filter.clone();
            let (rows, then) = setting.inquiries.ask(worker, move |office| page(office, &filter, from))?;
            for row in rows {
                if left > 0 {
                    left -= 1;
                    paper.say(&Reply::Entry(row))?;
                }
            }
            next = then;
        }
    }
    Ok(())
}

fn page(office: &Rc<Office>, filter: &Filter, from: u32) -> (Vec<EntryRow>, Option<u32>) {
    let page = office.queue.borrow().page(from, PAGE, clock::now());
    let wanted = page.entries.iter().filter(|entry| filter.wants(office, entry));
    (wanted.map(|entry| row(office, entry)).collect(), page.next)
}

fn row(office: &Office, entry: &ListedEntry) -> EntryRow {
    EntryRow {
        id: QueueId(entry.id.0),
        hop: office.hops.borrow().name(entry.hop).to_string(),
        state: entry.state.into(),
        recipients: entry.recipients.len() as u64,
        attempts: entry.attempts,
        received_unix_s: entry.received_unix_s,
        age_s: clock::wall().as_secs().saturating_sub(entry.received_unix_s),
        next_unix_s: entry.next_unix_s,
        expires_unix_s: entry.expires_unix_s,
        refusal: entry.refusal.as_deref().map(Into::into),
        hop_is_shut: entry.hop_is_shut,
        to: Vec::new(),
    }
}

fn show<W: Write>(setting: &Setting, paper: &mut Paper<W>, id: QueueId) -> Result<(), Trouble> {
    let entries = move |office: &Rc<Office>| -> Vec<(EntryRow, Vec<u16>)> {
        let listed = office.queue.borrow().show(MessageId(id.0), clock::now());
        listed.iter().map(|entry| (row(office, entry), entry.recipients.to_vec())).collect()
    };
    let mut found = Vec::new();
    for rows in setting.inquiries.ask_all(entries) {
        found.extend(rows?);
    }
    if found.is_empty() {
        return Err(Trouble::Said(format!("no message {id} in the queue")));
    }
    // A message may have been delivered meanwhile: its last known state is shown all the same.
    let draft = setting.spool.fetch(spool::Id(id.0)).ok();
    let envelope = draft.as_ref().and_then(|draft| Envelope::decode(&draft.envelope).ok());
    if let (Some(draft), Some(envelope)) = (&draft, &envelope) {
        paper.say(&Reply::Message(message(id, draft, envelope)))?;
    }
    for (mut row, numbers) in found {
        let recipients = envelope.as_ref().map_or(&[][..], |envelope| &envelope.recipients);
        let known = numbers.iter().filter_map(|number| recipients.get(usize::from(*number)));
        row.to = known.map(|recipient| String::from_utf8_lossy(&recipient.address).into_owned()).collect();
        paper.say(&Reply::Entry(row))?;
    }
    Ok(())
}

fn message(id: QueueId, draft: &spool::Draft, envelope: &Envelope) -> MessageRow {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    MessageRow {
        id,
        sender: text(&envelope.sender),
        recipients: envelope.recipients.len() as u64,
        bytes: draft.body.len() as u64,
        received_unix_s: draft.received_ns / 1_000_000_000,
        client_name: text(&envelope.client_name),
        client_address: envelope.client_address.map(|address| address.to_string()),
        user: envelope.user.as_deref().map(text),
    }
}

/// Carries an order out with all messages that are meant; how many it changed.
fn carry_out(setting: &Setting, order: Order, which: &Chosen) -> Result<u64, Trouble> {
    if let Chosen::Id(id) = which {
        let id = MessageId(id.0);
        let answers = setting.inquiries.ask_all(move |office| {
            let changed = change(office, order, Which::Message(id));
            (changed, !office.queue.borrow().show(id, clock::now()).is_empty())
        });
        let answers = answers.into_iter().collect::<Result<Vec<_>, _>>()?;
        if !answers.iter().any(|(changed, is_there)| *changed > 0 || *is_there) {
            return Err(Trouble::Said(format!("no message {id} in the queue")));
        }
        return Ok(answers.iter().map(|(changed, _)| changed).sum());
    }
    let hop = match which {
        Chosen::Hop(hop) => Some(hop.clone()),
        Chosen::Id(_) | Chosen::All => None,
    };
    let mut messages = 0;
    for worker in 0..setting.inquiries.workers() {
        let mut next = Some(0);
        while let Some(from) = next {
            let hop = hop.clone();
            let (changed, then) =
                setting.inquiries.ask(worker, move |office| change_page(office, order, hop.as_deref(), from))?;
            messages += changed;
            next = then;
        }
    }
    Ok(messages)
}

/// The same with the messages of a page. A message that has entries on several of them is changed once: nothing is left
/// to change after that.
fn change_page(office: &Rc<Office>, order: Order, hop: Option<&str>, from: u32) -> (u64, Option<u32>) {
    let page = office.queue.borrow().page(from, ORDERS, clock::now());
    let mut ids: Vec<MessageId> = {
        let hops = office.hops.borrow();
        let is_meant = |key: HopKey| hop.is_none_or(|hop| *hops.name(key) == *hop);
        page.entries.iter().filter(|entry| is_meant(entry.hop)).map(|entry| entry.id).collect()
    };
    ids.dedup();
    (ids.into_iter().map(|id| change(office, order, Which::Message(id))).sum(), page.next)
}

fn change(office: &Rc<Office>, order: Order, which: Which) -> u64 {
    let mut all = Vec::new();
    let changed = office.queue.borrow_mut().order(order, which, clock::now(), |effects| all.push(effects));
    all.into_iter().for_each(|effects| office.carry_out(effects, None));
    office.attend();
    changed as u64
}
