"""Launchers hand the job's key on over the store of their rendezvous. Nothing in that store reveals the key."""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from torch.distributed import PrefixStore, TCPStore
from zmq.utils import z85

from taskd.board import Board
from taskd.errors import PeerError
from taskd.launch import beginning, handing
from taskd.wire import exchange
from taskd.wire.keys import Key
from tests.launched import Launched, wait_until

HEX = "ab12" * 16
OTHER = "cd34" * 16
SCRIPT = """
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
go = torch.zeros(1)
while not go.item():
    go = torch.tensor([float(os.path.exists("go"))])
    dist.all_reduce(go, dist.ReduceOp.MIN)
    time.sleep(0.02)
dist.destroy_process_group()
"""
FreePort = Callable[[], int]


class Listener:
    """A proxy between a store and all its clients, which keeps every byte of both directions."""

    def __init__(self, port: int) -> None:
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.heard: list[bytearray] = []
        self._ends: list[socket.socket] = []
        self._door = socket.create_server(("127.0.0.1", port))
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._door.accept()
                theirs = socket.create_connection(("127.0.0.1", self.store.port))
                self._ends += [ours, theirs]
                for one, other in ((ours, theirs), (theirs, ours)):
                    self.heard.append(kept := bytearray())
                    self._threads.append(threading.Thread(target=self._pass_on, args=(one, other, kept)))
                    self._threads[-1].start()

    def _pass_on(self, one: socket.socket, other: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                kept += data
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for end in (self._door, *self._ends):
            end.close()

    def all(self) -> list[bytes]:
        """Return all bytes heard, and all values that a client finds in the store."""
        return [*map(bytes, self.heard), *(bytes(self.store.get(name)) for name in self.store.list_keys())]

    def has(self, *forms: bytes) -> bool:
        return any(form in heard for heard in self.all() for form in forms)

    def knows(self, secret: bytes) -> bool:
        forms = [secret, secret.hex().encode(), secret.hex().upper().encode(), z85.encode(secret)]
        return self.has(*forms, base64.b64encode(secret).rstrip(b"="), secret.hex().encode().hex().encode())


@pytest.fixture
def listener(free_port: FreePort) -> Iterator[tuple[Listener, int]]:
    port = free_port()
    found = Listener(port)
    yield found, port
    found.close()


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", HEX], ids=["made", "given"])
def test_who_hears_all_that_the_store_does_does_not_learn_the_key(
    tmp_path: Path, run_dir: Path, free_port: FreePort, listener: tuple[Listener, int], given: str
) -> None:
    """Two nodes train, and a third one comes late as a spare. In between, a stranger asks for nonsense."""
    heard, port = listener
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--nnodes", "2:3", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    words += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "heard", "--rdzv-conf", "is_host=false", "train.py"]
    env = {"TASKD_KEY": given or None}
    with Launched(tmp_path, free_port(), *words, nodes=((), ()), env=env, job=tmp_path.name, warm=True) as launched:
        launched.wait_for_line("all 2 ranks are here")
        secret = given or (run_dir / launched.job / "key").read_text().strip()
        board = PrefixStore("taskd/heard", heard.store)
        assert board.check(["give/1"]) == (not given)
        board.set("ask/2", "nonsense")
        launched.launch(*words)
        launched.wait_for_line("node spare-1 is here")
        (tmp_path / "go").touch()
        launched.end()
    assert heard.has(b'"world_size": 2'), "this is what it hears"
    assert board.check(["give/3"]) == (not given)
    assert not heard.knows(bytes.fromhex(secret))


@pytest.mark.one_in(3)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (HEX, "", "the job's key was given to its first node and is handed on to nobody"),
        (HEX, OTHER, "this node was given another key than the first node of the job"),
        ("", OTHER, "the first node of the job was not"),
    ],
)
def test_a_node_that_cannot_be_of_the_job_says_why_and_ends(
    tmp_path: Path, run_dir: Path, free_port: FreePort, first: str, second: str, says: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    with Launched(tmp_path, free_port(), nodes=(), job=tmp_path.name, warm=True) as launched:
        for rank, given in enumerate((first, second)):
            launched.environment.pop("TASKD_KEY", None)
            launched.environment |= {"TASKD_KEY": given} if given else {}
            launched.launch("--node-rank", str(rank), *words, "train.py")
        assert says in launched.wait_for_line("TASKD_KEY_FILE")
        assert wait_until(lambda: launched.launchers[1].poll(), "the second node's end") == 1
        assert says in launched.wait_for_line("the job ends: node 1 cannot begin:")
        assert wait_until(lambda: launched.launchers[0].poll(), "the first node's end") == 1


# ---- which launcher answers -------------------------------------------------------------------------------------


KEY = Key(bytes.fromhex(HEX), "a test")
NOTICE = exchange.notice_of(KEY, given=False)


@pytest.fixture
def host() -> TCPStore:
    """The store of a rendezvous."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def board(host: TCPStore) -> Board:
    """Return a launcher's board, over its own connection to this store."""
    return Board(TCPStore("127.0.0.1", host.port, is_master=False), "run")


Give = Callable[..., handing.Handing]


@pytest.fixture
def give(host: TCPStore) -> Iterator[Give]:
    """Start a launcher's part that answers. At the end all are closed: a thread still in the store ends the process."""
    made: list[handing.Handing] = []

    def start(key: Key = KEY, stand_in: bool = False) -> handing.Handing:
        made.append(handing.Handing(board(host), key, stand_in, expected=9))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_who_stands_by_answers_when_the_first_one_is_gone(
    host: TCPStore, give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing, "STAND_IN_SECONDS", 0.2)  # the test waits for its expiry
    first, other = give(), give(stand_in=True)
    assert handing._ask(board(host), NOTICE).secret == KEY.secret
    first.close()
    assert handing._ask(board(host), NOTICE).secret == KEY.secret
    other.close()
    assert not first.waiter.is_alive and not other.waiter.is_alive


def test_a_thread_that_waits_in_the_store_ends_with_it(give: Give) -> None:
    waits = give()
    waits.close()
    assert not waits.waiter.is_alive


def test_strangers_that_ask_are_refused_and_the_next_node_is_served(host: TCPStore, give: Give) -> None:
    stranger = board(host)
    for number, garbage in enumerate(["", "garbage", "00" * 32, "ff" * 4000, "nobody"], 1):
        stranger.store.set(f"ask/{number}", garbage)
    give()
    assert handing._ask(board(host), NOTICE).secret == KEY.secret


def test_a_false_giver_is_refused_with_a_sentence(host: TCPStore, give: Give) -> None:
    give(Key(bytes.fromhex(OTHER), "a stranger"))
    with pytest.raises(PeerError, match="another public key than at first"):
        handing._ask(board(host), NOTICE)


@pytest.mark.parametrize("told", [None, 7, "", HEX, "ask:12"])
def test_a_first_node_of_another_version_is_named(told: object) -> None:
    with pytest.raises(PeerError, match="the same version"):
        handing.notice_in(told)


# ---- nodes that cannot begin ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ('[3, "no \\u001b[31mkey"]', "node 3 cannot begin: no  [31mkey"),
        ("[1, null]", "does not say why"),
        ("7", "does not say why"),
        ("garbage", "does not say why"),
    ],
)
def test_the_first_node_hears_why_another_one_cannot_begin(host: TCPStore, said: str, expected: str) -> None:
    heard: SimpleQueue[str] = SimpleQueue()
    listens = beginning.Beginnings(board(host), heard.put)
    listens.start()
    board(host).store.set(beginning.FAILED, said)
    assert expected in heard.get()
    listens.close()


def test_nothing_is_heard_when_all_have_begun(host: TCPStore) -> None:
    listens = beginning.Beginnings(board(host), pytest.fail)
    listens.start()
    listens.close()
    assert not listens.waiter.is_alive
