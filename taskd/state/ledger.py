"""What this rank has done beside its steps, kept where its death cannot reach it: a newcomer does none of it again.

The results of what stands between two loops, how many of them all ranks have ended, and what was done once they had;
and how this life ended, if that was by the script's own failure. Each change is one new version in the record
(record.py), so the newest that is whole says how far this rank had come. A result is kept as bytes, since the script
may go on to change what it was given.

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
class Ledger:
    """Of one rank, over all its lives since all ranks were started together."""

    write: Callable[[int, list[bytes]], None]
    """Takes the number of a version and its bytes."""
    passed: int = 0
    """How many pieces of work between loops all ranks have ended."""
    followed: int = 0
    """How many have had what follows them."""
    early: int = 0
    """The same of those before the first loop."""
    after: bytes = b""
    """This rank's local state as the last of them has left it."""
    failed_at: int = NEVER
    """The step in which, or after which, the script's own failure has ended a life of this rank."""
    failure: str = ""
    owed_of: int = NEVER
    """The last step that has left something to be done once its update is agreed."""
    owed: list[bytes] = field(default_factory=list)
    """The values for each of it."""
    paid: int = 0
    """How much of it is done."""
    note: Note = field(default_factory=Note)
    _results: list[bytes] = field(default_factory=list)
    _number: int = 0

    def adopt(self, found: tuple[int, bytes]) -> None:
        """Go on from the newest version of the life before. Raises PeerError."""
        self._number, data = found
        parts = tree.unpack(data)
        try:
            self.passed, self.followed, self.early = parts["passed"], parts["followed"], parts["early"]
            self.after, self.failed_at, self.failure = parts["after"], parts["failed_at"], parts["failure"]
            self.owed_of, self.owed, self.paid = parts["owed_of"], [*parts["owed"]], parts["paid"]
            loop, *noted = parts["note"]
            self.note = Note(loop, *({**one} for one in noted))
            self._results = [*parts["results"]]
        except (KeyError, TypeError, ValueError) as error:
            raise PeerError(f"the ledger of this rank's life before cannot be read: {error!r}") from error

    def save(self) -> None:
        """Write how it stands now."""
        parts = {
            "passed": self.passed,
            "followed": self.followed,
            "early": self.early,
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
        """What the work `number` has given."""
        return tree.unpack(self._results[number])
