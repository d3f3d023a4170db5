"""The client of a job's manager: asks how the job is, pauses and resumes it, replaces ranks, moves them to other nodes,
takes rails out of use and puts them back.

    with taskd.Client(job="my-job") as client:
        print(client.pause(seconds=60).words)

The command `taskd` uses the same class. Host, port, job and key come from the configuration, as everywhere. If exactly
one manager on this host matches the given job, port and host, that one is asked. A named port counts for more than a
job in the environment. A connection that ends in its handshake is made again a few times, since strangers may crowd the
port. If a manager does not answer in ANSWER_SECONDS, the error says where it was looked for and what to do. A wish has
a request of its own, so it may be sent again without being followed twice. This module does NOT format anything for a
terminal.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import socket as sockets
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, TypeVar

import zmq

from taskd import config as configuration
from taskd.config import Config
from taskd.core.messages import Question, Reply
from taskd.core.words import cut
from taskd.errors import PeerError, UsageError
from taskd.manager import residence
from taskd.wire import keys
from taskd.wire.codec import Envelope, WireError, decode, encode

ANSWER_SECONDS = 5.0
CONNECT_SECONDS = 3.0
HANDSHAKES = 5
"""How often a connection is tried that ends before both sides have proved the key. That is mostly a wrong key."""
LOOK_SECONDS = 0.1
"""The time between two looks at a change that is under way."""
DEVICE_RAIL = "npu"
"""The name of the rail that is the own network card of each device of a node. HCCL's groups have it."""
HERE = ("127.0.0.1", "localhost")
_REFUSED = {zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL}
_WATCHED = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_DISCONNECTED
)


class NoManager(PeerError):
    """No manager answered; the text says where it was looked for and what to do."""


class _CutOff(NoManager):
    """The connection has ended in its handshake."""


@dataclass(frozen=True)
class RankPause:
    """What one rank has answered about a pause."""

    rank: int
    node: str
    stands: bool
    next_step: int  # the step that it will begin next; while it does not stand, perhaps a later one; -1: no answer yet
    trouble: str


@dataclass(frozen=True)
class PauseResult:
    """How a pause, or its end, stands."""

    request: str
    done: bool  # all ranks stand; for a resume: nothing is paused any more
    step: int  # the step before which the ranks stand; -1: none is agreed on
    words: str  # one sentence
    left_seconds: float | None  # of the pause that is under way; None: it does not count yet, or there is none
    ranks: tuple[RankPause, ...]
    facts: dict[str, Any]  # all that the manager has said


@dataclass(frozen=True)
class RankReplaced:
    """What an errand has done to one rank."""

    rank: int
    node: str
    incarnation: int
    node_now: str
    incarnation_now: int
    replaced: bool


@dataclass(frozen=True)
class ErrandResult:
    """How a restart of a rank, or the move of a node's ranks, stands."""

    request: str
    done: bool
    under_way: bool
    words: str  # one sentence
    ranks: tuple[RankReplaced, ...]
    facts: dict[str, Any]  # all that the manager has said


@dataclass(frozen=True)
class RailResult:
    """How an operator's change of a rail stands."""

    rail: str
    done: bool
    under_way: bool
    words: str  # one sentence
    facts: dict[str, Any]


Self_ = TypeVar("Self_", bound="Connection")


