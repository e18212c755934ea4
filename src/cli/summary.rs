//! `-h` of bench, source and sink: the common options on one screen; `--help` has them all.

/// What `-h` prints for that command.
pub(super) fn of(command: &str) -> Option<&'static str> {
    match command {
        "bench" => Some(BENCH),
        "source" => Some(SOURCE),
        "sink" => Some(SINK),
        _ => None,
    }
}

const BENCH: &str = "\
Measures a mail server. Without a server: a demonstration, source -> mailrun
relay -> sink on this host.

Usage: mailrun bench [OPTIONS] [SERVER]   HOST[:25], smtp://, smtps://, lmtp://
       mailrun bench SCENARIO [OPTIONS]     relay-400 relay-64k relay-latency
         relay-backlog relay-soak mades mades-compare smtp-source-table
         smtp-source-check

  -m, -n, --messages N      number of messages    -s, -c, --sessions N  [100]
  -d, --duration TIME       length of the run   -l, --message-size BYTES [400]
      --rate N              open loop: N per second, or 500/m
      --reuse [N]           N messages per connection, without N no limit
      --to, --from ADDRESS  recipient and sender [to@example.com]
      --sink URL            mailrun sink that the server delivers to
      --sink-listen ADDR    the same, started by this bench
      --relay WHICH         without a server: mailrun, postfix, none, a command
      --tls WHEN            none, starttls, implicit; --cacert FILE, --insecure
      --user NAME           login; --password-file FILE or MAILRUN_PASSWORD
      --threshold EXPR      'accepted.p99 < 50ms', 'rejected <= 0.1%', ...
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun bench mx.example --to ann@mx.example
  mailrun bench 127.0.0.1:25 --sink http://127.0.0.1:8025 -m 10000 -s 50
All options: mailrun bench --help, mailrun bench SCENARIO --help
";

const SOURCE: &str = "\
Sends mail and measures the latency of every phase.

Usage: mailrun source [OPTIONS] SERVER    HOST[:25], smtp://, smtps://, lmtp://,
                                          unix:PATH
  -m, -n, --messages N      number of messages [10000 without -d]
  -d, --duration TIME       length of the run
  -s, -c, --sessions N      parallel sessions [100]
  -l, --message-size BYTES  400, 64k, 400..64k, lognormal:4k,1.2 [400]
      --corpus PATH         mail from an mbox, a Maildir or .eml files
      --rate N              open loop: N per second, or 500/m
      --reuse [N]           N messages per connection, without N no limit
      --pipelining MODE     off, group, stream
      --to, --from ADDRESS  recipient and sender [to@example.com]
      --recipients N        recipients per message [1]
      --tls WHEN            none, starttls, implicit; --cacert FILE, --insecure
      --user NAME           login; --password-file FILE or MAILRUN_PASSWORD
      --threshold EXPR      'accepted.p99 < 50ms', 'rejected <= 0.1%', ...
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun source 127.0.0.1:2525 -m 1000 -s 10
All options: mailrun source --help
";

const SINK: &str = "\
Accepts mail, checks the trace headers of mailrun source, counts every message.

Usage: mailrun sink [OPTIONS]

      --listen HOST:PORT    [127.0.0.1:2525]; also :2525, unix:PATH
      --http HOST:PORT      JSON: /status, /ledger, /rules
  -m, -n, --max-messages N  end after N messages
      --max-message-size BYTES  [1G]
      --tls WHEN            none, starttls, implicit; --tls-cert, --tls-key FILE
      --tls-write-cert FILE write the self-signed certificate
      --auth-any, --auth-users FILE   offer AUTH;  --auth-required
      --lmtp                LMTP instead of SMTP
      --drop, --duplicate, --corrupt, --reject, --fail P   faults: 1% or 0.01
      --delay TIME, --stall FROM..TO                       slow replies
      --fault RULE          'rcpt: soft reject 1%', 'mail: limit 100/s', ...
      --dump-dir DIR, --dump-file FILE, --maildir DIR      store messages
      --out DIR, --json FILE|-   results;  -q, --quiet   -v, --verbose

  mailrun sink --listen 127.0.0.1:2525 --http 127.0.0.1:8025
All options and rules: mailrun sink --help
";

#[cfg(test)]
mod tests {
    use super::super::Typed;
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn a_summary_fits_a_screen_and_names_options_that_exist() {
        for name in ["bench", "source", "sink"] {
            let text = of(name).unwrap();
            assert!(text.lines().count() <= 30, "{name}: {} lines", text.lines().count());
            assert!(text.lines().all(|line| line.len() <= 80), "{name}");
            let command = Typed::command();
            let command = command.find_subcommand(name).unwrap();
            let is_known = |option: &str| {
                let long = option.trim_start_matches("--");
                long == "help" || command.get_arguments().any(|known| known.get_long() == Some(long))
            };
            let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
            for option in words.filter(|word| word.starts_with("--")) {
                assert!(is_known(option), "{name}: {option}");
            }
        }
    }
}
