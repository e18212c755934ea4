//! Writes result files, such as run records, without ever leaving half of a file. A file appears only when it is
//! complete, and an older file of the same name stays until then. A run that cannot start, or that is killed, therefore
//! leaves no empty file. FIFOs, devices and descriptors such as `/dev/stdout` are written to directly.
use crate::reason::reason;
use anyhow::{Context, Result};
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use tokio::signal::unix::{SignalKind, signal};

/// Permissions of a new file before the umask is applied.
const NEW_FILE_MODE: u32 = 0o666;

/// A file or stream that receives results. The output is complete only after `finish`.
#[derive(Debug)]
pub enum OutputFile {
    /// A file that has a temporary name until `finish` gives it the final name. If this value is dropped before that,
    /// the file is deleted.
    New {
        file: NamedTempFile,
        /// Path of the final file, without symbolic links.
        path: PathBuf,
    },
    /// An output that is written in place: a FIFO, a device, a descriptor, or a file in a directory in which this
    /// process may not create files.
    Stream(File),
}

enum Place {
    File(PathBuf),
    Stream,
}

/// Makes an error such as `cannot write DIR/run.json: No space left on device`.
pub fn cannot_write(path: &Path, error: &io::Error) -> anyhow::Error {
    anyhow::anyhow!("cannot write {}: {}", path.display(), reason(error))
}

/// Checks before a long run that its output can be written, so that the results are not lost at the end. Creates the
/// output's directory if it does not exist, but not the file.
///
/// # Errors
/// Fails if the output cannot be written. The error names the path.
pub fn check(path: &Path) -> Result<()> {
    try_check(path).map_err(|error| cannot_write(path, &error))
}

/// Writes `content` to the file or stream `path`. An older file stays in place until the new file is complete.
///
/// # Errors
/// Fails if the output cannot be written. The error names the path.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<()> {
    let written = OutputFile::create(path).and_then(|mut file| {
        file.write_all(content.as_ref())?;
        file.finish()
    });
    written.map_err(|error| cannot_write(path, &error))
}

/// Returns true if the path is a name of standard output, such as `-` or `/dev/stdout`.
pub fn is_standard_output(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path == Path::new(name))
}

/// Returns true if the path names a regular file or a file that can be created. Returns false for a
/// FIFO, a device, a descriptor or a directory.
pub fn is_file(path: &Path) -> bool {
    matches!(place(path), Ok(Place::File(_)))
}

fn try_check(path: &Path) -> io::Result<()> {
    let path = match place(path)? {
        // Do not open a FIFO for this check. Opening it would wait for a reader, and closing it would
        // end the reader's input.
        Place::Stream if path == Path::new("-") => return Ok(()),
        Place::Stream => return Ok(rustix::fs::access(path, Access::WRITE_OK)?),
        Place::File(path) => path,
    };
    let directory = parent(&path);
    fs::create_dir_all(directory)?;
    match OpenOptions::new().append(true).open(&path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => tempfile::tempfile_in(directory).map(drop),
        Err(error) => Err(error),
    }
}

