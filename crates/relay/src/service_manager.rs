//! Notifies the service manager by sd_notify(3) when the relay is ready, reloads or stops, and
//! sends keep-alives to the manager's watchdog. Without a manager (`NOTIFY_SOCKET` is not set), the
//! relay sends nothing.
use super::fault_log::LOG_TARGET;
use crate::worker_calls::{RunningRelay, WorkerUnavailable};
use anyhow::{Context, Result};
use sd_notify::NotifyState;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Number of keep-alives per watchdog timeout. sd_watchdog_enabled(3) recommends two.
const SIGNS_PER_TIMEOUT: u32 = 2;
const SEND_WAIT: Duration = Duration::from_millis(500);
/// Maximum number of messages that are queued while the service manager does not read its socket. Further messages are
/// dropped.
const MAX_PENDING: usize = 64;

/// Tells the service manager that the relay is ready, because all listeners accept mail.
pub(super) fn notify_ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

pub(super) fn notify_status(status: &str) {
    send(&[NotifyState::Status(status)]);
}

/// Tells the service manager that the relay is reloading its configuration. The caller must call [`notify_reloaded`]
/// afterwards.
pub(super) fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(_) => send(&[NotifyState::Reloading]),
    }
}

pub(super) fn notify_reloaded(result: &str) {
    notify_ready(result);
}

pub(super) fn notify_stopping() {
    send(&[NotifyState::Stopping, NotifyState::Status("finishing deliveries under way")]);
}

/// If the service manager expects keep-alives (`WatchdogSec=` in systemd), starts a thread that sends them while every
/// worker answers. If a worker hangs, the keep-alives stop, and the manager restarts the relay.
pub(super) fn start_watchdog(relay: &Arc<RunningRelay>) -> Result<()> {
    let Some(timeout) = sd_notify::watchdog_enabled() else { return Ok(()) };
    let relay = Arc::clone(relay);
    let signal = move || show_life(&relay, timeout / SIGNS_PER_TIMEOUT);
    std::thread::Builder::new().name("watchdog".to_owned()).spawn(signal).context("cannot start a thread")?;
    Ok(())
}

fn show_life(relay: &RunningRelay, interval: Duration) {
    loop {
        let answers = relay.workers.call_all(|_| ());
        if answers.contains(&Err(WorkerUnavailable::Stopped)) {
            return;
        }
        match answers.iter().position(Result::is_err) {
            None => send(&[NotifyState::Watchdog]),
            Some(worker) => tracing::error!(target: LOG_TARGET, worker, "a worker does not answer"),
        }
        std::thread::sleep(interval);
    }
}

fn send(states: &[NotifyState<'_>]) {
    let Some(outbox) = &*OUTBOX else { return };
    let text = states.iter().map(|state| format!("{state}\n")).collect();
    let (sent, answer) = sync_channel(1);
    let _ = outbox.try_send((text, sent));
    // Wait until the other thread has sent the text, because the relay may end right after this call. Stop waiting
    // after `SEND_WAIT`, in case the manager does not read.
    let _ = answer.recv_timeout(SEND_WAIT);
}

/// A text for the service manager, and the channel on which the sending thread confirms that it has sent the text.
type Message = (String, SyncSender<()>);

/// Channel to the thread that sends the relay's state to the service manager. `None` if no manager has started the
/// relay. If the manager does not read its socket, only that thread blocks.
static OUTBOX: LazyLock<Option<SyncSender<Message>>> = LazyLock::new(|| {
    std::env::var_os("NOTIFY_SOCKET")?;
    let (outbox, messages) = sync_channel::<Message>(MAX_PENDING);
    let send_all = move || {
        for (text, sent) in messages {
            // Only warn, because a manager that cannot be notified must not stop the relay.
            if let Err(error) = sd_notify::notify(&[NotifyState::Custom(text.trim_end())]) {
                tracing::warn!(target: LOG_TARGET, %error, "the service manager could not be notified");
            }
            let _ = sent.try_send(());
        }
    };
    std::thread::Builder::new().name("notify".to_owned()).spawn(send_all).ok()?;
    Some(outbox)
});
