//! The limit of file sizes of the host (`ulimit -f`).
use anyhow::{Context, Result};
use rustix::process::{Resource, getrlimit};
use tokio::signal::unix::{SignalKind, signal};

/// Signal for a file above the limit, on all architectures but MIPS and PA-RISC.
const SIGXFSZ: i32 = 25;

/// Makes a write above the limit fail with EFBIG. Without this, SIGXFSZ ends the process without a
/// word. Does nothing if there is no limit.
///
/// # Errors
/// Fails if the signal cannot be handled.
pub fn make_an_error() -> Result<()> {
    if getrlimit(Resource::Fsize).current.is_none() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot watch for signals")?;
    let _context = runtime.enter();
    // The handler outlives the runtime.
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop).context("cannot watch for signals")
}
