//! The listeners' certificate: its files are watched, and read again when they change.
use crate::context::RelayContext;
use crate::log_target::LOG_TARGET;
use net::{TlsWatch, clock};

/// Watches the files that the configuration in force names.
pub(crate) struct CertificateReloader {
    watch: Option<TlsWatch>,
    /// The configuration that named them.
    config_version: u64,
}

impl CertificateReloader {
    /// Begins with the files of the configuration in force.
    pub(crate) fn new(context: &RelayContext) -> Self {
        let edition = context.config_version();
        let config = context.config();
        // The listeners have the first configuration's side of TLS until the end: it is renewed, never replaced.
        let own = context.initial_config().tls.as_ref().zip(config.tls.as_ref());
        Self {
            watch: own.map(|(first, now)| TlsWatch::new(now.files.clone(), first.setup.clone())),
            config_version: edition,
        }
    }

    /// Checks the files now and then, and reads them if they have changed.
    pub(crate) fn check(&mut self, context: &RelayContext) {
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
