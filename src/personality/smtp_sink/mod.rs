//! smtp-sink as in Postfix: takes SMTP and LMTP on one socket and throws the messages away, or keeps them, or does to
//! the client what it was told to.
//!
//! ```text
//! options ─▶ listen ─▶ privileges ─▶ accept ─▶ session ─ octets ─▶ dialogue ─ remarks ─▶ counters, dump, syslog
//! ```
//! One thread, one event loop, as the original has. Where this differs from it, `docs/drop-in.md` says so and why.
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

/// What descriptors are needed besides those of the sessions.
const OWN_DESCRIPTORS: u64 = 64;
/// Until descriptors may be there again.
const BREATH: Duration = Duration::from_millis(10);
/// Between looks at whether a signal has come.
const GLANCE: Duration = Duration::from_millis(20);
/// How long clients may take to say QUIT once `-M` is reached.
const GRACE: Duration = Duration::from_secs(1);

/// Runs it. Messages go to standard error, the counter of `-c` to standard output; 0 is the end that `-n` and `-M` ask
/// for, 1 is everything else.
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
    // It begins a thread: not before privileges are gone, which each thread has its own.
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

/// All that is done with the privileges the program was started with.
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
    // The time of day is for dumps and the log; finding out where this machine is takes dozens of system calls.
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

/// Ends the run at a signal, so that there is an end at which to say something.
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
            // The client has gone again, or descriptors have run out.
            Some(Err(_)) => net::sleep(BREATH).await,
        }
    }
    drop(door);
    if sink.has_ended() {
        return sink.ending().unwrap_or(End::Done);
    }
    see_clients_out(sink).await
}

/// The next client; `None` where there is to be none any more.
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

/// `-M` is reached. The original exits at once, so that its last client never hears that its message was taken; here
/// all are told what is owed to them, and have time to say QUIT.
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
