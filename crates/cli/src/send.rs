//! `mailrun send`: turns the arguments into one message, and into the servers to try.
use crate::options::connection::ConnectionArgs;
use crate::options::server::ServerArg;
use crate::options::values;
use crate::report::messages::say;
use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use jiff::Timestamp;
use mailrun_load::send::{
    self, Attachment, DEFAULT_BODY, HeaderField, MessageParts, QuitAfter, SendOptions, SendTarget,
};
use mailrun_load::source::{AllowedTargets, DsnParameters};
use mailrun_measurement::record::Pipelining;
use mailrun_net::{Endpoint, clock};
use mailrun_process::outputs::new_run_id;
use mailrun_relay::config::DeliveryScope;
use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Sends one message, and shows the dialogue with the server
///
/// WHERE is a server, or a recipient whose mail servers are looked up in DNS. The last line says what became of the
/// message, and the exit status says at which step the session ended.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct SendArgs {
    /// Server to send to: HOST[:PORT], smtp://HOST, smtps://HOST, lmtp://HOST, unix:PATH; or the recipient
    /// ann@a.example, whose server is looked up [default: look up the server of the first --to].
    #[arg(value_name = "WHERE", value_parser = Destination::parse)]
    destination: Option<Destination>,
    /// Server to send to, like WHERE.
    #[arg(long, value_name = "SERVER", value_parser = ServerArg::parse, conflicts_with = "destination", hide = true)]
    server: Option<ServerArg>,
    /// Port of the server, if WHERE does not name a port [default: 25; smtps:// 465, lmtp:// 24].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Talk to this command through its standard input and output, instead of to a server.
    #[arg(
        long,
        value_name = "COMMAND",
        conflicts_with_all = ["destination", "server", "port", "bind", "proxy_protocol", "connect_timeout"]
    )]
    pipe: Option<String>,
    /// Send even to a public address. Use it only with a server of your own.
    #[arg(long, env = "MAILRUN_ALLOW_PUBLIC", value_parser = clap::builder::FalseyValueParser::new(), hide_env = true)]
    allow_public: bool,
    #[command(flatten)]
    envelope: SendEnvelopeArgs,
    #[command(flatten)]
    content: SendContentArgs,
    #[command(flatten)]
    session: SendSessionArgs,
    #[command(flatten)]
    approach: ConnectionArgs,
    #[command(flatten)]
    notices: DsnParameters,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Envelope")]
struct SendEnvelopeArgs {
    /// Recipient, repeatable.
    #[arg(long, visible_alias = "rcpt", value_name = "ADDRESS")]
    to: Vec<String>,
    /// Sender; <> is the null sender, as in bounces.
    #[arg(long, value_name = "ADDRESS", default_value = "from@example.com")]
    from: String,
    /// Name of this host in EHLO or LHLO.
    #[arg(long, visible_alias = "helo", value_name = "NAME", default_value = "mailrun.example.com", value_parser = values::host_name)]
    ehlo: String,
    /// Send --from and --to exactly as they are. They follow MAIL FROM: and RCPT TO: with their own brackets and
    /// parameters.
    #[arg(long, conflicts_with_all = ["notify", "returns", "envelope_id", "original_recipient"])]
    raw: bool,
}

/// Options for the message: its header fields, text and attachments, or a file with the complete message.
#[derive(Debug, Args)]
#[command(next_help_heading = "Message")]
struct SendContentArgs {
    /// Subject [default: test and the time].
    #[arg(long, value_name = "TEXT", value_parser = subject)]
    subject: Option<HeaderField>,
    /// Header field, repeatable. It replaces all fields of its name.
    #[arg(long, value_name = "NAME: VALUE")]
    header: Vec<HeaderField>,
    /// Text of the message; @FILE reads it from a file, and - from standard input.
    #[arg(long, value_name = "TEXT")]
    body: Option<String>,
    /// Attach a file, repeatable. Its media type may follow a semicolon: report.bin;application/pdf.
    #[arg(long, value_name = "FILE[;TYPE]")]
    attach: Vec<String>,
    /// Send this message (header, empty line, body) as it is; - reads standard input.
    #[arg(long, value_name = "MESSAGE.EML", conflicts_with_all = ["body", "attach"])]
    file: Option<PathBuf>,
    /// Print the message instead of sending it.
    #[arg(long)]
    dump: bool,
}

