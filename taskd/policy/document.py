"""A policy file as a tree of mappings, lists and texts, each with its line. YAML of a plain kind, or JSON.

The tree is built from PyYAML's events and not from its objects: lines are kept, a number stays the text that was
written, and nothing is resolved. Failure modes, and what follows:

- *A key stands twice*: refused. YAML's own readers silently take the last one.
- *Anchors, aliases, tags, several documents*: refused. A policy needs none, and aliases can grow without bound.
- *A file that is large or deep*: refused before it costs anything.

Every refusal is a UsageError with the line. Not here: which keys there are (reader).
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping as Environment
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskd.errors import UsageError

TEXT_MAX = 64 << 10
"""Bytes of a file: its text has to fit into one variable of the manager's environment."""
DEPTH_MAX = 6
HANDED = "_TASKD_POLICY"


@dataclass(frozen=True)
class Source:
    """A file's short name, for sentences, and its text."""

    name: str
    text: str


@dataclass
class Text:
    """A text or a number, as it was written."""

    line: int
    value: str
    bare: bool  # without quotes: null, true and the like may be meant


@dataclass
class Mapping:
    """Keys and their values, in the order of the file."""

    line: int
    items: list[tuple[Text, Node]] = field(default_factory=list)


@dataclass
class List:
    """Items, in the order of the file."""

    line: int
    items: list[Node] = field(default_factory=list)


Node = Text | Mapping | List


def load(path: str) -> Source:
    """Read a file. Raises UsageError if it cannot be read."""
    try:
        with open(path, "rb") as file:
            data = file.read(TEXT_MAX + 1)
    except OSError as error:
        raise UsageError(f"the policy {path} cannot be read ({error.strerror}): name a readable file") from None
    if len(data) > TEXT_MAX:
        raise UsageError(f"the policy {path} is larger than {TEXT_MAX} bytes: name a policy file")
    try:
        return Source(Path(path).name, data.decode())
    except UnicodeDecodeError:
        raise UsageError(f"the policy {path} is no UTF-8 text: name a policy file") from None


def handed(environ: Environment[str, str]) -> Source | None:
    """The file that a launcher has read and handed to this manager; None: there is none."""
    name, newline, text = environ.get(HANDED, "").partition("\n")
    return Source(name, text) if newline else None


def to_hand(source: Source | None) -> dict[str, str]:
    """The variable that hands a file to a manager."""
    return {} if source is None else {HANDED: f"{source.name}\n{source.text}"}


def refusal(source: Source, line: int, text: str) -> UsageError:
    """The error that says what is wrong in which line."""
    return UsageError(f"{source.name} line {line}: {text}")


def tree(source: Source) -> Mapping:
    """Return the one mapping that the file holds. Raises UsageError."""
    import yaml  # only a process that reads a policy pays for it

    text = source.text
    if text.lstrip().startswith("{"):
        text = text.replace("\t", " ")  # in JSON a tab is a space, and stands in no text
    try:
        return _Builder(source).build(iter(yaml.parse(text, Loader=yaml.SafeLoader)))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise refusal(source, line, f"this is no YAML ({problem})") from None
    except ValueError as error:  # an escape that stands for no character
        raise refusal(source, 1, f"this is no YAML ({error})") from None


class _Builder:
    """Builds the tree from the parser's events. It keeps its own stack, so no depth can exhaust Python's."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._open: list[Mapping | List] = []
        self._keys: list[Text | None] = []  # the key that waits for its value, for each open mapping
        self._root: Node | None = None

    def build(self, events: Iterator[Any]) -> Mapping:
        import yaml

        documents = 0
        for event in events:
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise refusal(self._source, line, "a second document begins here, but a file holds one policy")
            elif isinstance(event, yaml.AliasEvent):
                raise refusal(self._source, line, f"*{event.anchor} is an alias: write the value itself")
            elif isinstance(event, yaml.NodeEvent):
                self._node(event, line)
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                self._open.pop()
                self._keys.pop()
        if not isinstance(self._root, Mapping) or not self._root.items:
            line = self._root.line if self._root is not None else 1
            raise refusal(
                self._source, line, "here is no policy: write keys with their values, restartPolicy: OnFailure"
            )
        return self._root

    def _node(self, event: Any, line: int) -> None:
        import yaml

        if event.anchor is not None or (event.tag is not None and event.tag != "!"):
            what = f"&{event.anchor}" if event.anchor is not None else event.tag
            raise refusal(self._source, line, f"{what[:40]!r} is an anchor or a tag of YAML: leave it out")
        if isinstance(event, yaml.ScalarEvent):
            self._add(Text(line, event.value, event.style is None))
            return
        made: Mapping | List = Mapping(line) if isinstance(event, yaml.MappingStartEvent) else List(line)
        if len(self._open) >= DEPTH_MAX:
            raise refusal(self._source, line, f"there are more than {DEPTH_MAX} levels, and no policy has that many")
        self._add(made)
        self._open.append(made)
        self._keys.append(None)

    def _add(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent, key = self._open[-1], self._keys[-1]
        if isinstance(parent, List):
            parent.items.append(node)
        elif key is not None:
            parent.items.append((key, node))
            self._keys[-1] = None
        elif not isinstance(node, Text):
            raise refusal(self._source, node.line, "a key is a word, and not a list or a mapping")
        else:
            first = next((known for known, _ in parent.items if known.value == node.value), None)
            if first is not None:
                text = f"{node.value[:40]!r} stands here again, after line {first.line}: leave one of them out"
                raise refusal(self._source, node.line, text)
            self._keys[-1] = node
