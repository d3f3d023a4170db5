"""The board: a few keys in the rendezvous' own store, through which the launchers of a job exchange information.

Every process that reaches the store's port can read and write there, so no secret is written there (handing.py). A
thread that waits in the store when the interpreter ends would crash the process. So a Waiter is woken before that, by
writing the key that it waits for. If the board's host hangs, this does not wake it, and it stays in its wait. That does
no harm, since that wait never returns.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistStoreError, PrefixStore, Store

from taskd import log
from taskd.errors import PeerError

BOARD_SECONDS = 300
CLOSE_SECONDS = 5.0
LOOK_SECONDS = 0.2
AGAIN_SECONDS = 0.01
FOREVER = timedelta(days=20)
"""The system counts waits in milliseconds of 31 bits. After each timed-out wait, torch writes on the terminal."""
_logger = log.get(__name__)


class Board:
    """The data that the launchers of a job exchange, as JSON under a few keys."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = PrefixStore(f"taskd/{run_id}", store)

    def tell(self, key: str, value: Any) -> None:
        """Write a key. Raises PeerError when the board is gone."""
        try:
            self.store.set(key, json.dumps(value))
        except RuntimeError as error:
            raise _gone(error) from None

    def told(self, key: str) -> bool:
        """Whether a key has been written."""
        return bool(self.store.check([key]))

    def read(self, key: str, seconds: float = BOARD_SECONDS) -> Any:
        """Wait for a key. Raises PeerError when it does not come."""
        try:
            self.store.wait([key], timedelta(seconds=seconds))
            return json.loads(self.store.get(key))
        except RuntimeError as error:
            raise PeerError(
                f"the launcher of the first node has not said what was waited for ({key}): {str(error).splitlines()[0]}"
            ) from None

    def came(self, keys: Sequence[str], seconds: float) -> bool:
        """Wait until all of these keys are written. Raises PeerError when the board is gone."""
        ends = time.monotonic() + seconds
        try:
            while not self.store.check([*keys]):
                if time.monotonic() >= ends:
                    return False
                time.sleep(AGAIN_SECONDS)  # after a wait that has timed out, torch writes on the terminal
            return True
        except RuntimeError as error:
            raise _gone(error) from None

    def polled(self, key: str, seconds: float) -> Any:
        """Wait for a key in a way that lets signals through. Raises PeerError when it does not come."""
        if not self.came([key], seconds):
            raise PeerError(f"the launcher of the first node has not said what was waited for ({key})")
        return self.look(key)

    def look(self, key: str) -> Any:
        """The current value of a key; None when there is none that can be read, or the board is gone."""
        try:
            return json.loads(self.store.get(key)) if self.store.check([key]) else None
        except ValueError:
            return None
        except RuntimeError as error:
            _logger.info("the board cannot be read any more: %s", str(error).splitlines()[0])
            return None

    def try_to_tell(self, key: str, value: Any) -> None:
        """Write a key, if the board is still there."""
        try:
            self.tell(key, value)
        except PeerError as error:
            _logger.info("the board cannot be written any more: %s", error)

    def own_store(self) -> Store:
        """The board's store over a separate connection, for a thread that waits there."""
        try:
            return self.store.clone()
        except RuntimeError:  # such as torch's for etcd, which needs none
            return self.store

    def apart(self) -> Board:
        """The same board over a connection of its own, for a thread that waits there."""
        found = copy.copy(self)
        found.store = self.own_store()
        return found

    def next(self, key: str) -> int:
        """A number that no other caller gets, from 1 on. Raises PeerError when the board is gone."""
        try:
            return int(self.store.add(key, 1))
        except RuntimeError as error:
            raise _gone(error) from None


def _gone(error: Exception) -> PeerError:
    return PeerError(f"the launcher of the first node is gone: {str(error).splitlines()[0]}")


class Waiter:
    """A thread that waits on the board over its own connection. Call `start`; `close` it before the process ends."""

    def __init__(self, board: Board, name: str, work: Callable[[], None]) -> None:
        """`work` calls `came` repeatedly, and returns when this object is `closing`. It may raise RuntimeError, as the
        store does when it is gone."""
        self.store = board.own_store()
        self._board, self._work = board, work
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def closing(self) -> bool:
        """Whether `close` was called, so that what arrives now is not needed."""
        return self._closing.is_set()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    def came(self, key: str, within: timedelta = FOREVER) -> bool:
        """Wait for a key; returns whether it was written."""
        try:
            self.store.wait([key], within)
            return True
        except DistStoreError:
            self._closing.wait(LOOK_SECONDS)  # a store that refuses at once must not cause a busy loop
            return False

    def close(self, key: Callable[[], str], value: str) -> None:
        """End the wait; returns when the thread has ended, or cannot be reached.

        This writes `value` under the key that the thread waits for. The write gets no reply, so a board that hangs
        delays nothing."""
        self._closing.set()
        ends = time.monotonic() + CLOSE_SECONDS
        while self.is_alive and time.monotonic() < ends:
            try:
                self._board.store.set(key(), value)
            except RuntimeError as error:
                _logger.debug("the board is gone, and with it who waits there: %s", error)
            self._thread.join(LOOK_SECONDS)

    def _run(self) -> None:
        try:
            self._work()
        except RuntimeError as error:
            if not self.closing:
                _logger.info("%s waits on the board no more: %s", self._thread.name, str(error).splitlines()[0])