fn subject(text: &str) -> Result<HeaderField, String> {
    HeaderField::new("Subject", text)
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Session")]
struct SendSessionArgs {
    /// End the session after this point, with QUIT if the protocol allows it.
    #[arg(long, value_enum, value_name = "WHERE", ignore_case = true)]
    quit_after: Option<QuitAfter>,
    /// Show the certificates of the server with names, dates and fingerprints, and whether they are trusted.
    #[arg(long)]
    show_cert: bool,
    /// Print only what became of the message.
    #[arg(short, long)]
    quiet: bool,
    /// Commands sent without waiting for replies.
    #[arg(long, value_enum, default_value = "off")]
    pipelining: Pipelining,
    /// Time limit for connecting.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = values::some_duration)]
    connect_timeout: Duration,
    /// Time limit for each reply.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::some_duration)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  mailrun send 127.0.0.1:2525 --to ann@a.example
  mailrun send ann@a.example                              finds the server of a.example (MX)
  mailrun send mx.example --to ann@a.example --from '<>' --subject Bounce --body @text.txt
  mailrun send mx.example:587 --tls starttls --user joe --quit-after auth
  mailrun send smtps://mx.example --show-cert --quit-after tls
  mailrun send mx.example --to ann@a.example --attach report.pdf --header 'X-Test: 1'
  mailrun send lmtp:unix:/run/lmtp.sock --to ann --raw --file message.eml
  mailrun send --pipe 'sendmail -bs' --to ann@a.example

Exit status:
    0  accepted for all recipients, or ended after --quit-after
    1  accepted for some of the recipients
    2  no connection; or the options are wrong
    5  the command of --pipe ended too soon
    6  the server closed the connection
   21  rejected or no reply at the greeting
   22  EHLO             23  MAIL            24  RCPT, all recipients
   25  DATA             26  the message     28  AUTH
   29  TLS, STARTTLS    32  EHLO after TLS  33  XCLIENT";

/// The argument WHERE: either a server, or a recipient whose mail server must be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Destination {
    Server(ServerArg),
    Recipient(String),
}

impl Destination {
    fn parse(text: &str) -> Result<Self, String> {
        let is_server = text.contains("://") || text.starts_with("unix:") || text.contains(":unix:");
        match text.rsplit_once('@') {
            Some((local_part, domain)) if !is_server && !local_part.is_empty() && !domain.is_empty() => {
                Ok(Self::Recipient(text.to_owned()))
            }
            _ => ServerArg::parse(text).map(Self::Server),
        }
    }
}

impl SendArgs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let (to, server) = self.recipients_and_server()?;
        let from = if self.envelope.raw { self.envelope.from.clone() } else { without_brackets(&self.envelope.from) };
        let is_mail_needed = self.content.dump || self.session.quit_after.is_none_or(needs_recipient);
        ensure!(!is_mail_needed || !to.is_empty(), "say whom the message is for: --to ADDRESS");
        let message = self.content.message(&from, &to, &self.envelope.ehlo)?;
        if self.content.dump {
            io::stdout().lock().write_all(&message).context("cannot write standard output")?;
            return Ok(ExitCode::SUCCESS);
        }
        let approach =
            server.as_ref().map_or_else(|| Ok(self.approach.clone()), |server| self.approach.for_server(server))?;
        let report = send::send(SendOptions {
            targets: self.targets(server.as_ref(), &to)?,
            hello: self.envelope.ehlo,
            from,
            to,
            is_verbatim: self.envelope.raw,
            message,
            transport: approach.options()?,
            pipelining: self.session.pipelining,
            dsn_parameters: self.notices,
            quit_after: self.session.quit_after,
            connect_timeout: self.session.connect_timeout,
            timeout: self.session.timeout,
            shows_certificate: self.session.show_cert,
            keeps_certificate: false,
            shows_dialogue: !self.session.quiet,
        })?;
        say(&format!("{}\n", mailrun_text::printable::printable(&report.line())))?;
        Ok(ExitCode::from(report.status()))
    }

    fn recipients_and_server(&self) -> Result<(Vec<String>, Option<ServerArg>)> {
        let mut to = self.envelope.to.clone();
        let server = match (&self.destination, &self.server) {
            (Some(Destination::Server(server)), _) | (None, Some(server)) => Some(server.clone()),
            (Some(Destination::Recipient(recipient)), _) => {
                to.insert(0, recipient.clone());
                None
            }
            (None, None) => None,
        };
        let server = match (server, self.port) {
            (Some(server), Some(port)) => {
                let other = server.at_port(port);
                let url = server.url();
                Some(other.ok_or_else(|| anyhow!("--port {port}: {url} says where to connect; leave --port out"))?)
            }
            (server, _) => server,
        };
        if !self.envelope.raw {
            to.iter_mut().for_each(|to| *to = without_brackets(to));
        }
        Ok((to, server))
    }

    fn targets(&self, server: Option<&ServerArg>, to: &[String]) -> Result<Vec<SendTarget>> {
        if let Some(command) = &self.pipe {
            return Ok(vec![SendTarget::Command(command.clone())]);
        }
        if let Some(server) = server {
            let reach = if self.allow_public { AllowedTargets::Public } else { AllowedTargets::Local };
            return send::targets_of(server.address(), reach);
        }
        let first = to.first().ok_or_else(|| anyhow!("say where to send: SERVER, ann@a.example or --pipe COMMAND"))?;
        let domain = first.rsplit_once('@').map(|(_, domain)| domain.trim_end_matches('>'));
        let domain =
            domain.ok_or_else(|| anyhow!("{first} has no domain whose server could be looked up; add SERVER"))?;
        let scope = if self.allow_public { DeliveryScope::Anywhere } else { DeliveryScope::Local };
        let seed = clock::wall().as_nanos() as u64;
        let servers = mailrun_relay::mail_servers(domain, self.port.unwrap_or(25), scope, seed)?;
        let target = |(name, address)| SendTarget::Server { name, endpoint: Endpoint::Tcp(address) };
        Ok(servers.into_iter().map(target).collect())
    }
}

