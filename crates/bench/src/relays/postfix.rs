//! A private Postfix: its own configuration, queue and log in the run directory, on a port that was free.
//! `/etc/postfix` is neither read nor written.
//!
//! Its master(8) is started as `postfix start-fg` would start it, so it is a child of the bench's: its processor time,
//! with that of all daemons that have ended, is in the kernel's accounts (`tree`), and it cannot outlive a run.
use super::port;
use super::ready_signal::{ReadySignal, RelayLaunch};
use crate::directory::RunDirectory;
use crate::parties::{GroupLeader, PartyCommand};
use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// main.cf, as far as every private Postfix of ours has it, those of the tests too: all of it in a directory of its own, no
/// DNS, no other users.
const BASE_CONFIG: &str = include_str!("postfix/main.cf");

/// The rest of main.cf. The published benchmark's own was never published; this is Debian's Postfix made to relay
/// everything to one sink as fast as it can: 250 connections to it from the beginning (stock: 5), no limits in the way.
const FAST_CONFIG: &str = "\
smtpd_helo_restrictions =
smtpd_sender_restrictions =
smtpd_recipient_restrictions =
smtpd_data_restrictions =
relayhost = [HOST]:PORT
default_process_limit = 300
smtp_destination_concurrency_limit = 250
initial_destination_concurrency = 250
smtpd_client_connection_count_limit = 500
message_size_limit = 0
";

/// The service that takes mail.
const LISTENER: &str = "LISTEN inet n - n - - smtpd -o receive_override_options=no_header_body_checks\n";

/// master.cf: as it is installed, without chroot, and without the services that a relay has no use for.
const SERVICES: &str = include_str!("postfix/master.cf");

/// The program.
///
/// # Errors
/// If it is not installed, or the user may not run it.
pub(super) fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let found = places.map(|place| place.join("postfix")).find(|path| path.is_file());
    let found = found.context("cannot compare with Postfix: there is no `postfix` in PATH or /usr/sbin; install it")?;
    ensure!(rustix::process::geteuid().is_root(), "--relay postfix needs root");
    Ok(found)
}

/// Sets one up that hands on to `sink`.
pub(super) fn prepare(directory: &RunDirectory, sink: &str) -> Result<RelayLaunch> {
    let program = find()?;
    let sink: SocketAddr = sink.parse().with_context(|| format!("Postfix cannot deliver to {sink}"))?;
    let listen = port::free()?;
    let home = directory.spool();
    write_config(&home, listen, sink)?;
    let configuration = home.join("conf");
    // Postfix makes the rest of the tree, with the owners that it needs.
    run_command(&program, &["-c".as_ref(), configuration.as_os_str(), "check".as_ref()])?;
    let words: [&OsStr; 4] = ["-c".as_ref(), configuration.as_os_str(), "-h".as_ref(), "daemon_directory".as_ref()];
    let daemons = run_command(&program.with_file_name("postconf"), &words)?;
    let words = ["-s", "-c", &configuration.to_string_lossy()].map(str::to_owned).to_vec();
    let mut command = PartyCommand::relay(&Path::new(daemons.trim()).join("master"), words, directory);
    command.environment.push(("MAIL_CONFIG", configuration));
    command.group_leader = GroupLeader::Party;
    Ok(RelayLaunch { command, ready_signal: ReadySignal::Greeting(listen) })
}

fn write_config(home: &Path, listen: SocketAddr, sink: SocketAddr) -> Result<()> {
    let cannot = || format!("cannot set up Postfix in {}", home.display());
    let configuration = home.join("conf");
    for place in [&configuration, &home.join("queue")] {
        fs::create_dir_all(place).with_context(cannot)?;
    }
    fs::set_permissions(home, Permissions::from_mode(0o755)).with_context(cannot)?;
    if let Some(closed) = home.ancestors().skip(1).find(|place| !is_traversable(place)) {
        bail!(
            "cannot set up Postfix in {}: its daemons run as other users without access to {}; chmod o+x it, or use \
             --out to name another directory",
            home.display(),
            closed.display()
        );
    }
    fs::write(configuration.join("main.cf"), main(home, sink)).with_context(cannot)?;
    fs::write(configuration.join("master.cf"), master(listen)).with_context(cannot)
}

fn main(home: &Path, sink: SocketAddr) -> String {
    let main = BASE_CONFIG.replace("DIR", &home.to_string_lossy()) + FAST_CONFIG;
    main.replace("HOST", &sink.ip().to_string()).replace("PORT", &sink.port().to_string())
}

fn master(listen: SocketAddr) -> String {
    LISTENER.replace("LISTEN", &listen.to_string()) + SERVICES
}

fn is_traversable(place: &Path) -> bool {
    place.as_os_str().is_empty() || place.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o001 != 0)
}

/// Runs a command to its end; what it wrote.
fn run_command(program: &Path, words: &[&OsStr]) -> Result<String> {
    let name = program.display();
    let output = Command::new(program).args(words).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {name}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{name} ended with {}: {}",
        output.status,
        stderr.lines().last().unwrap_or_default()
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_in_its_own_place() {
        let main = main(Path::new("/run/x"), SocketAddr::from(([127, 0, 0, 1], 40_001)));
        assert!(main.contains("queue_directory = /run/x/queue\n") && main.contains("relayhost = [127.0.0.1]:40001\n"));
        assert!(!main.contains("DIR") && !main.contains("PORT"), "{main}");
    }

    #[test]
    fn a_place_that_its_daemons_cannot_enter_is_said_so() {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), Permissions::from_mode(0o700)).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let why = write_config(&place.path().join("a/relay.spool"), address, address).unwrap_err().to_string();
        assert!(why.contains("its daemons run as other users") && why.contains("--out"), "{why}");
        fs::set_permissions(place.path(), Permissions::from_mode(0o755)).unwrap();
        write_config(&place.path().join("a/relay.spool"), address, address).unwrap();
    }
}
