//! The raw source: answers each reply with the next command, and counts only messages and open connections.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Instant;

use anyhow::ensure;
use mailrun_eventloop::PageAlignedBuffer;
use memchr::memchr;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with, sockopt::set_tcp_nodelay};

use super::plan::{Mode, Plan};
use super::sockets::{Ready, Sockets, Waiting, receive, send};

const EHLO: &[u8] = b"EHLO smtp.example.com\r\n";
const MAIL: &[u8] = b"MAIL FROM:<from@example.com>\r\n";
const RECIPIENT: &[u8] = b"RCPT TO:<to@example.com>\r\n";
const DATA: &[u8] = b"DATA\r\n";
const QUIT: &[u8] = b"QUIT\r\n";

const SCRATCH_OCTETS: usize = 64 * 1024;

/// Sends the plan's messages and prints the result as a line of JSON.
pub(super) fn run(plan: &Plan, waiting: Waiting) -> anyhow::Result<()> {
    let mut work = Work { left: plan.messages, accepted: 0, open: 0 };
    let mut sockets = Sockets::new(waiting)?;
    let mut scratch = PageAlignedBuffer::new(SCRATCH_OCTETS);
    let mut ready = Ready::new();
    let started = Instant::now();
    while work.open < plan.sessions && work.left > 0 {
        open(plan, &mut sockets, &mut work)?;
    }
    while work.open > 0 {
        sockets.wait(&mut ready)?;
        for key in ready.keys() {
            serve(key, plan, &mut sockets, &mut work, &mut scratch)?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let accepted = work.accepted;
    println!(r#"{{"messages":{accepted},"seconds":{seconds:.6},"rate_per_s":{:.1}}}"#, accepted as f64 / seconds);
    ensure!(accepted == plan.messages, "{accepted} of {} messages were accepted: a connection broke", plan.messages);
    Ok(())
}

struct Work {
    /// Messages that no session has begun to send.
    left: u64,
    accepted: u64,
    open: usize,
}

impl Work {
    fn take(&mut self) -> bool {
        let any = self.left > 0;
        self.left = self.left.saturating_sub(1);
        any
    }
}

/// Opens a connection for one of the remaining messages.
fn open(plan: &Plan, sockets: &mut Sockets<Session>, work: &mut Work) -> anyhow::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None)?;
    set_tcp_nodelay(&socket, true)?;
    match connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, plan.port)) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(errno) => return Err(errno.into()),
    }
    sockets.insert(socket, Session::default())?;
    work.left -= 1;
    work.open += 1;
    Ok(())
}

fn serve(
    key: usize,
    plan: &Plan,
    sockets: &mut Sockets<Session>,
    work: &mut Work,
    scratch: &mut PageAlignedBuffer,
) -> anyhow::Result<()> {
    let Some(connection) = sockets.connection(key) else { return Ok(()) };
    let Some(block) = receive(&connection.socket, scratch) else { return Ok(()) };
    let session = &mut connection.session;
    for _ in 0..session.replies.complete(block)? {
        if let Some(octets) = session.turn(plan, work) {
            send(&connection.socket, octets);
        }
    }
    if session.awaits == Awaits::Nothing || block.is_empty() {
        sockets.close(key);
        work.open -= 1;
        if plan.mode == Mode::ConnectionEach && work.left > 0 {
            open(plan, sockets, work)?;
        }
    }
    Ok(())
}

/// The reply that a session waits for. Each arrow leads from one reply to the reply that the session waits for next:
///
/// ```text
/// Greeting → Ehlo → Mail → Recipient → Data → Body → Mail …                                lock step
///            Ehlo → GroupMail → GroupRecipient → GroupData → Body → GroupMail …            a group
///                                                GroupData → BodyInStream → GroupMail …    a stream
///                                                            Body → Quit → Nothing         no work left
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Awaits {
    #[default]
    Greeting,
    Ehlo,
    Mail,
    Recipient,
    Data,
    GroupMail,
    GroupRecipient,
    GroupData,
    Body,
    BodyInStream,
    Quit,
    Nothing,
}

#[derive(Default)]
struct Session {
    awaits: Awaits,
    replies: Replies,
}

impl Session {
    /// Advances the session after the reply that it waited for. Returns what to send, or `None` if the session only
    /// waits for another reply.
    fn turn<'a>(&mut self, plan: &'a Plan, work: &mut Work) -> Option<&'a [u8]> {
        let (awaits, octets) = match self.awaits {
            Awaits::Greeting => (Awaits::Ehlo, Some(EHLO)),
            Awaits::Ehlo => begin(plan),
            Awaits::Mail => (Awaits::Recipient, Some(RECIPIENT)),
            Awaits::Recipient => (Awaits::Data, Some(DATA)),
            Awaits::GroupMail => (Awaits::GroupRecipient, None),
            Awaits::GroupRecipient => (Awaits::GroupData, None),
            Awaits::GroupData if plan.mode == Mode::Stream && work.take() => {
                (Awaits::BodyInStream, Some(plan.body_and_group.as_slice()))
            }
            Awaits::GroupData | Awaits::Data => (Awaits::Body, Some(plan.body.as_slice())),
            Awaits::BodyInStream => {
                work.accepted += 1;
                (Awaits::GroupMail, None)
            }
            Awaits::Body => {
                work.accepted += 1;
                let done = plan.mode == Mode::ConnectionEach || !work.take();
                if done { (Awaits::Quit, Some(QUIT)) } else { begin(plan) }
            }
            Awaits::Quit | Awaits::Nothing => (Awaits::Nothing, None),
        };
        self.awaits = awaits;
        octets
    }
}

fn begin(plan: &Plan) -> (Awaits, Option<&[u8]>) {
    if plan.mode.is_grouped() { (Awaits::GroupMail, Some(&plan.group)) } else { (Awaits::Mail, Some(MAIL)) }
}

/// Counts replies in a stream of octets. If the octet after the code is a hyphen, another line of the same reply
/// follows.
#[derive(Default)]
struct Replies {
    /// Number of octets already received of an unfinished line.
    column: usize,
    last_line: bool,
}

impl Replies {
    /// Returns how many replies `block` completes. Fails if a reply is a refusal (4xx or 5xx), because the dialogue
    /// then ends early and takes less time than a complete dialogue.
    fn complete(&mut self, block: &[u8]) -> anyhow::Result<usize> {
        let mut complete = 0;
        let mut rest = block;
        while !rest.is_empty() {
            ensure!(self.column > 0 || matches!(rest[0], b'2' | b'3'), "refused: {}", String::from_utf8_lossy(rest));
            if let Some(mark) = 3usize.checked_sub(self.column).and_then(|at| rest.get(at)) {
                self.last_line = *mark != b'-';
            }
            let Some(end) = memchr(b'\n', rest) else {
                self.column += rest.len();
                break;
            };
            complete += usize::from(self.last_line);
            self.column = 0;
            rest = &rest[end + 1..];
        }
        Ok(complete)
    }
}
