//! Checks that each model of a file system ([`Profile`]) allows what the real file system does in a power cut. The test
//! runs short sequences of calls on a real file system in an image file. After each call, it copies the image without
//! a flush, as if the power had been cut. The files in the mounted copy must then be in one of the states in which the
//! model can be after a power cut.
//!
//! Run it as root with `make test-slow PART=file-systems`. If this host cannot make or mount one of the file systems,
//! the test prints the reason and skips that file system.
#![allow(clippy::unwrap_used, clippy::print_stderr)] // The lints exempt only `#[test]` functions themselves

use mailrun_crashfs::{FileSystem, Inode, Profile, ROOT};
use rand::SeedableRng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Number of power cuts of the model. Each has a different seed, and leaves one of the states that the model allows.
const CUTS: u64 = 2000;

/// Environment variable that is set if the test runs in a mount namespace of its own. The test needs such a namespace
/// because other programs would otherwise see its mounts. If a program, such as a server of an audit, started in a new
/// namespace during the test, it would keep a copy of these mounts. The image would then stay mounted after the test
/// has unmounted it, and a copy of the image cannot be mounted at the same time as the image.
const OWN_MOUNTS: &str = "MAILRUN_OWN_MOUNTS";

/// A call on the file system. For a call on a file, the test opens the file before the call and closes it afterwards.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// Creates an empty file.
    Create(&'static str),
    MakeDirectory(&'static str),
    /// Writes to the file at a path. The numbers are the offset, the number of bytes, and the value of every byte.
    Write(&'static str, u64, usize, u8),
    Truncate(&'static str),
    Sync(&'static str),
    SyncDirectory(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Remove(&'static str),
}

use Call::{Create, Link, MakeDirectory, Remove, Rename, Sync, SyncDirectory, Truncate, Write};

const SEQUENCES: [&[Call]; 26] = [
    &[Create("a"), Write("a", 0, 3000, 1)],
    &[Create("a"), Write("a", 0, 3000, 1), Sync("a")],
    &[Create("a"), Write("a", 0, 3000, 1), Sync("a"), SyncDirectory("")],
    &[Create("a"), SyncDirectory(""), Write("a", 0, 3000, 1)],
    &[Create("a"), Create("b"), Write("b", 0, 9, 2), Sync("b")],
    &[Create("t"), Write("t", 0, 3000, 1), Sync("t"), Rename("t", "a")],
    &[Create("t"), Write("t", 0, 3000, 1), Sync("t"), Rename("t", "a"), SyncDirectory("")],
    &[Create("t"), Write("t", 0, 3000, 1), Rename("t", "a"), Sync("a")],
    &[Create("a"), Write("a", 0, 9, 1), Sync("a"), Create("t"), Write("t", 0, 9, 2), Rename("t", "a")],
    &[
        Create("a"),
        Write("a", 0, 9, 1),
        Sync("a"),
        Create("t"),
        Write("t", 0, 9, 2),
        Rename("t", "a"),
        SyncDirectory(""),
    ],
    &[Create("a"), Write("a", 0, 9000, 1), Sync("a"), Write("a", 9000, 9000, 2), Sync("a"), Write("a", 18000, 9000, 3)],
    &[Create("a"), Write("a", 0, 9000, 1), Sync("a"), Write("a", 4096, 4096, 2), Sync("a")],
    &[Create("a"), Write("a", 0, 9000, 1), Sync("a"), Truncate("a"), Write("a", 0, 9, 2)],
    &[Create("a"), Write("a", 0, 9, 1), Sync("a"), Link("a", "b"), Sync("a")],
    &[Create("a"), Write("a", 0, 9, 1), Sync("a"), Link("a", "b"), Remove("a"), SyncDirectory("")],
    &[Create("a"), Write("a", 0, 9, 1), Sync("a"), Remove("a"), SyncDirectory("")],
    &[MakeDirectory("d"), Create("d/a"), Write("d/a", 0, 9, 1), Sync("d/a")],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        Create("d/a"),
        Write("d/a", 0, 9, 1),
        Sync("d/a"),
        Rename("d/a", "e/a"),
        SyncDirectory("e"),
    ],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        Create("e/a"),
        SyncDirectory(""),
        SyncDirectory("e"),
        Rename("e/a", "d/a"),
        SyncDirectory("d"),
    ],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        Create("d/a"),
        SyncDirectory(""),
        SyncDirectory("d"),
        Rename("d/a", "e/a"),
        SyncDirectory("d"),
    ],
    // In this sequence, nobody syncs the directory in which the file was made.
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        SyncDirectory(""),
        Create("d/a"),
        Rename("d/a", "e/a"),
        SyncDirectory("e"),
    ],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        SyncDirectory(""),
        Create("e/a"),
        Write("e/a", 0, 9, 1),
        Sync("e/a"),
        Rename("e/a", "d/a"),
        Create("d/b"),
        Sync("d/b"),
        Sync("d/a"),
    ],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        Create("d/a"),
        Sync("d/a"),
        Link("d/a", "e/a"),
        Remove("d/a"),
        SyncDirectory("e"),
    ],
    &[
        MakeDirectory("d"),
        MakeDirectory("e"),
        Create("d/a"),
        Write("d/a", 0, 9, 1),
        Create("e/a"),
        SyncDirectory(""),
        Sync("d/a"),
        Sync("e/a"),
        Rename("d/a", "e/a"),
        SyncDirectory("e"),
    ],
    &[MakeDirectory("d"), Create("d/a"), SyncDirectory("d"), Create("b"), Write("b", 0, 9, 2), Sync("b")],
    &[Create("a"), Write("a", 0, 9, 1), Sync("a"), Rename("a", "b"), Create("c"), Write("c", 0, 9, 3), Sync("c")],
];

