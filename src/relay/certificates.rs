//! The listeners' certificate: its files are watched, and read again when they change.
use super::setting::Setting;
use net::{TlsWatch, clock};

/// Watches the files that the configuration in force names.
pub(super) struct Certificates {
    watch: Option<TlsWatch>,
    /// The configuration that named them.
    edition: u64,
}

impl Certificates {
    /// Begins with the files of the configuration in force.
    pub(super) fn watch(setting: &Setting) -> Self {
        let edition = setting.edition();
        let config = setting.config();
        // The listeners have the first configuration's side of TLS until the end: it is renewed, never replaced.
        let own = setting.first().tls.as_ref().zip(config.tls.as_ref());
        Self { watch: own.map(|(first, now)| TlsWatch::new(now.files.clone(), first.setup.clone())), edition }
    }

    /// Checks the files now and then, and reads them if they have changed.
    pub(super) fn look(&mut self, setting: &Setting) {
        if setting.edition() != self.edition {
            *self = Self::watch(setting);
        }
        match self.watch.as_mut().and_then(|watch| watch.look(clock::now())) {
            None => {}
            Some(Ok(())) => tracing::info!("the certificate has changed and was reloaded"),
            Some(Err(why)) => {
                tracing::warn!(%why, "the certificate has changed but cannot be used; the old one stays in use")
            }
        }
    }
}
