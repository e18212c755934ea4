//! Lists the messages in a spool, and then stores standard input as a new message. The new message survives a power
//! failure once its line is printed. Run it with
//! `echo hello | cargo run -p mailrun-spool --example keep -- kept.spool`.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use mailrun_spool::{NewMessage, Options, RealDisk, Spool};
use std::error::Error;
use std::io::Read;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).unwrap_or_else(|| "kept.spool".to_owned());
    let (spool, backlog) = Spool::open(Arc::new(RealDisk::new(directory)?), Options::default())?;
    for message in backlog {
        let message = message?;
        let body = spool.read(message.id)?;
        println!("{}: {} bytes, kept before", message.id, body.len());
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body)?;
    let received_ns = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    let receipt = spool.store(NewMessage { received_ns, envelope: Vec::new(), body: body.into() });
    // Only the spool can make a `Stored`, and it does so only after the message is synced.
    let stored = receipt.wait()?;
    println!("{}: kept", stored.id());
    spool.close();
    Ok(())
}
