//! Tests a single operation that fails with any error, after which all operations succeed. Each
//! message with a receipt must be there, and the spool must accept nothing more once the content of
//! the log is unknown.
use crate::crash::long_sequence;
use crate::model::{SpoolModel, SpoolOperation, draft, open, small};
use mailrun_spool::faulty::{FailedOperation, FaultyDisk};
use mailrun_spool::{Damage, DamageKind, Durability, Error, Id, Options, Spool};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// Errors that a write or a sync may return. A write that fails may have written some of its bytes.
const ERRNOS: [Errno; 6] = [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::FBIG, Errno::MFILE];

fn run(steps: &[SpoolOperation], operation: u64, errno: Errno, durability: Durability) -> Option<FailedOperation> {
    let disk = FaultyDisk::new();
    let options = Options { durability, ..small() };
    disk.fail_operation(operation, errno.raw_os_error());
    let mut model = SpoolModel::default();
    let opened = open(&disk, options.clone());
    if let Ok((spool, backlog)) = opened {
        model.compare(&spool, backlog, 0);
        let is_whole = steps.iter().all(|step| model.step(&spool, step));
        if disk.failed() == Some(FailedOperation::Log) {
            // If the operation failed only after the last message got its receipt, the spool must refuse the next
            // message.
            let again = spool.store(draft(0, 10)).wait();
            assert!(!is_whole || matches!(again, Err(Error::Poisoned(_))), "{errno} at {operation}: {again:?}");
            assert!(matches!(spool.failure(), Some(Error::Poisoned(_))), "{errno} at {operation}");
        }
        let unwritten = spool.stats().unwritten;
        disk.freeze();
        drop(spool);
        let after = [disk.after_kill(), disk.after_power_loss(operation), disk.after_power_loss(operation + 1000)];
        for disk in &after[..if durability == Durability::Sync { 3 } else { 1 }] {
            let (spool, backlog) = open(disk, options.clone()).unwrap();
            // Without syncs, a restart cannot know whether a torn batch was answered with 250. It must report such a
            // batch as `UnsyncedEnd`, so this kind is no false alarm.
            let is_false_alarm = |damage: &Damage| damage.is_alarming() && damage.kind != DamageKind::UnsyncedEnd;
            assert!(!spool.damage().iter().any(is_false_alarm), "{:?}", spool.damage());
            model.clone().compare(&spool, backlog, unwritten);
        }
    }
    disk.failed()
}

#[test]
fn whatever_fails_and_however_what_was_answered_survives() {
    let story = long_sequence();
    for durability in [Durability::Sync, Durability::Write] {
        let whole = FaultyDisk::new();
        let (spool, _) = open(&whole, Options { durability, ..small() }).unwrap();
        let mut model = SpoolModel::default();
        assert!(story.iter().all(|step| model.step(&spool, step)));
        drop(spool);
        let mut met = [0; 3];
        for errno in ERRNOS {
            for operation in 0..whole.operations() {
                match run(&story, operation, errno, durability) {
                    Some(FailedOperation::NewSegment) => met[0] += 1,
                    Some(FailedOperation::Log) => met[1] += 1,
                    Some(FailedOperation::Directory) => met[2] += 1,
                    None => {}
                }
            }
        }
        assert!(met[0] > 20 && met[1] > 100 && met[2] > 10, "{met:?}");
    }
}

#[test]
fn a_disk_without_room_for_a_segment_is_full_and_goes_on() {
    let disk = FaultyDisk::new();
    disk.limit_capacity(Some(330_000));
    let (spool, _) = open(&disk, small()).unwrap();
    let store = |number| spool.store(draft(number, 10_000)).wait();
    let refused = (0..100).find(|number| matches!(store(*number), Err(Error::Full)));
    assert!(refused.is_some() && spool.failure().is_none());
    disk.limit_capacity(None);
    assert!(store(1).is_ok());
}

/// With `durability = "write"`, moving a message must not lose a message that the kernel has
/// already written to the disk.
#[test]
fn what_is_on_the_disk_is_not_lost_by_being_moved() {
    let options = Options { durability: Durability::Write, max_bytes: 24 * (64 << 10), ..small() };
    for bytes in [10_000, 9000, 4000] {
        let disk = FaultyDisk::new();
        let (spool, _) = open(&disk, options.clone()).unwrap();
        let mut ids: Vec<Id> = Vec::new();
        while let Ok(stored) = spool.store(draft(ids.len() as u64, bytes)).wait() {
            ids.push(stored.id());
        }
        disk.write_back();
        let waiting: Vec<Id> = ids.iter().copied().step_by(3).collect();
        ids.iter().filter(|id| !waiting.contains(id)).for_each(|id| spool.done(*id));
        let mut round = 0;
        while spool.stats().moved < waiting.len() as u64 / 2 {
            // Ignore the outcome: even a refused message makes the spool compact its log.
            _ = spool.store(draft(round, 100)).wait();
            round += 1;
            assert!(round < 10_000, "{:?}", spool.stats());
            if round % 8 == 0 {
                for seed in 0..3 {
                    let (after, backlog) = open(&disk.after_power_loss(round * 3 + seed), options.clone()).unwrap();
                    let left: Vec<Id> = backlog.map(|left| left.unwrap().id).collect();
                    let lost: Vec<&Id> = waiting.iter().filter(|id| !left.contains(id)).collect();
                    assert!(lost.is_empty(), "{lost:?} of {} are lost, {:?}", waiting.len(), spool.stats());
                    waiting.iter().for_each(|id| assert_eq!(after.read(*id).unwrap().len(), bytes));
                }
            }
        }
    }
}

