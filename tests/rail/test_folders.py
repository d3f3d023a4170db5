"""Which folder of csrc/rail may use which, and that an include names its folder.

It reads includes, nothing else. Who may import whom in Python is in tests/test_imports.py.
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
"""By folder of csrc/rail, "" for its top: the folders whose headers it may include beside its own."""
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
    """All are in one namespace: with two of a name the linker keeps the functions of one, and says nothing."""
    named = re.compile(r"^(?:class|struct|enum class) (\w+)\b(?=[^;]*\{)", re.MULTILINE)
    first: dict[str, str] = {}
    breaches = []
    for header in sorted((CSRC / "rail").rglob("*.hpp")):
        place = str(header.relative_to(ROOT))
        for found in named.findall(header.read_text()):
            if first.setdefault(found, place) != place:
                breaches.append(f"{place}:1 {found} is in {first[found]}, too; give one of them another name")
    clean(breaches)
