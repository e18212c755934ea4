//! Sends one message. `cargo run -p mailrun-net --example client -- 127.0.0.1:2525`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use net::Client;
use smtp::Envelope;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:2525".to_owned()).parse()?;
    let envelope = Arc::new(Envelope::new("me@example.com", "", ["you@example.com", "nobody@example.com"])?);
    let mut client = Client::connect(address, "client.example.com", Duration::from_secs(10))?;
    let delivery = client.send(&envelope, b"Subject: hello\r\n\r\n.dots are stuffed on the way\r\n")?;
    println!("accepted: {}, {} {}", delivery.accepted, delivery.code, delivery.text);
    for (number, code, text) in delivery.refused {
        println!("recipient {number} refused: {code} {text}");
    }
    client.quit()?;
    Ok(())
}