fn needs_recipient(point: QuitAfter) -> bool {
    matches!(point, QuitAfter::Mail | QuitAfter::Rcpt | QuitAfter::Data)
}

/// Removes the angle brackets around an address, because users may type `<a@b>` or `a@b`. The null sender `<>` becomes
/// an empty text.
pub(super) fn without_brackets(address: &str) -> String {
    let inner = address.strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
    inner.unwrap_or(address).to_owned()
}

const MAX_FILE_BYTES: u64 = 1 << 30;

impl SendContentArgs {
    /// Returns the message of `--file`, or a newly composed one, with the header fields that the user gave. All lines
    /// end with CRLF.
    fn message(&self, from: &str, to: &[String], host: &str) -> Result<Vec<u8>> {
        let message = match &self.file {
            Some(file) => send::with_crlf(&read(file)?).with_context(|| format!("--file {}", file.display()))?,
            None => {
                let body = self.body()?;
                let attachments = self.attach.iter().map(|text| attachment(text)).collect::<Result<Vec<_>>>()?;
                send::compose(&MessageParts {
                    from,
                    to,
                    host,
                    body: &body,
                    attachments: &attachments,
                    now: Timestamp::now(),
                    id: u128::from_be_bytes(new_run_id()?.0),
                })?
            }
        };
        Ok(self.subject.iter().chain(&self.header).fold(message, |message, field| send::set_header(&message, field)))
    }

