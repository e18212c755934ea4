#!/usr/bin/env python3
"""Counts what a message costs: instructions, allocations, system calls, and segments with data. Nothing of it is a time.

    scripts/bench-cost.py [--program target/dist/mailrun] [--stored benches/cost.json] [--only TEXT]

Each shape has one session, so that no batch depends on how fast the other end is. A party runs under callgrind
(instructions in user mode, calls of the allocator) and under strace; the segments are counted in a network namespace where
nobody else sends. Each figure is the difference of two runs, a long and a short one, divided by the difference of their
messages, so the cost of the start is not in it. Instructions and allocations are those of the workers. The main thread adds up
each second and makes the report; the cost of that depends on how long the run took and how the latencies are spread.
`mailrun mades` does all its work on the main thread, so there the main thread counts too.

Prints a table, and ends with status 1 if a figure is more than 3 % above the stored one; the lowest of three attempts counts. One
that is more than 3 % below it is named: `MAILRUN_BLESS=1 make bench-cost` stores the new ones. Instructions depend on the compiler,
libc and the processor's kind: where these are others than those stored, instructions are printed and not judged.
"""
import argparse
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import typing

LIMIT = 0.03
ATTEMPTS = 3
SMTP, AMQP = 11025, 11672
ALLOCATES = re.compile(r"(malloc|calloc|realloc|posix_memalign|aligned_alloc)$")
# Fewer a message are what happens now and then.
FEWEST = 0.5
KINDS = ("instructions", "allocations", "system calls", "segments")


class Shape(typing.NamedTuple):
    """Load, and its party that is counted."""

    name: str
    party: str
    load: str
    servers: typing.Tuple[str, ...]
    messages: typing.Tuple[int, int]


SINK = f"sink --listen 127.0.0.1:{SMTP}"
RELAY = f"relay --listen 127.0.0.1:{SMTP} --to discard --spool {{place}}/spool"
ENDPOINT = f"mades-endpoint --embedded --listen 127.0.0.1:{AMQP}"
SOURCE = f"source 127.0.0.1:{SMTP} --no-preflight --report none --progress none --sessions 1"
MADES = f"mades --no-preflight --live off --mode amqp --broker amqp://127.0.0.1:{AMQP} --max-in-transit 1"


def shapes():
    for name, words, messages in (
        ("a connection each", "", (500, 3500)),
        ("reused, in lock step", "--reuse", (500, 4500)),
        ("reused, one round trip", "--reuse --pipelining stream", (500, 4500)),
        ("reused, 100 KB", "--reuse --message-size 100k", (500, 4500)),
    ):
        for party in ("source", "sink"):
            yield Shape(f"{name}: {party}", party, f"{SOURCE} {words}", (SINK,), messages)
    yield Shape("reused, synced: relay", "relay", f"{SOURCE} --reuse", (RELAY,), (200, 1200))
    yield Shape("AMQP: bench", "mades", MADES, (ENDPOINT,), (300, 3300))


