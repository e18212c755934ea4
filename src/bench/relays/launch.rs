//! The start of each relay: its command line, the directory of its mail, and the sign that it listens.
use super::contestant::Contestant;
use super::{port, postfix};
use crate::bench::directory::RunDirectory;
use crate::bench::parties::PartyCommand;
use crate::bench::plan::{BenchOptions, SyscallCounting};
use anyhow::{Context, Result};
use journey::record::Role;
use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// A connection on this host stands at once or not at all; a greeting may take a process to be started first.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);

/// A relay that is to be started.
#[derive(Debug)]
pub(in crate::bench) struct RelayLaunch {
    pub(in crate::bench) command: PartyCommand,
    pub(in crate::bench) ready_signal: ReadySignal,
}

/// The sign that a party takes mail.
#[derive(Debug)]
pub(in crate::bench) enum ReadySignal {
    /// It reports it on its standard output (`live::Event::Listening`).
    Reported,
    /// A connection to that address is greeted; or it reports that it listens.
    Greeting(SocketAddr),
}

impl ReadySignal {
    /// Its address, if a greeting of 220 comes from there.
    pub(in crate::bench) fn greeted_address(&self) -> Option<String> {
        let Self::Greeting(address) = self else { return None };
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(GREETING_TIMEOUT)).ok()?;
        let mut greeting = [0; 512];
        let length = stream.read(&mut greeting).ok()?;
        stream.write_all(b"QUIT\r\n").ok()?;
        // Read to its end: a server that is hung up on might complain.
        let _ = stream.read(&mut [0; 512]);
        greeting[..length].starts_with(b"220").then(|| address.to_string())
    }
}

/// Makes ready all that it needs, the relay handing on to `sink`; `None` for one that is running already.
///
/// # Errors
/// If it cannot run here.
pub(in crate::bench) fn prepare(
    contestant: &Contestant,
    options: &BenchOptions,
    program: &Path,
    directory: &RunDirectory,
    sink: &str,
) -> Result<Option<RelayLaunch>> {
    let spool = directory.spool();
    let starting = match contestant {
        Contestant::None | Contestant::Running { .. } => return Ok(None),
        Contestant::Mailrun(durability) => {
            let record = directory.party_files(Role::Relay).record;
            let [spool, record] = [&spool, &record].map(|path| path.to_string_lossy().into_owned());
            let durability = durability.option_value();
            let mut words: Vec<String> = match options.listener.is_plain() {
                true => ["relay", "--listen", "127.0.0.1:0", "--to", sink, "--spool", &spool].map(str::to_owned).into(),
                false => {
                    let file = options.listener.write(directory, sink)?;
                    ["relay", "--config", &file].map(str::to_owned).into()
                }
            };
            words.extend(["--durability", durability, "--json", &record, "--live", "json"].map(str::to_owned));
            let order = PartyCommand::relay(program, words, directory);
            RelayLaunch { command: order, ready_signal: ReadySignal::Reported }
        }
        Contestant::Postfix => postfix::prepare(directory, sink)?,
        Contestant::Command(words) => {
            // It will hold mail.
            let made = DirBuilder::new().recursive(true).mode(0o700).create(&spool);
            made.with_context(|| format!("cannot create {}", spool.display()))?;
            let listen = port::free()?;
            let words = fill_placeholders(words, &listen, sink, &spool);
            let order = PartyCommand::relay(Path::new(&words[0]), words[1..].to_vec(), directory);
            RelayLaunch { command: order, ready_signal: ReadySignal::Greeting(listen) }
        }
    };
    Ok(Some(match &options.syscall_counting {
        SyscallCounting::Off => starting,
        SyscallCounting::Strace(strace) => {
            RelayLaunch { command: super::strace::wrap_command(starting.command, strace, directory), ..starting }
        }
    }))
}

fn fill_placeholders(words: &[String], listen: &SocketAddr, sink: &str, spool: &Path) -> Vec<String> {
    let fill = |word: &String| {
        let word = word.replace("{listen}", &listen.to_string()).replace("{to}", sink);
        word.replace("{spool}", &spool.to_string_lossy())
    };
    words.iter().map(fill).collect()
}

/// Checks that a relay can run here, before anything is started.
///
/// # Errors
/// If not, with what to do.
pub(super) fn check(contestant: &Contestant) -> Result<()> {
    match contestant {
        Contestant::Postfix => postfix::find().map(drop),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_command_is_told_where() {
        let words = ["mta", "-l", "{listen}", "--next={to}", "-q{spool}"].map(str::to_owned);
        let listen = SocketAddr::from(([127, 0, 0, 1], 20_001));
        let filled = fill_placeholders(&words, &listen, "127.0.0.1:9", Path::new("/d/relay.spool"));
        assert_eq!(filled, ["mta", "-l", "127.0.0.1:20001", "--next=127.0.0.1:9", "-q/d/relay.spool"]);
    }

    #[test]
    fn only_a_greeting_is_an_answer() {
        for (greeting, expected) in [("220 mx\r\n", true), ("554 no\r\n", false), ("", false)] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                stream.write_all(greeting.as_bytes()).unwrap();
                // Until the client has sent QUIT or hung up.
                let _ = stream.shutdown(std::net::Shutdown::Write).and_then(|()| stream.read(&mut [0; 64]));
            });
            assert_eq!(
                ReadySignal::Greeting(address).greeted_address(),
                expected.then(|| address.to_string()),
                "{greeting:?}"
            );
            server.join().unwrap();
            assert_eq!(ReadySignal::Greeting(address).greeted_address(), None, "nobody listens now");
        }
        assert_eq!(ReadySignal::Reported.greeted_address(), None);
    }
}
