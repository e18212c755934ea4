//! Builds the command lines of the programs to compare. All programs get the same queues and messages. They also get
//! the same send window, unless each program runs with its own default window.
use super::environment::BrokerAddress;
use super::options::{CompareOptions, CompareQueues, MadesTool, SendWindow};
use crate::programs::{ComparedProgram, search_path};
use mailrun_process::party_options::value_name;
use mailrun_process::users::PASSWORD_VARIABLE;
use std::path::Path;
use std::process::{Command, Stdio};

/// Directory into which quiver writes its results, within the directory of a run.
pub(super) const QUIVER_OUTPUT: &str = "quiver";
/// File into which `artemis perf` writes its results, within the directory of a run.
pub(super) const PERF_OUTPUT: &str = "perf.json";

impl ComparedProgram for MadesTool {
    fn name(self) -> &'static str {
        match self {
            Self::GoMadesBench => "go-mades-bench",
            Self::Mailrun => "mailrun mades",
            Self::Quiver => "quiver",
            Self::QuiverPython => "quiver-python",
            Self::ArtemisPerf => "artemis-perf",
        }
    }

    fn file_name(self) -> &'static str {
        match self {
            Self::QuiverPython => Self::Quiver.name(),
            Self::ArtemisPerf => "artemis",
            _ => self.name(),
        }
    }

    fn is_own(self) -> bool {
        self == Self::Mailrun
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompareCase {
    pub(super) tool: MadesTool,
    pub(super) window: SendWindow,
}

impl CompareCase {
    pub(super) fn description(&self) -> String {
        match self.window {
            SendWindow::Same(window) => format!("{}, window {window}", self.tool.name()),
            SendWindow::Defaults => format!("{}, its defaults", self.tool.name()),
        }
    }
}

/// Returns all cases. A case is a tool with a send window, and becomes a row of the report. Tools with the same send
/// window get adjacent rows, because they are compared with each other.
pub(super) fn cases(tools: &[MadesTool], windows: &[SendWindow]) -> Vec<CompareCase> {
    let of_window = |&window: &SendWindow| {
        let tools = tools.iter().filter(move |tool| tool.takes(window));
        tools.map(move |&tool| CompareCase { tool, window })
    };
    windows.iter().flat_map(of_window).collect()
}

/// Returns the name by which quiver knows the contestant's client library, or `None` if the contestant is not quiver.
fn implementation(tool: MadesTool) -> Option<&'static str> {
    match tool {
        MadesTool::Quiver => Some("qpid-proton-c"),
        MadesTool::QuiverPython => Some("qpid-proton-python"),
        _ => None,
    }
}