class Connection:
    """A connection to one manager, over which it is asked one question at a time."""

    def __init__(
        self,
        job: str | None = None,
        *,
        host: str | None = None,
        port: int | None = None,
        config: Config | None = None,
    ) -> None:
        """`config`: names the manager completely, in place of all others."""
        overrides: dict[str, Any] = {"job_id": job, "manager_host": host, "manager_port": port}
        self.config = config or _meant(configuration.load(**overrides))
        self.place = f"{self.config.manager.host}:{self.config.manager.port}"
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: Any = None
        self._shaken = False  # whether the handshake of the current connection is complete
        self._life = secrets.randbits(62)
        self._sequence = 0

    def __enter__(self: Self_) -> Self_:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._hang_up()
        self._context.term()

    # ---- questions --------------------------------------------------------------------------------------------

    def ask(self, topic: str, argument: str = "") -> dict[str, Any]:
        """The manager's answer to one question."""
        for _ in range(HANDSHAKES - 1):
            try:
                return self._ask(topic, argument)
            except _CutOff:
                continue
        return self._ask(topic, argument)

    def _ask(self, topic: str, argument: str) -> dict[str, Any]:
        if self._socket is not None and zmq.EVENT_DISCONNECTED in self._events():
            self._hang_up()  # the manager ended since the last answer; there may be another one now
        if self._socket is None:
            self._connect()
        assert self._socket is not None
        self._sequence += 1
        question = encode(Question(topic, cut(argument)), Envelope(self._job, "", self._life, self._sequence))
        self._send(self._socket, question)
        reply = self._reply(self._socket)
        if not reply.ok:
            raise UsageError(reply.text)
        answer: dict[str, Any] = json.loads(reply.text)
        return answer

    @property
    def _job(self) -> str:
        return self.config.job.id

    def _connect(self) -> None:
        key = keys.find(self.config)
        if key is None:
            raise NoManager(
                f"the key of job {self._job} is not in {self.config.job.directory}: ask on the manager's host as the "
                "same user, name the job with --job, or give its key by TASKD_KEY_FILE"
            )
        try:
            sockets.create_connection((self.config.manager.host, self.config.manager.port), CONNECT_SECONDS).close()
        except OSError as error:
            why = error.strerror or str(error) or "no answer"
            raise NoManager(
                f"no manager of job {self._job} at {self.place} ({why}): start it, or say where it is with --host, "
                "--port and --job"
            ) from None
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.reconnect_ivl = -1
        key.protect_client(self._socket)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._socket.connect(f"tcp://{self.place}")

    def _send(self, socket: zmq.Socket[bytes], question: bytes) -> None:
        end = time.monotonic() + ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            try:
                socket.send(question, zmq.DONTWAIT)
                return
            except zmq.Again:
                ready = self._ready(socket, zmq.POLLOUT, left)
            if self._monitor in ready:
                self._check_events()
        self._hang_up()
        raise NoManager(f"the manager at {self.place} takes no question: it is stopped or overloaded")

    def _ready(self, socket: zmq.Socket[bytes], flag: int, seconds: float) -> dict[Any, int]:
        """Wait until the socket, or its monitor, is ready. Return which of them are."""
        poller = zmq.Poller()
        poller.register(socket, flag)
        poller.register(self._monitor, zmq.POLLIN)
        return dict(poller.poll(int(seconds * 1000) + 1))

    def _check_events(self) -> None:
        """Raise NoManager if the connection has ended."""
        seen = self._events()
        if zmq.EVENT_DISCONNECTED not in seen and not seen & _REFUSED:
            return
        # A manager with another key does not even answer a handshake: it drops the connection.
        shaken = self._shaken
        self._hang_up()
        if not shaken:
            raise _CutOff(
                f"the manager at {self.place} does not accept the key of job {self._job}: another job's? "
                "Or strangers crowd its port, try again"
            )
        raise NoManager(f"the manager at {self.place} has ended")

    def _reply(self, socket: zmq.Socket[bytes]) -> Reply:
        end = time.monotonic() + ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            ready = self._ready(socket, zmq.POLLIN, left)
            if socket in ready:
                found = decode(socket.recv_multipart()[-1])
                if isinstance(found, WireError):
                    raise PeerError(f"the manager at {self.place} gave no answer of ours: {found.reason}")
                if isinstance(found[1], Reply):
                    return found[1]
            elif self._monitor in ready:
                self._check_events()
        self._hang_up()
        raise NoManager(
            f"the manager at {self.place} has not answered for {ANSWER_SECONDS:.0f} s: it is stopped or overloaded"
        )

    def _events(self) -> set[int]:
        """The events of the connection since the last call."""
        seen: set[int] = set()
        while self._monitor.poll(0):
            # zmq.utils.monitor reads it in the same way, but that module loads all of asyncio.
            seen.add(struct.unpack("=hi", self._monitor.recv_multipart()[0])[0])
        self._shaken = self._shaken or zmq.EVENT_HANDSHAKE_SUCCEEDED in seen
        return seen

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)
        self._socket = self._monitor = None
        self._shaken = False


