//! Tests crashes at any operation. Every message for which the spool gave a receipt must be there
//! after the restart.
use crate::model::{SpoolModel, SpoolOperation, open, small, steps};
use mailrun_spool::faulty::FaultyDisk;
use proptest::prelude::*;

/// Runs the steps until they end or the disk freezes, and then simulates a crash. Opens the spool again, and compares
/// its messages with the model. Returns the disk.
fn run(model: &mut SpoolModel, disk: &FaultyDisk, steps: &[SpoolOperation], power_loss: Option<u64>) -> FaultyDisk {
    let Ok((spool, backlog)) = open(disk, small()) else {
        disk.freeze();
        return after(disk, power_loss);
    };
    model.compare(&spool, backlog, 0);
    _ = steps.iter().all(|step| model.step(&spool, step));
    let unwritten = spool.stats().unwritten;
    disk.freeze();
    drop(spool);
    let disk = after(disk, power_loss);
    let (spool, backlog) = open(&disk, small()).unwrap();
    // After a crash, the spool must not report damage to messages that were stored before the crash.
    assert!(spool.damage().iter().all(|damage| !damage.is_alarming()), "{:?}", spool.damage());
    model.compare(&spool, backlog, unwritten);
    drop(spool);
    disk
}

fn after(disk: &FaultyDisk, power_loss: Option<u64>) -> FaultyDisk {
    match power_loss {
        Some(seed) => disk.after_power_loss(seed),
        None => disk.after_kill(),
    }
}

/// Returns a fixed sequence of steps, long enough that the spool begins, empties and reuses segments.
pub(crate) fn long_sequence() -> Vec<SpoolOperation> {
    let index = |at: usize| prop::sample::Index::from_raw_for_test(at);
    let mut steps = Vec::new();
    for round in 0..14 {
        steps.push(SpoolOperation::Store { messages: 1 + round % 4, bytes: 9000 + 7000 * (round % 3) });
        steps.push(SpoolOperation::Note(index(round)));
        steps.push(SpoolOperation::Store { messages: 3, bytes: 100 });
        steps.push(SpoolOperation::Note(index(0)));
        if round % 3 == 2 {
            steps.push(SpoolOperation::Store { messages: 1, bytes: 70_000 });
            steps.push(SpoolOperation::DoneButOne);
        }
    }
    steps
}

trait IndexFromRaw {
    fn from_raw_for_test(at: usize) -> Self;
}

impl IndexFromRaw for prop::sample::Index {
    /// Returns the index number `at` of a fixed sequence of random indexes. The sequence is needed because `Index` has
    /// no public constructor.
    fn from_raw_for_test(at: usize) -> Self {
        use proptest::strategy::ValueTree;
        use proptest::test_runner::TestRunner;
        let mut runner = TestRunner::deterministic();
        (0..=at).map(|_| any::<Self>().new_tree(&mut runner).unwrap().current()).last().unwrap()
    }
}

#[test]
fn what_was_answered_survives_a_crash_at_every_operation() {
    let story = long_sequence();
    let whole = FaultyDisk::new();
    run(&mut SpoolModel::default(), &whole, &story, None);
    assert!(whole.operations() > 80, "{} operations", whole.operations());
    for operation in 0..whole.operations() {
        for power_loss in [None, Some(operation), Some(operation + 1000), Some(operation + 2000)] {
            let disk = FaultyDisk::new();
            disk.freeze_at_operation(operation);
            run(&mut SpoolModel::default(), &disk, &story, power_loss);
        }
    }
}

#[test]
fn what_was_answered_survives_a_crash_at_every_sync() {
    let story = long_sequence();
    let whole = FaultyDisk::new();
    run(&mut SpoolModel::default(), &whole, &story, None);
    for sync in 0..whole.syncs() {
        for power_loss in [None, Some(sync), Some(sync + 1000), Some(sync + 2000)] {
            let disk = FaultyDisk::new();
            disk.freeze_at_sync(sync);
            run(&mut SpoolModel::default(), &disk, &story, power_loss);
        }
    }
}

#[test]
fn a_disk_that_lies_about_its_syncs_is_found_out() {
    let story = long_sequence();
    let found_out = (0..20).any(|seed| {
        std::panic::catch_unwind(|| {
            let disk = FaultyDisk::new();
            disk.ignore_syncs();
            run(&mut SpoolModel::default(), &disk, &story, Some(seed));
        })
        .is_err()
    });
    assert!(found_out, "else the tests above would prove nothing");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn what_was_answered_survives_any_row_of_crashes(
        rounds in prop::collection::vec((steps(30), 0u64..60, any::<Option<u64>>()), 1..6),
    ) {
        let mut model = SpoolModel::default();
        let mut disk = FaultyDisk::new();
        for (steps, operation, power_loss) in rounds {
            disk.freeze_at_operation(operation);
            disk = run(&mut model, &disk, &steps, power_loss);
        }
    }
}
