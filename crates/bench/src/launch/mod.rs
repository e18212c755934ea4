//! Describes how each relay is started: its command line, the directory of its mail, and the sign
//! that the relay is ready.
mod port;
mod ready_signal;
pub(super) mod strace;

use super::directory::RunDirectory;
use super::parties::{GroupLeader, PartyCommand};
use super::plan::{BenchOptions, SyscallCounting, cpus_option};
use super::programs::own_program;
use super::recipe::{Places, Recipe, ServerCommand, next_hop};
use super::relay::{Relay, RelayCommand};
use anyhow::{Context, Result};
use mailrun_measurement::record::Role;
pub(super) use port::free as free_port;
pub(super) use ready_signal::{ReadySignal, RelayLaunch};
use std::fs::DirBuilder;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::Duration;

/// Time limit for a relay to become ready, if no recipe describes how to start the relay. The limit is long because the
/// user's command may start a Java virtual machine.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Prepares everything that the relay needs to forward mail to `sink`. Returns `None` if the bench
/// uses no relay, or a relay that already runs.
///
/// # Errors
/// Returns an error if the relay cannot run on this host.
pub(crate) fn prepare(
    relay: &Relay,
    options: &BenchOptions,
    program: &Path,
    directory: &RunDirectory,
    sink: &str,
) -> Result<Option<RelayLaunch>> {
    let spool = directory.spool();
    let mut launch = match relay {
        Relay::None | Relay::Running { .. } => return Ok(None),
        Relay::Mailrun(durability) => {
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
            words.extend(options.placement.relay.iter().map(cpus_option));
            words.extend(options.party_options.words());
            words.extend(["--durability", durability, "--json", &record, "--live", "json"].map(str::to_owned));
            let command = PartyCommand::relay(program, words, directory);
            RelayLaunch { command, ready_signal: ReadySignal::Reported, ready_within: READY_TIMEOUT }
        }
        Relay::Recipe(recipe) => {
            let (to, listen) = (next_hop(sink)?, free_port()?);
            let places = Places::in_directory(spool, listen, to, program);
            launch_server(recipe, recipe.prepare(&places)?, &places, directory)
        }
        Relay::Command(RelayCommand { words, .. }) => {
            // The directory will hold mail, so only its owner may read it.
            let result = DirBuilder::new().recursive(true).mode(0o700).create(&spool);
            result.with_context(|| format!("cannot create {}", spool.display()))?;
            let listen = free_port()?;
            let words = fill_placeholders(words, &listen, sink, &spool);
            let command = PartyCommand::relay(Path::new(&words[0]), words[1..].to_vec(), directory);
            RelayLaunch { command, ready_signal: ReadySignal::Greeting(listen), ready_within: READY_TIMEOUT }
        }
    };
    launch.command.cores = options.server_cores;
    // Do not bind our own relay to processors here, because its option `--cpus` already binds each of its threads.
    launch.command.cpus = options.placement.relay.clone().filter(|_| !matches!(relay, Relay::Mailrun(_)));
    Ok(Some(match &options.syscall_counting {
        SyscallCounting::Off => launch,
        SyscallCounting::Strace(strace) => {
            RelayLaunch { command: strace::wrap_command(launch.command, strace, directory), ..launch }
        }
    }))
}

/// Describes how to start a server that a recipe has prepared. `server` is the command that `Recipe::prepare` returned.
pub(crate) fn launch_server(
    recipe: &Recipe,
    server: ServerCommand,
    places: &Places,
    directory: &RunDirectory,
) -> RelayLaunch {
    let mut command = PartyCommand::relay(&server.program, server.arguments, directory);
    command.environment = server.environment;
    command.group_leader = if recipe.has_own_session() { GroupLeader::Party } else { GroupLeader::Bench };
    command.recipe_directory = Some(places.directory.clone());
    command.short_link.clone_from(&places.short_link);
    let ready_signal = ReadySignal::Greeting(places.listen);
    RelayLaunch { command, ready_signal, ready_within: recipe.ready_within() }
}

fn fill_placeholders(words: &[String], listen: &SocketAddr, sink: &str, spool: &Path) -> Vec<String> {
    let fill = |word: &String| {
        let word = word.replace("{listen}", &listen.to_string()).replace("{to}", sink);
        word.replace("{spool}", &spool.to_string_lossy())
    };
    words.iter().map(fill).collect()
}

/// Checks, before the first process is started, that the relay can run on this host.
///
/// # Errors
/// Returns an error that says what to do if the relay cannot run here.
pub(crate) fn check(relay: &Relay) -> Result<()> {
    match relay {
        Relay::Recipe(recipe) => recipe.check_host(&own_program()?),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_told_where() {
        let words = ["mta", "-l", "{listen}", "--next={to}", "-q{spool}"].map(str::to_owned);
        let listen = SocketAddr::from(([127, 0, 0, 1], 20_001));
        let filled = fill_placeholders(&words, &listen, "127.0.0.1:9", Path::new("/d/relay.spool"));
        assert_eq!(filled, ["mta", "-l", "127.0.0.1:20001", "--next=127.0.0.1:9", "-q/d/relay.spool"]);
    }
}
