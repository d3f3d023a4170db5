"""How much memory is free: the machine's, or what the control group leaves, without what is only a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskd import memory

MIB = 1 << 20


@pytest.fixture
def listing(tmp_path: Path) -> Path:
    """A process in the control group `/job`."""
    found = tmp_path / "cgroup"
    found.write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    2048 kB\n")
    return found


def test_the_machine_alone(listing: Path) -> None:
    root = listing.parent
    assert memory.free(listing, root, root / "meminfo") == 2 * MIB
    assert memory.free(listing, root, root / "nothing") == memory.UNLIMITED


def test_a_group_with_a_limit(listing: Path) -> None:
    root = listing.parent
    for name, text in (("memory.max", 5 * MIB), ("memory.current", 4 * MIB)):
        (root / "job" / name).write_text(f"{text}\n")
    assert memory.free(listing, root, root / "meminfo") == MIB
    (root / "job" / "memory.stat").write_text(f"anon 7\ninactive_file {MIB // 2}\n")
    assert memory.free(listing, root, root / "meminfo") == MIB + MIB // 2
    (root / "job" / "memory.max").write_text("max\n")
    assert memory.free(listing, root, root / "meminfo") == 2 * MIB
