//! The relay on a file system that simulates power cuts. The power is cut and the disk fails, and no message that got a
//! 250 may be lost. The file system is the crate `crashfs`.
//!
//! | file | what it is |
//! |---|---|
//! | `relay` | the relay as a process |
//! | `load`, `next_hop`, `message` | who sends to it, whom it delivers to, and what |
//! | `life` | one spool through many relays, and what must hold of it |
//! | `damage` | a bit that flips at rest |
//! | `maildir` | delivery into Maildirs |
//! | `account` | the faults, and the fates of the mail |
//!
//! `make test` cuts the power 10 times, `make test-slow PART=power-cut` 300 times or as often as `MAILRUN_CUTS` says.
//! Each run takes a new seed and prints it. `MAILRUN_CUT_SEED` repeats its choices, though not its interleaving of
//! threads. `MAILRUN_CUT_LIFE` repeats one life by its seed. These tests need root and /dev/fuse; elsewhere they are
//! skipped, with a note.
#![allow(clippy::unwrap_used)] // The lint exempts `#[test]` functions but not the functions that they call

mod account;
mod damage;
mod life;
mod load;
mod maildir;
mod message;
mod next_hop;
mod relay;
#[path = "../all/skipped.rs"]
mod skipped;

use account::Account;
use life::{Course, live, live_after_a_failed_directory_sync, live_with_one_failed_read};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Number of relays that run and end on one spool, one after another.
const RELAYS: u64 = 25;

/// Number of lives at the same time. While one of them waits for its relay to start, the other works.
const LIVES: usize = 2;

/// Reports whether FUSE file systems can be mounted here, and notes the skipped test if not.
fn is_possible() -> bool {
    match mailrun_crashfs::obstacle() {
        Some(why) => {
            skipped::skip("power cuts", &why);
            false
        }
        None => true,
    }
}

/// Runs lives of spools until the power has been cut `cuts` times in total, or until a life breaks a promise.
fn cut(cuts: u64, seed: u64) -> Result<Account, String> {
    let total = Mutex::new(Account::default());
    let failed = Mutex::new(None);
    let next = AtomicU64::new(0);
    let one_after_the_other = || {
        while total.lock().unwrap().cuts < cuts && failed.lock().unwrap().is_none() {
            let seed = seed.wrapping_mul(1_000_003).wrapping_add(next.fetch_add(1, Ordering::Relaxed));
            let relays = RELAYS.min(cuts);
            match live(&Course { seed, relays, durability: "sync", has_only_cuts: false }) {
                Ok(account) => *total.lock().unwrap() += account,
                Err(why) => *failed.lock().unwrap() = Some(why),
            }
        }
    };
    thread::scope(|scope| (0..LIVES).for_each(|_| _ = scope.spawn(one_after_the_other)));
    match failed.into_inner().unwrap() {
        Some(why) => Err(why),
        None => Ok(total.into_inner().unwrap()),
    }
}

fn said(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

/// Runs lives of spools until the power has been cut `cuts` times in total. No mail may be lost, and enough mail must
/// have been at risk: more than five messages for each cut.
fn hold(cuts: u64) {
    let seed = said("MAILRUN_CUT_SEED").unwrap_or_else(rand::random);
    eprintln!("power-cut: seed {seed}");
    let began = Instant::now();
    let account = cut(cuts, seed).unwrap_or_else(|why| panic!("MAILRUN_CUT_SEED={seed}: {why}"));
    eprintln!("power-cut: seed {seed}, {} s\n{account}", began.elapsed().as_secs());
    assert_eq!((account.lost, account.delivered), (0, account.answered));
    assert!(account.cuts >= cuts && account.messages > 5 * cuts, "too little was at stake");
}

#[test]
fn ten_power_cuts_lose_nothing() {
    if is_possible() {
        hold(10);
    }
}

#[test]
#[ignore = "slow: make test-slow PART=power-cut"]
fn a_thousand_power_cuts_lose_nothing() {
    if !is_possible() {
        return;
    }
    match said("MAILRUN_CUT_LIFE") {
        None => hold(said("MAILRUN_CUTS").unwrap_or(1000)),
        Some(seed) => match live(&Course { seed, relays: RELAYS, durability: "sync", has_only_cuts: false }) {
            Ok(account) => eprintln!("{account}"),
            Err(why) => panic!("{why}"),
        },
    }
}

#[test]
fn a_read_that_fails_once_holds_no_message() {
    if is_possible() {
        let account = live_with_one_failed_read(1).unwrap_or_else(|why| panic!("{why}"));
        assert!(account.delivered > 0 && account.lost == 0, "{account}");
    }
}

#[test]
fn a_directory_that_could_not_be_synced_is_synced_by_the_next_relay() {
    if is_possible() {
        for seed in 0..4 {
            let account = live_after_a_failed_directory_sync(seed, 1 + seed % 2).unwrap_or_else(|why| panic!("{why}"));
            assert!(account.delivered > 0 && account.lost == 0, "{account}");
        }
    }
}

/// A relay that does not sync must fail these tests. Otherwise they would prove nothing about a relay that syncs.
#[test]
fn a_relay_that_does_not_sync_is_found_out() {
    if is_possible() {
        let course = |seed| Course { seed, relays: 6, durability: "write", has_only_cuts: true };
        let found = (1..=5).any(|seed| live(&course(seed)).is_err_and(|why| why.contains("are lost")));
        assert!(found, "30 power cuts and nothing is lost that was never synced");
    }
}
