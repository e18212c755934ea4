//! Delivery into Maildirs on the disk that simulates power cuts. Delivered mail survives a cut, even if a new directory
//! could not be synced.
use crate::load::{self, Answers};
use crate::message;
use crate::next_hop::Unit;
use crate::relay::Home;
use mailrun_crashfs::{Disk, Fault, Plan};
use mailrun_crashfs::{FileSystem, ROOT};
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The spool records deliveries after about a second, and syncs the record with the next message. After that, a cut
/// causes no second delivery.
const NOTES_LIMIT: Duration = Duration::from_secs(3);

fn send(smtp: SocketAddr, answers: &Answers) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| load::send(smtp, answers, &is_over));
        thread::sleep(Duration::from_millis(300));
        is_over.store(true, Ordering::Relaxed);
    });
}

/// The messages in the Maildirs `mail/deep/rN`, each for recipient N.
fn delivered(files: &mut FileSystem) -> HashSet<Unit> {
    let list = |files: &mut FileSystem, path: &[&str]| {
        let found = path.iter().try_fold(ROOT, |above, name| files.look_up(above, name).map(|found| found.inode));
        found.and_then(|inode| files.list(inode)).unwrap_or_default()
    };
    let mut units = HashSet::new();
    for (user, _) in list(files, &["mail", "deep"]) {
        for (_, file) in list(files, &["mail", "deep", &user, "new"]) {
            let text = files.read(file.inode, 0, file.bytes as usize).unwrap();
            let lines = String::from_utf8_lossy(text).replace('\n', "\r\n");
            let recipient = user.trim_start_matches('r').parse().unwrap();
            units.extend(message::recognise(lines.as_bytes()).map(|number| (number, recipient)));
        }
    }
    units
}

fn missing(disk: &Disk, units: &[Unit]) -> Vec<Unit> {
    let delivered = disk.with_files(|files, _| delivered(files));
    units.iter().filter(|unit| !delivered.contains(unit)).copied().collect()
}

/// Delivers into Maildirs while the `turn`th sync of a directory fails, and then cuts the power. An error tells which
/// mail is missing.
fn live(seed: u64, turn: u64) -> Result<(), String> {
    let disk = Disk::mount(256 << 20, seed).map_err(|error| error.to_string())?;
    let answers = Answers::default();
    let text = format!(
        "spool.max_size = \"8M\"\nretry.first = \"100ms\"\nretry.longest = \"200ms\"\n[[route]]\nto = \"*\"\nmaildir = {:?}\n",
        disk.path().join("mail/deep/{user}")
    );
    let mut home = Home::new(&disk, &text);
    let (mut relay, smtp) = home.start_listening(&disk)?;
    disk.plan(Plan { cut_at: None, fault: Some((Fault::DirectorySync(Errno::IO), turn)) });
    send(smtp, &answers);
    let units = answers.units();
    let late = relay.await_delivery(|| missing(&disk, &units))?.missing;
    if units.is_empty() || !late.is_empty() || disk.hit().is_none() {
        let late = late.len();
        let log = home.logs().join("\n");
        return Err(format!("{late} of {} were not delivered, fault {:?}\n{log}", units.len(), disk.hit()));
    }
    thread::sleep(NOTES_LIMIT);
    send(smtp, &answers);
    disk.cut_now();
    relay.kill(&disk)?;
    disk.restore_power();
    // After the restart, the relay delivers all mail that it has not recorded as delivered.
    let (mut relay, _) = home.start_listening(&disk)?;
    let rest = relay.await_delivery(|| missing(&disk, &units))?;
    relay.kill(&disk)?;
    if rest.missing.is_empty() { Ok(()) } else { Err(format!("of {} are lost or held: {rest:?}", units.len())) }
}

#[test]
fn what_is_in_a_maildir_is_there_after_a_power_cut() {
    if crate::is_possible() {
        let broken: Vec<String> = thread::scope(|scope| {
            let lives: Vec<_> = (0..8).map(|seed| scope.spawn(move || live(seed, 1 + seed % 3))).collect();
            lives.into_iter().filter_map(|life| life.join().unwrap().err()).collect()
        });
        assert!(broken.is_empty(), "{}", broken.join("\n"));
    }
}
