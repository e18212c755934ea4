//! Tests a disk before a relay uses it: writes and syncs in a directory as the spool does, and
//! computes the message rate that the disk permits.
use anyhow::{Context, Result, anyhow, bail};
use mailrun_measurement::record::{HostDisk, Outcome};
use mailrun_process::interrupt::{Interrupt, StopRequest};
use mailrun_process::live::LiveMode;
use mailrun_process::live_line::{LineDisplay, LiveLine, NonTerminalOutput};
use mailrun_spool::DiskProbe;
use mailrun_text::numbers::{memory, octets, rate};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Numbers of messages that one sync commits together. The test measures the disk with each number, in this order.
const GROUPS: [u32; 3] = [1, 8, 64];
const SIZES: [u64; 3] = [1 << 10, 4 << 10, 64 << 10];
/// Size of the test file in bytes. It has room for seven of the largest batches that the test writes by default, which
/// have 64 messages of 64 KiB.
const SEGMENT_BYTES: u64 = 32 << 20;
const MIN_SEGMENT_BYTES: u64 = 8 << 20;
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];
/// If the median sync of a single message takes less time than this, the test warns that a cache has answered instead
/// of the disk, because no disk is that fast.
const FAST_SYNC_MS: f64 = 0.02;

#[derive(Clone, Debug)]
pub struct DiskTestOptions {
    /// Directory of the spool, or another directory on the same disk.
    pub directory: PathBuf,
    pub duration: Duration,
    /// Message size in bytes for which the test reports the message rate that a relay can reach.
    pub message_bytes: u64,
    pub rate_per_s: Option<f64>,
    pub live: LiveMode,
}

/// Result of a disk test, whose field names are also the keys of the JSON output.
#[derive(Clone, Debug, Serialize)]
pub struct DiskTestResult {
    pub format: &'static str,
    pub directory: String,
    pub disk: Option<HostDisk>,
    /// False if the file system is in memory, because its syncs then prove nothing about a disk.
    pub durable: bool,
    pub segment_bytes: u64,
    pub interrupted: bool,
    pub rows: Vec<DiskTestRow>,
    /// Reachable rate, or `None` if no messages of the wanted size were measured.
    pub reachable: Option<ReachableRate>,
    pub required_rate_per_s: Option<f64>,
    /// Whether the disk permits the required rate, or `None` if the user required no rate or interrupted the test. If
    /// the file system is in memory, the outcome is [`Outcome::Invalid`].
    pub outcome: Option<Outcome>,
    pub warnings: Vec<String>,
}

/// Measurements for one message size and one number of messages per sync.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DiskTestRow {
    pub message_bytes: u64,
    /// Number of messages that each sync commits.
    pub group: u32,
    pub syncs: u64,
    pub syncs_per_s: f64,
    pub messages_per_s: f64,
    /// Bytes per second that were written to the disk, including the padding to whole blocks.
    pub bytes_per_s: f64,
    pub p50_ms: f64,
    /// 99th percentile of the time that a write with its sync takes, in milliseconds.
    pub p99_ms: f64,
    pub max_ms: f64,
}

/// Message rate that a relay can reach on the tested disk if it syncs each message before it replies 250.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReachableRate {
    pub message_bytes: u64,
    /// Number of messages that shared each sync when the test measured `rate_per_s`.
    pub group: u32,
    pub rate_per_s: f64,
}