/// All paths below the root, each with the content of the file, or `None` for a directory.
type State = BTreeMap<String, Option<Vec<u8>>>;

#[test]
#[ignore = "slow: make test-slow PART=file-systems"]
fn each_model_allows_what_its_file_system_leaves() {
    if std::env::var_os(OWN_MOUNTS).is_none() {
        let mut again = Command::new("unshare");
        again.arg("--mount").arg(std::env::current_exe().unwrap()).env(OWN_MOUNTS, "yes");
        again.args(["--ignored", "--exact", "--nocapture", "each_model_allows_what_its_file_system_leaves"]);
        assert!(again.status().unwrap().success());
        return;
    }
    let mut wrong = Vec::new();
    for profile in [Profile::Ext4, Profile::Xfs, Profile::Btrfs] {
        let (mut states, mut partial, mut not_of_ext4) = (0, 0, 0);
        for (number, calls) in SEQUENCES.iter().enumerate() {
            let left = match Real::run(profile, calls) {
                Ok(left) => left,
                Err(reason) => {
                    eprintln!("skipped: {} ({reason})", profile.name());
                    break;
                }
            };
            for (count, state) in (1..).zip(left) {
                states += 1;
                let (allowed, whole) = states_left(profile, &calls[..count]);
                partial += usize::from(state != whole);
                not_of_ext4 += usize::from(!states_left(Profile::Ext4, &calls[..count]).0.contains(&state));
                if !allowed.contains(&state) {
                    let state = in_short(&state);
                    wrong.push(format!("{}, sequence {number}, after {:?}: {state}", profile.name(), &calls[..count]));
                }
            }
        }
        eprintln!("{}: {states} states compared, of which {partial} lacked something", profile.name());
        assert!(states == 0 || partial > 0, "{}: no copy lacked anything, so nothing was cut", profile.name());
        let can_fail = profile != Profile::Btrfs || not_of_ext4 > 0;
        assert!(states == 0 || can_fail, "the model of ext4 allows all that btrfs leaves, so the check finds nothing");
    }
    assert!(wrong.is_empty(), "the models do not allow:\n{}", wrong.join("\n"));
}

fn in_short(state: &State) -> String {
    let content = |content: &Option<Vec<u8>>| match content {
        None => "directory".to_owned(),
        Some(bytes) => format!("{} bytes, last {:?}", bytes.len(), bytes.last()),
    };
    state.iter().map(|(name, of)| format!("{name}: {}", content(of))).collect::<Vec<_>>().join("; ")
}

/// Returns the states in which the model can be if the power is cut after `calls`, and the state without a power cut,
/// in which nothing is missing.
fn states_left(profile: Profile, calls: &[Call]) -> (BTreeSet<State>, State) {
    let model = || {
        let mut model = Model(FileSystem::new(1 << 24));
        model.0.set_profile(profile);
        calls.iter().for_each(|call| model.call(*call));
        model
    };
    let left = |seed| {
        let mut model = model();
        model.0.cut(&mut StdRng::seed_from_u64(seed));
        model.state()
    };
    ((0..CUTS).map(left).collect(), model().state())
}

struct Model(FileSystem);