    fn body(&self) -> Result<String> {
        let bytes = match self.body.as_deref() {
            None => return Ok(DEFAULT_BODY.to_owned()),
            Some("-") => read(Path::new("-"))?,
            Some(text) => match text.strip_prefix('@') {
                Some(file) => read(Path::new(file))?,
                None => return Ok(text.to_owned()),
            },
        };
        String::from_utf8(bytes)
            .map_err(|_| anyhow!("--body is not text in UTF-8; use --attach, or --file for a whole message"))
    }
}

/// Reads a file, or standard input if its name is `-`.
fn read(file: &Path) -> Result<Vec<u8>> {
    let name = file.display();
    let mut content = Vec::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(MAX_FILE_BYTES + 1).read_to_end(&mut content)
    } else {
        fs::File::open(file).and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut content))
    };
    read.map_err(|error| anyhow!("cannot read {name}: {}", mailrun_process::reason::reason(&error)))?;
    ensure!(content.len() as u64 <= MAX_FILE_BYTES, "{name} is larger than 1 GiB");
    Ok(content)
}

/// Reads an attachment, which is written as FILE or FILE;TYPE. An `@` in front is ignored, because swaks writes @FILE.
fn attachment(text: &str) -> Result<Attachment> {
    let text = text.strip_prefix('@').unwrap_or(text);
    let (file, media_type) = match text.rsplit_once(';') {
        Some((file, media_type)) if media_type.contains('/') => (file, media_type.trim()),
        _ => (text, media_type(text)),
    };
    let is_token = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"(),:;<=>@[\\]/".contains(&byte))
    };
    if media_type.split('/').count() != 2 || !media_type.split('/').all(is_token) {
        bail!("--attach: {media_type:?} is not a media type such as application/pdf");
    }
    let path = Path::new(file);
    let name = path.file_name().map_or_else(|| "file".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Attachment { name, media_type: media_type.to_owned(), content: read(path)? })
}

/// Media types by file name extension. Any other file is `application/octet-stream`, unless the user types a media
/// type.
const MEDIA_TYPES: [(&str, &str); 12] = [
    ("csv", "text/csv"),
    ("eml", "message/rfc822"),
    ("gif", "image/gif"),
    ("gz", "application/gzip"),
    ("html", "text/html"),
    ("jpeg", "image/jpeg"),
    ("jpg", "image/jpeg"),
    ("json", "application/json"),
    ("pdf", "application/pdf"),
    ("png", "image/png"),
    ("txt", "text/plain"),
    ("zip", "application/zip"),
];

