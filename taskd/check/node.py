"""A node's part of a check, in its launcher: it keeps the probe, passes orders on, and tells the answers.

Failure modes: the probe cannot start, ends, or hangs; the conductor is gone. Invariants: the probe is started once. An
answer that comes too late is never taken for that of the next turn. Every wait has a limit. If the conductor says
nothing more, the node goes on unchecked, and says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd import log
from taskd.board import Board
from taskd.check import rails
from taskd.core.limits import CHECK_SELF_NS, SECOND
from taskd.errors import PeerError

MORE_SECONDS = 0.5
"""How much longer than its limit a launcher waits for its probe: the answer has to be written and read."""
START_SECONDS = 180.0
"""How long a probe may take to import torch and to use its devices for the first time."""
CONDUCTOR_SECONDS = 30.0
"""How long the conductor may take between two turns."""
_LINE_MOST = 1 << 16
_logger = log.get(__name__)


def here(node: int) -> str:
    """Return the key that a node writes when it has come."""
    return f"check/here/{node}"


class ProbeProcess:
    """The probe of this node."""

    def __init__(self, towards: str) -> None:
        """`towards`: the host where the nodes meet. The interface on the way there is a rail."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "taskd.check", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"TASKD_MANAGER_HOST": towards, **os.environ},
        )
        self._number = 0
        self._read = b""

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def introduction(self, seconds: float) -> dict[str, Any] | None:
        """Wait for its first words. None: they do not come."""
        return self._next(time.monotonic() + seconds)

    def ask(self, order: dict[str, Any], seconds: float) -> dict[str, Any] | None:
        """Pass an order on, and wait for the answer. None: it does not come."""
        self._number += 1
        until = time.monotonic() + seconds
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({**order, "number": self._number}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return None
        while (answer := self._next(until)) is not None:
            if answer.get("number") == self._number:
                return answer
        return None

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def _next(self, until: float) -> dict[str, Any] | None:
        """Wait for the next line."""
        assert self._process.stdout is not None
        fd, waits = self._process.stdout.fileno(), select.poll()
        waits.register(fd, select.POLLIN)
        while b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not waits.poll(left * 1000):
                return None
            piece = os.read(fd, _LINE_MOST)
            if not piece or len(self._read) > _LINE_MOST:
                return None
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            return None
        return answer if isinstance(answer, dict) else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check has found about this node."""

    finding: str
    reason: str
    line: str
    """What a launcher says when its node leaves. Empty: the node stays."""

    @classmethod
    def of(cls, told: Any) -> Verdict:
        """Read what the conductor has told, without what would move a terminal's cursor. Raises ValueError."""
        finding, reason, line = ("".join(filter(str.isprintable, str(text))) for text in told)
        return cls(finding, reason, line)


class Node:
    """This node in one check."""

    def __init__(self, board: Board, number: int, towards: str) -> None:
        """`towards`: see ProbeProcess."""
        self._board, self.number = board, number
        self.probe = ProbeProcess(towards)
        self.verdicts: dict[int, Verdict] | None = None
        """What was found about each node. None: that is not known."""
        self._rails = rails.Rails()
        self._partners: dict[int, rails.Rails] = {}

    def run(self) -> Verdict | None:
        """Take part until the check is over. None: the conductor is gone, and nobody knows anything of this node."""
        try:
            self._introduce()
            turn = 0
            while True:
                said = self._board.polled(f"check/turn/{turn}", START_SECONDS + CONDUCTOR_SECONDS)
                if "verdicts" in said:
                    found = {int(node): Verdict.of(told) for node, told in said["verdicts"].items()}
                    own, self.verdicts = found[self.number], found
                    return own
                if not self._board.told(f"check/turn/{turn + 1}"):  # otherwise it is over, and this node is late
                    self._board.tell(f"check/answer/{turn}/{self.number}", self._follow(said))
                turn += 1
        except (PeerError, LookupError, TypeError, ValueError, AttributeError, OSError, RuntimeError) as error:
            _logger.warning("the check of nodes ended without a verdict for this node, which goes on: %s", error)
            return None
        finally:
            self.probe.end()

    def _introduce(self) -> None:
        """Let the node test itself, and tell what came of it and where the probe is reached."""
        told = self.probe.introduction(START_SECONDS)
        if told is None or "rails" not in told:
            why = (told or {}).get("cannot", "")
            _logger.error("the probe of this node cannot test it: %s", why or "it has ended, or did not begin")
            self._board.tell(f"check/node/{self.number}", {"ended": not self._is_alive(), "cannot": why})
            return
        self._rails = rails.read(told["rails"])
        own = self.probe.ask({"do": "self"}, CHECK_SELF_NS / SECOND + MORE_SECONDS) or {}
        self._board.tell(
            f"check/node/{self.number}",
            {"rails": told["rails"], "ended": not self._is_alive(), "self": own.get("self")},
        )

    def _follow(self, turn: dict[str, Any]) -> dict[str, Any]:
        """Do what the turn wants of this node. Return what is told about it. Partners are met before a test of the node
        itself, since they wait."""
        answer: dict[str, Any] = {}
        for low, high, token in turn["pairs"]:
            if self.number in (low, high):
                partner = high if self.number == low else low
                places = rails.pairs(self._rails, self._rails_of(partner))
                order = {"do": "pair", "token": token, "rails": places, "limit_ns": turn["pair_ns"]}
                order["calls"] = (self.number == low) == (turn["round"] % 2 == 0)  # who answers has to be in time
                side = self.probe.ask(order, turn["pair_ns"] / SECOND + MORE_SECONDS) or {}
                answer["side"] = side.get("side")
        if self.number in turn["again"]:
            own = self.probe.ask({"do": "self"}, CHECK_SELF_NS / SECOND + MORE_SECONDS) or {}
            answer["self"] = own.get("self")
        return {**answer, "ended": not self._is_alive()}

    def _rails_of(self, node: int) -> rails.Rails:
        """Where a partner is reached. Empty if it has not come so far."""
        if node not in self._partners:
            told = self._board.look(f"check/node/{node}")
            if not isinstance(told, dict):
                return {}
            self._partners[node] = rails.read(told.get("rails"))
        return self._partners[node]

    def _is_alive(self) -> bool:
        """Whether the probe is there and runs."""
        try:
            state = Path(f"/proc/{self.probe.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        return state not in "ZXTt"
