"""Keeps what this rank has done beside its steps, beyond its death, so that a newcomer does none of it again.

It holds the results of work between two loops, how many pieces of it all ranks have ended, and what was done after
that. It holds the same of the set-up (worker/early.py), and how a process of this rank ended, if the script itself
failed. Each change is a new version in the record (record.py), so the newest whole version says how far this rank had
come. A result is kept as bytes, because the script may change the object later.

It does NOT decide what is done again, and holds nothing that other ranks hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.note import Note

NEVER = -1


@dataclass(slots=True)
class Early:
    """One piece of work before the first loop."""

    result: bytes = b""
    """The packed result. Empty: it cannot be kept, or the work has failed."""
    followed: bool = False
    """Whether what follows it (`then`) is done."""


@dataclass(slots=True)
class SetUp:
    """What was done before the first loop, and when it was over."""

    early: list[Early] = field(default_factory=list)
    """The work."""
    epochs: list[tuple[int, int]] = field(default_factory=list)
    """The numbers of each session.epochs()."""
    over: float = 0.0
    """The time at which the first process of this rank came to its first loop. 0: it has not."""
    made: dict[str, int] = field(default_factory=dict)
    """The files that the last newcomer has made, and when they were last written, in nanoseconds."""


@dataclass(slots=True)
class Ledger:
    """The ledger of one rank, continued by each newcomer, since all ranks were started together."""

    write: Callable[[int, list[bytes]], None]
    """Takes the number of a version and its bytes."""
    passed: int = 0
    """How many pieces of work between loops all ranks have ended."""
    followed: int = 0
    """For how many of them the work that follows (`then`) is done, too."""
    set_up: SetUp = field(default_factory=SetUp)
    """What was done before the first loop."""
    after: bytes = b""
    """This rank's local state after the last piece of work."""
    failed_at: int = NEVER
    """The step in which, or after which, a failure of the script has ended a process of this rank."""
    failure: str = ""
    owed_of: int = NEVER
    """The last step with something to be done once its update is agreed."""
    owed: list[bytes] = field(default_factory=list)
    """The values for each thing to be done."""
    paid: int = 0
    """How many of these things are done."""
    note: Note = field(default_factory=Note)
    _results: list[bytes] = field(default_factory=list)
    _number: int = 0

    def adopt(self, found: tuple[int, bytes]) -> None:
        """Continue the newest version of the process that this one replaces. Raises PeerError."""
        self._number, data = found
        parts = tree.unpack(data)
        try:
            self.passed, self.followed = parts["passed"], parts["followed"]
            early, epochs = (
                [Early(*one) for one in parts["early"]],
                [(first, count) for first, count in parts["epochs"]],
            )
            self.set_up = SetUp(early, epochs, parts["set_up_over"], {**parts["made"]})
            self.after, self.failed_at, self.failure = parts["after"], parts["failed_at"], parts["failure"]
            self.owed_of, self.owed, self.paid = parts["owed_of"], [*parts["owed"]], parts["paid"]
            self.note = Note.of(parts["note"])
            self._results = [*parts["results"]]
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the ledger of this rank's life before cannot be read: {error!r}") from error

    def save(self) -> None:
        """Write the current state as a new version."""
        parts = {
            "passed": self.passed,
            "followed": self.followed,
            "early": [[one.result, one.followed] for one in self.set_up.early],
            "epochs": self.set_up.epochs,
            "set_up_over": self.set_up.over,
            "made": self.set_up.made,
            "after": self.after,
            "failed_at": self.failed_at,
            "failure": self.failure,
            "owed_of": self.owed_of,
            "owed": self.owed,
            "paid": self.paid,
            "note": self.note.parts(),
            "results": self._results,
        }
        self._number += 1
        self.write(self._number, tree.pack(parts, "the ledger"))

    def __len__(self) -> int:
        """How many results there are."""
        return len(self._results)

    def ended(self, number: int, result: Any, after: list[bytes]) -> None:
        """This rank has ended its work `number`. Raises UsageError if the result cannot be kept."""
        del self._results[number:]
        self._results.append(b"".join(tree.pack(result, "the result of between()")))
        self.after = b"".join(after)
        self.save()

    def result(self, number: int) -> Any:
        """Return the result of the work `number`."""
        return tree.unpack(self._results[number])
