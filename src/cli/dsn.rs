//! Options for the delivery status notifications that the sender asks for (NOTIFY, RET, ENVID).
use clap::{Args, ValueEnum};
use mailrun_load::source::{AddressPattern, DsnParameters, parse_envelope_id};
use mailrun_smtp::dsn::{Notify, Return};

/// Set on each option, because the heading of a struct would also apply to the options that follow it.
const HEADING: &str = "Notifications (RFC 3461), requested only if the server offers DSN";

/// Parameters of DSN (RFC 3461).
#[derive(Debug, Args)]
pub(super) struct DsnArgs {
    /// When the server should send a notification: never, or some of success,failure,delay.
    #[arg(long, value_name = "WHEN", value_parser = notify, help_heading = HEADING)]
    dsn_notify: Option<Notify>,
    /// How much of the message a notification should return.
    #[arg(long, value_enum, value_name = "PART", help_heading = HEADING)]
    dsn_ret: Option<DsnReturnArg>,
    /// Identifier of the message in notifications: a text, or a pattern in which an n in braces is replaced by the
    /// number of the message.
    // clap would make a line break of `{n}`.
    #[arg(long, value_name = "TEXT", value_parser = parse_envelope_id, help_heading = HEADING)]
    dsn_envid: Option<AddressPattern>,
    /// Send ORCPT with each recipient.
    #[arg(long, help_heading = HEADING)]
    dsn_orcpt: bool,
}

/// Returned part of the message, as typed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum DsnReturnArg {
    /// The whole message
    Full,
    /// The header only
    Hdrs,
}

impl From<DsnReturnArg> for Return {
    fn from(typed: DsnReturnArg) -> Self {
        match typed {
            DsnReturnArg::Full => Self::Full,
            DsnReturnArg::Hdrs => Self::Header,
        }
    }
}

fn notify(text: &str) -> Result<Notify, String> {
    let wrong = || format!("{text:?} must be never, or a list of success,failure,delay");
    Notify::parse(text.as_bytes()).ok_or_else(wrong)
}

impl DsnArgs {
    /// The options in the engine's types.
    pub(super) fn notices(&self) -> DsnParameters {
        DsnParameters {
            notify: self.dsn_notify,
            returns: self.dsn_ret.map(Return::from),
            envelope_id: self.dsn_envid.clone(),
            original_recipient: self.dsn_orcpt,
        }
    }

    /// The options as a source's command line.
    pub(super) fn arguments(&self) -> Vec<String> {
        let valued = [
            ("--dsn-notify", self.dsn_notify.map(|notify| notify.render().to_lowercase())),
            ("--dsn-ret", self.dsn_ret.map(|part| Return::from(part).keyword().to_lowercase())),
            ("--dsn-envid", self.dsn_envid.as_ref().map(|pattern| pattern.expression().to_owned())),
        ];
        let words = valued.into_iter().filter_map(|(option, value)| Some(format!("{option}={}", value?)));
        words.chain(self.dsn_orcpt.then(|| "--dsn-orcpt".to_owned())).collect()
    }
}
