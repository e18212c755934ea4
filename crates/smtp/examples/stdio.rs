//! An SMTP server on standard input and output, as inetd or systemd would start it. It shows that the crate itself uses
//! no socket and no clock.
//! `printf 'EHLO a\r\nQUIT\r\n' | cargo run -p mailrun-smtp --example stdio`
use mailrun_smtp::limits::Limits;
use mailrun_smtp::reply_reason::ReplyReason;
use mailrun_smtp::server::{Event, Server, ServerSettings};
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

/// Serves one session and returns the received messages.
pub(crate) fn serve(mut input: impl Read, mut output: impl Write) -> io::Result<Vec<Vec<u8>>> {
    let began = Instant::now();
    let mut server = Server::new(Arc::new(ServerSettings::new("stdio.example", Limits::default())), began.elapsed());
    let mut out = Vec::new();
    // Answer the session's first question, whether to greet the client.
    server.grant(began.elapsed(), &mut out);
    let mut content = Vec::new();
    let mut messages = Vec::new();
    let mut block = [0; 4096];
    while !server.is_closed() {
        output.write_all(&out)?;
        output.flush()?;
        out.clear();
        let count = input.read(&mut block)?;
        if count == 0 {
            break;
        }
        let mut rest = &block[..count];
        while let Some(event) = server.next_event(&mut rest, began.elapsed(), &mut out) {
            // These extensions are not offered, so their events cannot come. If one came, refuse it
            // instead of granting it.
            let is_served = !matches!(event, Event::Auth(_) | Event::Proof(_) | Event::Xclient(_) | Event::StartTls);
            match event {
                Event::Block(bytes) => content.extend_from_slice(bytes),
                // Drop the content of a failed message, so that it cannot become part of the next
                // message.
                Event::Discarded(_) | Event::Mail(_) => content.clear(),
                Event::Message { .. } => messages.push(std::mem::take(&mut content)),
                _ => {}
            }
            if server.awaits_answer() && is_served {
                server.grant(began.elapsed(), &mut out);
            } else if server.awaits_answer() {
                server.answer(ReplyReason::NotImplemented.reply(), began.elapsed(), &mut out);
            }
        }
    }
    output.write_all(&out)?;
    output.flush()?;
    Ok(messages)
}

fn main() -> io::Result<()> {
    let messages = serve(io::stdin().lock(), io::stdout().lock())?;
    writeln!(io::stderr(), "{} messages", messages.len())
}
