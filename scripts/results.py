#!/usr/bin/env python3
"""Makes docs/results.md: mailrun beside the programs that it supersedes, each table by the command printed above it.

    scripts/results.py [--small] [--only NAME,…] [--again NAME,…] [--page FILE] [--out DIRECTORY]

Takes about three hours on two cores, most of it for the published number of messages through Postfix. A table that was made on this commit is not made again, so that a run that was stopped goes
on where it was. DIRECTORY (target/results) gets of each table what the command printed, and a record of it, or of each run,
which `mailrun report` opens. A program that is missing is a gap in its table, which names it.
--small is a look at everything in few minutes, and no measurement. The machine should be idle.
"""
import argparse
import concurrent.futures
import datetime
import itertools
import json
import os
import pathlib
import platform
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "target/release/mailrun"
# Our relay, and every recipe.
RELAYS = ["mailrun", "postfix", "exim", "opensmtpd", "chasquid", "haraka"]
# The audited: our relay, the Postfix that this machine has, Debian 13's servers, and Haraka.
AUDITED = ["mailrun", "postfix", "postfix-debian", "exim", "opensmtpd", "chasquid", "sendmail", "nullmailer", "haraka"]
# Audits that run side by side. Most of an audit is waiting.
AUDITS_AT_ONCE = 3
MAILBOX_SERVERS = ["dovecot", "dovecot-debian", "cyrus"]
# Exim and OpenSMTPD let some of 250 sessions wait for a minute; chasquid's queue takes 200 messages.
FEW_SESSIONS = {"exim", "opensmtpd", "chasquid"}


# The record of a table without runs of their own, which `mailrun report` opens.
RECORD = "comparison.json"
# Seconds that a server may take to start.
START_LIMIT_S = 300


class Table(typing.NamedTuple):
    """A table: its command, the options of a measurement and of the small run, and what must be known to read it."""

    name: str
    title: str
    command: str
    full: str
    small: str
    note: str
    limit_s: int = 1200
    # What others have published about the same work, as a table of Markdown.
    published: str = ""
    # Whether other tables may be made at the same time, because no speed is measured.
    may_share: bool = False
    # Runs of their own, which --out takes.
    has_records: bool = False
    # A server that the command needs: starts with {directory} and {port} in it, and is stopped by the second line.
    server: str = ""
    stop: str = ""


def audit(relay):
    return Table(
        f"audit-{relay}",
        f"Audit of {relay}",
        f"mailrun audit {relay} --seed 7 --inject kill,stop,power-cut,disk-full,read-error",
        "--rounds 5",
        "--rounds 1 --messages 100",
        f"This audit ran beside {AUDITS_AT_ONCE - 1} others, so its times are longer than on an idle machine." if relay == AUDITED[0] else "",
        # nullmailer alone takes more than 20 minutes, because it delivers about ten messages a second.
        limit_s=3600,
        may_share=True,
        has_records=True,
    )


ARTEMIS = {
    "server": "scripts/start-artemis.sh {directory} {port}",
    "stop": "scripts/start-artemis.sh --stop {directory}",
}
RABBITMQ_4 = {
    "server": "env RABBITMQ_ROOT=target/roots/rabbitmq-trixie.tar scripts/start-rabbitmq.sh {directory} {port}",
    "stop": "scripts/start-rabbitmq.sh --stop {directory}",
}


def amqp(broker, title, note, server):
    return Table(
        f"amqp-{broker}",
        f"Clients of AMQP 1.0: {title}",
        "mailrun bench mades-compare --compare mailrun,quiver,quiver-python,artemis-perf --windows 128,defaults --max-time 3m "
        "--broker amqp://127.0.0.1:{port}",
        "--messages 20000 --rounds 5",
        "--rounds 1 --messages 10000",
        note,
        3000,
        **server,
    )


GO_SMTP_SOURCE = """\
| sessions | reuse | smtp-source | go-smtp-source |
|---|---|---|---|
| 1 | – | 14.88 s, 310, 0 | 3.31 s, 4,612, 8 |
| 1 | -d | 7.96 s, 308, 0 | 8.46 s, 1,697, 8 |
| 100 | – | 2.16 s, 1,098, 0 | 3.35 s, 5,212, 8 |
| 100 | -d | 1.07 s, 604, 0 | 0.91 s, 2,140, 8 |
| 1,000 | – | 44.61 s, 548, 0 | 3.35 s, 5,538, 8 |
| 1,000 | -d | 4.36 s, 625, 0 | 0.89 s, 2,175, 8 |

The 44.61 s come from a [short listen queue](benchmark-traps.md#a-short-listen-queue), not from smtp-source."""


