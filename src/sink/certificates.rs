//! The sink's certificate files: read again when they change, and on SIGHUP.
use crate::interrupt::Hangups;
use anyhow::Result;
use net::{TlsWatch, clock};

/// Watches the files, and for SIGHUP.
pub(super) struct Certificates {
    watch: TlsWatch,
    hangups: Hangups,
}

impl Certificates {
    /// Starts to watch.
    ///
    /// # Errors
    /// If signals cannot be watched.
    pub(super) fn watch(watch: TlsWatch) -> Result<Self> {
        Ok(Self { watch, hangups: Hangups::watch()? })
    }

    /// Checks the files from time to time, and logs the result.
    pub(super) fn look(&mut self) {
        let outcome = match self.hangups.came() {
            true => Some(self.watch.read_again()),
            false => self.watch.look(clock::now()),
        };
        match outcome {
            None => {}
            Some(Ok(())) => tell!("mailrun sink: the certificate was reloaded"),
            Some(Err(why)) => tell!("mailrun sink: {why}; the old certificate stays in use"),
        }
    }
}
