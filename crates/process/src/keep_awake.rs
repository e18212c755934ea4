//! `--keep-awake`: keeps the processors of this host from sleeping. Round trips then measure the
//! programs and not the time that processors need to wake up.
//!
//! The kernel keeps all processors awake while `/dev/cpu_dma_latency` is open with a 0 written to
//! it. The kernel closes the file when the process ends, however it ends.
use crate::reason::reason;
use anyhow::{Result, bail};
use mailrun_measurement::record::KeepAwake;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::OnceLock;

/// Device that limits how long a processor may take to wake up. A program writes the limit as an
/// i32, in microseconds, and the limit applies while the program keeps the device open.
const DEVICE: &str = "/dev/cpu_dma_latency";

/// Whether the processors are kept awake, for the run records of this process. Unset in commands without the option
/// `--keep-awake`.
static STATE: OnceLock<KeepAwake> = OnceLock::new();

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KeepAwakeMode {
    /// Only if programs are compared, or if the load leaves processors idle time and no server under test runs on this host; never in a sink or relay
    #[default]
    Auto,
    /// Always
    On,
    /// Never
    Off,
}

/// Keeps the processors awake until this value is dropped.
#[must_use]
#[derive(Debug)]
pub struct AwakeProcessors {
    _device: Option<File>,
}

/// Keeps the processors awake if `mode` is `On`. If `mode` is `Auto`, keeps them awake only if the caller sets
/// `is_usual`. From now on, the records that this process writes say whether the processors are kept awake.
///
/// # Errors
/// Returns an error if `mode` is `On` and the device cannot be written.
pub fn keep_awake(mode: KeepAwakeMode, is_usual: bool) -> Result<AwakeProcessors> {
    let (awake, state) = keep_awake_by(Path::new(DEVICE), mode, is_usual)?;
    let _ = STATE.set(state);
    Ok(awake)
}

/// Returns whether the processors are kept awake, for the run record. Returns `None` in a command
/// without the option `--keep-awake`.
pub fn state() -> Option<KeepAwake> {
    STATE.get().copied()
}

fn keep_awake_by(device: &Path, mode: KeepAwakeMode, is_usual: bool) -> Result<(AwakeProcessors, KeepAwake)> {
    let is_wanted = match mode {
        KeepAwakeMode::Auto => is_usual,
        KeepAwakeMode::On => true,
        KeepAwakeMode::Off => false,
    };
    let held = if is_wanted { Some(hold(device)) } else { None };
    let state = match &held {
        Some(Ok(_)) => KeepAwake::On,
        // Another process, such as the bench that started this one, holds the device and keeps the processors awake.
        _ if is_awake(device) => KeepAwake::On,
        Some(Err(error)) if mode == KeepAwakeMode::On => {
            let hint = match error.kind() {
                io::ErrorKind::PermissionDenied => "run as root, or see docs/install.md for a group that may",
                _ => "this kernel or container lacks it",
            };
            bail!("--keep-awake on: cannot write {}: {}; {hint}", device.display(), reason(error));
        }
        Some(Err(_)) => KeepAwake::Unavailable,
        None => KeepAwake::Off,
    };
    Ok((AwakeProcessors { _device: held.and_then(Result::ok) }, state))
}

fn hold(device: &Path) -> io::Result<File> {
    let mut device = OpenOptions::new().write(true).open(device)?;
    device.write_all(&0_i32.to_ne_bytes())?;
    Ok(device)
}

/// Returns true if a program keeps the processors awake with this device. Returns false if the device cannot be read.
fn is_awake(device: &Path) -> bool {
    let mut latency = [0; 4];
    let read = File::open(device).and_then(|mut device| device.read_exact(&mut latency));
    read.is_ok() && i32::from_ne_bytes(latency) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Creates a file that imitates the device, with the value that it has while no program keeps it open.
    fn device(place: &Path) -> PathBuf {
        let device = place.join("latency");
        fs::write(&device, 2_000_000_000_i32.to_ne_bytes()).unwrap();
        device
    }

    fn is_open(device: &Path) -> bool {
        let open = fs::read_dir("/proc/self/fd").unwrap();
        open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()).any(|path| path == device)
    }

    #[test]
    fn the_device_is_held_when_it_is_wanted_and_until_the_end() {
        for (mode, is_usual, is_held) in [
            (KeepAwakeMode::Auto, true, true),
            (KeepAwakeMode::Auto, false, false),
            (KeepAwakeMode::On, false, true),
            (KeepAwakeMode::Off, true, false),
        ] {
            let place = tempfile::tempdir().unwrap();
            let device = device(place.path());
            let (awake, state) = keep_awake_by(&device, mode, is_usual).unwrap();
            let expected = if is_held { (KeepAwake::On, true) } else { (KeepAwake::Off, false) };
            assert_eq!((state, is_open(&device)), expected, "{mode:?} {is_usual}");
            assert_eq!(is_awake(&device), is_held, "{mode:?} {is_usual}");
            drop(awake);
            assert!(!is_open(&device));
        }
    }

    #[test]
    fn a_process_whose_bench_holds_the_device_says_so() {
        let place = tempfile::tempdir().unwrap();
        let device = device(place.path());
        let _bench = keep_awake_by(&device, KeepAwakeMode::On, false).unwrap();
        let (party, state) = keep_awake_by(&device, KeepAwakeMode::Off, false).unwrap();
        assert_eq!((state, party._device.is_none()), (KeepAwake::On, true));
    }

    #[test]
    fn without_device_or_permission_on_fails_and_auto_goes_on() {
        for (device, reason) in [
            ("/nonexistent/latency", "No such file or directory; this kernel or container lacks it"),
            // Even root cannot write this file, so the test also works as root.
            (
                "/sys/devices/system/cpu/online",
                "Permission denied; run as root, or see docs/install.md for a group that may",
            ),
        ] {
            let state = |mode| keep_awake_by(Path::new(device), mode, true).map(|(_, state)| state);
            let error = state(KeepAwakeMode::On).unwrap_err().to_string();
            assert_eq!(error, format!("--keep-awake on: cannot write {device}: {reason}"));
            assert_eq!(state(KeepAwakeMode::Auto).unwrap(), KeepAwake::Unavailable);
            assert_eq!(state(KeepAwakeMode::Off).unwrap(), KeepAwake::Off);
        }
    }
}