TABLES = [
    Table(
        "sources",
        "Load sources",
        "mailrun bench smtp-source-table",
        "--rounds 6",
        "--messages 200 --sessions 1,20 --rounds 1",
        "This table repeats the comparison in go-smtp-source's README, with mailrun added. With `-d` a source sends "
        "many messages over one connection. Without `-d` each message has a connection of its own, and go-smtp-source "
        "opens the next connections in advance, regardless of its limit on sessions (`-s`). The README publishes "
        "these seconds, page faults and blocks of 512 bytes, for 10,000 messages on another machine:",
        3000,
        GO_SMTP_SOURCE,
    ),
    Table(
        "relay-400",
        "Relays: 400 bytes, 250 sessions",
        "mailrun bench relay-400 --compare {busy},none",
        "--messages 2000 --rounds 6",
        "--messages 200 --rounds 1",
        "This is the load of Mailismus' benchmark: 250 sessions, 5 domains, and a connection for each message. The "
        "settings of each server are in its recipe (`mailrun recipe show postfix`, for example). These settings are "
        "meant for relaying, and the authors of the servers have not tuned them. In the row `none` the source sends "
        "straight to the sink, so its rate is the highest that source and sink allow. Three servers are missing from "
        "this table: Exim and OpenSMTPD let some of 250 sessions wait for a minute, and chasquid refuses mail when 200 "
        "messages are in its queue. mailrun's × disk is high because mailrun fills 128 MiB of spool with zeros at its "
        "start. In so short a run, it writes little else. In the full run, mailrun writes 1.5 KiB for each message.",
        3000,
        has_records=True,
    ),
    Table(
        "relay-400-few",
        "Relays: 400 bytes, 10 sessions",
        "mailrun bench relay-400 --sessions 10 --compare {relays},none",
        "--messages 100 --rounds 6",
        "--messages 100 --rounds 1",
        "With only 10 sessions, all servers can take part. Exim keeps each session open for 200 ms after QUIT, "
        "OpenSMTPD waits for delayed ACKs, and chasquid starts a process of msmtp for each message (`mailrun recipe "
        "show` says more).",
        3000,
        has_records=True,
    ),
    Table(
        "relay-64k",
        "Relays: 64 KiB, 250 sessions",
        "mailrun bench relay-64k --compare {busy},none",
        "--messages 200 --rounds 6",
        "--messages 100 --rounds 1",
        "",
        3000,
        has_records=True,
    ),
    Table(
        "mailboxes",
        "Mailboxes",
        "mailrun bench mailbox --compare {mailboxes}",
        "--rounds 6",
        "--messages 200 --rounds 1",
        "Times count from the submission of a message by LMTP until IMAP announces it, or until it can be read. "
        "Dovecot waits for half a second after a change before it announces the change, and Cyrus sometimes announces "
        "a message only together with the next one.",
        3000,
        has_records=True,
    ),
    Table(
        "filter",
        "What a mail filter costs",
        "mailrun bench filter --compare postfix,postfix:opendkim,postfix:rspamd",
        "--rounds 6",
        "--messages 100 --rounds 1",
        "OpenDKIM signs each message, and Rspamd reads and rates each message by the rules that need no network. "
        "Blocklists, SPF, DMARC, the check of signatures, Bayes and fuzzy hashes are not measured.",
        3000,
        has_records=True,
    ),
    Table(
        "published-400",
        "The published number of messages: 400 bytes",
        "mailrun bench relay-400 --rounds 1 --compare mailrun,postfix,postfix:tuned",
        "--full",
        "--messages 2000",
        "`postfix:tuned` has the settings that Postfix' TUNING_README recommends for much mail to one host. On "
        "hardware of 2012, the published times for 500,000 messages are 4 min 44 s for Mailismus (1,761/s, without a "
        "sync) and 14 min 53 s for Postfix 2.9.6 (560/s). Here the load is the same but the hardware is not, so "
        "compare only the order of magnitude.",
        3 * 3600,
        has_records=True,
    ),
    Table(
        "published-64k",
        "The published number of messages: 64 KiB",
        "mailrun bench relay-64k --rounds 1 --compare mailrun,postfix,postfix:tuned",
        "--full",
        "--messages 500",
        "For messages of 64 KiB, the published times are 11 min 58 s for Mailismus (696/s) and 3 h 9 min for Postfix "
        "(44/s).",
        3 * 3600,
        has_records=True,
    ),
    Table(
        "kotlin-profile",
        "Kotlin SMTP's profile",
        "mailrun bench kotlin-profile",
        "--rounds 5",
        "--rounds 1",
        "Kotlin SMTP's guide publishes 195 emails/s, and latencies of 32.85 ms on average, 10.91 ms at p50, 87.50 ms "
        "at p95 and 1,904 ms at most. These figures are from another machine, and from a client that writes each "
        "message in small pieces. Here the server is mailrun's sink, which stores nothing.",
        has_records=True,
    ),
    Table(
        "sizes",
        "By message size",
        "mailrun bench sizes",
        "--rounds 3",
        "--rounds 1 --duration 2s",
        "For messages of 256 B, 4 KiB and 64 KiB, Kotlin SMTP's guide publishes rates of 118, 169 and 59 messages per "
        "second, and a p50 of 13.3, 12.1 and 43.1 ms.",
        has_records=True,
    ),
    Table(
        "large-message",
        "Large messages: mailrun's sink",
        "mailrun bench large-message --costs smtplib,smtplib-unquoted,small-reads,chunking,dots",
        "--rounds 3",
        "--rounds 1 --volume 20M --body-sizes 1M,10M",
        "In the rows `smtplib`, Python's client sends to the same sink in place of mailrun's source. "
        "`smtplib-unquoted` is this client without its search for dots to double, as its author proposed in 2009. "
        "With `small-reads` the sink reads 4 KiB at a time. The sink checks each body and then drops it, so no disk "
        "limits the rates.",
        has_records=True,
    ),
    Table(
        "aiosmtpd",
        "Large messages: aiosmtpd",
        "mailrun bench large-message 127.0.0.1:{port} --body-sizes 1M,10M --costs smtplib",
        "--rounds 3 --volume 100M",
        "--rounds 1 --volume 20M",
        "aiosmtpd reads each message into memory and drops it. The older server smtpd, which Python had before 3.12, "
        "is not measured, but its author claimed 220 MB/s in 2009.",
        has_records=True,
        server="/usr/bin/python3 -m aiosmtpd -n -s 0 -l 127.0.0.1:{port} -c aiosmtpd.handlers.Sink",
    ),
    Table(
        "mades",
        "MADES: the embedded endpoint",
        "mailrun bench mades-compare",
        "--rounds 5",
        "--rounds 1 --messages 500",
        "Both programs send the same durable messages of 3,000 bytes. go-mades-bench's published run sent 100,000,000 "
        "messages, 5,000 of them in transit, through a MADES implementation in 17 h 46 min (1,563/s). In November 2026 "
        "`mailrun mades` sent as many messages through its embedded endpoint in 26 min 49 s, with 24.6 MiB of memory. That "
        "run was not repeated here.",
    ),
    Table(
        "mades-artemis",
        "MADES: ActiveMQ Artemis",
        "mailrun bench mades-compare --broker amqp://127.0.0.1:{port}",
        "--messages 2000 --rounds 5",
        "--rounds 1 --messages 500",
        "",
        **ARTEMIS,
    ),
    Table(
        "mades-rabbitmq",
        "MADES: RabbitMQ 3.10",
        "mailrun bench mades-compare --broker amqp://127.0.0.1:{port}",
        "--messages 2000 --rounds 5",
        "--rounds 1 --messages 500",
        "go-mades-bench does not end by itself with RabbitMQ, so it is killed after its report.",
        server="scripts/start-rabbitmq.sh {directory} {port}",
        stop="scripts/start-rabbitmq.sh --stop {directory}",
    ),
    Table(
        "mades-rabbitmq-4",
        "MADES: RabbitMQ 4",
        "mailrun bench mades-compare --broker amqp://127.0.0.1:{port}",
        "--messages 2000 --rounds 5",
        "--rounds 1 --messages 500",
        "This is the RabbitMQ of Debian 13, which speaks AMQP 1.0 by itself.",
        **RABBITMQ_4,
    ),
    amqp(
        "artemis",
        "ActiveMQ Artemis",
        "Each tool sends durable messages of 3,000 bytes through one queue. [amqp.md](amqp.md) says what each tool counts "
        "as latency. quiver has no window, so it sends as many messages as the broker gives it credit for. The CPU time of "
        "artemis-perf includes the start of Java.",
        ARTEMIS,
    ),
    amqp("rabbitmq-4", "RabbitMQ 4", "This is the same load on Debian 13's RabbitMQ.", RABBITMQ_4),
    *map(audit, AUDITED),
    Table(
        "tls",
        "TLS",
        "cargo bench --bench tls --",
        "--rounds 5",
        "--rounds 1",
        "This table compares handshakes and bulk transfers of mailrun with those of OpenSSL's programs, with the same "
        "certificate and cipher. PASS and FAIL refer to targets that we chose ourselves, for example at least 0.90 "
        "times the handshakes of OpenSSL's server.",
    ),
]


