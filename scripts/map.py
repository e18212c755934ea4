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
    ("crates/smtp", "SMTP as state. Sans-IO client and server sessions: bytes in, events and bytes out. No runtime, no sockets, no clock"),
    ("crates/journey", "The words and the arithmetic. Stages, trace, ledger, histograms, run record. No runtime, no sockets"),
    ("crates/spool", "Keeps promises. A log of messages that survives power loss; hands out the receipt that a 250 needs"),
    ("crates/mime", "MIME line by line: 8-bit messages made 7-bit where that is lawful, and made what they were again"),
    ("crates/trust", "TLS servers: which certificates a client accepts, and why a handshake failed, in plain words"),
    ("crates/mades", "MADES over AMQP 1.0: the Business Application API, the client's links, the endpoint stand-in and its own listener"),
    ("crates/net", "SMTP over sockets and TLS, on an event loop of our own. The embeddable server with its Handler trait, and the client"),
    ("src", "The program: errors to exit codes, what parties have in common"),
    ("src/cli", "What was typed to what it means; one file a subcommand"),
    ("src/source", "Offering load: pacing (pure), message bodies, the worker loop"),
    ("src/sink", "Taking mail: faults, the ledger's end, the status"),
    ("src/load", "What loads have in common: chance, pacing, spreads, stages of rates; pure"),
    ("src/mades", "The bench of a MADES endpoint: pacing, books, links, record"),
    ("src/personality/go", "What programs written in Go have in common"),
    ("src/personality/go_mades_bench", "go-mades-bench"),
    ("src/relay", "Store and forward: receives, keeps, routes, delivers, tells"),
    ("src/relay/queue", "The queue of one worker: pure, no clock, no socket, no file"),
    ("src/relay/config", "relay.toml to what it means, with line and column of what is wrong"),
    ("src/relay/offline", "A spool that no relay has open: checked, salvaged, exported"),
    ("src/relay/routing", "Who may send to whom, and which hop each recipient goes to"),
    ("src/relay/bounce", "What became of a message, told to its sender (RFC 3464, RFC 3461)"),
    ("src/personality", "Older tools' command lines, wire bytes, words and exit status, on our engine"),
    ("src/personality/smtp_source", "Postfix's smtp-source"),
    ("src/personality/smtp_sink", "Postfix's smtp-sink"),
    ("src/personality/go_smtp_source", "The Go rewrite of smtp-source"),
    ("src/bench", "Starting, watching and stopping parties; folding what they wrote"),
    ("src/bench/tables", "The published tables as scenarios: smtp-source, go-smtp-source and mailrun side by side"),
    ("src/bench/mades", "MADES rehearsed: the bench and the stand-in, and what one did held against what the other saw"),
    ("src/bench/mades_compare", "go-mades-bench and mailrun mades in the same work, by turns"),
    ("src/bench/relays", "Relays side by side: the published test, Postfix and others against ours"),
    ("src/report", "Run records in; terminal and Markdown out"),
    ("tests/all", "The program from outside"),
    ("tests/dialogs", "What both sides of a session say, played against memory, loopback and real peers"),
    ("tests/seeds", "What fuzzing has found once, as plain tests"),
    ("tests/power_cut", "The relay on a file system that forgets what was not synced"),
    ("benches", "Speed and memory, beside the raw limit and the older tools"),
    ("fuzz", "What no bytes may do to a parser"),
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
