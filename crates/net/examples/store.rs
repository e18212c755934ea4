//! A server that sends 250 only after it has stored the message so that the message survives a power failure. The
//! server accepts mail for one domain.
//! `cargo run -p mailrun-net --example store -- 127.0.0.1:2525 mail.spool`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_net::smtp::{Path, Reply};
use mailrun_net::{Answer, MessageHandler, ReceivedMessage, RunningServer, Server, clock};
use mailrun_spool::{Disk, NewMessage, Options, RealDisk, Spool};
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

/// Stores messages in a spool. Each session has a clone of this handler.
#[derive(Clone)]
struct StoreHandler {
    spool: Spool,
}

impl MessageHandler for StoreHandler {
    fn handle_recipient(&mut self, _: &ReceivedMessage, recipient: &Path<'_>) -> Answer {
        match recipient.domain() {
            Some(domain) if domain.eq_ignore_ascii_case(b"example.com") => Answer::Yes,
            _ => Answer::reply(550, "5.7.1 Mail for example.com only"),
        }
    }

    fn handle_message(&mut self, message: ReceivedMessage) -> Answer {
        let received_ns = u64::try_from(clock::wall().as_nanos()).unwrap_or(u64::MAX);
        let envelope = format!("{}\n{}", message.sender, message.recipients.join("\n")).into_bytes();
        let receipt = self.spool.store(NewMessage { received_ns, envelope, body: message.content.into() });
        // The receipt resolves when the message is synced, together with messages of other
        // sessions. No thread waits for it.
        Answer::later(async {
            match receipt.await {
                Ok(_stored) => None,
                Err(_) => Some(Reply::new(451, "4.3.0 The message could not be stored, try again later")),
            }
        })
    }
}

pub(crate) fn serve(address: SocketAddr, disk: Arc<dyn Disk>) -> Result<RunningServer, Box<dyn Error>> {
    let (spool, backlog) = Spool::open(disk, Options::default())?;
    println!("{} messages of former runs", backlog.len());
    Ok(Server::for_messages(StoreHandler { spool }).name("store.example").start(address)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2525".to_owned());
    let directory = arguments.next().unwrap_or_else(|| "mail.spool".to_owned());
    let server = serve(address.parse()?, Arc::new(RealDisk::new(directory)?))?;
    println!("listening on {}", server.address());
    server.wait();
    Ok(())
}