/// Tests until the time is over or the user stops the test, and then removes the test file.
///
/// # Errors
/// Fails if the directory is not writable or has no room, or if the disk reports an error.
pub fn measure(options: &DiskTestOptions) -> Result<DiskTestResult> {
    let interrupt = Interrupt::watch()?;
    let directory = &options.directory;
    let available = DiskProbe::available_bytes(directory).map_err(|error| refusal(directory, &error))?;
    let cells = cells(options.message_bytes);
    let segment_bytes = segment_bytes(available, largest_batch(options.message_bytes))
        .with_context(|| format!("{} has no room for a measurement", directory.display()))?;
    let name = format!("mailrun-disk-{}", std::process::id());
    let mut display = LineDisplay::on_stderr(options.live, NonTerminalOutput::Lines);
    display.show(|| LiveLine::sentence(Some(0.0), format!("preparing a segment of {}", memory(segment_bytes))));
    let probe = DiskProbe::create(directory, &name, segment_bytes);
    let mut probe = probe.map_err(|error| refusal(directory, &error))?;
    let time = options.duration / cells.len() as u32;
    let mut rows = Vec::new();
    for (at, (message_bytes, group)) in cells.iter().copied().enumerate() {
        let row = measure_cell(&mut probe, message_bytes, group, time, &interrupt, |row| {
            let share = at as f64 / cells.len() as f64;
            display.show(|| LiveLine::sentence(Some(share), row.sentence()));
        });
        rows.extend(row.map_err(|error| anyhow!("{} failed: {error}", probe.path().display()))?);
        if interrupt.requested() != StopRequest::Nothing {
            break;
        }
    }
    display.clear();
    drop(probe);
    Ok(result(options, segment_bytes, rows, interrupt.requested() != StopRequest::Nothing))
}

/// Returns the combinations of message size and messages per sync, in the order in which the test measures them.
fn cells(message_bytes: u64) -> Vec<(u64, u32)> {
    let mut sizes = SIZES.to_vec();
    sizes.push(message_bytes);
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().flat_map(|size| GROUPS.map(|group| (size, group))).collect()
}

/// Returns an upper bound for the number of bytes that the test writes with one sync.
fn largest_batch(message_bytes: u64) -> u64 {
    (message_bytes.max(SIZES[SIZES.len() - 1]) + 1024) * u64::from(GROUPS[GROUPS.len() - 1])
}

/// Returns the size of the test file in bytes. The file takes at most half of the free space. Fails
/// if that half has no room for the largest batch.
fn segment_bytes(available: u64, largest_batch: u64) -> Result<u64> {
    let min_bytes = MIN_SEGMENT_BYTES.max((largest_batch + (16 << 10)).next_multiple_of(1 << 20));
    let wanted = SEGMENT_BYTES.max(min_bytes);
    let room = (available / 2) >> 20 << 20;
    if room < min_bytes {
        bail!("{} are free, and it needs {}", memory(available), memory(2 * min_bytes));
    }
    Ok(wanted.min(room))
}

/// Commits batches of `group` messages until `time` has passed. Returns `None` if the user stopped the test before the
/// first batch was measured.
fn measure_cell(
    probe: &mut DiskProbe,
    message_bytes: u64,
    group: u32,
    time: Duration,
    interrupt: &Interrupt,
    mut show: impl FnMut(&DiskTestRow),
) -> io::Result<Option<DiskTestRow>> {
    let body: Arc<[u8]> = vec![b'm'; message_bytes as usize].into();
    // Do not measure the first commit of this size. It takes longer, because it allocates buffers.
    probe.commit(group, &body)?;
    let mut times_ms = Vec::new();
    let mut bytes = 0;
    let start = Instant::now();
    while (times_ms.is_empty() || start.elapsed() < time) && interrupt.requested() == StopRequest::Nothing {
        let commit = probe.commit(group, &body)?;
        times_ms.push(commit.elapsed.as_secs_f64() * 1e3);
        bytes += commit.bytes;
        if times_ms.len().is_power_of_two() || times_ms.len() % 256 == 0 {
            show(&row(message_bytes, group, &mut times_ms.clone(), bytes, start.elapsed()));
        }
    }
    let elapsed = start.elapsed();
    Ok((!times_ms.is_empty()).then(|| row(message_bytes, group, &mut times_ms, bytes, elapsed)))
}

