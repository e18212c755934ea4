//! Imitates Postfix's smtp-sink. It receives SMTP or LMTP on one socket, discards or stores the messages, and simulates
//! the faults that its options request.
//!
//! ```text
//! options ─▶ listen ─▶ privileges ─▶ accept ─▶ session ─ bytes ─▶ dialogue ─ events ─▶ counters, dump, syslog
//! ```
//! Like Postfix's smtp-sink, the program has one thread and one event loop. `docs/drop-in.md` lists the differences and
//! their reasons.
mod body;
mod commands;
mod counters;
mod dialogue;
mod dump;
mod listen;
mod local_text;
mod options;
mod replies;
mod rng;
mod session;
mod sink;
mod syslog;
pub(crate) mod template;
mod traced;

use super::own_options::Invocation;
use super::stderr::StderrWriter;
use jiff::tz::TimeZone;
use mailrun_net::{Acceptor, worker};
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::reason::reason;
use nix::unistd::{self, User};
use options::{Settings, StartupError};
use rustix::fd::OwnedFd;
use sink::{SinkExit, SmtpSink};
use std::ffi::CString;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Number of file descriptors that the process needs for everything other than sessions, such as files and timers.
const RESERVED_DESCRIPTORS: u64 = 64;
/// Pause after a failed attempt to accept a connection, for example because file descriptors have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(10);
const SIGNAL_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Time that clients have to send QUIT once the limit of `-M` is reached.
const QUIT_TIMEOUT: Duration = Duration::from_secs(1);

/// Runs smtp-sink, which prints messages on standard error and the counts of `-c` on standard output. The exit status
/// is 0 if the sink ended because the limit of `-n` or `-M` was reached. With `--trace` or `--report`, it is also 0
/// after a signal. Otherwise it is 1.
pub(super) fn run(call: &Invocation) -> ExitCode {
    let stderr = StderrWriter::new(&call.program);
    let refused = |StartupError(lines): StartupError| {
        lines.iter().for_each(|line| stderr.print(line));
        ExitCode::FAILURE
    };
    let (settings, listener) = match prepare(call, &stderr) {
        Ok(prepared) => prepared,
        Err(refusal) => return refused(refusal),
    };
    let interrupt = match settings.own_options.needs_times().then(Interrupt::watch).transpose() {
        Ok(interrupt) => interrupt,
        Err(error) => return refused(StartupError::fatal(format!("{error:#}"))),
    };
    match worker::run_with(settings.own_options.worker_options(), |_| run_sink(settings, listener, interrupt)) {
        Ok(SinkExit::Done) => ExitCode::SUCCESS,
        Ok(SinkExit::Failed(message)) => refused(StartupError::fatal(message)),
        Err(error) => refused(StartupError::fatal(reason(&error))),
    }
}

/// Opens the socket and raises the limit of open files, which may need root. Drops the privileges afterwards.
fn prepare(call: &Invocation, stderr: &StderrWriter) -> Result<(Settings, OwnedFd), StartupError> {
    let settings = Settings::read(call)?;
    if settings.user.is_none() && rustix::process::geteuid().is_root() {
        return Err(StartupError::fatal("-u option is required if running as root"));
    }
    let listener = listen::open(&settings, stderr).map_err(StartupError::fatal)?;
    mailrun_net::open_files::raise(settings.max_sessions as u64 * 2 + RESERVED_DESCRIPTORS);
    drop_privileges(&settings, stderr).map_err(StartupError::fatal)?;
    Ok((settings, listener))
}

async fn run_sink(settings: Settings, listener: OwnedFd, interrupt: Option<Interrupt>) -> SinkExit {
    // Look up the time zone only if there are dumps or a log, which need local time. The lookup takes dozens of system
    // calls.
    let is_dated = settings.dump_template.is_some() || settings.rules.logs_any();
    let zone = if is_dated { TimeZone::system() } else { TimeZone::UTC };
    let sink = Rc::new(SmtpSink::new(settings, zone));
    if let Some(interrupt) = interrupt {
        worker::spawn_local(stop_on_signal(interrupt, Rc::clone(&sink)));
    }
    let end = accept_clients(&sink, listener).await;
    sink.print_reports();
    end
}

