//! A server that never holds a whole message. It counts the lines of each message as they arrive, and refuses one
//! recipient, `nobody`.
//! `cargo run -p mailrun-net --example stream -- 127.0.0.1:2525`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_net::smtp::Path;
use mailrun_net::smtp::command::Mail;
use mailrun_net::smtp::reply_reason::ReplyReason;
use mailrun_net::{Answer, Handler, RunningServer, Server};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

#[derive(Default)]
struct CountingHandler {
    sender: String,
    lines: usize,
}

impl Handler for CountingHandler {
    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        self.sender = String::from_utf8_lossy(mail.sender.as_bytes()).into_owned();
        Answer::Yes
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        match recipient.local_part() {
            b"nobody" => Answer::reply(550, "5.1.1 Nobody lives here"),
            _ => Answer::Yes,
        }
    }

    fn block(&mut self, block: &[u8]) {
        self.lines += block.iter().filter(|byte| **byte == b'\n').count();
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        let lines = std::mem::take(&mut self.lines);
        println!("{bytes} bytes in {lines} lines from <{}>", self.sender);
        Answer::reply(250, &format!("2.0.0 {lines} lines"))
    }

    /// Forgets a message that was abandoned or refused, so that its lines do not count for the next message.
    fn reset(&mut self, _why: Option<ReplyReason>) {
        *self = Self::default();
    }
}

pub(crate) fn serve(address: SocketAddr) -> io::Result<RunningServer> {
    Server::new(|| |_peer| CountingHandler::default()).name("stream.example").start(address)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2525".to_owned());
    let server = serve(address.parse()?)?;
    println!("listening on {}", server.address());
    server.wait();
    Ok(())
}
