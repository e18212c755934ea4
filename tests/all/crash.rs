//! The relay is killed with SIGKILL again and again while a source sends through it. Every message that got a 250 must
//! arrive.
//!
//! The kernel keeps its page cache, so everything that the relay had written survives even without a sync. These tests
//! therefore check recovery, not syncing; `tests/power_cut` simulates power cuts.
//!
//! `make test-slow PART=crash` kills the relay 50 times, `make test` three times. The seed of the moments is printed;
//! `MAILRUN_CRASH_SEED` repeats them, and `MAILRUN_CRASH_KILLS` sets their number.
use crate::party::{Process, Sink, low_port, wait_until};
use crate::relay::{Den, MAILRUN, QUICK};
use crate::secured::Files;
use mailrun_journey::Ledger;
use mailrun_journey::seeded::SeededRng;
use std::fs::File;
use std::thread::sleep;
use std::time::Duration;

/// Messages per second; each has two recipients.
const RATE: &str = "1000";
const RECIPIENTS: u64 = 2;
const WORKERS: u64 = 2;
/// Connections from all workers to the next hop. Each has one message that waits for its reply, and
/// one that follows it.
const COURIERS: u64 = 20;
/// Limit of deliveries that a kill may forget. The spool learns of deliveries with its next batch, which under load
/// takes less than 0.1 s.
const UNTOLD: u64 = 100;

struct Account {
    kills: u64,
    answered: u64,
    delivered: u64,
    lost: u64,
    duplicates: u64,
}

fn read(path: &str) -> Ledger {
    Ledger::read_from(File::open(path).unwrap()).unwrap()
}

fn crash(kills: u64, seed: u64) -> Account {
    let files = Files::new();
    let port = low_port();
    let sent = files.path("sent");
    let taken = files.path("taken");
    let sink = Sink::start(&["--ledger", &taken]);
    let text =
        format!("listen = [\"127.0.0.1:{port}\"]\nworkers = {WORKERS}\ndelivery.per_destination = {COURIERS}\n{QUICK}");
    let den = Den::to(&sink.address(), &text);
    let mut chance = SeededRng::new(seed, 0_u64, 0);
    let mut relay = den.open();
    let words = ["source", &relay.address(), "--ledger", &sent, "--rate", RATE, "--duration", "1h"];
    let more = ["--sessions", "20", "--reuse", "--recipients", "2", "--message-size", "400..20k", "--timeout", "10s"];
    let source = Process::start(MAILRUN, &[&words[..], &more].concat());
    crate::relay::await_recipients(&sink, 1);
    for _ in 0..kills {
        // Do not wait for an event: the moment of the kill must vary.
        sleep(Duration::from_millis(10 + chance.below(690)));
        relay.kill();
        sleep(Duration::from_millis(chance.below(100)));
        relay = den.open();
    }
    crate::relay::await_recipients(&sink, sink.ask("/status")["recipients"].as_u64().unwrap() + 10);
    source.terminate();
    let ended = source.finish();
    // The source is interrupted on purpose.
    assert_eq!(ended.code, Some(130), "{ended:?}");
    let sent = read(&sent);
    wait_until("all that was answered 250", || {
        (sink.ask("/ledger")[0]["delivered"].as_u64().unwrap() >= sent.count()).then_some(())
    });
    relay.stop();
    let record = sink.stop();
    assert_eq!(record.ledger.corrupt, Some(0));
    let taken = read(&taken);
    Account {
        kills,
        answered: sent.count(),
        delivered: taken.count(),
        lost: sent.count_without(&taken),
        duplicates: record.ledger.duplicates.unwrap(),
    }
}

/// Every message that got a 250 arrives. Only messages that were in flight at a kill may arrive twice.
fn hold(account: &Account, seed: u64) {
    let Account { kills, answered, delivered, lost, duplicates } = *account;
    eprintln!(
        "crash: seed {seed}, {kills} kills, {answered} recipients answered 250, {delivered} delivered, {lost} lost, \
         {duplicates} duplicates"
    );
    assert_eq!(lost, 0, "seed {seed}");
    assert!(answered > kills * 10, "seed {seed}: {answered} is no load");
    let most = kills * RECIPIENTS * (2 * COURIERS + UNTOLD);
    assert!(duplicates <= most, "seed {seed}: {duplicates} duplicates, {most} at most");
}

fn said(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// The seed from the environment, or a new one. It is printed before the run because the run may fail.
fn chosen_seed() -> u64 {
    let seed = said("MAILRUN_CRASH_SEED").unwrap_or_else(|| u64::from(std::process::id()) * 7919 + 1);
    eprintln!("crash: seed {seed}");
    seed
}

#[test]
fn three_kills_lose_nothing() {
    let seed = chosen_seed();
    hold(&crash(3, seed), seed);
}

#[test]
#[ignore = "slow: make test-slow PART=crash"]
fn fifty_kills_lose_nothing() {
    let kills = said("MAILRUN_CRASH_KILLS").unwrap_or(50);
    let seed = chosen_seed();
    hold(&crash(kills, seed), seed);
}
