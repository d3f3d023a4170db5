"""What steps keep in objects in which nobody can see: all start over, and the name is said. What only passes on, or is
only asked, prevents no repair."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("place", ["forward", "updated"])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("database", "kept (a sqlite3.Connection)"),
        ("cursor", "kept (a sqlite3.Connection)"),
        ("apart", "kept (a sqlite3.Connection)"),
        ("alias", "kept (a sqlite3.Connection)"),
        ("line", "kept (a _io.TextIOWrapper)"),
        ("array", "kept (a array.array)"),
        ("future", "kept['next'] (a concurrent.futures._base.Future)"),
        ("attribute", "kept.base (a sqlite3.Connection)"),
        ("late", "kept.base (a sqlite3.Connection)"),
        ("hash", "kept (a _hashlib.HASH)"),
        ("stream", "kept (a _io.BytesIO)"),
        ("replaced", "kept (a zlib.Compress)"),
        ("packed", "kept (a zlib.Compress)"),
    ],
)
def test_what_steps_compute_with_starts_over(check: Check, kind: str, name: str, place: str) -> None:
    job = check(kind, place, 4)
    assert f"{name} and compute with what it gives" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize("kind", ["fresh", "log", "rows", "saving", "index", "group"])
def test_what_only_passes_on_or_answers_heals(check: Check, kind: str) -> None:
    job = check(kind, "forward", 4)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
    assert "nobody can see" not in job.text, job.text
