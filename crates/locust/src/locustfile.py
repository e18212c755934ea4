"""A locustfile for a Locust master whose workers are `mailrun locust worker`: https://locust.io, docs/locust.md of mailrun.

It needs nothing but Locust (2.12 and later). The workers send the mail; here are the stages, the merge of their exact
histograms, the thresholds, and the exit status: 0 passed, 1 failed (mail or a threshold), 3 reports were lost.
"""
import base64
import json
import os
import re
import struct
import sys
import time
import uuid
import zlib

from locust import LoadTestShape, User, constant, events, task
from locust.runners import MasterRunner

TIME = re.compile(r"^([0-9.]+)(ms|s|m|h)$")
SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}
STAGE = re.compile(r"^([^:]+):(\d+)(?:\.\.(\d+))?$")
THRESHOLD = re.compile(r"^(p\d{1,2}(?:\.\d+)?|p100|p999+|max|mean|count|failed)\s*(<=|>=|<|>)\s*([0-9.]+)(ms|s)?$")


class MailrunSession(User):
    """One SMTP session of a worker. Python never runs it: the workers are mailrun."""

    wait_time = constant(1)

    @task
    def send(self):
        time.sleep(1)


def seconds(text):
    """10s, 500ms, 2m as seconds."""
    found = TIME.match(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no time; write 500ms, 10s, 2m or 1h")
    return float(found[1]) * SECONDS[found[2]]


def stages_of(text):
    """10s:10,60s:10..200 as (seconds, users at the beginning, users at the end)."""
    stages = []
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        found = STAGE.match(part)
        if not found:
            raise ValueError(f"{part!r} is no stage; write TIME:USERS or TIME:FROM..TO")
        users = int(found[2])
        stages.append((seconds(found[1]), users, int(found[3] or users)))
    return stages


def thresholds_of(text):
    """p99<50ms,failed<=0 as (text, metric, comparison, limit); times are in milliseconds."""
    thresholds = []
    for part in filter(None, (part.strip() for part in (text or "").split(","))):
        found = THRESHOLD.match(part)
        if not found:
            raise ValueError(f"{part!r} is no threshold; write p99<50ms, p99.9<1s, max<1s, mean<5ms, count>=1000 or failed<=0")
        limit = float(found[3]) * (1000 if found[4] == "s" else 1)
        thresholds.append((part, found[1], found[2], limit))
    return thresholds


def share_of(percentile):
    """p5 is 0.05, p99.9 and p999 are 0.999."""
    digits = percentile[1:]
    if digits.startswith("999"):
        digits = "99." + digits[2:]
    return float(digits) / 100


@events.init_command_line_parser.add_listener
def arguments(parser):
    def add(name, default, text):
        parser.add_argument(name, default=default, help=text, env_var="LOCUST_" + name[2:].upper().replace("-", "_"))

    add("--mailrun-stages", "", "stages: 10s:10,60s:10..200 (TIME:USERS or TIME:FROM..TO)")
    add("--mailrun-drain", "5s", "time without users after the last stage, for messages under way")
    add("--mailrun-thresholds", "", "conditions: p99<50ms,failed<=0 (pN, max, mean, count, failed)")
    add("--mailrun-report", "", "file for the merged result, as JSON")
    add("--mailrun-run-id", uuid.uuid4().hex, "run id of the trace headers, 32 hexadecimal digits")


class Stages(LoadTestShape):
    """The stages, and after them a drain without users: a master listens for half a second after its last `quit`."""

    def tick(self):
        options = self.runner.environment.parsed_options
        elapsed = self.get_run_time()
        for length, users, end in stages_of(options.mailrun_stages):
            if elapsed < length:
                users = round(users + (end - users) * elapsed / length)
                return users, max(users, end, 1)
            elapsed -= length
        # A drain is no ramp: nothing is left out for it.
        self.runner.environment.reset_stats = options.reset_stats = False
        return (0, 1000) if elapsed < seconds(options.mailrun_drain) else None


if not os.environ.get("LOCUST_MAILRUN_STAGES") and not any(w.startswith("--mailrun-stages") for w in sys.argv):
    del Stages  # -u, -r and -t, or the form of the web page, decide


class Histogram:
    """An HdrHistogram in nanoseconds, decoded from V2 DEFLATE; adding is exact, bucket by bucket."""

    def __init__(self):
        self.layout = None
        self.counts = {}

    def add(self, encoded):
        raw = base64.b64decode(encoded)
        cookie, length = struct.unpack(">ii", raw[:8])
        if cookie & ~0xF0 != 0x1C849304:
            raise ValueError("no compressed HdrHistogram")
        raw = zlib.decompress(raw[8 : 8 + length])
        cookie, length, _, digits, lowest, _, _ = struct.unpack(">iiiiqqd", raw[:40])
        if cookie & ~0xF0 != 0x1C849303:
            raise ValueError("no HdrHistogram V2")
        layout = (digits, lowest)
        if self.layout not in (None, layout):
            raise ValueError("histograms of different precision")
        self.layout = layout
        added = index = 0
        for count in zigzag(raw[40 : 40 + length]):
            if count < 0:
                index -= count
                continue
            if count:
                self.counts[index] = self.counts.get(index, 0) + count
                added += count
            index += 1
        return added

    def count(self):
        return sum(self.counts.values())

    def value_ms(self, index):
        """The highest value that falls into the bucket, as HdrHistogram says it."""
        digits, lowest = self.layout
        unit = lowest.bit_length() - 1
        half = (2 * 10**digits - 1).bit_length() - 1
        bucket = (index >> half) - 1
        sub = (index & ((1 << half) - 1)) + (1 << half)
        if bucket < 0:
            sub -= 1 << half
            bucket = 0
        low = sub << (bucket + unit)
        return (low + (1 << (bucket + unit)) - 1) / 1e6

    def percentile_ms(self, share):
        rank = max(1, round(share * self.count() + 0.4999999))
        passed = 0
        for index in sorted(self.counts):
            passed += self.counts[index]
            if passed >= min(rank, self.count()):
                return self.value_ms(index)
        return None

    def mean_ms(self):
        total = sum(self.value_ms(index) * count for index, count in self.counts.items())
        return total / self.count() if self.counts else None


def zigzag(data):
    """The numbers of HdrHistogram V2: ZigZag LEB128 of at most 9 bytes."""
    at = 0
    while at < len(data):
        number = shift = 0
        for place in range(9):
            byte = data[at]
            at += 1
            number |= (byte if place == 8 else byte & 0x7F) << shift
            shift += 7
            if place == 8 or not byte & 0x80:
                break
        yield (number >> 1) ^ -(number & 1)


class Merge:
    """All reports of a test."""

    def __init__(self):
        self.began = time.time()
        self.histogram = Histogram()
        self.counts = {}
        self.workers = {}
        self.lost_reports = 0
        self.unreadable = 0
        self.left_out = 0

    def expect(self, environment):
        """Notes the workers that the master knows: one that is killed before its first report is lost too."""
        for client, node in list(getattr(environment.runner, "clients", {}).items()):
            unheard = {"number": 0, "final": False, "users": 0, "heard_s": 0.0}
            known = self.workers.setdefault(process_of(client), unheard)
            known["users"] = node.user_count or known["users"]

    def leave_out(self):
        """Begins anew, as Locust does with --reset-stats and at the button of its web page."""
        self.left_out += self.counts.get("accepted", 0)
        self.histogram = Histogram()
        self.counts = {}

    def add(self, client, data):
        report = data.get("mailrun_report")
        if not isinstance(report, dict):
            return
        number = report["number"]
        known = self.workers.get(process_of(client))
        if known and known["number"] and number > known["number"] + 1:
            self.lost_reports += number - known["number"] - 1
        self.workers[process_of(client)] = {
            "number": number,
            "final": bool(report.get("final")),
            "users": data.get("user_count", 0) or (known or {}).get("users", 0),
            "heard_s": round(time.time() - self.began, 1),
            "clock": data.get("mailrun_clock"),
        }
        for name, count in data.get("mailrun_counts", {}).items():
            if name == "left_out":
                self.left_out += count
                continue
            self.counts[name] = self.counts.get(name, 0) + count
        for tag, histogram in data.get("mailrun_histograms", {}).items():
            if tag == "message" and self.histogram.add(histogram["v2"]) != histogram["count"]:
                self.unreadable += 1

    def lost_workers(self):
        """Workers whose last report was not their last: they went without a word."""
        lost = sorted((client, seen) for client, seen in self.workers.items() if not seen["final"])
        return [{"worker": client, "heard_s": seen["heard_s"], "users": seen["users"]} for client, seen in lost]

    def clocks(self):
        """The clocks of the workers against the master's, in seconds."""
        return {client: seen["clock"] for client, seen in sorted(self.workers.items()) if seen.get("clock")}

    def value(self, metric):
        if metric == "count":
            return self.histogram.count()
        if metric == "failed":
            return self.counts.get("rejected", 0) + self.counts.get("failed", 0)
        if not self.histogram.counts:
            return None
        if metric == "max":
            return self.histogram.value_ms(max(self.histogram.counts))
        if metric == "mean":
            return self.histogram.mean_ms()
        return self.histogram.percentile_ms(share_of(metric))

    def result(self, thresholds):
        rows = []
        for text, metric, comparison, limit in thresholds:
            value = self.value(metric)
            compare = {"<": value is not None and value < limit, "<=": value is not None and value <= limit}
            compare.update({">": value is not None and value > limit, ">=": value is not None and value >= limit})
            rows.append({"threshold": text, "value": value, "passed": compare[comparison]})
        lost = self.lost_workers()
        is_bad = self.value("failed") > 0 or not all(row["passed"] for row in rows)
        is_incomplete = bool(lost or self.lost_reports or self.unreadable)
        return {
            "verdict": "FAIL" if is_bad else "INVALID" if is_incomplete else "PASS",
            "counts": self.counts,
            "accepted_ms": {name: self.value(name) for name in ("p50", "p90", "p95", "p99", "p999", "max", "mean")},
            "histogram_count": self.histogram.count(),
            "histogram": {str(index): count for index, count in sorted(self.histogram.counts.items())},
            "thresholds": rows,
            "left_out": self.left_out,
            "workers": len(self.workers),
            "clocks": self.clocks(),
            "lost_workers": lost,
            "lost_reports": self.lost_reports + self.unreadable,
        }


def process_of(client):
    """A worker's process: each of its connections has a name of its own, NAME-1, NAME-2 …"""
    name, _, number = client.rpartition("-")
    return name if name and number.isdigit() else client


def clock(environment, msg, **_):
    """Answers a worker's question for this host's clock."""
    if isinstance(msg.data, dict):
        answer = {"sent": msg.data.get("sent"), "received": time.time()}
        environment.runner.send_message("mailrun_clock", answer, msg.node_id)


STATE = {"merge": Merge()}


@events.init.add_listener
def check(environment, **_):
    if not isinstance(environment.runner, MasterRunner):
        return
    environment.runner.register_message("mailrun_clock", clock)
    STATE["reset_stats"] = environment.reset_stats
    options = environment.parsed_options
    try:
        stages_of(options.mailrun_stages)
        seconds(options.mailrun_drain)
        thresholds_of(options.mailrun_thresholds)
    except ValueError as error:
        sys.exit(f"locustfile of mailrun: {error}")


@events.test_start.add_listener
def begin(environment, **_):
    STATE["merge"] = Merge()
    STATE["environment"] = environment
    environment.reset_stats = environment.parsed_options.reset_stats = STATE.get("reset_stats", False)
    STATE["merge"].expect(environment)


@events.spawning_complete.add_listener
def ramp_complete(**_):
    environment = STATE.get("environment")
    if environment and environment.reset_stats:
        STATE["merge"].leave_out()


@events.reset_stats.add_listener
def stats_reset(**_):
    STATE["merge"].leave_out()


@events.worker_report.add_listener
def worker_report(client_id, data, **_):
    try:
        if STATE.get("environment"):
            STATE["merge"].expect(STATE["environment"])
        STATE["merge"].add(client_id, data)
    except (KeyError, TypeError, ValueError, IndexError, struct.error, zlib.error):
        STATE["merge"].unreadable += 1


def summary(result):
    """The result in words."""
    lines = [f"mailrun: {result['verdict']}: {result['counts'].get('accepted', 0)} messages accepted by the server"]
    times = {name: ms for name, ms in result["accepted_ms"].items() if ms is not None}
    if times:
        lines.append("  exact, over all workers: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items()))
    failed = {name: count for name, count in result["counts"].items() if name in ("rejected", "failed") and count}
    if failed:
        lines.append("  " + ", ".join(f"{count} {name}" for name, count in failed.items()))
    for row in result["thresholds"]:
        lines.append(f"  {'met' if row['passed'] else 'MISSED'}: {row['threshold']} (is {row['value']})")
    if result["left_out"]:
        lines.append(f"  {result['left_out']} messages accepted before the counts were reset are left out")
    for lost in result["lost_workers"]:
        lines.append(
            f"  worker lost: {lost['worker']}: its last report came {lost['heard_s']} s after the start, with "
            f"{lost['users']} users; what it sent after it, an interval of 3 s, is missing"
        )
    if result["clocks"]:
        offset = max((abs(clock["offset_s"]) for clock in result["clocks"].values()))
        bound = max((clock["bound_s"] for clock in result["clocks"].values()))
        lines.append(f"  clocks of the workers: {offset * 1e3:.1f} ms from the master's at most, known to {bound * 1e3:.1f} ms")
    if result["lost_reports"]:
        lines.append(f"  {result['lost_reports']} reports were lost or unreadable")
    return "\n".join(lines)


@events.quit.add_listener
def end(exit_code, **_):
    environment = STATE.get("environment")
    if environment is None or not isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    result = STATE["merge"].result(thresholds_of(options.mailrun_thresholds))
    result["run_id"] = options.mailrun_run_id
    print(summary(result), flush=True)
    if options.mailrun_report:
        with open(options.mailrun_report, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    status = {"PASS": exit_code, "FAIL": 1, "INVALID": exit_code or 3}[result["verdict"]]
    sys.exit(status)
