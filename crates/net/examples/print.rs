//! A server that prints each message that it receives.
//! `cargo run -p mailrun-net --example print -- 127.0.0.1:2525`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_net::{Answer, ReceivedMessage, RunningServer, Server};
use std::io;
use std::net::SocketAddr;

fn print(message: ReceivedMessage) -> Answer {
    println!("from <{}> to {}:", message.sender, message.recipients.join(", "));
    println!("{}", String::from_utf8_lossy(&message.content));
    Answer::Yes
}

pub(crate) fn serve(address: SocketAddr) -> io::Result<RunningServer> {
    Server::for_messages(print).name("print.example").start(address)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2525".to_owned());
    let server = serve(address.parse()?)?;
    println!("listening on {}", server.address());
    server.wait();
    Ok(())
}
