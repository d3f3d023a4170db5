"""Generates, for each message class, the two functions that turn it into a plain row and back, with all bounds checks.

To walk the annotations for every message would cost milliseconds per Report. A function of plain comparisons costs
about a microsecond per rank. Like `dataclasses` itself, this module makes source text and compiles it once. The text
is made only from the annotations of our own classes, never from input. A class with annotations that this module does
not understand is our own bug and asserts at import.

It does NOT know msgpack, versions or envelopes: taskd.wire.codec does.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from taskd.core.fields import AtMost, Between


class Refusal(Exception):
    """A row does not fit its class. This error never leaves taskd.wire."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A class' two functions: to_row(message) -> list asserts bounds, from_row(list) -> message raises Refusal."""

    to_row: Callable[[Any], list[Any]]
    from_row: Callable[[list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Field:
    """One field: its type and its bounds, read from the annotation."""

    name: str
    base: type
    low: int = 0
    high: int = 0
    most: int = 0
    item: Field | None = None

    @property
    def allowed(self) -> str:
        """The values that this field accepts, in words."""
        if self.base is bool:
            return "true or false"
        if self.base is int:
            return f"a whole number from {self.low} to {self.high}"
        if issubclass(self.base, IntEnum):
            return f"one of {', '.join(f'{member.value} ({member.name})' for member in self.base)}"
        if self.base is str:
            return f"a text of at most {self.most} characters"
        if self.base is bytes:
            return f"at most {self.most} bytes"
        if self.base is tuple:
            return f"a list of at most {self.most} items"
        return f"a list of {len(fields_of(self.base))} fields"

    def condition(self, value: str, decoding: bool) -> str:
        """A Python expression that is true when the variable `value` fits. It does not check nested values."""
        if self.base is int:
            return f"{value}.__class__ is int and {self.low} <= {value} <= {self.high}"
        if self.base in (str, bytes):
            return f"{value}.__class__ is {self.base.__name__} and len({value}) <= {self.most}"
        if self.base is tuple:
            return f"{value}.__class__ is {'list' if decoding else 'tuple'} and len({value}) <= {self.most}"
        if issubclass(self.base, IntEnum) and decoding:
            # The class is checked first: a dict takes True or 1.0 for 1, and raises on a list.
            return f"{value}.__class__ is int and {value} in {self.base.__name__}_by_number"
        return f"{value}.__class__ is {self.base.__name__}"


def fields_of(cls: type) -> list[Field]:
    """The fields of a dataclass, in order. Asserts on an annotation without bounds."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [_field(field.name, hints[field.name]) for field in dataclasses.fields(cls)]


def _field(name: str, hint: Any) -> Field:
    bound: Any = None
    if typing.get_origin(hint) is typing.Annotated:
        hint, bound = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        item, dots = typing.get_args(hint)
        assert dots is Ellipsis and isinstance(bound, AtMost), f"{name}: a tuple needs (item, ...) and AtMost"
        return Field(name, tuple, most=bound.count, item=_field(name, item))
    if hint is int:
        assert isinstance(bound, Between), f"{name}: an int needs Between"
        return Field(name, int, low=bound.low, high=bound.high)
    if hint in (str, bytes):
        assert isinstance(bound, AtMost), f"{name}: text and bytes need AtMost"
        return Field(name, hint, most=bound.count)
    assert hint is bool or issubclass(hint, IntEnum) or dataclasses.is_dataclass(hint), f"{name}: {hint} cannot travel"
    return Field(name, hint)


def shown(value: object) -> str:
    """A short text for a value from another process, whatever it is."""
    if isinstance(value, (list, bytes)):
        return f"a {type(value).__name__} of {len(value)}"
    text = repr(value[:40] if isinstance(value, str) else value)
    return text if len(text) <= 60 else text[:59] + "…"


def compile_class(cls: type) -> Compiled:
    """The two functions of a message class."""
    writer = _Writer(cls)
    source = "\n".join([*writer.to_row(), *writer.from_row()])
    exec(compile(source, f"<taskd.wire of {cls.__name__}>", "exec"), writer.names)
    return Compiled(writer.names["to_row"], writer.names["from_row"])


class _Writer:
    """The source of one class' functions, and the names that it uses. Rows may be nested one level deep, no deeper."""

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.fields = fields_of(cls)
        self.names: dict[str, Any] = {"Cls": cls, "new": object.__new__, "refuse": refuse, "complain": complain}
        for field in self.fields:
            self._learn(field)

    def _learn(self, field: Field) -> None:
        self.names[field.base.__name__] = field.base
        if issubclass(field.base, IntEnum):
            self.names[f"{field.base.__name__}_by_number"] = {member.value: member for member in field.base}
        if dataclasses.is_dataclass(field.base):
            for inner in fields_of(field.base):
                assert inner.base is not tuple and not dataclasses.is_dataclass(inner.base), f"{self.cls}: too deep"
                self._learn(inner)
        if field.item is not None:
            self._learn(field.item)
            for inner in fields_of(field.item.base) if dataclasses.is_dataclass(field.item.base) else []:
                assert not hasattr(field.item.base, "__post_init__"), f"{field.item.base}: would be passed over"
                self.names[f"{field.item.base.__name__}_{inner.name}"] = getattr(field.item.base, inner.name).__set__

    def to_row(self) -> list[str]:
        """The source lines of `to_row(message)`."""
        lines = ["def to_row(message):"]
        for index, field in enumerate(self.fields):
            lines.append(f"    a{index} = message.{field.name}")
        checks = [field.condition(f"a{index}", False) for index, field in enumerate(self.fields)]
        lines += [f"    assert {' and '.join(checks)}, complain(message)"]
        for index, field in enumerate(self.fields):
            lines += self._items_to_row(index, field)
        return [*lines, f"    return [{', '.join(f'a{index}' for index in range(len(self.fields)))}]", ""]

    def _items_to_row(self, index: int, field: Field) -> list[str]:
        if field.item is None:
            return []
        if not dataclasses.is_dataclass(field.item.base):
            return [
                f"    for item in a{index}:",
                f"        assert {field.item.condition('item', False)}, complain(message)",
            ]
        inner = fields_of(field.item.base)
        lines = [f"    rows = []; items = a{index}; a{index} = rows", "    for item in items:"]
        lines += [f"        b{at} = item.{one.name}" for at, one in enumerate(inner)]
        checks = [field.item.condition("item", False)]
        checks += [one.condition(f"b{at}", False) for at, one in enumerate(inner)]
        lines.append(f"        assert {' and '.join(checks)}, complain(message)")
        lines.append(f"        rows.append(({', '.join(f'b{at}' for at in range(len(inner)))},))")
        return lines

    def from_row(self) -> list[str]:
        """The source lines of `from_row(row)`; `row` is a list."""
        count = len(self.fields)
        lines = ["def from_row(row):", f"    if len(row) != {count}: raise refuse(Cls, row)"]
        lines.append(f"    {' '.join(f'a{index},' for index in range(count))} = row")
        checks = [field.condition(f"a{index}", True) for index, field in enumerate(self.fields)]
        lines.append(f"    if not ({' and '.join(checks)}): raise refuse(Cls, row)")
        for index, field in enumerate(self.fields):
            lines += self._items_from_row(index, field)
        values = [self._value(f"a{index}", field) for index, field in enumerate(self.fields)]
        return [*lines, f"    return Cls({', '.join(values)})", ""]

    def _items_from_row(self, index: int, field: Field) -> list[str]:
        if field.item is None:
            return []
        if not dataclasses.is_dataclass(field.item.base):
            return [
                f"    for item in a{index}:",
                f"        if not ({field.item.condition('item', True)}): raise refuse(Cls, row)",
            ]
        inner = fields_of(field.item.base)
        lines = [f"    items = []; rows = a{index}; a{index} = items", "    for item in rows:"]
        lines.append(f"        if item.__class__ is not list or len(item) != {len(inner)}: raise refuse(Cls, row)")
        lines.append(f"        {' '.join(f'b{at},' for at in range(len(inner)))} = item")
        checks = [one.condition(f"b{at}", True) for at, one in enumerate(inner)]
        lines.append(f"        if not ({' and '.join(checks)}): raise refuse(Cls, row)")
        # The __init__ of the frozen class would be half the cost of a row, so its slots are set directly.
        lines.append(f"        item = new({field.item.base.__name__})")
        lines += [
            f"        {field.item.base.__name__}_{one.name}(item, {self._value(f'b{at}', one)})"
            for at, one in enumerate(inner)
        ]
        return [*lines, "        items.append(item)"]

    @staticmethod
    def _value(variable: str, field: Field) -> str:
        if field.base is tuple:
            return f"tuple({variable})"
        return f"{field.base.__name__}_by_number[{variable}]" if issubclass(field.base, IntEnum) else variable


def refuse(cls: type, row: list[Any]) -> Refusal:
    """The error for a row that did not fit. It is slow, and is only called when something is wrong."""
    sentence = _row_wrong(cls, row, cls.__name__)
    assert sentence is not None, f"a {cls.__name__} was refused although every field fits"
    return Refusal(sentence)


def complain(message: Any) -> str:
    """The text of the assertion for a message of ours that is out of bounds."""
    return f"our own message is out of bounds: {repr(message)[:2000]}"


def _row_wrong(cls: type, row: Any, path: str) -> str | None:
    fields = fields_of(cls)
    if type(row) is not list or len(row) != len(fields):
        return f"{path} is {shown(row)}, it must be a list of {len(fields)} fields"
    found = (_wrong(field, value, f"{path}.{field.name}") for field, value in zip(fields, row, strict=True))
    return next((sentence for sentence in found if sentence is not None), None)


def _wrong(field: Field, value: Any, path: str) -> str | None:
    base = field.base
    if dataclasses.is_dataclass(base):
        return _row_wrong(base, value, path)
    if base is bool:
        fits = type(value) is bool
    elif base is int:
        fits = type(value) is int and field.low <= value <= field.high
    elif issubclass(base, IntEnum):
        fits = type(value) is int and value in [member.value for member in base]
    elif base is tuple:
        fits = type(value) is list and len(value) <= field.most
    else:
        fits = isinstance(value, (str, bytes)) and type(value) is base and len(value) <= field.most
    if not fits:
        return f"{path} is {shown(value)}, it must be {field.allowed}"
    if base is not tuple:
        return None
    assert field.item is not None
    found = (_wrong(field.item, item, f"{path}[{index}]") for index, item in enumerate(value))
    return next((sentence for sentence in found if sentence is not None), None)