class Client(Connection):
    """A connection to one manager. Use it as a context manager. All methods raise NoManager if no manager answers, and
    UsageError with the manager's own sentence if it refuses."""

    def status(self) -> dict[str, Any]:
        """The state of the whole job, in as many questions as it takes: the manager answers others in between."""
        facts = self.ask("status")
        while facts["next"] is not None:
            more = self.ask("status", str(facts["next"]))
            facts |= {key: facts[key] + more[key] for key in ("nodes", "ranks")} | {"next": more["next"]}
        return facts

    def rails(self) -> list[dict[str, Any]]:
        """Every rail of every node."""
        rows: list[dict[str, Any]] = self.ask("rails")["rails"]
        return rows

    def rail_out(self, rail: str, node: str = "", *, wait_seconds: float = 90.0) -> RailResult:
        """Let a rail carry nothing, on one node or on all that have it. Wait for the end of the change."""
        return self._change("rail out", rail, node, wait_seconds)

    def rail_back(self, rail: str, node: str = "", *, wait_seconds: float = 90.0) -> RailResult:
        """Put a rail back into use. It is proved by bytes, and undone if none flow."""
        return self._change("rail back", rail, node, wait_seconds)

    def rail_switch(
        self, node: str, *, rail: str = "", device: int | None = None, to: str = "standby", wait_seconds: float = 90.0
    ) -> RailResult:
        """The same on one node, in the words of other tools: `standby` is out of use, `primary` is back. Name the rail,
        or the device whose own rail it is."""
        if to not in ("standby", "primary"):
            raise UsageError(f"a rail is switched to standby or to primary, not to {to!r}")
        if bool(rail) == (device is not None):
            raise UsageError("name the rail, or the device whose own rail it is, and not both")
        order = self.rail_out if to == "standby" else self.rail_back
        return order(rail or self._rail_of(node, device), node, wait_seconds=wait_seconds)

    def _rail_of(self, node: str, device: int | None) -> str:
        """The rail that this device of a node has for itself."""
        ranks = {row["node"]: row["ranks"] for row in self.status()["nodes"]}
        if node not in ranks:
            raise UsageError(f"there is no node {node}: known are {', '.join(sorted(ranks)) or 'none'}")
        names = sorted({row["rail"] for row in self.rails() if row["node"] == node})
        if DEVICE_RAIL in names and ranks[node] == 1:
            return DEVICE_RAIL
        has = f"its rails are {', '.join(names)}" if names else "none is reported"
        why = "its ranks share them" if DEVICE_RAIL not in names else f"rail {DEVICE_RAIL} is that of all its devices"
        raise UsageError(f"device {device} of node {node} has no rail for itself, for {why}: name one by --rail; {has}")

    def pause(
        self,
        at_step: int | None = None,
        *,
        seconds: float | None = None,
        wait_seconds: float = 60.0,
        request: str = "",
    ) -> PauseResult:
        """Let all ranks stand before one step, and return when they do. A job that is paused is paused for longer.

        `at_step`: that step; None: the next one that no rank has begun. `seconds`: when the job goes on if nobody
        renews or resumes; None: as configured. `wait_seconds`: how long to wait until all ranks stand.
        """
        if at_step is not None and at_step < 0:
            raise UsageError(f"a step is a whole number from 0 on, not {at_step}")
        if seconds is not None and not seconds > 0:
            raise UsageError(f"a pause lasts for more than 0 seconds, not {seconds:g}")
        request, end = request or secrets.token_hex(8), time.monotonic() + wait_seconds
        lease_ms = 0 if seconds is None else max(1, round(seconds * 1000))
        step = -1 if at_step is None else at_step
        facts = self._wish("pause", f"{request}\n{_who()}\n{step}\n{lease_ms}", end)
        while (pause := facts["pause"]) is not None and not _all_stand(facts) and time.monotonic() < end:
            facts = self._look(facts, end)
        if pause is not None and _all_stand(facts):
            return _result(request, True, pause, facts, f"paused {pause['place']}: all ranks stand")
        if pause is not None:
            return _result(request, False, pause, facts, f"{pause['state']} {pause['place']}: {_missing(facts)}")
        last = facts["last"] or {}
        words = f"the pause {last.get('place', '')} is over: {last.get('words', 'the manager knows nothing of it')}"
        if last.get("outcome") == "refused":
            raise UsageError(words)
        return _result(request, False, last, facts, words)

    def resume(self, *, wait_seconds: float = 10.0, request: str = "") -> PauseResult:
        """Let all ranks go on. A job that is not paused stays as it is, and `words` say so."""
        request, end = request or secrets.token_hex(8), time.monotonic() + wait_seconds
        facts = self._wish("resume", f"{request}\n{_who()}", end)
        if facts["resumed_by"] != request:
            return _result(request, facts["pause"] is None, {}, facts, "nothing is paused")
        while facts["pause"] is None and facts["answered"] < facts["world_size"] and time.monotonic() < end:
            facts = self._look(facts, end)
        goes = facts["answered"] == facts["world_size"]
        words = "all ranks go on" if goes else f"resumed; {facts['answered']} of {facts['world_size']} ranks know it"
        return _result(request, True, {}, facts, words)

    def restart_rank(self, rank: int, *, wait_seconds: float = 300.0, request: str = "") -> ErrandResult:
        """Let the process of a rank be replaced in place, between two steps. Return when all ranks train again."""
        if rank < 0:
            raise UsageError(f"a rank is a whole number from 0 on, not {rank}")
        return self._errand("restart-rank", str(rank), wait_seconds, request)

    def drain_node(self, node: str, *, wait_seconds: float = 300.0, request: str = "") -> ErrandResult:
        """Let the ranks of a node go on on a node that waits as a spare. Return when the node's launcher has ended."""
        if not node or "\n" in node:
            raise UsageError(f"a node is named by its name (taskd status), not by {node!r}")
        return self._errand("drain-node", node, wait_seconds, request)

    def stop(self, *, dump: bool = False, wait_seconds: float = 300.0, request: str = "") -> ErrandResult:
        """End the job between two steps, on all ranks. Return when its manager has told all launchers to end. `dump`:
        the script writes its last checkpoint before that; if it cannot, the job goes on."""
        return self._errand("save-and-stop" if dump else "stop", "", wait_seconds, request)

    def _errand(self, topic: str, about: str, wait_seconds: float, request: str) -> ErrandResult:
        request, end = request or secrets.token_hex(8), time.monotonic() + wait_seconds
        facts = self._wish(topic, "\n".join(filter(None, [request, _who(), about])), end)
        there = residence.read(self.config.job.directory) is not None
        while (errand := facts["errand"]) is not None and not errand["over"] and time.monotonic() < end:
            before, facts = facts, self._look(facts, end, request)
            # A manager that ends in good order takes its note along. One that was killed leaves it behind.
            if (
                topic.endswith("stop")
                and facts is before
                and there
                and residence.read(self.config.job.directory) is None
            ):
                words = "the job and its manager have ended"
                if topic == "save-and-stop":
                    words += ", and whether a last checkpoint was written is not known"
                return ErrandResult(request, topic == "stop", False, words, (), errand)
        if errand is None:
            return ErrandResult(request, False, False, "the manager knows nothing of it any more", (), facts)
        names = ("rank", "node", "incarnation", "node_now", "incarnation_now", "replaced")
        ranks = tuple(RankReplaced(**{name: row[name] for name in names}) for row in errand["ranks"])
        words = errand["words"] or f"{errand['what']}: {errand['state']}"
        return ErrandResult(request, errand["done"], not errand["over"], words, ranks, errand)

    def _wish(self, topic: str, argument: str, end: float) -> dict[str, Any]:
        """Send a wish. If the manager goes away meanwhile, send it again: it is known by its request."""
        while True:
            try:
                return self.ask(topic, argument)
            except NoManager:
                if not self._sequence or time.monotonic() >= end:
                    raise  # there was none from the beginning, or none came back
                threading.Event().wait(LOOK_SECONDS)

    def _look(self, facts: dict[str, Any], end: float, request: str = "") -> dict[str, Any]:
        """The facts of a moment later. A manager that is being started again may be away meanwhile."""
        threading.Event().wait(LOOK_SECONDS)
        try:
            return self.ask("pauses", request)
        except NoManager:
            if time.monotonic() >= end:
                raise
            return facts

    def _change(self, topic: str, rail: str, node: str, wait_seconds: float) -> RailResult:
        answer = self.ask(topic, f"{rail}\n{node}")
        number, end = answer["change"]["number"], time.monotonic() + wait_seconds
        while (change := answer["change"]) is not None and change["number"] == number and change["under_way"]:
            if time.monotonic() > end:
                return RailResult(rail, False, True, "ordered, and not ended yet", change)
            threading.Event().wait(LOOK_SECONDS)
            answer = self.ask("rails")
        if change is None or change["number"] != number:
            return RailResult(rail, True, False, "the change has ended, and another one came after it", change or {})
        return RailResult(rail, change["outcome"] == "done", False, str(change["words"]), change)


