//! The sources and sinks of the published tables: their paths and their command lines.
use super::TableOptions;
use super::cases::{ConnectionReuse, TableCase};
pub(super) use crate::bench::scenario::{SinkTool, SourceTool};
use anyhow::{Context, Result, ensure};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

impl SourceTool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SmtpSource => "smtp-source",
            Self::GoSmtpSource => "go-smtp-source",
            Self::Mailrun => "mailrun",
        }
    }
}

impl SinkTool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::SmtpSink => "smtp-sink",
            Self::Mailrun => "mailrun",
        }
    }
}

/// The programs that were found, and their paths.
#[derive(Clone, Debug)]
pub(super) struct TableContestants {
    pub(super) tools: Vec<(SourceTool, PathBuf)>,
    pub(super) receivers: Vec<(SinkTool, PathBuf)>,
    /// The programs that this machine lacks.
    pub(super) missing: Vec<&'static str>,
}

impl TableContestants {
    /// Looks for the peers; this program is always there.
    pub(super) fn find(options: &TableOptions) -> Result<Self> {
        let own = std::env::current_exe().context("cannot find mailrun's own program file")?;
        let places = places(&own);
        let mut missing = Vec::new();
        let mut search = |name: &'static str| {
            let found = find_program(name, &own, &places);
            missing.extend(found.is_none().then_some(name));
            found
        };
        let mut tools = Vec::new();
        let mut receivers = Vec::new();
        for &tool in &options.tools {
            let path = if tool == SourceTool::Mailrun { Some(own.clone()) } else { search(tool.name()) };
            tools.extend(path.map(|path| (tool, path)));
        }
        for &receiver in &options.receivers {
            let path = if receiver == SinkTool::Mailrun { Some(own.clone()) } else { search(receiver.name()) };
            receivers.extend(path.map(|path| (receiver, path)));
        }
        ensure!(!tools.is_empty() && !receivers.is_empty(), "not installed: {}", missing.join(", "));
        Ok(Self { tools, receivers, missing })
    }

    pub(super) fn tool(&self, tool: SourceTool) -> Option<&Path> {
        self.tools.iter().find(|(known, _)| *known == tool).map(|(_, path)| path.as_path())
    }

    pub(super) fn receiver(&self, receiver: SinkTool) -> Option<&Path> {
        self.receivers.iter().find(|(known, _)| *known == receiver).map(|(_, path)| path.as_path())
    }
}

/// This program, and the peer of that name, if it is installed.
///
/// # Errors
/// If the path of this program cannot be found.
pub(in crate::bench) fn peer(name: &str) -> Result<(PathBuf, Option<PathBuf>)> {
    let own = std::env::current_exe().context("cannot find mailrun's own program file")?;
    let found = find_program(name, &own, &places(&own));
    Ok((own, found))
}

/// PATH; where Debian puts Postfix's test programs, which a plain user's PATH leaves out; and where the tests build
/// peers of their own (`target/peers`, beside `target/release`).
fn places(own: &Path) -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let beside = own.parent().and_then(Path::parent).map(|target| target.join("peers"));
    let built = beside.into_iter().chain([PathBuf::from("target/peers")]);
    let built = built.flat_map(|peers| [peers.join("bin"), peers]);
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .chain(built)
        .filter_map(|place| std::path::absolute(place).ok())
        .collect()
}

/// The first program of that name that is not this one under the older tool's name (`mailrun install-links`).
fn find_program(name: &str, own: &Path, places: &[PathBuf]) -> Option<PathBuf> {
    places.iter().map(|place| place.join(name)).find(|path| is_program(path) && !is_ours(path, own))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn is_ours(path: &Path, own: &Path) -> bool {
    path.canonicalize().is_ok_and(|path| path == own || path.file_name() == own.file_name())
}

/// Says whether the sink can tell every message from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageMarking {
    /// The messages of the published table.
    AsPublished,
    /// go-smtp-source's messages all have one Message-Id: their number goes into the subject. The others number theirs.
    Unique,
}

/// The command that makes a tool send a case's load.
pub(super) fn command(
    program: &Path,
    case: &TableCase,
    messages: u64,
    marking: MessageMarking,
    to: SocketAddr,
) -> Command {
    let mut command = Command::new(program);
    if case.tool == SourceTool::Mailrun {
        command.arg("smtp-source");
    }
    let own: &[&str] = match (case.tool, marking) {
        (SourceTool::GoSmtpSource, MessageMarking::AsPublished) => &["-resolve-once"],
        (SourceTool::GoSmtpSource, MessageMarking::Unique) => &["-resolve-once", "-S", "message %d"],
        // Without -M it asks for the machine's name, which it may reject.
        (SourceTool::SmtpSource | SourceTool::Mailrun, _) => &["-M", "smtp.example.com"],
    };
    command.args(own);
    command.args(["-s", &case.sessions.to_string(), "-m", &messages.to_string()]);
    if case.connections == ConnectionReuse::Reused {
        command.arg("-d");
    }
    if case.recipients > 1 {
        command.args(["-r", &case.recipients.to_string()]);
    }
    command.args(["-f", "from@example.com", "-t", "to@example.com", &to.to_string()]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn our_own_links_are_not_taken_for_the_original() {
        let place = tempfile::tempdir().unwrap();
        let directory = |name: &str| {
            let path = place.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let links = directory("links");
        let plain = directory("plain");
        let real = directory("real");
        let own = place.path().canonicalize().unwrap().join("mailrun");
        for path in [&own, &real.join("smtp-source"), &plain.join("smtp-source")] {
            fs::write(path, "").unwrap();
        }
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&own, 0o755);
        mode(&real.join("smtp-source"), 0o755);
        mode(&plain.join("smtp-source"), 0o644);
        symlink(&own, links.join("smtp-source")).unwrap();
        let places = [links, plain, real.clone()];
        assert_eq!(find_program("smtp-source", &own, &places), Some(real.join("smtp-source")));
        assert_eq!(find_program("smtp-sink", &own, &places), None);
    }

    #[test]
    fn each_tool_is_told_the_same() {
        let case = |tool| TableCase {
            tool,
            receiver: SinkTool::Mailrun,
            sessions: 100,
            connections: ConnectionReuse::Reused,
            recipients: 3,
        };
        let to = SocketAddr::from(([127, 0, 0, 1], 2525));
        let words = |tool, marking| {
            let command = command(Path::new("x"), &case(tool), 50, marking, to);
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
            words.join(" ")
        };
        let load = "-s 100 -m 50 -d -r 3 -f from@example.com -t to@example.com 127.0.0.1:2525";
        let go = words(SourceTool::GoSmtpSource, MessageMarking::Unique);
        assert_eq!(go, format!("-resolve-once -S message %d {load}"));
        let theirs = words(SourceTool::SmtpSource, MessageMarking::AsPublished);
        assert_eq!(theirs, format!("-M smtp.example.com {load}"));
        assert_eq!(words(SourceTool::Mailrun, MessageMarking::AsPublished), format!("smtp-source {theirs}"));
    }
}