async fn stop_on_signal(interrupt: Interrupt, sink: Rc<SmtpSink>) {
    while interrupt.requested() == StopRequest::Nothing {
        mailrun_net::sleep(SIGNAL_POLL_INTERVAL).await;
    }
    sink.stop(SinkExit::Done);
}

async fn accept_clients(sink: &Rc<SmtpSink>, listener: OwnedFd) -> SinkExit {
    let acceptor = match Acceptor::new(listener) {
        Ok(acceptor) => acceptor,
        Err(error) => return SinkExit::Failed(reason(&error)),
    };
    while !sink.has_ended() && !sink.reached_message_limit() {
        match next(sink, &acceptor).await {
            None => {}
            Some(Ok((descriptor, client))) => {
                sink.session_started();
                sink.counters.borrow_mut().record_client();
                worker::spawn_local(session::serve(Rc::clone(sink), descriptor, client));
            }
            // Accepting fails if the client has already disconnected, or if file descriptors have run out. Wait before
            // the next attempt, because every attempt fails at once while there are no descriptors.
            Some(Err(_)) => mailrun_net::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
    drop(acceptor);
    if sink.has_ended() {
        return sink.exit().unwrap_or(SinkExit::Done);
    }
    drain_clients(sink).await
}

async fn next(sink: &SmtpSink, acceptor: &Acceptor) -> Option<io::Result<(OwnedFd, Option<SocketAddr>)>> {
    poll_fn(|context| {
        sink.set_accept_waker(context);
        if sink.has_ended() || sink.reached_message_limit() {
            return Poll::Ready(None);
        }
        if sink.is_full() { Poll::Pending } else { acceptor.poll_accept().map(Some) }
    })
    .await
}

/// Ends the run after the limit of `-M` is reached. Postfix's smtp-sink exits immediately, so its last client never
/// receives the reply to its message. In this program, all clients receive their replies, and have time to send QUIT.
async fn drain_clients(sink: &Rc<SmtpSink>) -> SinkExit {
    let is_over = || sink.is_empty() || sink.has_ended();
    loop {
        let emptied = poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending });
        let _ = mailrun_net::Timer::default().timeout_at(mailrun_net::clock::now() + QUIT_TIMEOUT, emptied).await;
        if is_over() || !sink.has_pending_replies() {
            return sink.exit().unwrap_or(SinkExit::Done);
        }
    }
}

/// Drops the privileges that opening the socket may have needed: switches to the user of `-u` and to the root directory
/// of `-R`. Without `-u`, ignores `-R`, as Postfix's smtp-sink does.
fn drop_privileges(settings: &Settings, stderr: &StderrWriter) -> Result<(), String> {
    let Some(name) = &settings.user else { return Ok(()) };
    let unknown = || format!("unknown user: {name}");
    let user = User::from_name(name).ok().flatten().ok_or_else(unknown)?;
    let group_name = CString::new(name.as_str()).map_err(|_| unknown())?;
    describe_error(&format!("setgid({})", user.gid), unistd::setgid(user.gid))?;
    describe_error("initgroups", unistd::initgroups(&group_name, user.gid))?;
    if let Some(root) = &settings.root {
        describe_error(&format!("chroot({root})"), unistd::chroot(root.as_str()))?;
        describe_error("chdir(/)", unistd::chdir("/"))?;
    }
    describe_error(&format!("setuid({})", user.uid), unistd::setuid(user.uid))?;
    if settings.verbosity > 1 {
        stderr.print(format!("chroot {} user {name}", settings.root.as_deref().unwrap_or("(none)")));
    }
    Ok(())
}

fn describe_error(act: &str, outcome: nix::Result<()>) -> Result<(), String> {
    outcome.map_err(|error| format!("{act}: {}", reason(&io::Error::from(error))))
}
