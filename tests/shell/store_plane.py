"""A real manager, a node's relay for the job's store, and a client of the store without torch."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

from taskd.agent.store import StoreRelay
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.wire import keys, local
from tests.patience import PATIENCE_S
from tests.shell.manager_process import ManagerProcess

PATIENCE_MS = int(PATIENCE_S * 1000)


class StorePlane:
    """A manager in its own process, and the relay of node "left" in this process."""

    def __init__(self, run_dir: Path, port: int, job: str = "store") -> None:
        # Socket names are shared by the whole host, and other runs of these tests may use the host now.
        self.manager = ManagerProcess(run_dir, port, f"{job}-{os.getpid()}")
        self.relay: StoreRelay | None = None

    def __enter__(self) -> StorePlane:
        self.manager.start()
        self.relay = self.start_relay()
        return self

    def start_relay(self, key: keys.Key | None = None) -> StoreRelay:
        relay = StoreRelay(self.manager.job, "left", "127.0.0.1", self.manager.port)
        found = key or keys.find(self.manager.config())
        assert found is not None
        relay.use(found)
        relay.start()
        return relay

    def __exit__(self, *_: object) -> None:
        if self.relay is not None:
            self.relay.stop()
        if self.manager.process is not None:
            self.manager.end()

    @property
    def name(self) -> str:
        return local.store_address(self.manager.job, "left")

    def client(self) -> StoreClient:
        return StoreClient(self.name)

    def facts(self) -> dict[str, Any]:
        return self.manager.status()["manager"]["store"]


class StoreClient:
    """One connection to the relay."""

    def __init__(self, name: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE_S)
        self.sock.connect(name)

    def __enter__(self) -> StoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sock.close()

    def send(self, operation: int, *items: bytes, timeout_ms: int = PATIENCE_MS, amount: int = 0) -> None:
        body = struct.pack("=BqqI", operation, timeout_ms, amount, len(items))
        body += b"".join(struct.pack("=I", len(item)) + item for item in items)
        self.sock.sendall(struct.pack("=I", len(body)) + body)

    def answer(self) -> tuple[Status, int, list[bytes]]:
        (size,) = struct.unpack("=I", self.exactly(4))
        body = self.exactly(size)
        status, amount, count = struct.unpack_from("=BqI", body)
        items, at = [], struct.calcsize("=BqI")
        for _ in range(count):
            (length,) = struct.unpack_from("=I", body, at)
            items.append(body[at + 4 : at + 4 + length])
            at += 4 + length
        assert at == len(body)
        return Status(status), amount, items

    def exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.sock.recv(size - len(data))
            if not more:
                raise EOFError("the relay hung up")
            data += more
        return data

    def ask(self, operation: int, *items: bytes, timeout_ms: int = PATIENCE_MS, amount: int = 0) -> Any:
        """Return the answer to an operation; raise an exception with the text of an error."""
        self.send(operation, *items, timeout_ms=timeout_ms, amount=amount)
        status, amount, found = self.answer()
        if status is not Status.DONE:
            raise {Status.TIMED_OUT: TimeoutError, Status.FAILED: ValueError}[status](found[0].decode())
        return amount, found

    def set(self, key: bytes, value: bytes) -> None:
        self.ask(Op.SET, key, value)

    def get(self, *wanted: bytes, timeout_ms: int = PATIENCE_MS) -> list[bytes]:
        return self.ask(Op.GET, *wanted, timeout_ms=timeout_ms)[1]

    def add(self, key: bytes, amount: int, timeout_ms: int = PATIENCE_MS) -> int:
        return self.ask(Op.ADD, key, amount=amount, timeout_ms=timeout_ms)[0]
