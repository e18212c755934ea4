//! Converts the message on standard input to 7-bit, as a relay does for a server without 8BITMIME.
//! `cargo run -p mailrun-mime --example seven_bit < message.eml`
use std::error::Error;
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut message = Vec::new();
    std::io::stdin().read_to_end(&mut message)?;
    // `None` means that the message has no 8-bit bytes. An error means that the message must not be
    // changed, for example because it is signed.
    let converted = mailrun_mime::to_seven_bit(&message, "relay.example")?;
    std::io::stdout().write_all(converted.as_deref().unwrap_or(&message))?;
    Ok(())
}