class Processes:
    """Processes that end with it."""

    def __init__(self):
        self.running = []

    def start(self, words, said):
        # On a busy host a run would take longer, and have more of what is done once in a while.
        process = subprocess.Popen(["nice", "-n", "-20", *words], stdout=said, stderr=subprocess.STDOUT)
        self.running.append(process)
        return process

    def end(self):
        for process in reversed(self.running):
            if process.poll() is None:
                # strace passes no signal on.
                for pid in children(process.pid) or [process.pid]:
                    os.kill(pid, signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = []


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def is_listening(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
        return True
    except OSError:
        return False


def run(program, shape, messages, wrap, place):
    """One run of the shape, its counted party as `wrap` has it."""
    processes = Processes()
    with open(os.path.join(place, "said"), "w+b") as said:
        try:
            for server in shape.servers:
                words = [program, *server.format(place=place).split()]
                first = processes.start(wrap + words if shape.party == server.split()[0] else words, said)
            until = time.monotonic() + 60
            while not is_listening(AMQP if shape.party == "mades" else SMTP):
                if time.monotonic() > until or first.poll() is not None:
                    raise_with(said, f"{shape.name}: the server did not start")
                time.sleep(0.05)
            words = [program, *shape.load.split(), "--messages", str(messages)]
            wrapped = wrap + words if shape.party == shape.load.split()[0] else words
            status = processes.start(wrapped, said).wait(timeout=300)
            if status != 0:
                raise_with(said, f"{shape.name}: the load ended with status {status}")
        finally:
            processes.end()


def raise_with(said, why):
    said.seek(0)
    sys.exit(f"bench-cost: {why}\n{said.read().decode(errors='replace')}")


def callgrind(program, shape, messages):
    """Instructions in user mode, and calls of the allocator."""
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "callgrind")
        options = ["--compress-strings=no", "--compress-pos=no", "--separate-threads=yes", f"--callgrind-out-file={out}"]
        run(program, shape, messages, ["valgrind", "--tool=callgrind", *options], place)
        instructions, allocations = 0, 0
        for path in glob.glob(f"{out}-*"):
            if path == f"{out}-01" and shape.party != "mades":
                continue
            callee, total = "", 0
            with open(path, errors="replace") as lines:
                for line in lines:
                    if line.startswith("cfn="):
                        callee = line.strip().partition("=")[2]
                    elif line.startswith("calls=") and ALLOCATES.search(callee):
                        allocations += int(line[6:].split()[0])
                    elif line.startswith(("summary:", "totals:")):
                        total = int(line.split()[1])
            instructions += total
        return {"instructions": instructions, "allocations": allocations}


def strace(program, shape, messages):
    """System calls."""
    with tempfile.TemporaryDirectory() as place:
        out = os.path.join(place, "strace")
        run(program, shape, messages, ["strace", "-f", "-c", "-o", out], place)
        with open(out) as lines:
            total = [line.split() for line in lines if line.rstrip().endswith("total")][-1]
        return {"system calls": int(total[3])}


def segments_so_far():
    """Segments with data that this network namespace has received."""
    tables = {}
    for path in ("/proc/net/snmp", "/proc/net/netstat"):
        with open(path) as file:
            lines = file.read().splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            tables.update(zip((names.split()[0] + name for name in names.split()[1:]), map(int, values.split()[1:])))
    return tables["Tcp:InSegs"] - tables["TcpExt:TCPPureAcks"]


def segments(program, shape, messages):
    with tempfile.TemporaryDirectory() as place:
        before = segments_so_far()
        run(program, shape, messages, [], place)
        return {"segments": segments_so_far() - before}


def count(program, shape):
    """Each figure of a shape, a message."""
    few, many = shape.messages
    found = {}
    for counted in (callgrind, strace, segments):
        less, more = (counted(program, shape, messages) for messages in (few, many))
        found.update({kind: (more[kind] - less[kind]) / (many - few) for kind in more})
    return found


def lowest(first, second):
    return {kind: min(first[kind], second[kind]) for kind in first}


def change(kind, found, stored):
    """Change against what is stored; 0 for a figure too small to have one."""
    if max(found[kind], stored[kind]) < FEWEST:
        return 0.0
    return found[kind] / max(stored[kind], FEWEST) - 1


def host():
    """What instructions depend on."""
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    with open("/proc/cpuinfo") as file:
        flags = next((line for line in file if line.startswith("flags")), "").split()
    kind = [flag for flag in ("sse4_2", "avx2", "bmi2", "pclmulqdq", "erms", "fsrm") if flag in flags]
    return {"compiler": compiler, "libc": " ".join(os.confstr("CS_GNU_LIBC_VERSION").split()), "processor": " ".join(kind)}


def reenter():
    """Runs this program again in a network namespace of its own."""
    if os.environ.get("MAILRUN_IN_NAMESPACE") or os.geteuid() != 0 or not shutil.which("unshare"):
        return
    line = 'ip link set lo up && exec "$0" "$@"'
    words = ["unshare", "--net", "sh", "-c", line, sys.executable, *sys.argv]
    os.environ["MAILRUN_IN_NAMESPACE"] = "1"
    os.execvp("unshare", words)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="target/dist/mailrun")
    parser.add_argument("--stored", default="benches/cost.json")
    parser.add_argument("--only", default="", help="shapes whose names have that text")
    options = parser.parse_args()
    missing = [tool for tool in ("valgrind", "strace", "unshare", "ip") if not shutil.which(tool)]
    if missing or os.geteuid() != 0:
        why = f"costs of a message: {', '.join(missing) or 'root'} is needed"
        print(f"SKIPPED: {why}")
        with open("target/skipped-peers.txt", "a") as file:
            file.write(why + "\n")
        return
    reenter()
    stored = {"host": {}, "shapes": {}}
    if os.path.exists(options.stored):
        with open(options.stored) as file:
            stored = json.load(file)
    blesses = bool(os.environ.get("MAILRUN_BLESS"))
    if blesses and options.only and stored["shapes"] and stored["host"] != host():
        # The other shapes keep their figures, which are those of the stored host.
        sys.exit(f"bench-cost: {options.stored} has figures of another host or compiler; store all shapes, without --only")
    judged = [kind for kind in KINDS if kind != "instructions" or stored["host"] == host()]
    worse, better, all_found = [], [], {}
    print(f"{'a message':34}" + "".join(f"{kind:>22}" for kind in KINDS))
    for shape in shapes():
        if options.only not in shape.name:
            continue
        known = stored["shapes"].get(shape.name)
        found = count(options.program, shape)
        for _ in range(ATTEMPTS - 1):
            if blesses or (known and any(change(kind, found, known) > LIMIT for kind in judged)):
                found = lowest(found, count(options.program, shape))
        all_found[shape.name] = {kind: round(found[kind], 3) for kind in KINDS}
        cells = []
        for kind in KINDS:
            by = change(kind, found, known) if known else None
            cells.append(f"{found[kind]:12.2f} " + ("      new" if by is None else f"{by:+9.2%}"))
            if by is not None and kind in judged and abs(by) > LIMIT:
                (worse if by > 0 else better).append(f"{shape.name}: {kind} {known[kind]:.2f} -> {found[kind]:.2f} ({by:+.1%})")
        print(f"{shape.name:34}" + "".join(cells), flush=True)
    finish(options, stored, all_found, worse, better, blesses)


def finish(options, stored, found, worse, better, blesses):
    if stored["host"] != host():
        print(f"instructions are not judged: stored for {stored['host']}, this is {host()}")
    if blesses:
        with open(options.stored, "w") as file:
            json.dump({"host": host(), "shapes": {**stored["shapes"], **found}}, file, indent=1)
            file.write("\n")
        print(f"stored in {options.stored}")
        return
    for line in better:
        print(f"less: {line}. MAILRUN_BLESS=1 make bench-cost stores it.")
    for line in worse:
        print(f"MORE: {line}")
    if worse:
        sys.exit("bench-cost: a message costs more than 3 % more. If that is meant: MAILRUN_BLESS=1 make bench-cost")


if __name__ == "__main__":
    main()