/// Finds out whether a path names a file or a stream. Follows symbolic links, so that a link stays
/// and its target is replaced.
fn place(path: &Path) -> io::Result<Place> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT.into());
    }
    // A path such as /dev/stdout names a descriptor of this process. Treat it as a stream even if it leads to a file.
    // This process may have written other output to the file, so the file must not be replaced.
    let is_descriptor = is_standard_output(path)
        || path == Path::new("/dev/stderr")
        || ["/dev/fd", "/proc/self/fd"].iter().any(|directory| path.parent() == Some(Path::new(directory)));
    if is_descriptor {
        return Ok(Place::Stream);
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(Errno::ISDIR.into()),
        Ok(metadata) if metadata.is_file() => Ok(Place::File(fs::canonicalize(path)?)),
        Ok(_) => Ok(Place::Stream),
        Err(_) if path.as_os_str().as_bytes().ends_with(b"/") => Err(Errno::ISDIR.into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // If a link leads to a file that does not exist yet, create that file and keep the
            // link.
            let target = fs::read_link(path).map(|target| parent(path).join(target));
            Ok(Place::File(target.unwrap_or_else(|_| path.to_owned())))
        }
        Err(error) => Err(error),
    }
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl OutputFile {
    /// Opens an output for writing. Its directory must exist (see [`check`]). If the output is a FIFO, waits until a
    /// reader has opened it.
    ///
    /// # Errors
    /// Fails if the output cannot be opened for writing.
    pub fn create(path: &Path) -> io::Result<Self> {
        let path = match place(path)? {
            Place::Stream => return open_stream(path).map(Self::Stream),
            Place::File(path) => path,
        };
        let older = match OpenOptions::new().append(true).open(&path) {
            Ok(older) => Some(older.metadata()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(path.file_name().unwrap_or_default());
        prefix.push(".");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part").permissions(Permissions::from_mode(NEW_FILE_MODE));
        let file = match builder.tempfile_in(parent(&path)) {
            Ok(file) => file,
            // If the file is writable but its directory is not, overwrite the file in place.
            Err(_) if older.is_some() => return File::create(&path).map(Self::Stream),
            Err(error) => return Err(error),
        };
        if let Some(older) = older {
            // Keep the older file's owner. Ignore an error, because only root can change the owner of a file.
            let _ = rustix::fs::fchown(
                &file,
                Some(rustix::fs::Uid::from_raw(older.uid())),
                Some(rustix::fs::Gid::from_raw(older.gid())),
            );
            file.as_file().set_permissions(older.permissions())?;
        }
        Ok(Self::New { file, path })
    }

    /// Completes the output and renames the temporary file to its final name.
    ///
    /// # Errors
    /// Fails if the file cannot be renamed. An older file is then unchanged, unless it is a mount
    /// point, which cannot be replaced and is overwritten in place.
    pub fn finish(self) -> io::Result<()> {
        let Self::New { file, path } = self else { return Ok(()) };
        match file.persist(&path) {
            Ok(_) => Ok(()),
            Err(failure) if failure.error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                io::copy(&mut failure.file.reopen()?, &mut File::create(&path)?).map(drop)
            }
            Err(failure) => Err(failure.error),
        }
    }
}

/// Opens a FIFO, a device or a descriptor. Duplicates standard output and standard error instead of
/// opening them anew. If they are files, later output of the process then follows this output and
/// does not overwrite it.
fn open_stream(path: &Path) -> io::Result<File> {
    if is_standard_output(path) {
        io::stdout().lock().flush()?;
        return Ok(io::stdout().as_fd().try_clone_to_owned()?.into());
    }
    if ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2"].iter().any(|name| path == Path::new(name)) {
        return Ok(io::stderr().as_fd().try_clone_to_owned()?.into());
    }
    OpenOptions::new().append(true).open(path)
}

impl Write for OutputFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::New { file, .. } => file.write(bytes),
            Self::Stream(file) => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::New { file, .. } => file.flush(),
            Self::Stream(file) => file.flush(),
        }
    }
}

/// A file for the lines that a run logs, such as the dialogues of its sessions. Unlike a result file, it can be read
/// during the run, and it stays if the process is killed. An older log is replaced when the first byte is written.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    file: Option<File>,
}