def _who() -> str:
    """This operator, for the events of the job."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        user = str(os.getuid())
    return f"{user}@{sockets.gethostname()}"


def _all_stand(facts: dict[str, Any]) -> bool:
    """Whether all ranks stand, by their answers to the newest order: it may have renewed the pause."""
    return bool(facts["pause"]["state"] == "paused" and facts["standing"] == facts["world_size"])


def _missing(facts: dict[str, Any]) -> str:
    """`2 of 4 ranks stand`, or how many have told their step."""
    size = facts["world_size"]
    if facts["pause"]["step"] >= 0:
        return f"{facts['standing']} of {size} ranks stand"
    return f"{facts['answered']} of {size} ranks have told their step"


def _result(request: str, done: bool, pause: dict[str, Any], facts: dict[str, Any], words: str) -> PauseResult:
    rows = facts["ranks"]
    names = ("rank", "node", "stands", "next_step", "trouble")
    ranks = tuple(RankPause(**{name: row[name] for name in names}) for row in rows)
    left_ms = pause.get("left_ms")
    left = None if left_ms is None or pause.get("outcome") else left_ms / 1000
    return PauseResult(request, done, pause.get("step", -1), words, left, ranks, facts)


def _meant(config: Config) -> Config:
    """The configuration, completed from the note of a manager on this host if exactly one matches."""
    told, manager = config.sources, config.manager
    notes = _notes(config)
    if "manager.port" in told:
        notes = [note for note in notes if note["port"] == manager.port]
        if not notes and told["manager.port"] == "keyword" and told.get("job.id") != "keyword":
            # A port on the command line means the job that listens there, whatever job the environment names.
            notes = [note for note in _all_notes(config) if note["port"] == manager.port]
    if told.get("manager.host", "").startswith("keyword"):
        notes = [note for note in notes if manager.host in (*HERE, note["host"], note["address"])]
    if len(notes) != 1:
        return config
    (note,) = notes
    return configuration.load(job_id=note["job"], manager_port=note["port"], manager_host=note["address"])


def _notes(config: Config) -> list[dict[str, Any]]:
    """The notes that managers on this host have left: this job's note, or all notes if no job was named."""
    note = residence.read(config.job.directory)
    if note is not None or "job.id" in config.sources:
        return [] if note is None else [note]
    return _all_notes(config)


def _all_notes(config: Config) -> list[dict[str, Any]]:
    """The notes of all of this user's managers on this host."""
    try:
        jobs = sorted(os.listdir(config.job.run_dir))
    except OSError:
        return []
    return [found for job in jobs if (found := residence.read(os.path.join(config.job.run_dir, job))) is not None]
