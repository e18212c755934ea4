//! Sets up a server as its recipe says: checks the host, writes the server's files, and runs the recipe's commands.
use super::file::{QueueKeys, Recipe};
use super::leftovers;
use crate::programs::{find_program, search_path};
use anyhow::{Context, Result, anyhow, bail, ensure};
use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::io::{Read, Seek};
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempPath;

/// Time limit for each command of a recipe except the server itself.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

/// Values that replace the placeholders of a recipe, such as the server's directory and address.
#[derive(Clone, Debug)]
pub struct Places {
    pub directory: PathBuf,
    /// Subdirectory for the server's mail. An audit may mount a file system on it, for example to simulate a power cut.
    pub state: PathBuf,
    /// Symbolic link to `directory`, so that the server can use a short path to its mail. Dropping the last copy of
    /// this `Arc` removes the link.
    pub short_link: Option<Arc<TempPath>>,
    pub listen: SocketAddr,
    /// Address of the next hop or, if the server delivers to mailboxes, the address at which these can be read.
    pub to: SocketAddr,
    pub mailrun: PathBuf,
}

/// A requirement of a server that this machine or user does not meet, for example a program that is not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Key of the recipe that states the requirement, and the byte offset of the key's value.
    key: &'static str,
    offset: usize,
    pub words: String,
    /// Command that installs what is missing, if the recipe has such a command.
    pub remedy: Option<String>,
}

#[derive(Clone, Debug)]
pub(crate) struct ServerCommand {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(OsString, OsString)>,
}

impl Places {
    /// Collects the paths and addresses that a recipe's placeholders stand for when its server runs in `directory`. If
    /// the path of the state directory is too long, this creates a symbolic link to `directory`.
    pub fn in_directory(directory: PathBuf, listen: SocketAddr, to: SocketAddr, mailrun: &Path) -> Self {
        let state = directory.join(STATE);
        let is_long = state.as_os_str().len() > MAX_STATE_PATH_BYTES;
        let short_link = is_long.then(|| short_link(&directory)).flatten().map(Arc::new);
        Self { state, short_link, directory, listen, to, mailrun: mailrun.to_owned() }
    }

    /// Returns the path by which the server knows its state directory. If there is a short link, the path begins with
    /// it. The path does not end with the link, because commands such as `find` do not follow a link that is their
    /// argument.
    fn known_state(&self) -> PathBuf {
        self.short_link.as_ref().map_or_else(|| self.state.clone(), |link| link.join(STATE))
    }
}

/// Subdirectory of the server's directory in which the server keeps its mail.
const STATE: &str = "state";

/// Maximum length in bytes of the path of the `state` directory. If the path is longer, the server gets a path through
/// a short link. The path of a socket may have at most 107 bytes (unix(7)), and servers put their sockets some
/// directories deeper.
const MAX_STATE_PATH_BYTES: usize = 70;

/// Makes a symbolic link with a short path to a directory. Returns `None` if that fails. The server then gets the long
/// path.
fn short_link(directory: &Path) -> Option<TempPath> {
    let absolute = std::path::absolute(directory).ok()?;
    let link = tempfile::Builder::new().prefix("mailrun-").make(|path| symlink(&absolute, path));
    Some(link.ok()?.into_temp_path())
}

/// Characters that a path must not contain, because they have a special meaning in a shell or in a recipe's
/// placeholders. White space and control characters are not allowed either.
const SPECIAL_CHARACTERS: &str = "'\"`\\$&|;<>()[]{}*?#~!";

/// Returns the first character that must not be in the path of a server's directory, or `None` if the path is good.
/// Recipes fill such paths into shell commands and configuration files, whose rules for quoting differ.
fn special_character(path: &Path) -> Option<char> {
    let is_special = |c: &char| c.is_whitespace() || c.is_control() || SPECIAL_CHARACTERS.contains(*c);
    path.to_string_lossy().chars().find(is_special)
}

impl Recipe {
    /// Checks that the server can run on this machine. The caller does this before anything is started.
    ///
    /// # Errors
    /// Returns an error that names what is missing, and says how to install it if the recipe contains the command for
    /// that.
    pub(crate) fn check_host(&self, mailrun: &Path) -> Result<()> {
        self.first_missing(mailrun).map_or(Ok(()), |missing| Err(self.missing_error(&missing)))
    }

    fn missing_error(&self, missing: &Missing) -> anyhow::Error {
        self.error(missing.key, missing.offset, &missing.words)
    }

