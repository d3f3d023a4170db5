"""A training process without torch, for tests: it takes steps through the drop-in API and obeys one-word commands.

Started as `python trainer.py`, with RANK and its kin in the environment. Each line on standard input is a command, each
answer one line of JSON on standard output; at the end of standard input it leaves in good order.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

from taskd import _native
from taskd.api import destroy_taskd_worker, init_taskd_worker, start_taskd_worker
from taskd.comm import counters
from taskd.core.types import RailState
from taskd.worker import hooks, presence

STEP_S = 0.02


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def start() -> None:
    began = time.monotonic()
    init = init_taskd_worker(int(os.environ["RANK"]), 5000, os.environ.get("FRAMEWORK", "pt"))
    begun = start_taskd_worker() if init else False
    there = presence.current()
    reason = there.link.reason if there else ""
    say(init=init, start=begun, seconds=time.monotonic() - began, pid=os.getpid(), reason=reason)


def descriptors_of_a_forked_child() -> None:
    """What a DataLoader worker would hold open, and whether the API is inert in it."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        names = {}
        for fd in os.listdir("/proc/self/fd"):
            try:
                names[fd] = os.readlink(f"/proc/self/fd/{fd}")
            except OSError:
                continue  # the descriptor of the listing itself
        hooks.step_end(10**6)
        found = {"fds": names, "present": presence.current() is not None, "step_shown": False}
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        found = json.load(stream)
    os.waitpid(pid, 0)
    there = presence.current()
    found["step_shown"] = there is not None and there.link.page.read().step == 10**6
    found["mine"] = {
        fd: os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.islink(f"/proc/self/fd/{fd}")
    }
    say(**found)


class Rails:
    """Counters of rails, as a transport of this process would keep them."""

    def __init__(self) -> None:
        self.file: _native.RailCounters | None = None
        self.counters: dict[tuple[str, int], _native.RailCounter] = {}

    def count(self, rail: str, peer: str, node: str, state: str, size: str) -> None:
        """So many bytes more went out on a rail to a rank, and that is how it stands."""
        first = self.file is None
        self.file = self.file or _native.RailCounters()
        key = (rail, int(peer))
        if key not in self.counters:
            self.counters[key] = self.file.open(rail, int(peer), node, 1)
        self.counters[key].set_state(RailState[state], 110 if state == "DOWN" else 0, 1000)
        self.counters[key].count(bytes_out=int(size))
        if first:
            counters.show(self.file.fd)
        say(counted=True)


RAILS = Rails()


def obey(words: list[str]) -> None:
    if words[0] == "rail":
        RAILS.count(*words[1:])
    elif words[0] == "exit":
        sys.exit(int(words[1]))
    elif words[0] == "raise":
        raise ValueError("shapes differ\nand a second line")
    elif words[0] == "fork":
        descriptors_of_a_forked_child()
    elif words[0] == "destroy":
        say(destroyed=destroy_taskd_worker())
    elif words[0] == "start":
        start()
    elif words[0] == "state":
        there = presence.current()
        link = there.link if there else None
        say(
            acknowledged=bool(link and link.acknowledged),
            reason=link.reason if link else "",
            incarnation=link.incarnation if link else 0,
        )


def main() -> None:
    start()
    step = 0
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], STEP_S)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            obey(line.split())
        if not os.environ.get("QUIET"):
            hooks.step_end(step)
        step += 1


main()
