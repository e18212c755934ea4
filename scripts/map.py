#!/usr/bin/env python3
"""Prints the captioned map of every source file, for docs/architecture.md, from the files' own first sentences.

    scripts/map.py --write     puts it between the map's markers in docs/architecture.md
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOC = ROOT / "docs/architecture.md"
BEGIN, END = "<!-- map: scripts/map.py --write -->", "<!-- end of map -->"
GROUPS = [
    ("crates/smtp", "The SMTP protocol. Client and server sessions without I/O: bytes in, events and bytes out"),
    ("crates/journey", "Stages, trace, ledger, histograms, run record and quantities. No runtime, no sockets"),
    ("crates/spool", "A log of messages that survives power loss. Its receipt is what a 250 requires"),
    ("crates/mime", "MIME line by line: conversion of 8-bit messages to 7 bits, where that is permitted, and back"),
    ("crates/trust", "TLS servers: which certificates a client accepts, and why a handshake failed, in plain words"),
    ("crates/amqp", "AMQP 1.0 as state: frames, types, SASL, sessions and links. Bytes in, events and bytes out; no I/O, no clock"),
    ("crates/mades", "MADES over AMQP 1.0: the Business Application API, the client's links, the endpoint stand-in and its own listener"),
    ("crates/eventloop", "The event loop: workers, sockets and timers on one epoll each. Linux only; no SMTP"),
    ("crates/net", "SMTP over sockets and TLS. The embeddable server with its Handler trait, and the client"),
    ("src", "The program: its entry point"),
    ("src/cli", "The command line: one file per subcommand"),
    ("crates/party", "What every process of a run has: interrupts, progress, result files, figures of the host, log, HTTP"),
    ("crates/locust", "A worker of a Locust master, as state: frames, messages, protocol. No I/O"),
    ("crates/load", "The two ends of a measurement over SMTP"),
    ("crates/load/src/source", "The load source: envelopes, message bodies, sessions, workers"),
    ("crates/load/src/locust_worker", "The source as a worker of a Locust master: socket, thread, reports"),
    ("crates/load/src/sink", "The sink: faults, ledger, HTTP status"),
    ("crates/workload", "Random choices, pacing, distributions and rates of a load; no I/O"),
    ("crates/dashboard", "The live dashboard of a run on a terminal: state and drawing. No terminal, no clock"),
    ("crates/capacity", "The search for the highest rate that meets a goal, by trials (RFC 9971), and planning. No I/O"),
    ("crates/compare", "Statistics of comparisons: sizes, intervals, tests and verdicts. No I/O"),
    ("crates/mades/src/bench", "`mailrun mades`: pacing, account of messages, links, record"),
    ("crates/dropin/src/go", "Flags and output of programs written in Go"),
    ("crates/dropin/src/go_mades_bench", "go-mades-bench"),
    ("crates/relay", "The store-and-forward relay: receives, stores, routes, delivers and bounces mail"),
    ("crates/relay/src/smtpd", "Receives mail: sessions, logins, limits"),
    ("crates/relay/src/message", "A message, its envelope, its `Received:` fields"),
    ("crates/relay/src/qmgr", "The queue of one worker; no clock, no socket, no file"),
    ("crates/relay/src/delivery", "Delivery agents: SMTP, LMTP, Maildir, discard"),
    ("crates/relay/src/config", "The reader of relay.toml; errors have line and column"),
    ("crates/relay/src/offline", "`mailrun spool`: checks, salvages and exports the spool of a stopped relay"),
    ("crates/relay/src/routing", "Access control, and the next hop of each recipient"),
    ("crates/relay/src/recovery", "Queues what a former run has left in the spool"),
    ("crates/relay/src/control", "`mailrun queue` over the control socket; metrics and health over HTTP"),
    ("crates/relay/src/dsn", "Delivery status notifications (RFC 3464, RFC 3461)"),
    ("crates/dropin", "Drop-in replacements: options, protocol bytes, output and exit status of older tools"),
    ("crates/dropin/src/smtp_source", "Postfix's smtp-source"),
    ("crates/dropin/src/smtp_sink", "Postfix's smtp-sink"),
    ("crates/dropin/src/go_smtp_source", "The Go rewrite of smtp-source"),
    ("crates/bench", "`mailrun bench`: starts, watches and stops source, relay and sink, and merges their results"),
    ("crates/bench/src/capacity", "`mailrun capacity`: each trial is a run of the bench; its record judged for the search"),
    ("crates/bench/src/rounds", "`mailrun compare`: contestants in many short rounds, with one sink"),
    ("crates/bench/src/engine", "The engine of scenarios that compare: cases in rounds, and one writer for their tables"),
    ("crates/bench/src/tables", "The published tables as scenarios: smtp-source, go-smtp-source and mailrun side by side"),
    ("crates/bench/src/mades", "`bench mades`: the bench and the stand-in, and a comparison of what both saw"),
    ("crates/bench/src/mades_compare", "go-mades-bench and `mailrun mades` with the same work, in turns"),
    ("crates/bench/src/profiles", "Profiles of a server: rate and latency by size, and large messages"),
    ("crates/bench/src/stored", "Run records on disk: reading them, and baselines"),
    ("crates/bench/src/relays", "Relay scenarios: the published benchmark, with Postfix and others beside ours"),
    ("crates/report", "Reports of run records, for terminals and in Markdown"),
    ("tests/all", "Tests of the whole program"),
    ("tests/dialogs", "SMTP dialogues, played in memory, over loopback and with real peers"),
    ("tests/seeds", "Inputs that fuzzing has found, as plain tests"),
    ("tests/power_cut", "The relay on a file system that loses what was not synced"),
    ("benches", "Speed and memory, beside the raw limit and the older tools"),
    ("fuzz", "Fuzz targets of all parsers"),
]


def caption(path):
    """The first sentence of a file's `//!` comment."""
    words = []
    for line in path.read_text().splitlines():
        text = line[3:].strip() if line.startswith("//!") else ""
        if not text:
            break
        words.append(text)
    sentence = re.split(r"(?<=[\w`)\"'])\.(?: |$)", " ".join(words))[0]
    return sentence.rstrip(":.").replace("|", "\\|")


def members(group):
    """The files of a group: of a crate all, of the program those of the folder itself."""
    found = sorted(path.relative_to(ROOT) for path in (ROOT / group).rglob("*.rs") if "target" not in path.parts)
    is_flat = group.startswith("src")
    return [path for path in found if not is_flat or path.parent == pathlib.Path(group)]


def drawn():
    lines = []
    for group, title in GROUPS:
        lines += [f"#### `{group}/`: {title}", "", "| file | caption |", "|---|---|"]
        for path in members(group):
            lines.append(f"| `{path.relative_to(group)}` | {caption(ROOT / path)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        text = DOC.read_text()
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        DOC.write_text(f"{before}{BEGIN}\n\n{drawn()}\n{END}{after}")
    else:
        print(drawn())
