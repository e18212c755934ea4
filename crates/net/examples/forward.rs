//! A server that forwards each message to another server. The client gets the other server's answer, so this server
//! does not answer before the other server has done so.
//! `cargo run -p mailrun-net --example forward -- 127.0.0.1:2525 127.0.0.1:25`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_net::smtp::{Envelope, Path, Reply};
use mailrun_net::{Answer, Client, Endpoint, MessageHandler, ReceivedMessage, RunningServer, SendOutcome, Server};
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Forwards all messages to one server.
#[derive(Clone)]
struct ForwardHandler {
    next: Endpoint,
}

impl MessageHandler for ForwardHandler {
    fn handle_recipient(&mut self, message: &ReceivedMessage, _: &Path<'_>) -> Answer {
        // A message gets only one reply, so it can have only one recipient here. The client sends
        // the message again for each other recipient.
        if message.recipients.is_empty() { Answer::Yes } else { Answer::reply(452, "4.5.3 One recipient at a time") }
    }

    fn handle_message(&mut self, message: ReceivedMessage) -> Answer {
        let next = self.next.clone();
        // While the next server answers, the worker serves other sessions.
        Answer::later(async move {
            Some(match forward(&next, &message).await {
                Ok(outcome) => Reply::new(outcome.code, &outcome.text),
                Err(_) => Reply::new(451, "4.4.0 The next server cannot be reached, try again later"),
            })
        })
    }
}

async fn forward(next: &Endpoint, message: &ReceivedMessage) -> Result<SendOutcome, Box<dyn Error>> {
    let envelope = Envelope::new(&message.sender, "", message.recipients.iter().map(String::as_str))?;
    let client = Client::builder("forward.example").timeout(Duration::from_secs(30));
    let mut client = client.connect_async(next).await?;
    let outcome = client.send(&Arc::new(envelope), &message.content).await?;
    // Ignore an error of QUIT, because the answer is already known.
    let _ = client.quit().await;
    Ok(outcome)
}

pub(crate) fn serve(address: SocketAddr, next: Endpoint) -> io::Result<RunningServer> {
    // Do not offer extensions that the next server may not offer.
    let server = Server::for_messages(ForwardHandler { next }).name("forward.example").offer(|offer| {
        offer.extensions.smtp_utf8 = false;
        offer.extensions.eight_bit_mime = false;
        offer.extensions.binary_mime = false;
    });
    server.start(address)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2525".to_owned());
    let next = arguments.next().unwrap_or_else(|| "127.0.0.1:25".to_owned());
    let server = serve(address.parse()?, Endpoint::resolve(&next)?)?;
    println!("listening on {}", server.address());
    server.wait();
    Ok(())
}
