//! Sends a single message and shows every step, so that a person can try out a server.
//!
//! ```text
//! connect ─▶ mailrun_net::ClientSession ─ session: envelope, message, replies ─▶ report: a line, an exit status
//! message: composes what is sent                certificate: what the server has shown
//! ```
mod certificate;
mod message;
mod options;
mod report;
mod session;

use crate::source::{self, AllowedTargets, Transport};
use anyhow::{Context, Result, bail};
use mailrun_net::{ClientSession, SessionEnd, Socket, Stream, Timer, WorkerBuffers, clock};
use mailrun_process::reason::reason;
use mailrun_process::tls_mode::TlsMode;
use mailrun_smtp::Client;
pub use message::{Attachment, DEFAULT_BODY, HeaderField, MessageParts, compose, set_header, with_crlf};
pub use options::{QuitAfter, SendOptions, SendTarget};
pub use report::{SendEnd, SendReport, SendStage};
use session::SingleMessage;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

/// Time that the `--pipe` command has to exit after the session. If it is still running then, it is killed.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the message to the first target that accepts a connection.
///
/// # Errors
///
/// Fails if the options cannot be used, for example because a file with certificates cannot be read. If no server can
/// be reached, or if the server rejects the message, the returned [`SendReport`] says so instead.
pub fn send(options: SendOptions) -> Result<SendReport> {
    if options.quit_after == Some(QuitAfter::Tls) && options.transport.tls == TlsMode::None {
        bail!("--quit-after tls requires --tls starttls or --tls implicit");
    }
    for target in &options.targets {
        if let SendTarget::Server { endpoint, .. } = target {
            options.transport.check_password(endpoint)?;
        }
    }
    mailrun_net::worker::run(move |buffers| run(options, buffers)).context("cannot start an event loop")?
}

async fn run(options: SendOptions, buffers: WorkerBuffers) -> Result<SendReport> {
    let began = clock::now();
    let mut sender = SingleMessage::new(&options)?;
    let mut timer = Timer::default();
    let finish = |end: SendEnd| SendReport {
        end,
        took: clock::now() - began,
        answered_at: None,
        is_in_doubt: false,
        certificate_ends: None,
    };
    let mut failure = "there is no server to try".to_owned();
    for target in &options.targets {
        let mut transport = Transport::new(&options.transport, options.pipelining, target.host())?
            .stopping_after(options.quit_after.and_then(|point| point.stop_point(options.transport.tls)))
            .with_notifications(options.dsn_parameters.notifications());
        let records = options.shows_certificate || options.keeps_certificate && options.transport.tls != TlsMode::None;
        let shown = records.then(|| transport.record_certificates(&options.transport)).transpose()?;
        let connected = match target {
            SendTarget::Server { endpoint, .. } => {
                transport.connect(endpoint, options.connect_timeout, &mut timer).await.map(|socket| (socket, None))
            }
            SendTarget::Command(command) => start(command).map(|(socket, child)| (socket, Some(child))),
        };
        let (socket, child) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                // Try the next address, because a server may listen on only one of its addresses.
                failure = format!("{}: {}", target.describe(), reason(&error));
                sender.event(&format!("No connection to {failure}"));
                continue;
            }
        };
        sender.event(&format!("Connected to {}", target.describe()));
        if options.quit_after == Some(QuitAfter::Connect) {
            return Ok(finish(SendEnd::Stopped(QuitAfter::Connect)));
        }
        let nonce = options.transport.credentials.is_some().then(mailrun_net::nonce);
        let client_options = Arc::clone(&transport.options);
        let client = Client::with_options(options.hello.as_str().into(), client_options, nonce, clock::now());
        let ended = ClientSession::new(Stream::from(socket), client, &mut sender, &mut timer, options.timeout, buffers)
            .with_write_limit(options.transport.write_size)
            .with_security(transport.security.clone())
            .run()
            .await;
        let certificate_ends = shown.as_ref().and_then(|shown| certificate::end(&shown.certificates()));
        let shown = shown.filter(|_| options.shows_certificate);
        if let Some(shown) = shown.filter(|_| !matches!(ended, SessionEnd::Lost(..)) || sender.is_over_tls()) {
            let lines = certificate::describe(&shown.certificates(), jiff::Timestamp::now());
            lines.iter().for_each(|line| sender.show(line));
        }
        let end = sender.end(&ended, child.is_some());
        child.into_iter().for_each(wait);
        return Ok(SendReport {
            answered_at: sender.answered_at(),
            is_in_doubt: report::is_in_doubt(&ended),
            certificate_ends,
            ..finish(end)
        });
    }
    Ok(finish(SendEnd::Failed(SendStage::Connect, failure)))
}

/// Looks up a server, which is given as `HOST:PORT` or `unix:PATH`. Returns all of its addresses.
///
/// # Errors
///
/// Fails if the server has no address, or only addresses that `allowed` excludes.
pub fn targets_of(server: &str, allowed: AllowedTargets) -> Result<Vec<SendTarget>> {
    let name = source::host_name(server);
    let endpoints = source::look_up(server, allowed)?;
    Ok(endpoints.into_iter().map(|endpoint| SendTarget::Server { name: name.to_owned(), endpoint }).collect())
}

/// Starts a shell command, and returns a connection to it. The command's standard input and output are the other end of
/// this connection.
fn start(command: &str) -> io::Result<(Socket, Child)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let output = OwnedFd::from(theirs.try_clone()?);
    let child = Command::new("sh").args(["-c", command]).stdin(OwnedFd::from(theirs)).stdout(output).spawn()?;
    Ok((Socket::from_accepted(ours.into())?, child))
}

/// Waits for the command to end after its connection was closed, and kills it after `COMMAND_TIMEOUT`.
fn wait(mut child: Child) {
    let latest = clock::now() + COMMAND_TIMEOUT;
    while clock::now() < latest {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(5)),
            Ok(Some(_)) | Err(_) => return,
        }
    }
    // Ignore errors, because the command may have ended by itself just before it is killed.
    let _ = child.kill();
    let _ = child.wait();
}
