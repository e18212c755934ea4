//! The raw sink: accepts every command and every message. It looks only at the first octet of each command, at line
//! ends, and at the end of data.

use std::net::TcpListener;
use std::os::fd::AsRawFd;

use mailrun_eventloop::PageAlignedBuffer;
use memchr::memchr;
use memchr::memmem::Finder;
use rustix::net::{SocketFlags, accept_with, listen, sockopt::set_tcp_nodelay};

use super::END_OF_DATA;
use super::sockets::{Ready, Sockets, Waiting, receive, send};

const GREETING: &[u8] = b"220 localhost ESMTP\r\n";
const EHLO: &[u8] = b"250-localhost\r\n250-PIPELINING\r\n250 8BITMIME\r\n";
const OK: &[u8] = b"250 2.0.0 Ok\r\n";
const GO_AHEAD: &[u8] = b"354 End data with <CR><LF>.<CR><LF>\r\n";
const BYE: &[u8] = b"221 Bye\r\n";

const SCRATCH_OCTETS: usize = 128 * 1024;
const BACKLOG: i32 = 4096;

/// Listens on a loopback port that the kernel chooses, prints the address, and serves until it is
/// killed.
pub(super) fn run(waiting: Waiting) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    println!(r#"{{"event":"listening","smtp":["{}"],"http":null}}"#, listener.local_addr()?);
    let mut sockets = Sockets::new(waiting)?;
    sockets.watch(&listener)?;
    let door = usize::try_from(listener.as_raw_fd())?;
    let end_of_data = Finder::new(END_OF_DATA);
    let mut scratch = PageAlignedBuffer::new(SCRATCH_OCTETS);
    let mut ready = Ready::new();
    loop {
        sockets.wait(&mut ready)?;
        for key in ready.keys() {
            if key == door {
                admit(&listener, &mut sockets)?;
            } else {
                serve(key, &mut sockets, &mut scratch, &end_of_data);
            }
        }
    }
}

fn admit(listener: &TcpListener, sockets: &mut Sockets<Dialog>) -> anyhow::Result<()> {
    while let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK) {
        set_tcp_nodelay(&socket, true)?;
        send(&socket, GREETING);
        sockets.insert(socket, Dialog::default())?;
    }
    Ok(())
}

fn serve(key: usize, sockets: &mut Sockets<Dialog>, scratch: &mut PageAlignedBuffer, end_of_data: &Finder<'_>) {
    let Some(connection) = sockets.connection(key) else { return };
    let Some(block) = receive(&connection.socket, scratch) else { return };
    let dialog = &mut connection.session;
    dialog.receive(block, end_of_data);
    send(&connection.socket, &dialog.replies);
    dialog.replies.clear();
    if dialog.reading == Reading::Nothing || block.is_empty() {
        sockets.close(key);
    }
}

#[derive(Default, PartialEq, Eq)]
enum Reading {
    #[default]
    Commands,
    Body,
    /// The client has sent QUIT, so the rest of its input is ignored.
    Nothing,
}

#[derive(Default)]
struct Dialog {
    reading: Reading,
    /// First octet of a command line whose end has not arrived yet.
    verb: Option<u8>,
    tail: Tail,
    replies: Vec<u8>,
}

impl Dialog {
    fn receive(&mut self, mut block: &[u8], end_of_data: &Finder<'_>) {
        while !block.is_empty() {
            block = match self.reading {
                Reading::Commands => self.command(block),
                Reading::Body => self.body(block, end_of_data),
                Reading::Nothing => return,
            };
        }
    }

    fn command<'a>(&mut self, block: &'a [u8]) -> &'a [u8] {
        let verb = self.verb.take().unwrap_or(block[0]);
        let Some(end) = memchr(b'\n', block) else {
            self.verb = Some(verb);
            return &[];
        };
        match verb {
            b'D' => {
                self.reading = Reading::Body;
                self.tail = Tail::at_line_start();
                self.replies.extend_from_slice(GO_AHEAD);
            }
            b'E' | b'H' => self.replies.extend_from_slice(EHLO),
            b'Q' => {
                self.reading = Reading::Nothing;
                self.replies.extend_from_slice(BYE);
            }
            _ => self.replies.extend_from_slice(OK),
        }
        &block[end + 1..]
    }

    fn body<'a>(&mut self, block: &'a [u8], end_of_data: &Finder<'_>) -> &'a [u8] {
        let past_end = self.tail.past_end(block).or_else(|| Some(end_of_data.find(block)? + END_OF_DATA.len()));
        let Some(past_end) = past_end else {
            self.tail.keep(block);
            return &[];
        };
        self.reading = Reading::Commands;
        self.replies.extend_from_slice(OK);
        &block[past_end..]
    }
}

/// The last octets of the input before a block, at most four. They are kept because the end of data may begin in them
/// and continue in the block.
#[derive(Default)]
struct Tail {
    octets: [u8; END_OF_DATA.len() - 1],
    length: usize,
}

impl Tail {
    /// Begins with the CRLF of the DATA command, so that a lone dot right after the command ends an empty message.
    fn at_line_start() -> Self {
        Self { octets: *b"\r\n\0\0", length: 2 }
    }

    /// If the end of data began before `block` and is complete in it, returns where the rest of `block` begins.
    fn past_end(&self, block: &[u8]) -> Option<usize> {
        let (window, length) = self.joined_with(&block[..block.len().min(self.octets.len())]);
        let at = window[..length].windows(END_OF_DATA.len()).position(|octets| octets == END_OF_DATA)?;
        Some(at + END_OF_DATA.len() - self.length)
    }

    fn keep(&mut self, block: &[u8]) {
        let (window, length) = self.joined_with(&block[block.len().saturating_sub(self.octets.len())..]);
        let kept = length.min(self.octets.len());
        self.octets[..kept].copy_from_slice(&window[length - kept..length]);
        self.length = kept;
    }

    fn joined_with(&self, piece: &[u8]) -> ([u8; 2 * (END_OF_DATA.len() - 1)], usize) {
        let mut window = [0; 2 * (END_OF_DATA.len() - 1)];
        let length = self.length + piece.len();
        window[..self.length].copy_from_slice(&self.octets[..self.length]);
        window[self.length..length].copy_from_slice(piece);
        (window, length)
    }
}