    /// Returns the first thing that the server needs and this machine lacks. The check for root comes last, because
    /// being root does not help if something else is missing.
    pub fn first_missing(&self, mailrun: &Path) -> Option<Missing> {
        let (programs, command, root) = (&self.keys.programs, &self.keys.command, &self.keys.root);
        let first = command.get_ref()[0].replace("{mailrun}", &mailrun.to_string_lossy());
        let needed = programs.get_ref().iter().map(|program| (program.as_str(), "programs", programs.span().start));
        needed
            .chain([(first.as_str(), "command", command.span().start)])
            .find_map(|(program, key, offset)| self.program(program, key, offset).err())
            .or_else(|| self.debian_tar().err())
            .or_else(|| {
                let is_allowed = !root.get_ref() || rustix::process::geteuid().is_root();
                let words = "only root can start this server".to_owned();
                (!is_allowed).then(|| Missing { key: "root", offset: root.span().start, words, remedy: None })
            })
    }

    /// Deletes the unpacked Debian root of a server that has ended. The root takes some 250 MB, and can be unpacked
    /// again from its tar file.
    pub(crate) fn remove_root(&self, directory: &Path) -> Result<()> {
        if self.keys.debian.is_none() {
            return Ok(());
        }
        let root = directory.join(DEBIAN_ROOT);
        fs::remove_dir_all(&root).with_context(|| format!("cannot delete {}", root.display()))
    }

    /// Returns the tar file of the Debian root that the server needs, or `None` if the recipe needs no such root.
    fn debian_tar(&self) -> Result<Option<PathBuf>, Missing> {
        let Some(debian) = &self.keys.debian else { return Ok(None) };
        let name = format!("{}.tar", debian.get_ref());
        let tar = debian_roots().into_iter().map(|place| place.join(&name)).find(|path| path.is_file());
        tar.map(Some).ok_or_else(|| {
            let words = format!("there is no target/roots/{name}");
            self.missing("debian", debian.span().start, words, "make")
        })
    }

    fn program(&self, name: &str, key: &'static str, offset: usize) -> Result<PathBuf, Missing> {
        let words = || format!("there is no program {name:?} in PATH or /usr/sbin");
        find_program(name).ok_or_else(|| self.missing(key, offset, words(), "install"))
    }

    fn missing(&self, key: &'static str, offset: usize, words: String, verb: &str) -> Missing {
        let remedy = self.keys.install.clone();
        let words = remedy.iter().fold(words, |words, command| format!("{words}; to {verb} it: {command}"));
        Missing { key, offset, words, remedy }
    }

    /// Creates the state directory and the server's files, and runs the recipe's `prepare` commands.
    pub(crate) fn prepare(&self, places: &Places) -> Result<ServerCommand> {
        self.check_host(&places.mailrun)?;
        for place in [&places.directory, &places.known_state()] {
            if let Some(character) = special_character(place) {
                let words = format!(
                    "the path {} contains {character:?}, which the server's commands and files might misread; use \
                     --out to name another directory",
                    place.display()
                );
                return Err(self.server_error(&words));
            }
        }
        leftovers::remove().iter().for_each(|line| mailrun_process::tell!("{line}"));
        let directory = &places.directory;
        let cannot = || format!("cannot set up {self} in {}", directory.display());
        fs::create_dir_all(directory).with_context(cannot)?;
        let other_users = &self.keys.other_users;
        let mode = if *other_users.get_ref() { 0o755 } else { 0o700 };
        fs::create_dir_all(&places.state).with_context(cannot)?;
        leftovers::mark(directory).with_context(cannot)?;
        for place in [directory, &places.state] {
            fs::set_permissions(place, Permissions::from_mode(mode)).with_context(cannot)?;
        }
        let closed_directory = directory.ancestors().find(|place| *other_users.get_ref() && !is_traversable(place));
        if let Some(closed_directory) = closed_directory {
            let words = format!(
                "the server's processes run as other users without access to {}; chmod o+x it, or use --out to name \
                 another directory",
                closed_directory.display()
            );
            return Err(self.error("other_users", other_users.span().start, &words));
        }
        if let Some(tar) = self.debian_tar().map_err(|missing| self.missing_error(&missing))? {
            let root = directory.join(DEBIAN_ROOT);
            fs::create_dir_all(&root).with_context(cannot)?;
            let words = ["tar", "-xf", &tar.to_string_lossy(), "-C", &root.to_string_lossy()].map(str::to_owned);
            self.run(&words, places)?;
        }
        self.write_files(places).with_context(cannot)?;
        let prepare = &self.keys.prepare;
        for words in prepare.get_ref() {
            self.run(words, places)
                .map_err(|error| self.error("prepare", prepare.span().start, &format!("{error:#}")))?;
        }
        self.version.get_or_init(|| self.ask_version(places).unwrap_or_default());
        let words = self.fill_all(self.keys.command.get_ref(), places);
        let program = self.program(&words[0], "command", self.keys.command.span().start);
        let program = program.map_err(|missing| self.missing_error(&missing))?;
        Ok(ServerCommand { program, arguments: words[1..].to_vec(), environment: self.environment(places) })
    }

