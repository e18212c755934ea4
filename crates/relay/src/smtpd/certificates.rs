//! Rereads certificate files when they change. A separate thread does this, so that a hanging file
//! system cannot keep the relay from stopping.
use crate::context::RelayContext;
use crate::fault_log::LOG_TARGET;
use anyhow::{Context, Result};
use mailrun_net::{TlsWatch, clock};
use std::sync::Arc;
use std::time::Duration;

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn watch(context: &Arc<RelayContext>) -> Result<()> {
    let context = Arc::clone(context);
    let mut listeners = CertificateReloader::new(&context);
    let watch = move || {
        loop {
            std::thread::sleep(POLL_INTERVAL);
            listeners.check(&context);
            context.ca_files.check();
        }
    };
    std::thread::Builder::new().name("certificates".to_owned()).spawn(watch).context("cannot start a thread")?;
    Ok(())
}

struct CertificateReloader {
    watch: Option<TlsWatch>,
    /// Version of the configuration from which `watch` took its file names. A reload increases the version, and `check`
    /// then makes a new `watch` with the file names of the new configuration.
    config_version: u64,
}

impl CertificateReloader {
    fn new(context: &RelayContext) -> Self {
        let edition = context.config_version();
        let config = context.config();
        // Watch the files that the current configuration names. But put new certificates into the TLS settings with
        // which the relay started, because the listeners still use these settings.
        let own = context.initial_config().tls.as_ref().zip(config.tls.as_ref());
        Self {
            watch: own.map(|(first, now)| TlsWatch::new(now.files.clone(), first.setup.clone())),
            config_version: edition,
        }
    }

    fn check(&mut self, context: &RelayContext) {
        if context.config_version() != self.config_version {
            *self = Self::new(context);
        }
        match self.watch.as_mut().and_then(|watch| watch.check(clock::now())) {
            None => {}
            Some(Ok(())) => tracing::info!(target: LOG_TARGET, "the certificate has changed and was reloaded"),
            Some(Err(why)) => {
                tracing::warn!(target: LOG_TARGET, %why, "the certificate has changed but cannot be used; the old one stays in use")
            }
        }
    }
}
