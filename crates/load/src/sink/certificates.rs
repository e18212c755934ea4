//! The sink's certificate files, which are read again when they change and on SIGHUP.
use anyhow::Result;
use mailrun_net::{TlsWatch, clock};
use mailrun_process::interrupt::SighupWatch;

pub(super) struct SinkCertificates {
    watch: TlsWatch,
    sighup: SighupWatch,
}

impl SinkCertificates {
    /// # Errors
    ///
    /// If the process cannot watch for SIGHUP.
    pub(super) fn watch(watch: TlsWatch) -> Result<Self> {
        Ok(Self { watch, sighup: SighupWatch::watch()? })
    }

    /// Reads the files again if they have changed or SIGHUP has arrived, and logs the result.
    pub(super) fn reload_if_changed(&mut self) {
        let outcome = match self.sighup.take_received() {
            true => Some(self.watch.reload()),
            false => self.watch.check(clock::now()),
        };
        match outcome {
            None => {}
            Some(Ok(())) => mailrun_process::tell!("mailrun sink: the certificate was reloaded"),
            Some(Err(reason)) => mailrun_process::tell!("mailrun sink: {reason}; the old certificate stays in use"),
        }
    }
}
