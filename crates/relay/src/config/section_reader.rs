use super::settings::ConfigEnvironment;
use mailrun_process::reason::reason;
use mailrun_process::text_file;
use mailrun_process::toml_file::{ErrorCollector, Section};
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy)]
pub(super) struct SectionReader<'a> {
    pub(super) errors: &'a ErrorCollector,
    /// Directory of the configuration file, from which relative paths start.
    pub(super) base_directory: &'a Path,
    pub(super) environment: &'a ConfigEnvironment<'a>,
}

impl<'a> SectionReader<'a> {
    /// Reads a path, which must not be empty. A relative path starts from `base_directory`.
    pub(super) fn path(self, section: &mut Section<'a>, key: &'static str) -> Option<(Range<usize>, PathBuf)> {
        let (span, text) = section.text(key, "\"PATH\"")?;
        if text.is_empty() {
            self.errors.add(&span, format!("{key} is empty; write {key} = \"PATH\""));
            return None;
        }
        Some((span, self.base_directory.join(text)))
    }

    pub(super) fn file(self, span: &Range<usize>, path: &Path) -> Option<Vec<u8>> {
        let bytes = (self.environment.read)(path)
            .map_err(|error| format!("cannot read {}: {}", path.display(), reason(&error)));
        self.errors.ok_or_add(span, bytes)
    }

    pub(super) fn text(self, span: &Range<usize>, path: &Path) -> Option<String> {
        let bytes = self.file(span, path)?;
        self.decoded(span, path, bytes)
    }

    /// Reads a file with a secret. Warns if users other than its owner and its group may read it.
    pub(super) fn secret(self, span: &Range<usize>, path: &Path) -> Option<Vec<u8>> {
        if let Some(mode) = (self.environment.mode)(path).filter(|mode| mode & 0o004 != 0) {
            let path = path.display();
            self.errors.warn(format!(
                "{path} contains secrets, but others may read it (mode {mode:03o}); run chmod o= {path}"
            ));
        }
        self.file(span, path)
    }

    pub(super) fn secret_text(self, span: &Range<usize>, path: &Path) -> Option<String> {
        let bytes = self.secret(span, path)?;
        self.decoded(span, path, bytes)
    }

    fn decoded(self, span: &Range<usize>, path: &Path, bytes: Vec<u8>) -> Option<String> {
        let text = text_file::decode(bytes).map_err(|reason| format!("{} {reason}", path.display()));
        self.errors.ok_or_add(span, text)
    }
}