def output_of(command):
    """What a command prints on its first line; None if it isn't there or fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else None


def free_port():
    """A port below the range from which the kernel chooses."""
    for port in range(21025, 21900, 10):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    sys.exit("no port between 21025 and 21900 is free")


def wait_for_port(port, server):
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end and server.poll() is None:
        with socket.socket() as client:
            client.settimeout(1)
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.1)
    return False


def interrupt(process):
    """Ends a command as Ctrl-C does, so that it ends what it started."""
    os.killpg(process.pid, signal.SIGINT)


class Maker:
    """Makes the tables that are missing."""

    def __init__(self, options, commit):
        self.options = options
        self.commit = commit
        self.relays, self.mailboxes = self.recipes(RELAYS), self.recipes(MAILBOX_SERVERS)
        self.missing = {}
        # What runs now, so that Ctrl-C can end it. A session of its own hears no Ctrl-C from the terminal.
        self.running = set()

    def recipes(self, wanted):
        listed = subprocess.run([PROGRAM, "recipe", "list"], text=True, capture_output=True, check=True)
        known = {line.split()[0] for line in listed.stdout.splitlines() if line.strip()}
        return [server for server in wanted if server in known]

    def asked(self, table):
        """The command without port and servers, which tells whether a stored table is the same."""
        return f"{table.command} {table.small if self.options.small else table.full}"

    def command(self, table, port):
        busy = [relay for relay in self.relays if relay not in FEW_SESSIONS]
        relays, mailboxes = ",".join(self.relays), ",".join(self.mailboxes)
        return self.asked(table).format(port=port, relays=relays, busy=",".join(busy), mailboxes=mailboxes)

    def directory(self, table):
        return self.options.out / table.name

    def stored(self, table, with_gaps=False):
        """What is known of a table that was made on this commit; of one that could not be made only `with_gaps`."""
        try:
            stored = json.loads((self.directory(table) / "made.json").read_text())
        except (OSError, ValueError):
            return None
        is_same = (stored.get("commit"), stored.get("asked")) == (self.commit, self.asked(table))
        return stored if is_same and (with_gaps or not stored["gap"]) else None

    def make_all(self, tables, at_once):
        """Yields each table with what is known of it, when it is made."""
        with concurrent.futures.ThreadPoolExecutor(at_once) as executor:
            try:
                yield from zip(tables, executor.map(self.make, tables))
            except KeyboardInterrupt:
                executor.shutdown(wait=False, cancel_futures=True)
                for process in list(self.running):
                    interrupt(process)
                raise

    def make(self, table):
        print(f"{table.name}: {table.title}", flush=True)
        directory = self.directory(table)
        subprocess.run(["rm", "-rf", directory], check=True)
        directory.mkdir(parents=True)
        port = free_port()
        command = self.command(table, port)
        made = {"command": command, "asked": self.asked(table), "commit": self.commit}
        begun = time.monotonic()
        made["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%MZ")
        server, gap = self.start_server(table, directory, port)
        try:
            text, status, failure = ("", None, gap) if gap else self.run(table, command, directory)
        finally:
            self.stop_server(table, directory, server)
        missing = re.match(r"recipe ([a-z-]+)[:\d]* (?:\w+: )?(.*)", failure or "")
        compared = self.mailboxes if "{mailboxes}" in table.command else self.relays
        # The first relay is ours.
        if missing and "--compare {" in table.command and missing[1] in compared and missing[1] != RELAYS[0]:
            compared.remove(missing[1])
            self.missing[missing[1]] = missing[2]
            return self.make(table)
        made.update(status=status, seconds=round(time.monotonic() - begun), gap=failure)
        if "--compare" in table.command:
            made["missing"] = self.missing
        if table.server:
            made["server"] = table.server.format(port=port, directory="DIRECTORY")
        (directory / "report.txt").write_text(text)
        (directory / "made.json").write_text(json.dumps(made, indent=1) + "\n")
        return made

    def start_server(self, table, directory, port):
        """The process of a server in the foreground, and what keeps it from running."""
        if not table.server:
            return None, None
        words = shlex.split(table.server.format(port=port, directory=directory / "server"))
        log = (directory / "server.txt").open("w")
        try:
            process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        except OSError as error:
            return None, f"{words[0]}: {error.strerror}"
        if table.stop:
            try:
                status = process.wait(START_LIMIT_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                status = 1
            process = None
            is_there = status == 0
        else:
            is_there = wait_for_port(port, process)
        program = next(word for word in words if "=" not in word and word != "env")
        last = (directory / "server.txt").read_text().strip().splitlines()[-1:]
        return process, None if is_there else f"{program} does not run here: {' '.join(last)}"

    def stop_server(self, table, directory, server):
        if server and server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
        if table.stop:
            subprocess.run(shlex.split(table.stop.format(directory=directory / "server")), cwd=ROOT, timeout=60, check=False)

    def run(self, table, command, directory):
        """What the command prints, its exit status, and why there is no table."""
        words = shlex.split(command)
        if words[0] == "mailrun":
            words[0] = str(PROGRAM)
            words += ["--color", "never", "--report", "full", "--progress", "line"]
            words += ["--out", str(directory / "records")] if table.has_records else ["--json", str(directory / RECORD)]
        else:
            words += ["--json", str(directory / RECORD)]
        with (directory / "progress.txt").open("w") as progress:
            process = subprocess.Popen(
                words, cwd=ROOT, stdout=subprocess.PIPE, stderr=progress, text=True, start_new_session=True
            )
            self.running.add(process)
            try:
                text, _ = process.communicate(timeout=table.limit_s)
            except subprocess.TimeoutExpired:
                interrupt(process)
                process.communicate(timeout=60)
                return "", None, f"it was ended after {table.limit_s} s"
            finally:
                self.running.discard(process)
        if process.returncode == 2 or not text.strip():
            last = (directory / "progress.txt").read_text().strip().splitlines()[-1:]
            said = " ".join(last).removeprefix("mailrun: ").rstrip(".")
            return text, process.returncode, said or f"exit status {process.returncode}"
        return text, process.returncode, None


# Tables of these columns stay in report.txt: costs of relays, extrapolated times, processor time of large messages.
LEFT_OUT = ("calls/msg", "100,000 messages", "× source CPU")


def excerpt(text):
    """The title, tables, gaps and verdict of a report; its notes stay in report.txt."""
    kept = []
    is_audit = "\nAUDIT " in text
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    for number, block in enumerate(blocks):
        lines = [line for line in block.splitlines() if "mailrun-busy-poll" not in line]
        is_table = any("───" in line for line in lines)
        if is_table and any(column in lines[0] for column in LEFT_OUT):
            continue
        # Of an audit the table of its faults alone.
        if lines[0].startswith("AUDIT") if is_audit else number == 0 or is_table:
            # The page names the host once.
            kept.append(re.sub(r" · [^·\n]*, Linux [^,\n]*(?=,|$)", "", "\n".join(lines)))
            continue
        said = [line for line in lines if re.search(r"not installed|Results may be|OTHER WORK", line)]
        verdict = re.search(r"^(PASS|FAIL|INVALID|INCONCLUSIVE)\b.*", block, re.MULTILINE | re.DOTALL)
        said += [verdict[0]] if verdict else []
        kept += ["\n".join(said)] if said else []
    return "\n\n".join(kept)


def host():
    model = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown")
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) >> 20
    return f"{model}, {os.cpu_count()} processors, {memory} GiB, Linux {platform.release()}"


def go_version(program):
    """Prints the module's version of a Go program, or the commit that it was built from."""
    choose = """$2 ~ /^vcs.revision=/ {sub(/.*=/, "", $2); commit = substr($2, 1, 7)} $1 == "mod" {version = $3}
        END {print version == "(devel)" && commit ? commit : version}"""
    return ["sh", "-c", f"path=$(command -v {program}) && go version -m \"$path\" | awk '{choose}'"]


