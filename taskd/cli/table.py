"""Plain tables and colours for a terminal: aligned columns, no frames, nothing that a pipe would have to strip.

Colours appear only if the stream is a terminal that wants them (NO_COLOR and TERM=dumb are honoured). In texts from
other machines (node names, errors) the control characters are replaced, so that no other machine can control an
operator's terminal. This module does NOT fetch, sort or judge what it prints.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "cyan": "36",
}
GAP = "  "
MORE = "…"
_PAINT = re.compile("(\x1b\\[[0-9;]*m)")


@dataclass(frozen=True)
class Cell:
    """A value with a style from STYLES. Any other object in a row is shown as plain text."""

    value: Any
    style: str = ""


def wants_colour(stream: TextIO | None = None) -> bool:
    """Whether this stream is a terminal that wants colours."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def columns(stream: TextIO | None = None) -> int:
    """How wide a line may be on this stream; 0: no limit, because there is no terminal that wraps lines."""
    stream = sys.stdout if stream is None else stream
    return shutil.get_terminal_size().columns if stream.isatty() else 0


def cut(line: str, limit: int) -> str:
    """A line, coloured or not, in at most this many columns (0: no limit), with a mark where it was cut."""
    if not limit or width(_PAINT.sub("", line)) <= limit:
        return line
    found, left = "", limit - 1
    for part in _PAINT.split(line):
        if _PAINT.fullmatch(part):
            found += part  # also after the cut, where it switches the colour off again
            continue
        for character in part:
            left = left - width(character) if left >= 0 else left
            found += character if left >= 0 else ""
    return found + MORE


def wrap(parts: Sequence[str], between: str, limit: int) -> str:
    """The parts in as few lines of this width as possible; limit 0: in one line."""
    lines: list[str] = []
    for part in parts:
        longer = f"{lines[-1]}{between}{part}" if lines else part
        if lines and (not limit or width(_PAINT.sub("", longer)) <= limit):
            lines[-1] = longer
        else:
            lines.append(part)
    return "\n".join(lines)


def paint(text: str, style: str, colour: bool) -> str:
    """The text in a style, or unchanged without colour."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and style else text


def render(
    headers: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Iterable[str] = (), colour: bool = False
) -> str:
    """A table as text with a newline at its end. Columns whose header is in `right` are aligned right.

    None is shown as "-". Trailing blanks are left out.
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    texts = [[clean(cell.value) for cell in row] for row in cells]
    assert all(len(row) == len(headers) for row in texts)
    widths = [max([width(header), *(width(row[i]) for row in texts)]) for i, header in enumerate(headers)]
    flush_right = [header in set(right) for header in headers]
    lines = [_line(headers, ["bold"] * len(headers), widths, flush_right, colour)]
    for row, text in zip(cells, texts, strict=True):
        lines.append(_line(text, [cell.style for cell in row], widths, flush_right, colour))
    return "\n".join(lines) + "\n"


def show(
    headers: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    right: Iterable[str] = (),
    stream: TextIO | None = None,
    fit: bool = False,
) -> None:
    """Print a table, in colours where the stream wants them. `fit`: cut each line to the width of a terminal, because
    the user can get the rest in another way."""
    stream = sys.stdout if stream is None else stream
    limit = columns(stream) if fit else 0
    text = render(headers, rows, right=right, colour=wants_colour(stream))
    stream.write("".join(cut(line, limit) + "\n" for line in text.splitlines()))


def clean(value: Any) -> str:
    """The value as one line without control characters."""
    if value is None:
        return "-"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def width(text: str) -> int:
    """The number of columns that a text takes: wide characters take two, combining characters none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _line(
    texts: Sequence[str], styles: Sequence[str], widths: Sequence[int], right: Sequence[bool], colour: bool
) -> str:
    parts = []
    for text, style, columns, flush_right in zip(texts, styles, widths, right, strict=True):
        blanks = " " * (columns - width(text))
        painted = paint(text, style, colour)
        parts.append(blanks + painted if flush_right else painted + blanks)
    return GAP.join(parts).rstrip()