/// Returns true if an installed program can run. An installed quiver may lack the Python modules that it needs. It may
/// also lack the client that `tool` uses, if the client's library was missing during the installation.
pub(super) fn does_run(tool: MadesTool, program: &Path) -> bool {
    let Some(client) = implementation(tool) else { return true };
    let mut command = Command::new(program.with_file_name("quiver-arrow"));
    command.args(["--info", "--impl", client]).env("PATH", search_path());
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Makes the command line of a contestant. The contestant writes its results, such as the record of `mailrun mades`,
/// into `directory`.
pub(super) fn command(
    program: &Path,
    case: &CompareCase,
    options: &CompareOptions,
    broker: &BrokerAddress,
    directory: &Path,
) -> Command {
    let mut command = Command::new(program);
    match case.tool {
        MadesTool::GoMadesBench => original_arguments(&mut command, case, options, broker),
        MadesTool::Mailrun => own_arguments(&mut command, case, options, broker, directory),
        MadesTool::Quiver | MadesTool::QuiverPython => {
            quiver_arguments(&mut command, case, options, broker, directory);
        }
        MadesTool::ArtemisPerf => perf_arguments(&mut command, case, options, broker, directory),
    }
    command
}

fn original_arguments(command: &mut Command, case: &CompareCase, options: &CompareOptions, broker: &BrokerAddress) {
    let queues = CompareQueues::of(options);
    command.args(["-mode", &value_name(options.mode)]);
    command.args(["-n", &options.messages.to_string(), "-size", &options.message_bytes.to_string()]);
    for (side, queue) in [("outbox", &queues.outbox), ("inbox", &queues.inbox)] {
        command.args([&format!("-{side}"), queue, &format!("-{side}-addr"), &broker.url]);
        // Other users of the host can see this password in the process list, but go-mades-bench accepts it in no other
        // way.
        command.args([&format!("-{side}-user"), &broker.user, &format!("-{side}-pass"), &broker.password]);
    }
    command.args(["-outbox-reply", &queues.reply, "-outbox-send-event", &queues.event]);
    if let SendWindow::Same(window) = case.window {
        command.args(["-goroutines", &window.to_string(), "-max-in-transit", &options.max_in_transit.to_string()]);
    }
}

fn quiver_arguments(
    command: &mut Command,
    case: &CompareCase,
    options: &CompareOptions,
    broker: &BrokerAddress,
    directory: &Path,
) {
    // quiver uses PATH to find the programs that are installed beside it, so PATH must contain their directory.
    command.env("PATH", search_path());
    command.args(implementation(case.tool).map(|client| ["--impl", client]).into_iter().flatten());
    command.arg("--output").arg(directory.join(QUIVER_OUTPUT));
    // Set the duration to 0, because quiver otherwise ends after 30 seconds.
    command.args(["--durable", "--duration", "0", "--count", &options.messages.to_string()]);
    command.args(["--body-size", &options.message_bytes.to_string()]);
    let (scheme, host) = broker.scheme_and_host();
    // Other users of the host can see this password in the process list, but quiver accepts it only in the URL.
    let login = format!("{}:{}", broker.user, broker.password);
    command.arg(format!("{scheme}://{login}@{host}/{}", CompareQueues::of(options).inbox));
}

fn perf_arguments(
    command: &mut Command,
    case: &CompareCase,
    options: &CompareOptions,
    broker: &BrokerAddress,
    directory: &Path,
) {
    // Without --silent, `artemis perf` asks the user for missing values, such as another password, and waits.
    command.args(["perf", "client", "--silent", "--protocol", "amqp"]);
    let (scheme, host) = broker.scheme_and_host();
    let trust = if scheme == "amqps" { "?transport.trustAll=true&transport.verifyHost=false" } else { "" };
    command.args(["--url", &format!("{scheme}://{host}{trust}")]);
    // Other users of the host can see this password in the process list, but `artemis perf` accepts it in no other way.
    command.args(["--user", &broker.user, "--password", &broker.password]);
    // Ask for durable messages with --persistent, because --durable of `artemis perf` concerns subscriptions to topics.
    command.args(["--persistent", "--message-count", &options.messages.to_string()]);
    command.args(["--message-size", &options.message_bytes.to_string()]);
    command.arg("--json").arg(directory.join(PERF_OUTPUT));
    if let SendWindow::Same(window) = case.window {
        command.args(["--max-pending", &window.to_string()]);
    }
    command.arg(format!("queue://{}", CompareQueues::of(options).inbox));
}

/// Makes a command that empties the broker's queues. It is run before a contestant that does not empty the queues
/// itself. The command is `mailrun mades`, which empties the queues when it starts. It then sends one message, because
/// it cannot run without sending any.
pub(super) fn purge_command(own: &Path, options: &CompareOptions, broker: &BrokerAddress, directory: &Path) -> Command {
    let case = CompareCase { tool: MadesTool::Mailrun, window: SendWindow::Defaults };
    command(own, &case, &CompareOptions { messages: 1, ..options.clone() }, broker, directory)
}

fn own_arguments(
    command: &mut Command,
    case: &CompareCase,
    options: &CompareOptions,
    broker: &BrokerAddress,
    directory: &Path,
) {
    let queues = CompareQueues::of(options);
    // Send no preflight message, because go-mades-bench sends no message before its load either.
    command.args([
        "mades",
        "--live",
        "off",
        "--no-preflight",
        "--mode",
        &value_name(options.mode),
        "--broker",
        &broker.url,
    ]);
    command.args(["--messages", &options.messages.to_string(), "--payload-size", &options.message_bytes.to_string()]);
    command.args(queues.arguments(options.mode));
    // Stop waiting for a lost message after a third of the run's time limit, so that the run ends by itself before the
    // limit.
    let timeout_s = (options.max_time.as_secs_f64() / 3.0).max(1.0);
    command.args(["--message-timeout", &format!("{timeout_s:.0}s")]).arg("--out").arg(directory);
    command.args(["--user", &broker.user]).env(PASSWORD_VARIABLE, &broker.password);
    if broker.is_shared {
        // Empty the queues at the start, because an earlier run may have left messages in them. go-mades-bench does the
        // same. This is safe because nobody else uses the queues of the comparison.
        command.arg("--purge");
    }
    if let Some(cacert) = &broker.cacert {
        command.arg("--cacert").arg(cacert);
    }
    if let SendWindow::Same(window) = case.window {
        command.args(["--max-unsettled", &window.to_string(), "--max-in-transit", &options.max_in_transit.to_string()]);
    }
}

#[cfg(test)]
pub(super) fn sample() -> CompareOptions {
    CompareOptions {
        mode: super::options::CompareMode::Amqp,
        messages: 500,
        message_bytes: 3000,
        tools: vec![MadesTool::GoMadesBench, MadesTool::Mailrun],
        rounds: 3,
        order: crate::engine::RoundOrder::Alternating,
        windows: vec![SendWindow::Same(16), SendWindow::Defaults],
        max_in_transit: 1000,
        broker: None,
        prefix: "p".to_owned(),
        drop: 0.0,
        max_time: std::time::Duration::from_secs(30),
        live: mailrun_process::live::LiveMode::Off,
    }
}

#[cfg(test)]
mod tests {
    use super::super::CompareMode;
    use super::*;

    fn broker(is_shared: bool) -> BrokerAddress {
        BrokerAddress {
            url: "amqp://127.0.0.1:5672".to_owned(),
            user: "u".to_owned(),
            password: "secret".to_owned(),
            cacert: None,
            is_shared,
        }
    }

    fn words(case: &CompareCase, options: &CompareOptions, is_shared: bool) -> String {
        let command = command(Path::new("x"), case, options, &broker(is_shared), Path::new("/d"));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        words.join(" ")
    }

    #[test]
    fn both_are_told_the_same() {
        let case = |tool| CompareCase { tool, window: SendWindow::Same(16) };
        let theirs = words(&case(MadesTool::GoMadesBench), &sample(), true);
        let queues = "-outbox p.outbox -outbox-addr amqp://127.0.0.1:5672 -outbox-user u -outbox-pass secret -inbox p.inbox \
                      -inbox-addr amqp://127.0.0.1:5672 -inbox-user u -inbox-pass secret -outbox-reply p.outbox.reply \
                      -outbox-send-event p.send.event";
        assert_eq!(theirs, format!("-mode amqp -n 500 -size 3000 {queues} -goroutines 16 -max-in-transit 1000"));
        let own = words(&case(MadesTool::Mailrun), &sample(), true);
        assert!(own.starts_with(
            "mades --live off --no-preflight --mode amqp --broker amqp://127.0.0.1:5672 --messages 500 --payload-size 3000 "
        ));
        assert!(
            own.ends_with("--message-timeout 10s --out /d --user u --purge --max-unsettled 16 --max-in-transit 1000"),
            "{own}"
        );
        assert!(!own.contains("secret"), "it is in the environment");
    }

    #[test]
    fn clients_of_plain_amqp_use_the_inbox() {
        let case = |tool, window| CompareCase { tool, window };
        let broker = "amqp://127.0.0.1:5672";
        for (case, expected) in [
            (
                case(MadesTool::Quiver, SendWindow::Defaults),
                "--impl qpid-proton-c --output /d/quiver --durable --duration 0 --count 500 --body-size 3000 \
                 amqp://u:secret@127.0.0.1:5672/p.inbox"
                    .to_owned(),
            ),
            (
                case(MadesTool::ArtemisPerf, SendWindow::Same(16)),
                format!(
                    "perf client --silent --protocol amqp --url {broker} --user u --password secret --persistent \
                     --message-count 500 --message-size 3000 --json /d/perf.json --max-pending 16 queue://p.inbox"
                ),
            ),
        ] {
            assert_eq!(words(&case, &sample(), true), expected);
        }
    }

    #[test]
    fn each_takes_part_where_its_window_is_comparable() {
        let cases = cases(&[MadesTool::Mailrun, MadesTool::Quiver, MadesTool::ArtemisPerf], &sample().windows);
        let words: Vec<String> = cases.iter().map(CompareCase::description).collect();
        let expected = [
            "mailrun mades, window 16",
            "artemis-perf, window 16",
            "mailrun mades, its defaults",
            "quiver, its defaults",
        ];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_login_in_the_url_is_left_out() {
        for (url, expected) in [
            ("amqp://127.0.0.1:5672/", ("amqp", "127.0.0.1:5672")),
            ("amqps://u:p@[::1]", ("amqps", "[::1]")),
            ("localhost", ("amqp", "localhost")),
        ] {
            let broker = BrokerAddress { url: url.to_owned(), ..broker(true) };
            assert_eq!(broker.scheme_and_host(), expected);
        }
    }

    #[test]
    fn defaults_are_left_to_each() {
        let options = CompareOptions { mode: CompareMode::Toolbox, ..sample() };
        for tool in [MadesTool::GoMadesBench, MadesTool::Mailrun] {
            let words = words(&CompareCase { tool, window: SendWindow::Defaults }, &options, false);
            let is_told = ["-goroutines", "--max-unsettled", "-max-in-transit", "--purge"]
                .iter()
                .any(|word| words.contains(word));
            assert!(!is_told && words.contains(" p.reply "), "{words}");
        }
    }

    #[test]
    fn the_compared_stand_next_to_each_other() {
        let cases = cases(&[MadesTool::GoMadesBench, MadesTool::Mailrun], &sample().windows);
        let words: Vec<String> = cases.iter().map(CompareCase::description).collect();
        let expected = ["go-mades-bench, window 16", "mailrun mades, window 16", "go-mades-bench, its defaults"];
        assert_eq!((words.len(), &words[..3]), (4, expected.map(str::to_owned).as_slice()));
    }
}
