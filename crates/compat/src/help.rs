//! The `--help` texts: mailrun's own options, one line for each option of the imitated program, and examples. `-h` does
//! not print these texts, because it has the same meaning as in the imitated program. In smtp-sink, it sets the host
//! name. The two Go programs print their own usage, and smtp-source does not know `-h`.
use std::io::{self, Write};

pub(super) fn is_requested(words: &[String]) -> bool {
    words.iter().take_while(|word| word.starts_with("--")).any(|word| word == "--help")
}

pub(super) fn print(name: &str) {
    // Ignore the error, because nobody reads the help if standard output is closed.
    let _ = io::stdout().lock().write_all(text(name).as_bytes());
}

fn text(name: &str) -> &'static str {
    match name {
        "smtp-source" => SMTP_SOURCE,
        "smtp-sink" => SMTP_SINK,
        "go-smtp-source" => GO_SMTP_SOURCE,
        _ => GO_MADES_BENCH,
    }
}

const SMTP_SOURCE: &str = "\
Sends mail like Postfix's smtp-source, with the same options

Usage: mailrun smtp-source [OUR OPTIONS] [OPTIONS] [inet:]HOST[:PORT]
       mailrun smtp-source [OUR OPTIONS] [OPTIONS] unix:PATH

Our options, before all others:
  --trace            add a header line to each message, by which mailrun sink
                     and smtp-sink --trace recognise it
  --report           print number, rate and latency of the messages at the end
  --dialect VERSION  numbers of recipients: 3.9 at the end of the local part
                     [default], 3.8 before the address, as Postfix 3.8 does
  --timeout SECONDS  time limit for a reply [default: 300]
  --busy-poll TIME   look for replies for TIME before sleeping, such as 50us
  --help             print this help

Options of the original:
  -4, -6       connect with IPv4, or IPv6, only
  -A           go on after a reply that is not the expected one
  -c           print a running count of messages
  -C COUNT     connection attempts before giving up [default: 1]
  -d           keep the connection open for the next message
  -f ADDRESS   sender
  -F FILE      send this header and body
  -l LENGTH    bytes of the body
  -L           LMTP instead of SMTP
  -m COUNT     number of messages [default: 1]
  -M NAME      name in the greeting and in addresses
  -N           number the recipients
  -o           old mode: no HELO and no headers
  -r COUNT     recipients per message [default: 1]
  -R SECONDS   pause for a random time, at most this, between messages
  -s COUNT     parallel sessions [default: 1]
  -S TEXT      subject
  -t ADDRESS   recipient
  -T BYTES     TCP window
  -v           print commands and replies
  -w SECONDS   pause between messages

Examples:
  mailrun smtp-source -s 20 -m 10000 -l 4096 127.0.0.1:2525
  mailrun smtp-source --report -d -s 100 -m 100000 -t to@example.com 127.0.0.1:2525
  mailrun smtp-source --trace -c -m 1000 127.0.0.1:2525

Differences from the original: docs/drop-in.md. MAILRUN_ALLOW_PUBLIC=1 allows
public addresses. With more options and a full report: mailrun source --help
";

const SMTP_SINK: &str = "\
Accepts and discards mail like Postfix's smtp-sink, with the same options

Usage: mailrun smtp-sink [OUR OPTIONS] [OPTIONS] [inet:][HOST]:PORT BACKLOG
       mailrun smtp-sink [OUR OPTIONS] [OPTIONS] unix:PATH BACKLOG

Our options, before all others:
  --trace       look for the header line of smtp-source --trace or mailrun
                source in each message, and report duplicates and corruption
  --report      print number and rate of the messages at the end
  --busy-poll TIME
                look for commands for TIME before sleeping, such as 50us
  --help        print this help

Options of the original (COMMANDS: a comma-separated list such as rcpt,data,.):
  -4, -6        listen with IPv4, or IPv6, only
  -8            do not announce 8BITMIME
  -a            do not announce AUTH
  -A SECONDS    abort with 550 that long after DATA
  -b REPLY      4xx reply of -r
  -B REPLY      5xx reply of -f
  -c            print running counts of sessions, QUITs and messages
  -C            do not announce XCLIENT
  -d TEMPLATE   write each message to its own file, named by strftime(3)
  -D TEMPLATE   append messages to one file, likewise
  -e            do not announce ESMTP
  -E            do not announce ENHANCEDSTATUSCODES
  -f COMMANDS   reject with 5xx
  -F            do not announce XFORWARD
  -h NAME       host name in the greeting
  -H SECONDS    wait before reading a message
  -L            LMTP instead of SMTP
  -m COUNT      concurrent sessions [default: 256]
  -M COUNT      end after that many messages
  -n COUNT      end after that many sessions
  -N            do not announce DSN
  -p            do not announce PIPELINING
  -P            greet like a Cisco PIX
  -q COMMANDS   disconnect without a reply
  -Q COMMANDS   reply 421 and disconnect
  -r COMMANDS   reject with 4xx
  -R DIR        change the root directory; needs -u
  -s COMMANDS   log to syslog
  -S TEXT       text before each message that is written
  -t SECONDS    time limit for a silent client [default: 100]
  -T BYTES      TCP window
  -u USER       run as this user; required as root
  -v            print what happens
  -w SECONDS    wait before the reply to DATA
  -W COMMAND:DELAY[:ODDS]  wait DELAY seconds before the reply to COMMAND; with
                ODDS of 1 to 99, wait with this chance in percent, and after
                each wait again with the same chance

