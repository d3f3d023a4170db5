"""Tests which folder of csrc/rail may include which other one, and that an include names its folder.

They read includes and nothing else. tests/test_imports.py checks the imports of Python.
"""

from __future__ import annotations

import re

from tests.source import ROOT, clean

BELOW = {
    "io": {""},
    "session": {"", "io"},
    "reduce": {""},
    "collectives": {"", "reduce"},
    "engine": {"", "io", "session", "reduce", "collectives"},
    "": set(),
}
"""For each folder of csrc/rail ("" is its top): the folders whose headers it may include besides its own."""
INCLUDE = re.compile(r'#include "([^"]+)"')
CSRC = ROOT / "csrc"


def test_includes_name_the_folder() -> None:
    breaches = []
    for source in sorted(CSRC.rglob("*.?pp")):
        for number, line in enumerate(source.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if found and not (CSRC / found[1]).is_file():
                breaches.append(f"{source.relative_to(ROOT)}:{number} includes {found[1]}; count the path from csrc")
    clean(breaches)


def test_no_folder_uses_a_higher_one() -> None:
    breaches = []
    for source in sorted((CSRC / "rail").rglob("*.?pp")):
        folder = "/".join(source.relative_to(CSRC / "rail").parts[:-1])
        for number, line in enumerate(source.read_text().splitlines(), 1):
            found = INCLUDE.match(line)
            if not found or not found[1].startswith("rail/"):
                continue
            used = "/".join(found[1].split("/")[1:-1])
            if used not in BELOW[folder] | {folder}:
                breaches.append(f"{source.relative_to(ROOT)}:{number} includes {found[1]}; {folder} is below {used}")
    clean(breaches)


def test_no_two_classes_have_one_name() -> None:
    """All classes are in one namespace. If two have the same name, the linker silently keeps the functions of one."""
    named = re.compile(r"^(?:class|struct|enum class) (\w+)\b(?=[^;]*\{)", re.MULTILINE)
    first: dict[str, str] = {}
    breaches = []
    for header in sorted((CSRC / "rail").rglob("*.hpp")):
        place = str(header.relative_to(ROOT))
        for found in named.findall(header.read_text()):
            if first.setdefault(found, place) != place:
                breaches.append(f"{place}:1 {found} is in {first[found]}, too; give one of them another name")
    clean(breaches)
