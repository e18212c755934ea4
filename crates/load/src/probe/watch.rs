//! Threads that report which messages have arrived. Each sink and each mailbox has its own thread.
use super::options::Watch;
use crate::sink::arrivals::{Arrival, ArrivalList};
use crate::sink::{MailboxOptions, MailboxWatch, ProbeMail};
use anyhow::{Context, Result, bail};
use mailrun_lock::lock;
use mailrun_measurement::RunId;
use mailrun_net::clock;
use mailrun_process::http_client::{HttpClient, StatusCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a sink's response in bytes. The longest list of arrivals that a sink sends is about half as long.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Pause after a mailbox could not be opened. It doubles with each further failure, up to `LONGEST_RETRY`.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// Assumed maximum time from a message's arrival in a mailbox until the probe finds it. If the user has set a polling
/// interval, this interval is added.
const MAILBOX_LAG: Duration = Duration::from_secs(10);
/// A probe that deletes mail reopens the mailbox after this time, and later at intervals of `LATER_PASSES`. Each time,
/// it finds the messages in the mailbox again, and deletes each message whose arrival is in the journal by then. If the
/// probe is killed before that, the message stays in the mailbox, and the next process of the probe finds it.
const FIRST_PASS: Duration = Duration::from_secs(10);
const LATER_PASSES: Duration = Duration::from_secs(300);
/// Interval at which a pausing thread checks whether it should end.
const STOP_POLL: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Report {
    pub(super) found: Found,
    /// Monotonic time up to which the thread has reported all arrivals. `None` if this time is unknown, for example
    /// because the mailbox was opened only recently. An error is the reason why the sink or mailbox cannot be read at
    /// present.
    pub(super) seen_until: Result<Option<Duration>, String>,
}

#[derive(Debug)]
pub(super) enum Found {
    Nothing,
    /// Address of a sink, and the list of arrivals that the sink has sent. The list may include arrivals that were
    /// reported before, because each new thread asks the sink for all arrivals.
    AtSink(String, ArrivalList),
    /// Messages that were found in a mailbox since the last report. Each message is reported only once.
    InMailbox(Vec<Arrival>),
}

/// A thread that watches a sink or a mailbox for some routes. It ends when this value is dropped.
pub(super) struct WatchThread {
    stop: Arc<AtomicBool>,
}

impl WatchThread {
    /// Starts the thread, or returns `None` if there is nothing to watch. The thread passes its reports to `send`, and
    /// ends when `send` returns false. It deletes a message only if `mail` records the arrival of the message.
    pub(super) fn start(
        watch: &Watch,
        run: RunId,
        mail: &Arc<Mutex<ProbeMail>>,
        send: impl Fn(Report) -> bool + Send + 'static,
    ) -> Result<Option<Self>> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let work: Box<dyn FnOnce() + Send> = match watch {
            Watch::Nothing => return Ok(None),
            Watch::Sink(url) => {
                let client = HttpClient::new(url, RESPONSE_TIMEOUT, MAX_RESPONSE_BYTES)?;
                Box::new(move || ask_sink(&client, run, &send, &stopped))
            }
            Watch::Mailbox { mailbox, keep } => {
                let mut options = MailboxOptions::clone(mailbox);
                options.existing = true;
                options.deletes = (!keep).then_some(run);
                options.probe_mail = Some(Arc::clone(mail));
                Box::new(move || read_mailbox(&options, run, &send, &stopped))
            }
        };
        std::thread::Builder::new().name("watch".to_owned()).spawn(work).context("cannot start a thread")?;
        Ok(Some(Self { stop }))
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Returns the URL of the watched sink or mailbox. Routes with the same URL share one watch thread.
pub(super) fn name_of(watch: &Watch) -> Option<String> {
    match watch {
        Watch::Nothing => None,
        Watch::Sink(url) => Some(url.clone()),
        Watch::Mailbox { mailbox, .. } => {
            Some(mailbox.mailboxes.iter().map(|mailbox| mailbox.url.to_string()).collect::<Vec<_>>().join(" "))
        }
    }
}

/// Merges the options of two routes that watch the same sink or mailbox. Mail stays in the mailbox if at least one of
/// the routes keeps its mail.
pub(super) fn join(watch: &mut Watch, other: &Watch) {
    if let (Watch::Mailbox { keep, .. }, Watch::Mailbox { keep: other, .. }) = (watch, other) {
        *keep |= other;
    }
}

fn pause(time: Duration, stop: &AtomicBool) {
    let mut left = time;
    while !left.is_zero() && !stop.load(Ordering::Relaxed) {
        let step = left.min(STOP_POLL);
        std::thread::sleep(step);
        left -= step;
    }
}

fn ask_sink(client: &HttpClient, run: RunId, send: &dyn Fn(Report) -> bool, stop: &AtomicBool) {
    let mut sink = String::new();
    let mut after = 0;
    while !stop.load(Ordering::Relaxed) {
        let asked_at = clock::now();
        let report = match arrivals(client, run, after) {
            // The sink has begun a new list of arrivals, for example after a restart, so ask for the whole list.
            Ok(list) if list.sink != sink && after > 0 => {
                (sink, after) = (list.sink, 0);
                continue;
            }
            Ok(list) => {
                (sink, after) = (list.sink.clone(), list.next);
                Report { found: Found::AtSink(client.authority().to_owned(), list), seen_until: Ok(Some(asked_at)) }
            }
            Err(error) => Report { found: Found::Nothing, seen_until: Err(format!("{error:#}")) },
        };
        if !send(report) {
            return;
        }
        pause(POLL_INTERVAL, stop);
    }
}

fn arrivals(client: &HttpClient, run: RunId, after: u64) -> Result<ArrivalList> {
    let answer = client.get(&format!("/arrivals/{run}?after={after}"))?;
    if answer.status != StatusCode::OK {
        bail!("{} answers {}; is it a mailrun sink of this version?", client.authority(), answer.status);
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("{} answers something else", client.authority()))
}

fn read_mailbox(options: &MailboxOptions, run: RunId, send: &dyn Fn(Report) -> bool, stop: &AtomicBool) {
    let lag = MAILBOX_LAG + options.poll.unwrap_or_default();
    let mut retry = FIRST_RETRY;
    let mut pass = FIRST_PASS;
    while !stop.load(Ordering::Relaxed) {
        match MailboxWatch::start(options.clone(), run, &|| stop.load(Ordering::Relaxed)) {
            Ok(mut watch) => {
                retry = FIRST_RETRY;
                let until = options.deletes.map(|_| clock::now() + pass);
                pass = LATER_PASSES;
                let is_listed = follow(&mut watch, lag, until, send, stop);
                let seen_until = readable(&watch).map(|()| None);
                if !send(Report { found: Found::InMailbox(watch.stop()), seen_until }) {
                    return;
                }
                if let (true, Some(mail)) = (is_listed, &options.probe_mail) {
                    lock(mail).forget_deleted(&options.mailboxes);
                }
            }
            Err((error, arrivals)) => {
                // Opening also fails if this thread is told to stop. That is not an error of the mailbox.
                let seen_until = if stop.load(Ordering::Relaxed) { Ok(None) } else { Err(format!("{error:#}")) };
                if !send(Report { found: Found::InMailbox(arrivals), seen_until }) {
                    return;
                }
                pause(retry, stop);
                retry = (retry * 2).min(LONGEST_RETRY);
            }
        }
    }
}

/// Reports the messages of an open mailbox until the thread is stopped, or until the time `until`. Returns true if it
/// has reported all messages: `until` was reached, and the mailbox was readable all the time.
fn follow(
    watch: &mut MailboxWatch,
    lag: Duration,
    until: Option<Duration>,
    send: &dyn Fn(Report) -> bool,
    stop: &AtomicBool,
) -> bool {
    let mut up_since = clock::now();
    let mut was_up = true;
    while !stop.load(Ordering::Relaxed) {
        if until.is_some_and(|until| clock::now() >= until) {
            return was_up;
        }
        let Some(arrivals) = watch.next() else { return false };
        let now = clock::now();
        let readable = readable(watch);
        if readable.is_err() {
            (up_since, was_up) = (now, false);
        }
        // The probe finds mail in a readable mailbox at most `lag` after its arrival. So once the mailbox has been
        // readable for `lag`, the probe has found all mail that arrived before `now - lag`.
        let seen_until = readable.map(|()| (now - up_since >= lag).then(|| now - lag));
        if !send(Report { found: Found::InMailbox(arrivals), seen_until }) {
            return false;
        }
    }
    false
}

fn readable(watch: &MailboxWatch) -> Result<(), String> {
    if watch.is_up() { Ok(()) } else { Err("the connection to the mailbox is broken".to_owned()) }
}
