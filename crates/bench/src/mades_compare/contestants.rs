//! The contestants and their command lines. All contestants get the same queues, messages and
//! windows.
use super::environment::BrokerAddress;
use super::options::{CompareOptions, CompareQueues, MadesTool, SendWindow};
use crate::programs::ComparedProgram;
use mailrun_process::party_options::value_name;
use mailrun_process::users::PASSWORD_VARIABLE;
use std::path::Path;
use std::process::Command;

impl ComparedProgram for MadesTool {
    fn name(self) -> &'static str {
        match self {
            Self::GoMadesBench => "go-mades-bench",
            Self::Mailrun => "mailrun mades",
        }
    }

    fn is_own(self) -> bool {
        self == Self::Mailrun
    }
}

/// A row of the report: a tool, and the number of sends that may be outstanding.
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

/// Makes all rows. Rows that are compared with each other stand next to each other.
pub(super) fn cases(tools: &[MadesTool], windows: &[SendWindow]) -> Vec<CompareCase> {
    windows.iter().flat_map(|&window| tools.iter().map(move |&tool| CompareCase { tool, window })).collect()
}

/// Makes the command line of a contestant. Our own program writes its record into `directory`.
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
    }
    command
}

fn original_arguments(command: &mut Command, case: &CompareCase, options: &CompareOptions, broker: &BrokerAddress) {
    let queues = CompareQueues::of(options);
    command.args(["-mode", &value_name(options.mode)]);
    command.args(["-n", &options.messages.to_string(), "-size", &options.message_bytes.to_string()]);
    for (side, queue) in [("outbox", &queues.outbox), ("inbox", &queues.inbox)] {
        command.args([&format!("-{side}"), queue, &format!("-{side}-addr"), &broker.url]);
        // go-mades-bench accepts a password only on its command line.
        command.args([&format!("-{side}-user"), &broker.user, &format!("-{side}-pass"), &broker.password]);
    }
    command.args(["-outbox-reply", &queues.reply, "-outbox-send-event", &queues.event]);
    if let SendWindow::Same(window) = case.window {
        command.args(["-goroutines", &window.to_string(), "-max-in-transit", &options.max_in_transit.to_string()]);
    }
}

fn own_arguments(
    command: &mut Command,
    case: &CompareCase,
    options: &CompareOptions,
    broker: &BrokerAddress,
    directory: &Path,
) {
    let queues = CompareQueues::of(options);
    // Send no preflight message, because go-mades-bench does not send a message before its load
    // either.
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
    // Give up lost messages after a third of the time limit, before the limit ends the whole run.
    let timeout_s = (options.max_time.as_secs_f64() / 3.0).max(1.0);
    command.args(["--message-timeout", &format!("{timeout_s:.0}s")]).arg("--out").arg(directory);
    command.args(["--user", &broker.user]).env(PASSWORD_VARIABLE, &broker.password);
    if broker.is_shared {
        // go-mades-bench also empties the queues when it starts. This is safe because nobody else
        // uses the comparison's queues.
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

    fn words(case: &CompareCase, options: &CompareOptions, is_shared: bool) -> String {
        let at = BrokerAddress {
            url: "amqp://127.0.0.1:5672".to_owned(),
            user: "u".to_owned(),
            password: "secret".to_owned(),
            cacert: None,
            is_shared,
        };
        let command = command(Path::new("x"), case, options, &at, Path::new("/d"));
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
