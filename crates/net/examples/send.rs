//! Sends one message with STARTTLS and AUTH. The password is the first line of standard input.
//! `cargo run -p mailrun-net --example send -- mail.example.com 587 me@example.com you@example.org < password`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_net::smtp::Envelope;
use mailrun_net::smtp::sasl::Credentials;
use mailrun_net::{Client, ClientTls, SendOutcome};
use std::error::Error;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn send(
    server: impl ToSocketAddrs,
    tls: ClientTls,
    credentials: Credentials,
    from: &str,
    to: &str,
) -> Result<SendOutcome, Box<dyn Error>> {
    let envelope = Arc::new(Envelope::new(from, "", [to])?);
    let message = format!("From: <{from}>\r\nTo: <{to}>\r\nSubject: hello\r\n\r\n.dots are stuffed on the way\r\n");
    let client = Client::builder("client.example.com").timeout(Duration::from_secs(30));
    let mut client = client.starttls(tls).login(credentials).connect(server)?;
    let outcome = client.send(&envelope, message.as_bytes())?;
    client.quit()?;
    Ok(outcome)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [host, port, from, to] = arguments.as_slice() else { return Err("send HOST PORT FROM TO < password".into()) };
    let mut password = String::new();
    std::io::stdin().read_line(&mut password)?;
    let credentials = Credentials::new(from, password.trim_end());
    let outcome = send((host.as_str(), port.parse()?), ClientTls::verified(host)?, credentials, from, to)?;
    println!("accepted: {}, {} {}", outcome.accepted, outcome.code, outcome.text);
    for (number, code, text) in outcome.refused {
        println!("recipient {number} refused: {code} {text}");
    }
    Ok(())
}
