"""Asks a job's manager: finds where it is and its key, sends one question, gets one answer.

Host, port, job and key come from the configuration, as everywhere. If exactly one manager on this host matches the
given job, port and host, that one is asked. A port on the command line counts for more than a job in the environment.
A connection that ends in its handshake is made again a few times, since strangers may crowd the port. There is no other
retry. If a manager does not answer in ANSWER_SECONDS, the error says where it was looked for and what to do.
This module does NOT format anything.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket as sockets
import struct
import time
from typing import Any

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
HERE = ("127.0.0.1", "localhost")
EXIT_NO_MANAGER = 3
"""The exit code of a command that found no manager to ask."""

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the manager."""
    parser.add_argument("--job", help="the job's id (default: as configured, or the only one with a manager here)")
    parser.add_argument("--host", help="the manager's host")
    parser.add_argument("--port", type=int, help="the manager's port")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


class Asker:
    """A connection to one manager. Use it as a context manager."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        overrides = {"job_id": arguments.job, "manager_host": arguments.host, "manager_port": arguments.port}
        self.config = _meant(configuration.load(**overrides))
        self.place = f"{self.config.manager.host}:{self.config.manager.port}"
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: Any = None
        self._shaken = False  # whether the handshake of the current connection is complete
        self._life = secrets.randbits(62)
        self._sequence = 0

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._hang_up()
        self._context.term()

    def ask(self, topic: str, argument: str = "") -> dict[str, Any]:
        """The manager's answer; raises NoManager, or UsageError with the manager's own sentence."""
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
        try:
            self._socket.send(question)
        except zmq.Again:
            self._hang_up()
            raise NoManager(f"the manager at {self.place} takes no question: it is stopped or overloaded") from None
        reply = self._reply(self._socket)
        if not reply.ok:
            raise UsageError(reply.text)
        answer: dict[str, Any] = json.loads(reply.text)
        return answer

    def status(self) -> dict[str, Any]:
        """The state of the whole job, in as many questions as it takes: the manager answers others in between."""
        facts = self.ask("status")
        while facts["next"] is not None:
            more = self.ask("status", str(facts["next"]))
            facts |= {key: facts[key] + more[key] for key in ("nodes", "ranks")} | {"next": more["next"]}
        return facts

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
        self._socket.sndtimeo = int(ANSWER_SECONDS * 1000)
        key.protect_client(self._socket)
        self._monitor = self._socket.get_monitor_socket(_WATCHED)
        self._socket.connect(f"tcp://{self.place}")

    def _reply(self, socket: zmq.Socket[bytes]) -> Reply:
        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        end = time.monotonic() + ANSWER_SECONDS
        while (left := end - time.monotonic()) > 0:
            ready = dict(poller.poll(int(left * 1000) + 1))
            if socket in ready:
                found = decode(socket.recv_multipart()[-1])
                if isinstance(found, WireError):
                    raise PeerError(f"the manager at {self.place} gave no answer of ours: {found.reason}")
                if isinstance(found[1], Reply):
                    return found[1]
            elif self._monitor in ready:
                seen = self._events()
                if zmq.EVENT_DISCONNECTED in seen or seen & _REFUSED:
                    # A manager with another key does not even answer a handshake: it drops the connection.
                    shaken = self._shaken
                    self._hang_up()
                    if not shaken:
                        raise _CutOff(
                            f"the manager at {self.place} does not accept the key of job {self._job}: another job's? "
                            "Or strangers crowd its port, try again"
                        )
                    raise NoManager(f"the manager at {self.place} has ended")
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