fn media_type(file: &str) -> &'static str {
    let ending = Path::new(file).extension().and_then(|ending| ending.to_str()).unwrap_or_default();
    let known = MEDIA_TYPES.iter().find(|(known, _)| known.eq_ignore_ascii_case(ending));
    known.map_or("application/octet-stream", |(_, media_type)| media_type)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct OneSend {
        #[command(flatten)]
        send: SendArgs,
    }

    fn parse(words: &[&str]) -> SendArgs {
        OneSend::try_parse_from([&["send"], words].concat()).unwrap_or_else(|error| panic!("{words:?}: {error}")).send
    }

    fn targets(words: &[&str]) -> Result<Vec<String>, String> {
        let typed = parse(words);
        let (to, server) = typed.recipients_and_server().unwrap();
        let found = typed.targets(server.as_ref(), &to).map_err(|error| error.to_string())?;
        Ok(found
            .into_iter()
            .map(|target| match target {
                SendTarget::Server { name, endpoint } => format!("{name} {endpoint}"),
                SendTarget::Command(command) => command,
            })
            .collect())
    }

    #[test]
    fn the_destination_is_a_server_a_recipient_or_a_command() {
        for (words, expected) in [
            (&["127.0.0.1:2525"][..], Ok("127.0.0.1 127.0.0.1:2525")),
            (&["--server", "127.0.0.1:2525"], Ok("127.0.0.1 127.0.0.1:2525")),
            (&["[::1]:2525"], Ok("::1 [::1]:2525")),
            (&["unix:/run/a@b.sock"], Ok("localhost unix:/run/a@b.sock")),
            (&["ann@[127.0.0.1]", "--port", "2525"], Ok("127.0.0.1 127.0.0.1:2525")),
            (&["--to", "<ann@[127.0.0.1]>"], Ok("127.0.0.1 127.0.0.1:25")),
            (&["--pipe", "cat", "--to", "a@b"], Ok("cat")),
            (&["--to", "ann"], Err("ann has no domain")),
            (&[], Err("say where to send")),
            (&["ann@[8.8.8.8]"], Err("--allow-public")),
            (&["8.8.8.8"], Err("--allow-public")),
        ] {
            match (targets(words), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, [expected], "{words:?}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{words:?}: {error}"),
                (found, expected) => panic!("{words:?}: {found:?}, not {expected:?}"),
            }
        }
        let typed = parse(&["ann@a.example", "--to", "bob@b.example"]);
        let (to, server) = typed.recipients_and_server().unwrap();
        assert_eq!((to, server), (vec!["ann@a.example".to_owned(), "bob@b.example".to_owned()], None));
    }

    #[test]
    fn a_message_is_made_of_options_or_a_file() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
        fs::write(path("a.pdf"), b"%PDF\0").unwrap();
        fs::write(path("b.eml"), "Subject: old\nX: 1\n\n.body\n").unwrap();
        fs::write(path("t"), "from a file\n").unwrap();
        let message = |words: &[&str]| {
            let typed = parse(&[&["127.0.0.1"], words].concat());
            String::from_utf8(typed.content.message("a@b", &["c@d".to_owned()], "me").unwrap()).unwrap()
        };
        let text = message(&["--subject", "Grüße", "--header", "X-Test: 1", "--body", "hello"]);
        for expected in ["Subject: =?utf-8?", "X-Test: 1\r\n", "From: <a@b>\r\n", "\r\n\r\nhello\r\n"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.is_ascii() && text.matches("Subject:").count() == 1);
        assert!(message(&["--body", &format!("@{}", path("t"))]).ends_with("\r\n\r\nfrom a file\r\n"));
        let file = message(&["--file", &path("b.eml"), "--subject", "new"]);
        assert_eq!(file, "Subject: new\r\nX: 1\r\n\r\n.body\r\n");
        for (words, media_type) in [
            (path("a.pdf"), "application/pdf"),
            (format!("@{};x/y", path("a.pdf")), "x/y"),
            (path("t"), "application/octet-stream"),
        ] {
            let text = message(&["--attach", &words]);
            assert!(text.contains(&format!("Content-Type: {media_type}")), "{words}: {text}");
        }
        for words in [&["--attach", "/nowhere"][..], &["--attach", "a;b/c/d"], &["--file", "/nowhere"]] {
            let typed = parse(&[&["127.0.0.1"], words].concat());
            assert!(typed.content.message("a@b", &[], "me").is_err(), "{words:?}");
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for words in [
            &["127.0.0.1", "--file", "a", "--body", "b"][..],
            &["127.0.0.1", "--pipe", "cat"],
            &["127.0.0.1", "--header", "Subject"],
            &["127.0.0.1", "--header", "Subject: a\nBcc: b"],
            &["127.0.0.1", "--subject", "a\rb"],
            &["127.0.0.1", "--quit-after", "lunch"],
            &["a b"],
        ] {
            assert!(OneSend::try_parse_from([&["send"], words].concat()).is_err(), "{words:?}");
        }
    }
}
