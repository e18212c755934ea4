//! Messages per second that the spool makes durable, compared with the raw limit of the same disk in the same run. To
//! measure the raw limit, the bench writes and syncs batches of the same number of bytes without a spool, in a file
//! that already has its full length.
//!
//! `SPOOL_BENCH_DIR` sets the directory. The default is the build directory. Rounds of spool and
//! raw disk alternate, and medians are printed.
#![allow(clippy::print_stdout)]
use mailrun_spool::{NewMessage, Options, RealDisk, Receipt, Spool};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const SIZES: [usize; 3] = [400, 1024, 65_536];
const BATCHES: [usize; 3] = [1, 50, 250];
const QUEUED: u64 = 1_000_000;
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(700);
const SEGMENT_BYTES: u64 = 64 << 20;
const ENVELOPE: &[u8] = b"from a@example.com to b@example.com by 127.0.0.1";

fn main() {
    let place = std::env::var_os("SPOOL_BENCH_DIR").map_or(PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from);
    let directory = tempfile::tempdir_in(place).expect("the directory can be written");
    println!("spool: on {}, medians of {ROUNDS} rounds", directory.path().display());
    println!("{:>7} {:>6} {:>12} {:>9} {:>12} {:>6}", "bytes", "batch", "msg/s", "a sync", "raw msg/s", "ratio");
    let raw = raw_file(&directory.path().join("raw"));
    for bytes in SIZES {
        for batch in BATCHES {
            compare(directory.path(), &raw, bytes, batch);
        }
    }
    reopen(&directory.path().join("queue"));
}

fn reopen(directory: &Path) {
    let open = || {
        let disk = RealDisk::new(directory).expect("the directory can be written");
        Spool::open(Arc::new(disk), Options::default()).expect("the spool opens")
    };
    let body: Arc<[u8]> = vec![b'x'; 400].into();
    let (spool, _) = open();
    for _ in 0..QUEUED / 10_000 {
        let draft = || NewMessage { received_ns: 1, envelope: ENVELOPE.to_vec(), body: Arc::clone(&body) };
        let receipts: Vec<Receipt> = (0..10_000).map(|_| spool.store(draft())).collect();
        receipts.into_iter().for_each(|receipt| assert!(receipt.wait().is_ok()));
    }
    spool.close();
    let before = resident_bytes();
    let start = Instant::now();
    let (spool, backlog) = open();
    let opened = start.elapsed();
    let grown = resident_bytes().saturating_sub(before);
    let read = backlog.map(|left| left.expect("it is whole")).filter(|left| left.body_bytes == 400).count();
    println!(
        "{read} messages of 400 bytes: opened in {:.2} s with {} bytes of memory each, listed after {:.2} s",
        opened.as_secs_f64(),
        grown / QUEUED,
        start.elapsed().as_secs_f64(),
    );
    drop(spool);
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has /proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has a VmRSS line");
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("VmRSS is a number of kB");
    kilobytes * 1024
}

fn compare(directory: &Path, raw: &File, bytes: usize, batch: usize) {
    let disk = RealDisk::new(directory.join("spool")).expect("the directory can be written");
    let options = Options { segment_bytes: SEGMENT_BYTES, ..Options::default() };
    let (spool, backlog) = Spool::open(Arc::new(disk), options).expect("the spool opens");
    backlog.for_each(|left| spool.done(left.expect("it is whole").id));
    let body: Arc<[u8]> = vec![b'x'; bytes].into();
    // The first round is not measured, because it creates the segments that later rounds reuse.
    spool_rate(&spool, &body, batch);
    let before = spool.stats();
    let mut ours = Vec::new();
    let mut raws = Vec::new();
    for _ in 0..ROUNDS {
        ours.push(spool_rate(&spool, &body, batch));
        raws.push(raw_rate(raw, &body, batch));
    }
    let usage = spool.stats();
    spool.close();
    let a_sync = (usage.stored - before.stored) as f64 / (usage.syncs - before.syncs).max(1) as f64;
    let ours = median(ours);
    let raws = median(raws);
    println!("{bytes:>7} {batch:>6} {ours:>12.0} {a_sync:>9.1} {raws:>12.0} {:>6.2}", ours / raws);
}

/// Measures how many messages per second one sender stores and marks as done. If batches have more than one message,
/// the sender prepares the next batch while the spool syncs the current one.
fn spool_rate(spool: &Spool, body: &Arc<[u8]>, batch: usize) -> f64 {
    let in_flight = if batch == 1 { 1 } else { 2 * batch };
    let mut waiting: VecDeque<Receipt> = VecDeque::with_capacity(in_flight);
    let start = Instant::now();
    let mut stored = 0;
    while start.elapsed() < ROUND || !waiting.is_empty() {
        while waiting.len() < in_flight && start.elapsed() < ROUND {
            waiting.push_back(spool.store(NewMessage {
                received_ns: 1,
                envelope: ENVELOPE.to_vec(),
                body: Arc::clone(body),
            }));
        }
        // Wait for a whole batch of receipts, because one sync confirms all messages of a batch.
        for receipt in waiting.drain(..batch.min(waiting.len())) {
            spool.done(receipt.wait().expect("the disk does not fail").id());
            stored += 1;
        }
    }
    f64::from(stored) / start.elapsed().as_secs_f64()
}

/// Measures how many messages per second the disk alone can reach: writes and syncs batches of the same size, without
/// computing anything.
fn raw_rate(file: &File, body: &Arc<[u8]>, batch: usize) -> f64 {
    let record = 40 + ENVELOPE.len() + body.len();
    let bytes = vec![1; (32 + batch * record).next_multiple_of(4096)];
    let start = Instant::now();
    let mut at = 0;
    let mut stored = 0;
    while start.elapsed() < ROUND {
        if at + bytes.len() as u64 > SEGMENT_BYTES {
            at = 0;
        }
        let written = rustix::io::pwritev(file, &[IoSlice::new(&bytes)], at).expect("the disk does not fail");
        assert_eq!(written, bytes.len());
        file.sync_data().expect("the disk does not fail");
        at += bytes.len() as u64;
        stored += batch;
    }
    stored as f64 / start.elapsed().as_secs_f64()
}

fn raw_file(path: &Path) -> File {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path).expect("it can be written");
    let zeros = vec![0; 1 << 20];
    (0..SEGMENT_BYTES >> 20).for_each(|at| file.write_all_at(&zeros, at << 20).expect("the disk has room"));
    file.sync_all().expect("the disk does not fail");
    file
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
