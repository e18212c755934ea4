//! An embedded SMTP server: prints what it is sent and refuses mail for nobody. `cargo run -p mailrun-net --example server`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]
use net::{Answer, Handler, Server};
use smtp::Path;
use smtp::command::Mail;
use std::time::Duration;

#[derive(Default)]
struct PrintingHandler {
    message: Vec<u8>,
}

impl Handler for PrintingHandler {
    fn mail(&mut self, mail: &Mail<'_>) -> Answer {
        println!("from {}", String::from_utf8_lossy(mail.sender.as_bytes()));
        Answer::Yes
    }

    fn recipient(&mut self, recipient: &Path<'_>) -> Answer {
        println!("to {}", String::from_utf8_lossy(recipient.as_bytes()));
        match recipient.local_part() {
            b"nobody" => Answer::reply(550, "5.1.1 Nobody lives here"),
            _ => Answer::Yes,
        }
    }

    fn block(&mut self, block: &[u8]) {
        self.message.extend_from_slice(block);
    }

    fn message(&mut self, bytes: u64, _now: Duration) -> Answer {
        println!("{bytes} octets:\n{}", String::from_utf8_lossy(&std::mem::take(&mut self.message)));
        Answer::Yes
    }
}

fn main() -> std::io::Result<()> {
    let server =
        Server::new(|| |_peer| PrintingHandler::default()).name("example").start(([127, 0, 0, 1], 2525).into())?;
    println!("listening on {}", server.address());
    server.wait();
    Ok(())
}