def versions():
    """Versions of the programs that are here. A server in a Debian root says its own in its audit."""
    asked = {
        "mailrun": [PROGRAM, "--version"],
        "Postfix": ["/usr/sbin/postconf", "-d", "-h", "mail_version"],
        "aiosmtpd": ["/usr/bin/python3", "-c", "import aiosmtpd; print(aiosmtpd.__version__)"],
        "Python": ["/usr/bin/python3", "--version"],
        "OpenSSL": ["sh", "-c", "openssl version | cut -d ' ' -f 2"],
        "go-smtp-source": go_version("go-smtp-source"),
        "go-mades-bench": go_version("go-mades-bench"),
        "quiver": ["sh", "-c", "quiver --version 2>/dev/null"],
    }
    found = {name: output_of(command) for name, command in asked.items()}
    return ", ".join(f"{name} {version.removeprefix(name).strip()}" for name, version in found.items() if version)


def page(maker):
    """The page of all tables that were made on this commit, by this run or before."""
    stored = [(table, maker.stored(table, with_gaps=True)) for table in TABLES]
    small = " **This is the small run, which shows that each command works, and measures nothing.**" if maker.options.small else ""
    parts = [
        "# Results",
        "`make results` measures the tables of this page again, each with the command that stands above the table. Do "
        "not compare rates of different machines. Ratios can be compared, because the programs of a ratio ran in "
        f"turns on one machine.{small}",
        f"- Host: {host()}\n- Commit: {maker.commit}\n- Versions: {versions()}",
        "The directory `target/results` also has what this page leaves out: tables of costs, rows of mailrun with busy polling, "
        "explanations of the columns, and the record of each run. `mailrun report target/results/relay-400/records` shows a table "
        "again, `mailrun report target/results/relay-400/records/round-1-1-mailrun` one of its runs, and `mailrun report "
        "target/results/sources/comparison.json` a table with the figures of each run. The brackets after a ratio contain its "
        "confidence interval or, if there were fewer than 6 rounds, its range.",
    ]
    for table, facts in stored:
        if facts is None:
            continue
        parts.append(f"## {table.title}")
        if table.note:
            parts.append(table.note)
        if table.published:
            parts.append(table.published)
        starts = [facts["server"] + ("" if table.stop else " &")] if facts.get("server") else []
        commands = "\n".join(f"$ {line}" for line in [*starts, facts["command"]])
        parts += [f"The table lacks {name}: {why}." for name, why in facts.get("missing", {}).items()]
        text = "" if facts["gap"] else (maker.directory(table) / "report.txt").read_text()
        parts.append(f"```text\n{commands}\n\n{excerpt(text) or 'No table: ' + facts['gap']}\n```")
        if facts["gap"]:
            continue
        made = datetime.datetime.strptime(facts["date"], "%Y-%m-%dT%H:%MZ")
        parts.append(f"Measured on {made.day} {made:%B %Y} at {made:%H:%M} UTC, in {facts['seconds']} seconds.")
    absent = [table.title for table, facts in stored if facts is None]
    parts += [f"These tables were not made: {', '.join(absent)}."] if absent else []
    wrapped = [part if part.startswith(("```", "#", "-", "|")) else textwrap.fill(part, 140, break_on_hyphens=False) for part in parts]
    return "\n\n".join(wrapped) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a look at everything in few minutes")
    parser.add_argument("--only", default="", help="names of tables, separated by commas: " + ",".join(t.name for t in TABLES))
    parser.add_argument("--again", default="", help="names of tables that are made again")
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs/results.md")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/results")
    options = parser.parse_args()
    options.out = options.out.resolve()
    only, again = ([name for name in text.split(",") if name] for text in (options.only, options.again))
    unknown = set(only + again) - {table.name for table in TABLES}
    if unknown:
        sys.exit(f"no table is called {', '.join(sorted(unknown))}. Tables: {', '.join(table.name for table in TABLES)}")
    if not PROGRAM.exists():
        sys.exit(f"{PROGRAM} is missing: cargo build --release")
    # The last commit that may change a program: a page of results that is committed changes none.
    commit = output_of(["git", "log", "-1", "--format=%h", "--", ".", ":!docs"])
    maker = Maker(options, commit)
    failed = []
    wanted = [table for table in TABLES if not only or table.name in only]
    wanted = [table for table in wanted if table.name in again or not maker.stored(table)]
    for may_share, tables in itertools.groupby(wanted, lambda table: table.may_share):
        for table, facts in maker.make_all(list(tables), AUDITS_AT_ONCE if may_share else 1):
            print(f"{table.name}: {facts['gap'] or 'exit status ' + str(facts['status'])}, {facts['seconds']} s", flush=True)
            failed += [table.name] if facts["gap"] else []
            options.page.write_text(page(maker))
    options.page.write_text(page(maker))
    print(f"written to {options.page}" + (f"; without a table: {', '.join(failed)}" if failed else ""))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("stopped; the next run goes on here")
