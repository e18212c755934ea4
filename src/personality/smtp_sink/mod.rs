//! smtp-sink as in Postfix: receives SMTP and LMTP on one socket and discards the messages, or stores them, or applies
//! the faults that options order.
//!
//! ```text
//! options ─▶ listen ─▶ privileges ─▶ accept ─▶ session ─ bytes ─▶ dialogue ─ events ─▶ counters, dump, syslog
//! ```
//! One thread, one event loop, as in the original. `docs/drop-in.md` lists the differences and their reasons.
mod body;
mod commands;
mod counters;
mod dialogue;
mod dice;
mod dump;
mod listen;
mod local_text;
mod options;
mod privileges;
mod register;
mod replies;
mod session;
mod sink;
mod syslog;
mod template;

use super::Call;
use super::voice::Voice;
use crate::interrupt::{Asked, Interrupt};
use crate::reason::reason;
use jiff::tz::TimeZone;
use net::{Door, worker};
use options::{Refusal, Settings};
use rustix::fd::OwnedFd;
use sink::{End, Sink};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// Descriptors used for other things than sessions.
const OWN_DESCRIPTORS: u64 = 64;
/// Pause before accepting again after descriptors ran out.
const BREATH: Duration = Duration::from_millis(10);
/// Interval at which signals are looked for.
const GLANCE: Duration = Duration::from_millis(20);
/// Time for clients to send QUIT once `-M` is reached.
const GRACE: Duration = Duration::from_secs(1);

/// Runs it. Messages go to standard error, the counter of `-c` to standard output; the exit status is 0 after the end
/// that `-n` or `-M` asks for, else 1.
pub(super) fn run(call: &Call) -> ExitCode {
    let voice = Voice::new(&call.called);
    let refused = |Refusal(lines): Refusal| {
        lines.iter().for_each(|line| voice.say(line));
        ExitCode::FAILURE
    };
    let (settings, listener) = match prepare(call, &voice) {
        Ok(prepared) => prepared,
        Err(refusal) => return refused(refusal),
    };
    // It starts a thread: not before privileges are dropped, because each thread has its own.
    let interrupt = match settings.extras.want_times().then(Interrupt::watch).transpose() {
        Ok(interrupt) => interrupt,
        Err(error) => return refused(Refusal::fatal(format!("{error:#}"))),
    };
    match worker::run(|_| take_mail(settings, listener, interrupt)) {
        Ok(End::Done) => ExitCode::SUCCESS,
        Ok(End::Broken(why)) => refused(Refusal::fatal(why)),
        Err(error) => refused(Refusal::fatal(reason(&error))),
    }
}

/// Does all that needs the privileges that the program was started with.
fn prepare(call: &Call, voice: &Voice) -> Result<(Settings, OwnedFd), Refusal> {
    let settings = Settings::read(call)?;
    if settings.user.is_none() && rustix::process::geteuid().is_root() {
        return Err(Refusal::fatal("-u option is required if running as root"));
    }
    let listener = listen::open(&settings, voice).map_err(Refusal::fatal)?;
    net::open_files::raise(settings.most_sessions as u64 * 2 + OWN_DESCRIPTORS);
    privileges::leave(&settings, voice).map_err(Refusal::fatal)?;
    Ok((settings, listener))
}

async fn take_mail(settings: Settings, listener: OwnedFd, interrupt: Option<Interrupt>) -> End {
    // The time of day is needed for dumps and the log only; finding the time zone takes dozens of system calls.
    let is_dated = settings.keeping.is_some() || settings.rules.log_any();
    let zone = if is_dated { TimeZone::system() } else { TimeZone::UTC };
    let sink = Rc::new(Sink::new(settings, zone));
    if let Some(interrupt) = interrupt {
        worker::spawn_local(heed(interrupt, Rc::clone(&sink)));
    }
    let end = serve(&sink, listener).await;
    sink.conclude();
    end
}

/// Ends the run at a signal, so that the final report is printed.
async fn heed(interrupt: Interrupt, sink: Rc<Sink>) {
    while interrupt.asked() == Asked::Nothing {
        net::sleep(GLANCE).await;
    }
    sink.end(End::Done);
}

async fn serve(sink: &Rc<Sink>, listener: OwnedFd) -> End {
    let door = match Door::open(listener) {
        Ok(door) => door,
        Err(error) => return End::Broken(reason(&error)),
    };
    while !sink.has_ended() && !sink.has_enough() {
        match next(sink, &door).await {
            None => {}
            Some(Ok((descriptor, client))) => {
                sink.enter();
                sink.counters.borrow_mut().note_client();
                worker::spawn_local(session::serve(Rc::clone(sink), descriptor, client));
            }
            // The client has disconnected already, or descriptors have run out.
            Some(Err(_)) => net::sleep(BREATH).await,
        }
    }
    drop(door);
    if sink.has_ended() {
        return sink.ending().unwrap_or(End::Done);
    }
    see_clients_out(sink).await
}

/// The next client; `None` if no more are accepted.
async fn next(sink: &Sink, door: &Door) -> Option<io::Result<(OwnedFd, Option<SocketAddr>)>> {
    poll_fn(|context| {
        sink.remember(context);
        if sink.has_ended() || sink.has_enough() {
            return Poll::Ready(None);
        }
        if sink.is_full() { Poll::Pending } else { door.poll_accept().map(Some) }
    })
    .await
}

/// Ends the run after `-M` is reached. The original exits at once, so that its last client never reads the reply to its
/// message; here all clients receive the replies owed to them, and have time to send QUIT.
async fn see_clients_out(sink: &Rc<Sink>) -> End {
    let is_over = || sink.is_empty() || sink.has_ended();
    loop {
        let emptied = poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending });
        let _ = net::Alarm::default().limit(net::clock::now() + GRACE, emptied).await;
        if is_over() || !sink.owes_verdicts() {
            return sink.ending().unwrap_or(End::Done);
        }
    }
}