    fn write_files(&self, places: &Places) -> Result<()> {
        for (path, text, is_executable) in self.files(places) {
            let path = places.directory.join(path);
            fs::create_dir_all(path.parent().context("a file has a directory")?)?;
            fs::write(&path, text)?;
            if is_executable {
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
            }
        }
        Ok(())
    }

    /// Returns the files to write for the server: path, text, and whether the file must be executable.
    pub fn files(&self, places: &Places) -> Vec<(PathBuf, String, bool)> {
        let files = self.keys.files.iter();
        files.map(|file| (file.path.get_ref().into(), self.fill(&file.text, places), file.executable)).collect()
    }

    /// Returns true if the server's queue is empty. Returns `None` if the recipe does not say how
    /// to find out, or if the command fails, for example because the server is not ready.
    pub fn is_queue_empty(&self, places: &Places) -> Option<bool> {
        let QueueKeys { command, empty, .. } = self.keys.queue.as_ref()?;
        Some(self.run(command.get_ref(), places).ok()?.trim() == empty.trim())
    }

    /// Makes the server retry all mail in its queue, with the recipe's command `queue.flush`. Returns false if the
    /// recipe has no such command.
    ///
    /// # Errors
    /// Returns an error if this command cannot be started, takes too long, or exits with an error.
    pub(crate) fn flush_queue(&self, places: &Places) -> Result<bool> {
        let Some(flush) = self.keys.queue.as_ref().and_then(|queue| queue.flush.as_ref()) else { return Ok(false) };
        self.run(flush.get_ref(), places)
            .map_err(|error| self.error("queue.flush", flush.span().start, &format!("{error:#}")))?;
        Ok(true)
    }

    fn ask_version(&self, places: &Places) -> Option<String> {
        let words = Some(self.keys.version.get_ref()).filter(|words| !words.is_empty())?;
        self.run(words, places).ok()?.lines().next().map(str::to_owned)
    }

    /// Returns the last line of the server's log that reports a fatal error, a panic or an error.
    pub(crate) fn last_log_error(&self, directory: &Path) -> Option<String> {
        let log = fs::read(directory.join(self.keys.log.as_ref()?)).ok()?;
        let log = String::from_utf8_lossy(&log);
        let is_complaint = |line: &&str| ["fatal:", "panic:", "error:"].iter().any(|word| line.contains(word));
        log.lines().rev().find(is_complaint).map(str::to_owned)
    }

    fn run(&self, words: &[String], places: &Places) -> Result<String> {
        let words = self.fill_all(words, places);
        let command_line = words.join(" ");
        let program = find_program(&words[0]).with_context(|| format!("there is no program {:?}", words[0]))?;
        let output = || tempfile::tempfile().context("cannot make a temporary file");
        let (stdout, stderr) = (output()?, output()?);
        let mut command = Command::new(program);
        command.args(&words[1..]).envs(self.environment(places)).stdin(Stdio::null());
        // Use files instead of pipes, because a process that the command leaves behind would keep a pipe open, and
        // reading from the pipe would never end.
        let cannot = || format!("cannot start {command_line:?}");
        command.stdout(stdout.try_clone().with_context(cannot)?).stderr(stderr.try_clone().with_context(cannot)?);
        let status = wait(&mut command.spawn().with_context(cannot)?).with_context(|| command_line.clone())?;
        let [stdout, stderr] = [stdout, stderr].map(read_whole);
        let last = [&stderr, &stdout].into_iter().find_map(|text| text.lines().rfind(|line| !line.trim().is_empty()));
        let ending = status.to_string().replacen(": ", " ", 1);
        ensure!(status.success(), "{command_line:?} ended with {ending}: {}", last.unwrap_or("no output"));
        Ok(stdout)
    }

    /// Returns the environment of all commands of the recipe. A token in it lets a later mailrun find processes that
    /// this mailrun leaves behind.
    fn environment(&self, places: &Places) -> Vec<(OsString, OsString)> {
        let own = [("PATH".into(), search_path()), (leftovers::VARIABLE.into(), leftovers::token(&places.directory))];
        let keys = self.keys.environment.iter();
        own.into_iter().chain(keys.map(|(name, value)| (name.into(), self.fill(value, places).into()))).collect()
    }

    fn fill_all(&self, words: &[String], places: &Places) -> Vec<String> {
        words.iter().map(|word| self.fill(word, places)).collect()
    }

