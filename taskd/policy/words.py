"""The words of a policy file: which keys and values there are, and how each value is read.

Each reader takes a node and returns the value, or raises UsageError with the line, what was wrong, and the nearest
right word. Not here: which keys contradict each other (contradictions).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from enum import Enum
from signal import Signals
from typing import TypeVar

from taskd.core.limits import MAX_POLICY_COUNT, MAX_POLICY_SECONDS, MAX_TEXT
from taskd.core.policy.rules import Complete, Event, Fail, Restart, Scope
from taskd.core.words import some
from taskd.errors import UsageError
from taskd.policy.document import List, Node, Source, Text, refusal

E = TypeVar("E", bound=Enum)

RESTARTS = {one.value: one for one in Restart}
SCOPES = {**{one.value: one for one in Scope}, "Replica": Scope.ALL}
COMPLETES = {**{one.value: one for one in Complete}, "None": Complete.ALL}
FAILS = {one.value: one for one in Fail}
EVENTS = {**{one.value: one for one in Event}, "PodForceDeleted": Event.NODE_LOST}
SIGNALS = {one.name: int(one) for one in Signals}
YES, NO = ("true", "yes", "on"), ("false", "no", "off")
CODE_MAX = 255
SIGNAL_MAX = 64
_RANGE = re.compile(r"([0-9]{1,3})\s*-\s*([0-9]{1,3})")


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean OnFailure?`, or the words that there are."""
    folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}?" if close else f"there are {', '.join(known)}"


class Words:
    """Reads the values of one file."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def refuse(self, line: int, text: str) -> UsageError:
        """The error that says what is wrong in which line."""
        return refusal(self.source, line, text)

    def text(self, key: str, node: Node) -> Text:
        """A text or a number."""
        if not isinstance(node, Text):
            raise self.refuse(node.line, f"{key} takes one value, and here stand several")
        if not node.value.strip() or (node.bare and node.value.casefold() in ("null", "~")):
            raise self.refuse(node.line, f"{key} has no value: write one, or leave the key out")
        if len(node.value) > MAX_TEXT or not node.value.isprintable():
            raise self.refuse(node.line, f"{key} takes one line of at most {MAX_TEXT} printable characters")
        return node

    def one(self, key: str, node: Node, known: dict[str, E]) -> E:
        """One of the known words."""
        word = self.text(key, node).value.strip()
        if word not in known:
            raise self.refuse(node.line, f"{word!r} is no {key}; {nearest(word, known)}")
        return known[word]

    def number(self, key: str, node: Node, low: int, high: int) -> int:
        """A whole number within its bounds."""
        word = self.text(key, node).value.strip()
        if not re.fullmatch(r"[0-9]{1,12}", word) or not low <= int(word) <= high:
            raise self.refuse(node.line, f"{key} takes a whole number from {low} to {high}, and not {word!r}")
        return int(word)

    def count(self, key: str, node: Node, low: int = 0) -> int:
        """A number of starts."""
        return self.number(key, node, low, MAX_POLICY_COUNT)

    def seconds(self, key: str, node: Node, low: int = 0) -> int:
        """A time in seconds."""
        return self.number(key, node, low, MAX_POLICY_SECONDS)

    def truth(self, key: str, node: Node) -> bool:
        """True or false."""
        word = self.text(key, node).value.strip().casefold()
        if word not in (*YES, *NO):
            raise self.refuse(node.line, f"{key} takes true or false, and not {word!r}")
        return word in YES

    def several(self, key: str, node: Node) -> list[tuple[int, str]]:
        """The items of a list, or of a text with commas, each with its line."""
        nodes = node.items if isinstance(node, List) else [node]
        found = [(one.line, part.strip()) for one in nodes for part in self.text(key, one).value.split(",")]
        for line, part in found:
            if not part:
                raise self.refuse(line, f"{key} has an item without a value: leave the extra comma out")
        if not found:
            raise self.refuse(node.line, f"{key} is an empty list: name something, or leave the key out")
        return found

    def codes(self, key: str, node: Node) -> list[tuple[int, int]]:
        """Exit codes as a shell says them: 77, 1-100, 137; and -9, which means the same as 137."""
        found = []
        for line, part in self.several(key, node):
            spanned = _RANGE.fullmatch(part)
            if spanned:
                low, high = int(spanned[1]), int(spanned[2])
            elif re.fullmatch(r"-[0-9]{1,2}", part) and 0 < -int(part) <= SIGNAL_MAX:
                low = high = 128 - int(part)
            elif re.fullmatch(r"[0-9]{1,3}", part):
                low = high = int(part)
            else:
                raise self.refuse(line, f"{part!r} is no exit code: write 77, a range like 1-100, or -9 for signal 9")
            if low > high:
                raise self.refuse(line, f"the range {part} is empty: write {high}-{low}")
            if low < 1 or high > CODE_MAX:
                raise self.refuse(line, f"{part} is no exit code of a failure: these go from 1 to {CODE_MAX}")
            found.append((low, high))
        return found

    def signals(self, key: str, node: Node) -> list[tuple[int, int]]:
        """Signals by name or number, as the exit codes that they lead to."""
        found = []
        for line, part in self.several(key, node):
            number = SIGNALS.get(part.upper(), SIGNALS.get(f"SIG{part.upper()}", 0))
            if re.fullmatch(r"[0-9]{1,2}", part):
                number = int(part)
            if not 0 < number <= SIGNAL_MAX:
                raise self.refuse(line, f"{part!r} is no signal; {_signal_near(part)}")
            found.append((128 + number, 128 + number))
        return found

    def events(self, key: str, node: Node) -> frozenset[Event]:
        """Events by name."""
        found = set()
        for line, part in self.several(key, node):
            if part not in EVENTS:
                raise self.refuse(line, f"{part!r} is no event; {nearest(part, EVENTS)}")
            found.add(EVENTS[part])
        return frozenset(found)

    def pattern(self, key: str, node: Node) -> str:
        """A pattern: parts with * between them, alternatives with | between them."""
        value = self.text(key, node).value
        for alternative in value.split("|"):
            if not alternative.strip("* "):
                raise self.refuse(node.line, f"an alternative of {key} {value!r} matches everything: give it a word")
        return value


def _signal_near(word: str) -> str:
    close = difflib.get_close_matches(word.upper(), SIGNALS, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"there are {some(list(SIGNALS), 6)}"