fn row(message_bytes: u64, group: u32, times_ms: &mut [f64], bytes: u64, elapsed: Duration) -> DiskTestRow {
    times_ms.sort_by(f64::total_cmp);
    let elapsed_s = elapsed.as_secs_f64().max(f64::EPSILON);
    let quantile = |share: f64| {
        let rank = (share * times_ms.len() as f64).ceil().max(1.0) as usize;
        times_ms[rank.min(times_ms.len()) - 1]
    };
    let syncs_per_s = times_ms.len() as f64 / elapsed_s;
    DiskTestRow {
        message_bytes,
        group,
        syncs: times_ms.len() as u64,
        syncs_per_s,
        messages_per_s: syncs_per_s * f64::from(group),
        bytes_per_s: bytes as f64 / elapsed_s,
        p50_ms: quantile(0.5),
        p99_ms: quantile(0.99),
        max_ms: quantile(1.0),
    }
}

impl DiskTestRow {
    fn sentence(&self) -> String {
        format!("{} in groups of {}: {} syncs/s", octets(self.message_bytes), self.group, rate(self.syncs_per_s))
    }
}

fn result(options: &DiskTestOptions, segment_bytes: u64, rows: Vec<DiskTestRow>, interrupted: bool) -> DiskTestResult {
    let disk = mailrun_process::host::disk_under(&options.directory);
    let file_system = disk.as_ref().map(|disk| disk.file_system.clone()).unwrap_or_default();
    let durable = !IN_MEMORY.contains(&file_system.as_str());
    let reachable = reachable(&rows, options.message_bytes);
    let outcome = options.rate_per_s.filter(|_| !interrupted).map(|required| match reachable {
        _ if !durable => Outcome::Invalid,
        Some(reachable) if reachable.rate_per_s >= required => Outcome::Pass,
        _ => Outcome::Fail,
    });
    DiskTestResult {
        format: "mailrun-disk/1",
        directory: options.directory.display().to_string(),
        warnings: warnings(&file_system, durable, &rows),
        disk,
        durable,
        segment_bytes,
        interrupted,
        rows,
        reachable,
        required_rate_per_s: options.rate_per_s,
        outcome,
    }
}

/// Returns the best measured rate for messages of this size. Even if this rate needs many messages
/// per sync, a relay reaches it, because it commits all mail that arrives during a sync together.
fn reachable(rows: &[DiskTestRow], message_bytes: u64) -> Option<ReachableRate> {
    let matching_rows = rows.iter().filter(|row| row.message_bytes == message_bytes);
    let best = matching_rows.max_by(|one, other| one.messages_per_s.total_cmp(&other.messages_per_s))?;
    Some(ReachableRate { message_bytes, group: best.group, rate_per_s: best.messages_per_s })
}

fn warnings(file_system: &str, durable: bool, rows: &[DiskTestRow]) -> Vec<String> {
    let mut problems = Vec::new();
    if !durable {
        problems.push(format!(
            "{file_system} is in memory: a sync there does nothing and proves nothing. Name a directory on a disk."
        ));
    }
    if durable && rows.iter().any(|row| row.group == 1 && row.p50_ms < FAST_SYNC_MS) {
        problems.push(
            "A sync takes less than 20 µs: a cache answers before the disk does. Check that it survives a power failure: \
             the disk's, the controller's, the hypervisor's."
                .to_owned(),
        );
    }
    problems
}

