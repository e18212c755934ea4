#!/usr/bin/env python3
"""Compares a worker under Locust with the same load run alone: pairs of runs, one after the other, in turn first.

    scripts/bench-locust.py [--pairs 6] [--seconds 20] [--sessions 32] [--program target/release/mailrun]

Each run has a sink of its own, which counts the messages of the same time of both. Prints for each pair the ratio of the rates
and that of the processor time a message of the generator, alone to under Locust; and the medians. The second is the steadier
one: it does not depend on what else takes the processors, Locust's master among it. Ends with status 1 if the median ratio of
the rates is below 0.97. The machine should be idle.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import typing
import urllib.request

GOAL = 0.97
SETTLE_S = 3


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Figures(typing.NamedTuple):
    """Messages per second, the generator's processor time a message in µs, and the share of a processor of the process beside it."""

    rate: float
    cpu_us: float
    beside: float


def cpu_s(pid):
    """Processor time of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run:
    """Processes that end with it."""

    def __init__(self, options):
        self.options = options
        self.processes = []
        self.said = []
        self.smtp, self.http, self.master = free_port(), free_port(), free_port()

    def start(self, *words):
        said = tempfile.TemporaryFile()
        self.said.append((os.path.basename(words[0]) + " " + words[1], said))
        self.processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=said))

    def messages(self):
        """Messages that the sink has taken, and when it was asked."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.http}/status", timeout=10) as answer:
            return json.load(answer)["messages"], time.monotonic()

    def await_messages(self):
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if self.messages()[0] > 0:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        for name, said in self.said:
            said.seek(0)
            print(f"{name}:\n{said.read().decode(errors='replace')}", file=sys.stderr)
        sys.exit("bench-locust: no message within a minute; above is what the processes said")

    def cpu_s(self):
        """Processor time of the generator, which is the process started last, and of the one before it: the sink or the master."""
        return [cpu_s(process.pid) for process in self.processes[-1:-3:-1]]

    def figures(self):
        """What was sent and used, once the load has settled."""
        self.await_messages()
        time.sleep(SETTLE_S)
        (before, began), used_before = self.messages(), self.cpu_s()
        time.sleep(self.options.seconds)
        (after, ended), used_after = self.messages(), self.cpu_s()
        generator, other = (late - early for early, late in zip(used_before, used_after))
        return Figures((after - before) / (ended - began), generator * 1e6 / (after - before), other / (ended - began))

    def sink(self):
        self.start(self.options.program, "sink", "--listen", f"127.0.0.1:{self.smtp}", "--http", f"127.0.0.1:{self.http}")

    def alone(self):
        length = SETTLE_S + self.options.seconds + 60
        words = ["source", f"127.0.0.1:{self.smtp}", "--sessions", str(self.options.sessions), "--duration", f"{length}s"]
        self.start(self.options.program, *words, "--reuse")

    def under_locust(self, locustfile):
        users = str(self.options.sessions)
        words = ["-f", locustfile, "--master", "--headless", "--expect-workers", "1", "-u", users, "-r", users]
        bind = ["--master-bind-host", "127.0.0.1", "--master-bind-port", str(self.master)]
        self.start(self.options.locust, *words, *bind)
        words = ["locust", "worker", f"127.0.0.1:{self.smtp}", "--master-port", str(self.master), "--reuse"]
        self.start(self.options.program, *words)

    def end(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(options, kind, locustfile):
    run = Run(options)
    try:
        run.sink()
        run.alone() if kind == "alone" else run.under_locust(locustfile)
        return run.figures()
    finally:
        run.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--sessions", type=int, default=32)
    parser.add_argument("--program", default="target/release/mailrun")
    parser.add_argument("--locust", default="target/locust-newest/bin/locust")
    options = parser.parse_args()
    for program in (options.program, options.locust):
        if not os.access(program, os.X_OK):
            sys.exit(f"bench-locust: {program} is not there; `make bench-locust` builds and installs what it needs")
    rates, times = [], []
    with tempfile.TemporaryDirectory() as place:
        locustfile = os.path.join(place, "locustfile.py")
        with open(locustfile, "wb") as file:
            file.write(subprocess.run([options.program, "locust", "file"], check=True, capture_output=True).stdout)
        for pair in range(options.pairs):
            kinds = ["alone", "under Locust"]
            order = kinds if pair % 2 == 0 else kinds[::-1]
            seen = {kind: measure(options, kind, locustfile) for kind in order}
            alone, under = seen["alone"], seen["under Locust"]
            rates.append(under.rate / alone.rate)
            times.append(alone.cpu_us / under.cpu_us)
            print(
                f"pair {pair + 1}: alone {alone.rate:.0f}/s at {alone.cpu_us:.2f} µs, under Locust {under.rate:.0f}/s at "
                f"{under.cpu_us:.2f} µs; ratio of rates {rates[-1]:.3f}, of times {times[-1]:.3f}; master {under.beside:.1%} of a "
                f"processor",
                flush=True,
            )
    median = statistics.median(rates)
    for name, ratios, goal in (("rates", rates, f"; goal {GOAL}"), ("processor times a message", times, "")):
        middle = statistics.median(ratios)
        print(f"median ratio of {name}, {len(ratios)} pairs: {middle:.3f} (from {min(ratios):.3f} to {max(ratios):.3f}{goal})")
    sys.exit(0 if median >= GOAL else 1)


if __name__ == "__main__":
    main()