Examples:
  mailrun smtp-sink -c 127.0.0.1:2525 4096
  mailrun smtp-sink --trace --report -M 10000 127.0.0.1:2525 4096
  mailrun smtp-sink -r rcpt -L 127.0.0.1:2424 100

Differences from the original: docs/drop-in.md. With rules for faults, a ledger
and a full report: mailrun sink --help
";

const GO_SMTP_SOURCE: &str = "\
Sends mail like go-smtp-source, with the same flags

Usage: mailrun go-smtp-source [OUR OPTIONS] [FLAGS] HOST:PORT

Our options, before all others:
  --trace        add a header line to each message, by which mailrun sink and
                 smtp-sink --trace recognise it
  --report       print number, rate and latency of the messages at the end
  --busy-poll TIME
                 look for replies for TIME before sleeping, such as 50us
  --help         print this help

Flags of the original (-h lists them in its own words):
  -d             keep the connection open for the next message
  -f ADDRESS     sender [default: from@example.com]
  -F FILE        send this header and body
  -l BYTES       bytes of the body [default: 0]
  -m COUNT       number of messages [default: 1]
  -q RATE        recipients per second [default: no limit]
  -r COUNT       recipients per message [default: 1]
  -resolve-once  look the host name up only once
  -s COUNT       parallel sessions [default: 1]
  -S TEXT        subject, a printf format of the message's number
  -t ADDRESS     recipient [default: to@example.com]
  -tls           use STARTTLS
  -v             print commands and replies

Examples:
  mailrun go-smtp-source -s 20 -m 10000 -l 4096 127.0.0.1:2525
  mailrun go-smtp-source --report -d -s 100 -m 100000 127.0.0.1:2525
  mailrun go-smtp-source -m 1000 -q 100 -t to@example.com 127.0.0.1:2525

Differences from the original: docs/drop-in.md. MAILRUN_ALLOW_PUBLIC=1 allows
public addresses. With more options and a full report: mailrun source --help
";

const GO_MADES_BENCH: &str = "\
Measures a MADES endpoint like go-mades-bench, with the same flags

Usage: mailrun go-mades-bench [OUR OPTIONS] [FLAGS]

Our options, before all others:
  --timeout SECONDS   give up if nothing is received that long [default: 300]
  --help              print this help

Flags of the original (-h lists them in its own words):
  -durable=BOOL       store messages of the outbox durably [default: true]
  -goroutines N       outstanding sends at a time [default: processors]
  -inbox QUEUE        inbox [default: ecp.endpoint.inbox]
  -inbox-addr URL     broker of the inbox [default: amqp://localhost:5672]
  -inbox-user USER    user there
  -inbox-pass TEXT    password there
  -max-in-transit N   messages in transit at a time; 0: no limit [default: 1000]
  -message-type TEXT  type of the messages [default: TEST-MESSAGE]
  -mode MODE          endpoint, toolbox, amqp or tracing [default: endpoint]
  -n N                number of messages [default: 10000]
  -outbox QUEUE       outbox [default: ecp.endpoint.outbox]
  -outbox-addr URL    broker of the outbox [default: amqp://localhost:5672]
  -outbox-user USER   user there
  -outbox-pass TEXT   password there
  -outbox-reply QUEUE       replies [default: ecp.endpoint.outbox.reply]
  -outbox-send-event QUEUE  events [default: ecp.endpoint.send.event]
  -receiver CODE      component code of the receiver [default: ecp-endpoint]
  -size BYTES         payload [default: 1000000]
  -v                  print every event

Examples:
  mailrun go-mades-bench -n 1000 -size 3000
  mailrun go-mades-bench --timeout 60 -mode toolbox -receiver 10X1001A1001A450
  mailrun go-mades-bench -outbox-addr amqp://127.0.0.1:5672 -inbox-addr amqp://127.0.0.1:5673

Differences from the original: docs/drop-in.md. MAILRUN_ALLOW_PUBLIC=1 allows
public addresses. With more options and a full report: mailrun mades --help
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_asked_for_before_the_options_of_the_original() {
        let asked = |line: &str| is_requested(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert!(asked("--help") && asked("--trace --help -c") && asked("--help h:25"));
        assert!(!asked("") && !asked("-h") && !asked("-c --help") && !asked("--trace -t --help") && !asked("--help=x"));
    }

    #[test]
    fn a_text_fits_80_columns_and_names_its_program() {
        for name in crate::NAMES {
            let text = text(name);
            assert!(text.contains(&format!("\nUsage: mailrun {name} ")) && text.contains("\nExamples:\n"), "{name}");
            for line in text.lines().filter(|line| !line.starts_with("  mailrun ")) {
                assert!(line.len() <= 80, "{name}: {line}");
            }
        }
    }
}