    /// Replaces the placeholders, but keeps other braces, which configuration files use for their own purposes.
    fn fill(&self, text: &str, places: &Places) -> String {
        let Places { directory, listen, to, mailrun, .. } = places;
        let state = places.known_state();
        let values = [
            ("{dir}", directory.to_string_lossy().into_owned()),
            ("{state}", state.to_string_lossy().into_owned()),
            ("{listen}", listen.to_string()),
            ("{listen_host}", listen.ip().to_string()),
            ("{listen_port}", listen.port().to_string()),
            ("{to}", to.to_string()),
            ("{to_host}", to.ip().to_string()),
            ("{to_port}", to.port().to_string()),
            ("{read}", to.to_string()),
            ("{read_host}", to.ip().to_string()),
            ("{read_port}", to.port().to_string()),
            ("{mailrun}", mailrun.to_string_lossy().into_owned()),
            ("{variant}", self.variant.clone()),
        ];
        values.iter().fold(text.to_owned(), |text, (placeholder, value)| text.replace(placeholder, value))
    }

    /// Adds the last error in the server's log to `error`, to explain why the server did not start.
    pub(crate) fn start_error(&self, error: &anyhow::Error, directory: &Path) -> anyhow::Error {
        match self.last_log_error(directory) {
            Some(complaint) => self.server_error(&format!("{error:#}; its log says: {complaint}")),
            None => self.server_error(&format!("{error:#}")),
        }
    }
}

/// Subdirectory of the server's directory into which its Debian root directory is unpacked, if the server has one.
const DEBIAN_ROOT: &str = "root";

/// Returns the directories that may contain tar files with Debian root directories, which `debian-root.sh` makes. These
/// are `target/roots` of the working directory and of the directory in which this program was built.
fn debian_roots() -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    let built = own.iter().filter_map(|own| own.parent()?.parent()).map(|target| target.join("roots"));
    std::iter::once(PathBuf::from("target/roots")).chain(built).collect()
}

fn is_traversable(place: &Path) -> bool {
    place.as_os_str().is_empty() || place.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
}

/// Waits for a command, and kills it if it takes longer than `COMMAND_TIMEOUT`.
fn wait(child: &mut Child) -> Result<ExitStatus> {
    let limit = Instant::now() + COMMAND_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for it")? {
            return Ok(status);
        }
        if Instant::now() > limit {
            let _ = child.kill();
            let _ = child.wait();
            bail!("it took longer than {} s", COMMAND_TIMEOUT.as_secs());
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn read_whole(mut file: File) -> String {
    let mut bytes = Vec::new();
    // Treat unreadable output as empty, because it is only used in messages.
    let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses the address of a next hop, which must be an IP address and a port.
pub(crate) fn next_hop(text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| anyhow!("a recipe's server cannot deliver to {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_lacks_is_named_with_the_command_that_makes_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("my.toml");
        let text = "durability = \"memory\"\ncommand = [\"sh\", \"{listen}\", \"{to}\"]\n";
        for (keys, words, remedy) in [
            ("", None, None),
            ("programs = [\"sh\"]", None, None),
            ("programs = [\"sh\", \"fnord\"]", Some("there is no program \"fnord\" in PATH or /usr/sbin"), None),
            (
                "programs = [\"fnord\"]\ninstall = \"apt-get install fnord\"",
                Some("there is no program \"fnord\" in PATH or /usr/sbin; to install it: apt-get install fnord"),
                Some("apt-get install fnord"),
            ),
            (
                "debian = \"fnord-trixie\"\ninstall = \"roots.sh fnord trixie\"",
                Some("there is no target/roots/fnord-trixie.tar; to make it: roots.sh fnord trixie"),
                Some("roots.sh fnord trixie"),
            ),
        ] {
            fs::write(&path, format!("{text}{keys}\n")).unwrap();
            let missing = Recipe::load(path.to_str().unwrap()).unwrap().first_missing(Path::new("mailrun"));
            let found = missing.as_ref().map(|missing| (missing.words.as_str(), missing.remedy.as_deref()));
            assert_eq!(found, words.map(|words| (words, remedy)), "{keys}");
        }
    }

    #[test]
    fn a_directory_that_a_shell_would_misread_is_refused() {
        for (path, expected) in [
            ("/home/me/runs-1/a_b.c:d@e,f=g%h+i", None),
            ("/home/müller/läufe", None),
            ("/home/my runs", Some(' ')),
            ("/home/a\tb", Some('\t')),
            ("/home/$HOME", Some('$')),
            ("/home/it's", Some('\'')),
            ("/home/a;b", Some(';')),
            ("/home/{to}", Some('{')),
        ] {
            assert_eq!(special_character(Path::new(path)), expected, "{path}");
        }
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("my runs");
        let places = Places::in_directory(directory.clone(), nowhere, nowhere, Path::new("/bin/true"));
        let error = Recipe::load("mailrun").unwrap().prepare(&places).unwrap_err().to_string();
        assert!(error.contains("my runs contains ' '") && error.contains("--out"), "{error}");
        assert!(!directory.exists(), "nothing is written there");
    }
}
