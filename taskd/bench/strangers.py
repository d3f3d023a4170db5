"""What strangers can do to a running job: `taskd bench strangers`.

A job trains on one node. Then very many connections are held open to each port that any of its processes listens on:
silent ones, slow ones, and ones that send garbage (knock.py). The figures say what it costs the training, how much
memory the job's processes take for it, how many connections they keep, and whether anybody was let in. A step that is
late by its own work is late without strangers, too: the longest one before they come is measured in the same job.

Nothing is injected into the product. It does NOT try what somebody could do who holds the job's key.
"""

from __future__ import annotations

import ipaddress
import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from taskd.bench.job import Job
from taskd.bench.report import Figure, Goal, median, unmeasured
from taskd.processes import started_by

KNOCK = Path(__file__).with_name("knock.py")
CONNECTIONS = 5_000
"""To each port."""
RANKS = 2
WORDS = (512, 4, 40_000)
SETTLE_STEPS = 50
WATCH_S = 20.0
"""For so long the training is watched without strangers, and as long with them."""
OPEN_S = 60.0
"""For so long strangers may take to come. Whoever is not accepted in this time counts as refused."""
ANSWER_S = 20.0
"""For so long an answer of strangers is awaited. They give way to the job on a machine without free processors."""
PROCESSES_MAX = 10_000
_LISTENS = "0A"
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def ports_of(pids: list[int]) -> list[str]:
    """HOST:PORT of each socket that one of these listens on, where a stranger of this machine reaches it."""
    inodes = {os.path.basename(link)[8:-1] for pid in pids for link in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:  # this system has no IPv6
            continue
        for row in rows:
            local, state, inode = row.split()[1], row.split()[3], row.split()[9]
            if state == _LISTENS and inode in inodes:
                host, _, port = local.partition(":")
                found.add(f"{host_of(host)}:{int(port, 16)}")
    return sorted(found)


def host_of(digits: str) -> str:
    """The address that /proc/net/tcp writes like this: words of four bytes, each in the order of this machine."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    number = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(number)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    host = str(mapped or address)
    return _ANY.get(host, host)


def memory_mb(pids: list[int]) -> float:
    """What these processes have to themselves, or their share of it."""
    total = 0
    for pid in pids:
        try:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total / 1024


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    with Job(WORDS, ranks=RANKS) as job:
        job.settle(SETTLE_STEPS)
        launcher = job.launchers[0].pid
        pids = [launcher, *started_by(launcher, PROCESSES_MAX)]
        ports, calm_mb = ports_of(pids), memory_mb(pids)
        calm = _watched()
        strangers = [_Strangers(port) for port in ports]
        try:
            come_by = time.monotonic() + OPEN_S
            for one in strangers:
                one.hear(come_by - time.monotonic())
            crowded = _watched()
            crowded_mb = memory_mb([launcher, *started_by(launcher, PROCESSES_MAX)])
            held = {one.port: one.ask() for one in strangers}
            facts = job.ask("status")
        finally:
            for one in strangers:
                one.end()
        job.finish()
        job.results()
        steps = [(begin, end) for times in job.times().values() for begin, end in times]
    for port, told in held.items():
        words = " ".join(f"{count} {word}," for word, count in told.items()) if told else "it is not known what came,"
        print(f"{port}: {words} of {CONNECTIONS}", file=sys.stderr, flush=True)
    return {
        "ports": Figure(len(ports), "ports"),
        **_crowd([told for told in held.values() if told is not None], len(ports)),
        **_answers(facts),
        **_training(_lengths_ms(steps, *calm), _lengths_ms(steps, *crowded)),
        "memory_mb": Figure(crowded_mb - calm_mb, "MB", Goal("<", 100)),
    }


def _crowd(told: list[dict[str, int]], ports: int) -> dict[str, Figure]:
    """What has become of the strangers."""
    if len(told) < ports:
        reason = f"the strangers at {ports - len(told)} ports did not say in {ANSWER_S:.0f} s what became of them"
        return {name: unmeasured("connections", reason) for name in ("connections_held", "refused")}
    return {
        "connections_held": Figure(sum(one["open"] for one in told), "connections"),
        # Those that no process has accepted lie in a queue of the kernel, which has a bound, or are not answered.
        "refused": Figure(sum(one["closed"] + one["waiting"] for one in told), "connections"),
    }


def _answers(facts: dict[str, object] | None) -> dict[str, Figure]:
    """What the manager says, while strangers are there."""
    goal = Goal("==", 0)
    if facts is None:
        reason = "the manager did not answer `taskd status` while strangers were there"
        return {"let_in": unmeasured("strangers", reason, goal), "incidents": unmeasured("incidents", reason, goal)}
    ranks, nodes, incidents = facts["ranks"], facts["nodes"], facts["incidents"]
    assert isinstance(ranks, list) and isinstance(nodes, list) and isinstance(incidents, dict)
    return {
        "let_in": Figure(len(ranks) - RANKS + len(nodes) - 1, "strangers", goal),
        "incidents": Figure(incidents["known"], "incidents", goal),
    }


def _training(calm: list[float], crowded: list[float]) -> dict[str, Figure]:
    """What it has cost the training: lengths of steps, in milliseconds, without strangers and with them."""
    late = Goal("<", 100)
    quiet, loud = median(calm, "ms"), median(crowded, "ms")
    if not quiet.value or not loud.value:
        reason = f"no rank made a whole step {'among' if calm else 'without'} strangers, or it was replaced later"
        missing = {"training_slowed_percent": "%", "longest_step_ms": "ms", "longest_calm_step_ms": "ms"}
        return {name: unmeasured(unit, reason) for name, unit in missing.items()} | {
            "late_ms": unmeasured("ms", reason, late)
        }
    return {
        "training_slowed_percent": Figure(100 * (loud.value / quiet.value - 1), "%"),
        "longest_step_ms": Figure(max(crowded), "ms"),
        "longest_calm_step_ms": Figure(max(calm), "ms"),
        "late_ms": Figure(max(0.0, max(crowded) - max(calm)), "ms", late),
    }


class _Strangers:
    """The process that holds connections to one port: a process may have no more of them than that."""

    def __init__(self, port: str) -> None:
        self.port = port
        command = [sys.executable, str(KNOCK), str(CONNECTIONS), port]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._asks, self._says = self._process.stdin, self._process.stdout
        self._heard = b""

    def hear(self, seconds: float) -> dict[str, int] | None:
        """What they say next: how many connections are open, waiting and closed. None: nothing in this time."""
        ends = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._says, selectors.EVENT_READ)
            while b"\n" not in self._heard:
                if not selector.select(max(0.0, ends - time.monotonic())):
                    return None
                more = os.read(self._says.fileno(), 65536)
                if not more:
                    return None
                self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        found: dict[str, int] = json.loads(line)
        return found

    def ask(self) -> dict[str, int] | None:
        """The same, now."""
        while self.hear(0) is not None:  # what they have said unasked
            pass
        try:
            self._asks.write(b"how many\n")
            self._asks.flush()
        except OSError:
            return None
        return self.hear(ANSWER_S)

    def end(self) -> None:
        """Close them all."""
        try:
            self._process.communicate(timeout=ANSWER_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


def _watched() -> tuple[int, int]:
    """Begin and end of a while in which nothing is done."""
    begin = time.monotonic_ns()
    time.sleep(WATCH_S)  # the time in which steps are counted
    return begin, time.monotonic_ns()


def _lengths_ms(steps: list[tuple[int, int]], since: int, until: int) -> list[float]:
    return [(end - begin) / 1e6 for begin, end in steps if since <= begin and end <= until]


def _sockets(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return
    for number in numbers:
        try:
            link = os.readlink(f"{folder}/{number}")
        except OSError:
            continue
        if link.startswith("socket:["):
            yield link
