//! One bit of a stored spool flips. The relay must start, report the damage, and deliver all messages except those of
//! at most one batch.
use crate::load::{self, Answers};
use crate::next_hop::StubNextHop;
use crate::relay::{Home, LIMIT};
use mailrun_crashfs::Disk;
use rand::RngExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Number of clients that send at the same time. A batch contains at most one message of each, so a flipped bit may
/// cost at most this many messages.
const CLIENTS: usize = 2;

/// Number of lives that run at the same time. There can be several, because each mostly waits.
const LIVES: usize = 4;

/// Flips a bit in a segment, among 64 bytes that are not all zeros. Returns the segment's name and the bit's offset.
fn flip(disk: &Disk) -> (String, u64) {
    disk.with_files(|files, chance| {
        let spool = files.look_up(mailrun_crashfs::ROOT, "spool").unwrap().inode;
        let segments = files.list(spool).unwrap().into_iter().filter(|(name, _)| name.starts_with("segment-"));
        let segments: Vec<_> = segments.filter(|(_, of)| of.bytes > 0).collect();
        loop {
            let (name, of) = &segments[chance.random_range(0..segments.len())];
            let at = chance.random_range(0..of.bytes);
            let around = files.read(of.inode, at & !63, 64).unwrap();
            if around.iter().any(|byte| *byte != 0) {
                files.flip_bit(of.inode, at, chance).unwrap();
                return (name.clone(), at);
            }
        }
    })
}

/// Fills a spool, damages it, and has a relay deliver its mail. An error describes the broken promise.
fn live(seed: u64) -> Result<(), String> {
    let disk = Disk::mount(256 << 20, seed).map_err(|error| error.to_string())?;
    let next_hop = StubNextHop::start();
    let answers = Answers::default();
    let is_over = AtomicBool::new(false);
    let text = format!(
        "spool.max_size = \"4M\"\nspool.max_memory = \"256K\"\nlimits.max_message_size = \"1M\"\nlimits.max_incoming_size = \"8M\"\n\
         retry.first = \"200ms\"\nretry.longest = \"500ms\"\n[[route]]\nto = \"*\"\nsmtp = \"{}\"\n",
        next_hop.address
    );
    let mut home = Home::new(&disk, &text);
    next_hop.hold(true);
    let (mut relay, smtp) = home.start_listening(&disk)?;
    thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| _ = scope.spawn(|| load::send(smtp, &answers, &is_over)));
        thread::sleep(Duration::from_millis(400));
        is_over.store(true, Ordering::Relaxed);
    });
    relay.kill(&disk)?;
    let (name, at) = flip(&disk);
    next_hop.hold(false);
    let told = |why: String| format!("seed {seed}, {name} at {at}: {why}");
    let (mut relay, _) = home.start_listening(&disk).map_err(told)?;
    let units = answers.units();
    // The relay may have lost or held a damaged message, so this message may be missing.
    let missing = relay.await_delivery(|| next_hop.missing(units.iter())).map_err(told)?.missing;
    relay.terminate();
    relay.wait(LIMIT).ok_or_else(|| told("it does not stop".to_owned()))?;
    let mut lost: Vec<u64> = missing.iter().map(|(number, _)| *number).collect();
    lost.sort_unstable();
    lost.dedup();
    let log = home.logs().pop().unwrap_or_default();
    if lost.len() > CLIENTS {
        return Err(told(format!("{} messages of {} are lost for one bit:\n{log}", lost.len(), answers.messages())));
    }
    let unnamed = lost.iter().filter_map(|number| answers.id(*number)).find(|id| !log.contains(id.as_str()));
    match (unnamed, lost.is_empty() || log.contains(&name)) {
        (Some(id), _) => Err(told(format!("{id} is lost and not named:\n{log}"))),
        (None, false) => Err(told(format!("the damaged file is not named:\n{log}"))),
        (None, true) => next_hop.wrong().first().map_or(Ok(()), |wrong| Err(told(wrong.clone()))),
    }
}

#[test]
fn a_flipped_bit_costs_no_more_than_what_it_was_in() {
    if crate::is_possible() {
        let every = |first: u64| (first..=12).step_by(LIVES).filter_map(|seed| live(seed).err()).collect::<Vec<_>>();
        let broken: Vec<String> = thread::scope(|scope| {
            let lives: Vec<_> = (1..=LIVES as u64).map(|first| scope.spawn(move || every(first))).collect();
            lives.into_iter().flat_map(|life| life.join().unwrap()).collect()
        });
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}