/// Explains why a directory cannot be tested, and what the user can do about it.
fn refusal(directory: &Path, error: &io::Error) -> anyhow::Error {
    let place = directory.display();
    match error.kind() {
        io::ErrorKind::NotFound => {
            anyhow!("{place} does not exist: name the spool's directory, or another one on the same disk")
        }
        io::ErrorKind::NotADirectory => anyhow!("{place} is not a directory"),
        io::ErrorKind::ReadOnlyFilesystem => anyhow!("{place} is on a read-only file system: no relay can store there"),
        io::ErrorKind::PermissionDenied => anyhow!("{place} may not be written to by this user: run it as the relay's"),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            anyhow!("{place} is full ({error}): no relay can store there")
        }
        _ => anyhow!("cannot write to {place}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(rate_per_s: Option<f64>) -> DiskTestOptions {
        DiskTestOptions {
            directory: std::env::temp_dir(),
            duration: Duration::from_millis(1),
            message_bytes: 4 << 10,
            rate_per_s,
            live: LiveMode::Off,
        }
    }

    fn rows(sync_ms: f64) -> Vec<DiskTestRow> {
        let row_of = |(size, group)| row(size, group, &mut [sync_ms; 10], 4096, Duration::from_secs(1));
        cells(4 << 10).into_iter().map(row_of).collect()
    }

    #[test]
    fn each_size_is_measured_in_each_group() {
        assert_eq!(cells(4 << 10).len(), 9);
        assert_eq!(cells(10 << 10).len(), 12);
        assert_eq!(cells(1 << 20).last(), Some(&(1 << 20, 64)));
    }

    #[test]
    fn the_file_fits_the_room() {
        let batch = largest_batch(4 << 10);
        assert_eq!(segment_bytes(1 << 40, batch).unwrap(), SEGMENT_BYTES);
        assert_eq!(segment_bytes(40 << 20, batch).unwrap(), 20 << 20);
        assert_eq!(segment_bytes(16 << 20, batch).unwrap(), 8 << 20);
        let text = segment_bytes(15 << 20, batch).unwrap_err().to_string();
        assert!(text.contains("15.0 MiB are free") && text.contains("16.0 MiB"), "{text}");
        assert!(segment_bytes(1 << 40, largest_batch(1 << 20)).unwrap() > 64 << 20);
        assert!(segment_bytes(0, batch).is_err());
    }

    #[test]
    fn a_row_sums_its_commits() {
        let mut times: Vec<f64> = (1..=100).map(f64::from).collect();
        times.reverse();
        let row = row(1024, 8, &mut times, 409_600, Duration::from_secs(2));
        assert_eq!((row.syncs, row.syncs_per_s, row.messages_per_s), (100, 50.0, 400.0));
        assert_eq!((row.p50_ms, row.p99_ms, row.max_ms, row.bytes_per_s), (50.0, 99.0, 100.0, 204_800.0));
    }

    #[test]
    fn the_required_rate_decides() {
        // The disk syncs ten times per second, so 64 messages per sync are 640 messages per second.
        for (required, durable, expected) in
            [(None, true, None), (Some(640.0), true, Some(Outcome::Pass)), (Some(641.0), true, Some(Outcome::Fail))]
        {
            let mut result = result(&options(required), SEGMENT_BYTES, rows(1.0), false);
            if result.durable == durable {
                assert_eq!(result.outcome, expected, "{required:?}");
            }
            assert_eq!(result.reachable.map(|reachable| (reachable.group, reachable.rate_per_s)), Some((64, 640.0)));
            result = super::result(&options(required), SEGMENT_BYTES, Vec::new(), true);
            assert_eq!((result.outcome, result.reachable), (None, None), "interrupted before the first row");
        }
    }

    #[test]
    fn what_proves_nothing_is_said() {
        assert!(warnings("tmpfs", false, &rows(0.001))[0].contains("proves nothing"));
        assert!(warnings("ext4", true, &rows(0.001))[0].contains("power failure"));
        assert!(warnings("ext4", true, &rows(0.5)).is_empty());
    }

    #[test]
    fn a_refusal_names_the_remedy() {
        for (kind, words) in [
            (io::ErrorKind::NotFound, "/d does not exist: name the spool's directory"),
            (io::ErrorKind::NotADirectory, "/d is not a directory"),
            (io::ErrorKind::ReadOnlyFilesystem, "read-only"),
            (io::ErrorKind::PermissionDenied, "run it as the relay's"),
            (io::ErrorKind::StorageFull, "/d is full"),
            (io::ErrorKind::Other, "cannot write to /d"),
        ] {
            let text = refusal(Path::new("/d"), &kind.into()).to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