/// Reads that fail once are retried, whether messages are moved, recovered at a restart, or
/// fetched.
#[test]
fn reads_that_fail_once_lose_nothing() {
    for of in 2..7 {
        let disk = FaultyDisk::new();
        disk.fail_one_read_of(of);
        let (spool, _) = open(&disk, small()).unwrap();
        let mut waiting = BTreeMap::new();
        let mut number = 0;
        while spool.stats().moved < 20 {
            number += 1;
            if let Ok(stored) = spool.store(draft(number, 5000)).wait() {
                waiting.insert(stored.id(), draft(number, 5000));
            }
            for id in waiting.keys().copied().filter(|id| id.0 % 5 != 0).collect::<Vec<_>>() {
                spool.done(id);
                waiting.remove(&id);
            }
            assert!(number < 10_000, "{:?}", spool.stats());
        }
        spool.close();
        let (spool, backlog) = open(&disk, small()).unwrap();
        let left: Vec<Id> = backlog.map(|left| left.unwrap().id).collect();
        let lost: Vec<&Id> = waiting.keys().filter(|id| !left.contains(id)).collect();
        assert!(lost.is_empty(), "one of {of} reads fails: {lost:?} of {} are lost", waiting.len());
        assert!(spool.damage().is_empty(), "{:?}", spool.damage());
        for (id, draft) in &waiting {
            assert_eq!(spool.fetch(*id).unwrap().body, draft.body, "{id} of one of {of} reads that fail");
        }
    }
}

/// If the end of the log cannot be read, the spool must report damage and must not take it for an end
/// that a crash has torn.
#[test]
fn an_end_that_cannot_be_read_is_damage() {
    let disk = FaultyDisk::new();
    let (spool, _) = open(&disk, small()).unwrap();
    for number in 0..3 {
        spool.store(draft(number, 5000)).wait().unwrap();
    }
    let disk = disk.after_power_loss(1);
    let name = disk.names().into_iter().find(|name| disk.octets(name).unwrap()[8192..].iter().any(|octet| *octet != 0));
    let name = name.unwrap();
    let octets = disk.octets(&name).unwrap();
    let last = octets.iter().rposition(|octet| *octet != 0).unwrap() / 4096 * 4096;
    disk.fail_reads(&name, last..last + 4096);
    let (spool, backlog) = open(&disk, small()).unwrap();
    assert!(backlog.len() == 3 || !spool.damage().is_empty(), "{} of 3, and nothing is said", backlog.len());
}

/// Stores messages and marks four of five as done, until the spool has moved `moved` messages or has failed. Returns
/// the messages that are not done.
fn until_moved(spool: &Spool, moved: u64) -> BTreeSet<Id> {
    let mut waiting = BTreeSet::new();
    for number in 0..10_000 {
        match spool.store(draft(number, 5000)).wait() {
            Ok(stored) => waiting.insert(stored.id()),
            Err(Error::Full) => false,
            Err(_) => break,
        };
        waiting.iter().filter(|id| id.0 % 5 != 0).for_each(|id| spool.done(*id));
        waiting.retain(|id| id.0 % 5 == 0);
        if spool.stats().moved >= moved {
            break;
        }
    }
    waiting
}

/// After a failed sync, the page cache has data that is not on the disk, and yet the next sync succeeds. In this test,
/// the process ends, another process opens the spool from the page cache, and then the power fails. No message with a
/// receipt may be lost.
#[test]
fn what_the_page_cache_alone_has_is_not_built_upon() {
    let mut met = 0;
    for sync in 3..200 {
        let disk = FaultyDisk::new();
        disk.fail_sync(sync);
        let (spool, _) = open(&disk, small()).unwrap();
        let waiting = until_moved(&spool, 30);
        met += u32::from(spool.failure().is_some() && spool.stats().moved > 0);
        drop(spool);
        let disk = disk.after_kill();
        let (spool, _) = open(&disk, small()).unwrap();
        // Store more messages, so that the spool moves old ones and frees their segments.
        let more = until_moved(&spool, 10);
        disk.freeze();
        drop(spool);
        let (spool, backlog) = open(&disk.after_power_loss(sync), small()).unwrap();
        let left: BTreeSet<Id> = backlog.map(|left| left.unwrap().id).collect();
        let lost: Vec<&Id> = waiting.iter().chain(&more).filter(|id| !left.contains(id)).collect();
        assert!(lost.is_empty(), "sync {sync}: {lost:?} of {} are lost, {:?}", waiting.len(), spool.damage());
    }
    assert!(met > 20, "{met}");
}