impl LogFile {
    /// Checks that the log can be written, but does not touch the file.
    ///
    /// # Errors
    /// Fails if the log cannot be written. The error names the path.
    pub fn new(path: &Path) -> Result<Self> {
        check(path)?;
        Ok(Self { path: path.to_owned(), file: None })
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(match place(&self.path)? {
                Place::Stream => open_stream(&self.path)?,
                Place::File(path) => File::create(path)?,
            }),
        };
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

/// Number of the signal that the kernel sends when a file grows above the size limit. MIPS and
/// PA-RISC use other numbers.
const SIGXFSZ: i32 = 25;

/// Makes a write above the limit of file sizes (`ulimit -f`) fail with EFBIG. Without this, SIGXFSZ
/// would end the process without an error message. Does nothing if there is no limit.
///
/// # Errors
/// Fails if the handler for SIGXFSZ cannot be installed.
pub fn report_size_limit_as_error() -> Result<()> {
    if getrlimit(Resource::Fsize).current.is_none() {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot watch for signals")?;
    let _context = runtime.enter();
    // The runtime is needed only to install the handler, which stays in place after the runtime has ended.
    signal(SignalKind::from_raw(SIGXFSZ)).map(drop).context("cannot watch for signals")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort_unstable();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("deep/er/run.json");
        check(&path).unwrap();
        let directory = path.parent().unwrap();
        assert!(names(directory).is_empty(), "checked, and not created");
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(file);
        assert!(names(directory).is_empty(), "what is not finished is deleted");
        write(&path, "first").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        check(&path).unwrap();
        let mut file = OutputFile::create(&path).unwrap();
        file.write_all(b"sec").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "first", "the older file stays until the end");
        file.write_all(b"ond").unwrap();
        file.finish().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(names(directory), ["run.json"]);
    }

    #[test]
    fn a_new_file_has_the_usual_mode_and_a_link_stays() {
        let place = tempfile::tempdir().unwrap();
        let [usual, ours, link, loose] = ["usual", "ours", "link", "loose"].map(|name| place.path().join(name));
        File::create(&usual).unwrap();
        write(&ours, "").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&ours), mode(&usual));
        symlink(&ours, &link).unwrap();
        symlink("target", &loose).unwrap();
        for (link, target) in [(&link, &ours), (&loose, &place.path().join("target"))] {
            check(link).unwrap();
            write(link, "text").unwrap();
            assert!(fs::symlink_metadata(link).unwrap().is_symlink());
            assert_eq!(fs::read_to_string(target).unwrap(), "text");
        }
    }

    #[test]
    fn what_cannot_be_written_is_found_before_the_work() {
        assert!(check(Path::new("-")).is_ok(), "standard output");
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("file"), "").unwrap();
        for (name, reason) in [
            ("", "Is a directory"),
            ("new/", "Is a directory"),
            ("file/x", "Not a directory"),
            ("file/x/y", "Not a directory"),
        ] {
            let path = place.path().join(name);
            let expected = format!("cannot write {}: {reason}", path.display());
            assert_eq!(check(&path).unwrap_err().to_string(), expected);
            assert_eq!(write(&path, "x").unwrap_err().to_string(), expected);
        }
        assert!(check(Path::new("")).is_err());
        assert!(check(Path::new("/proc/self/status")).is_err() || rustix::process::geteuid().is_root());
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn a_fifo_gets_the_whole_output_and_the_check_does_not_end_its_input() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let reader = {
            let path = path.clone();
            std::thread::spawn(move || fs::read_to_string(path).unwrap())
        };
        check(&path).unwrap();
        write(&path, "all").unwrap();
        assert_eq!(reader.join().unwrap(), "all");
        check(Path::new("/dev/full")).unwrap();
        let error = write(Path::new("/dev/full"), "x").unwrap_err().to_string();
        assert_eq!(error, "cannot write /dev/full: No space left on device");
        check(Path::new("/dev/stdout")).unwrap();
        assert!(![&path, Path::new("/dev/full"), Path::new("/dev/stdout")].into_iter().any(is_file));
        assert!(is_file(&place.path().join("new")));
    }

    #[test]
    fn a_log_replaces_an_older_one_with_its_first_byte() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        fs::write(&path, "older").unwrap();
        let mut log = LogFile::new(&path).unwrap();
        log.flush().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "older");
        log.write_all(b"a\n").unwrap();
        log.write_all(b"b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n");
    }
}