impl Model {
    fn directory<'p>(&mut self, path: &'p str) -> (Inode, &'p str) {
        match path.split_once('/') {
            Some((directory, name)) => (self.0.look_up(ROOT, directory).unwrap().inode, name),
            None => (ROOT, path),
        }
    }

    fn inode(&mut self, path: &str) -> Inode {
        let (directory, name) = self.directory(path);
        if name.is_empty() { directory } else { self.0.look_up(directory, name).unwrap().inode }
    }

    fn call(&mut self, call: Call) {
        match call {
            Create(path) => {
                let (directory, name) = self.directory(path);
                self.0.create(directory, name, 0o600).unwrap();
            }
            MakeDirectory(path) => {
                self.0.make_directory(ROOT, path, 0o700).unwrap();
            }
            Write(path, at, bytes, value) => {
                let inode = self.inode(path);
                self.0.write(inode, at, &vec![value; bytes]).unwrap();
            }
            Truncate(path) => {
                let inode = self.inode(path);
                self.0.set_length(inode, 0).unwrap();
            }
            Sync(path) => {
                let inode = self.inode(path);
                self.0.sync(inode).unwrap();
            }
            SyncDirectory(path) => {
                let inode = self.inode(path);
                self.0.sync_directory(inode).unwrap();
            }
            Rename(from, to) => {
                let (from, to) = (self.directory(from), self.directory(to));
                self.0.rename(from, to).unwrap();
            }
            Link(from, to) => {
                let (inode, to) = (self.inode(from), self.directory(to));
                self.0.link(inode, to.0, to.1).unwrap();
            }
            Remove(path) => {
                let (directory, name) = self.directory(path);
                self.0.remove(directory, name).unwrap();
            }
        }
    }

    fn state(&mut self) -> State {
        let mut state = State::new();
        let mut directories = vec![(ROOT, String::new())];
        while let Some((directory, path)) = directories.pop() {
            for (name, of) in self.0.list(directory).unwrap() {
                let name = format!("{path}{name}");
                match self.0.read(of.inode, 0, 1 << 24) {
                    Ok(bytes) => _ = state.insert(name, Some(bytes.to_vec())),
                    Err(_) => {
                        directories.push((of.inode, format!("{name}/")));
                        state.insert(name, None);
                    }
                }
            }
        }
        state
    }
}

/// The real file system, in an image file.
struct Real;

impl Real {
    /// Runs the calls, and copies the image after each call. Returns the files that each mounted copy contains. Fails
    /// if this host cannot make or mount the file system.
    fn run(profile: Profile, calls: &[Call]) -> Result<Vec<State>, String> {
        let place = tempfile::tempdir().unwrap();
        let (image, mount) = (place.path().join("image"), place.path().join("mount"));
        fs::create_dir(&mount).unwrap();
        // These are the smallest sizes that mkfs accepts.
        let bytes = if profile == Profile::Xfs { 300 << 20 } else { 128 << 20 };
        File::create(&image).unwrap().set_len(bytes).unwrap();
        command(&format!("mkfs.{}", profile.name()), &["-q"], &[&image])?;
        let mut copies = Vec::new();
        {
            let _mounted = Mounted::new(&image, &mount)?;
            // Sync everything that mkfs and the mount have written, because it is not part of the test.
            command("sync", &["-f"], &[&mount])?;
            for call in calls {
                perform(&mount, *call);
                let copy = place.path().join(copies.len().to_string());
                command("cp", &["--sparse=always"], &[&image, &copy])?;
                copies.push(copy);
            }
        }
        // Mount the copies only after the original is unmounted, because two file systems with one identity cannot be
        // mounted at the same time.
        let look = |copy: &std::path::PathBuf| {
            let _mounted = Mounted::new(copy, &mount).unwrap();
            look(&mount)
        };
        Ok(copies.iter().map(look).collect())
    }
}

struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    fn new(image: &Path, at: &'p Path) -> Result<Self, String> {
        command("mount", &["-o", "loop"], &[image, at])?;
        Ok(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        command("umount", &[], &[self.0]).unwrap();
    }
}

fn command(program: &str, words: &[&str], paths: &[&Path]) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(words).args(paths).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(format!("{program}: {said}")) }
}

fn perform(root: &Path, call: Call) {
    let at = |path: &str| root.join(path);
    let open = |path: &str| OpenOptions::new().write(true).open(at(path)).unwrap();
    match call {
        Create(path) => drop(File::create_new(at(path)).unwrap()),
        MakeDirectory(path) => fs::create_dir(at(path)).unwrap(),
        Write(path, offset, bytes, value) => open(path).write_all_at(&vec![value; bytes], offset).unwrap(),
        Truncate(path) => open(path).set_len(0).unwrap(),
        Sync(path) => open(path).sync_all().unwrap(),
        SyncDirectory(path) => File::open(at(path)).unwrap().sync_all().unwrap(),
        Rename(from, to) => fs::rename(at(from), at(to)).unwrap(),
        Link(from, to) => fs::hard_link(at(from), at(to)).unwrap(),
        Remove(path) => fs::remove_file(at(path)).unwrap(),
    }
}

fn look(root: &Path) -> State {
    let mut state = State::new();
    let mut directories = vec![String::new()];
    while let Some(path) = directories.pop() {
        for entry in fs::read_dir(root.join(&path)).unwrap().flatten() {
            let name = format!("{path}{}", entry.file_name().to_str().unwrap());
            if entry.file_type().unwrap().is_dir() {
                if name == "lost+found" {
                    continue;
                }
                directories.push(format!("{name}/"));
                state.insert(name, None);
            } else {
                state.insert(name, Some(fs::read(entry.path()).unwrap()));
            }
        }
    }
    state
}
