"""Tests the words for where a process is: the innermost lines of its script, whatever code they have called."""

from __future__ import annotations

import inspect
import threading
from types import FrameType

from taskd.worker.whereabouts import of_training, words_of


def frame_of(source: str, name: str, ready: list[FrameType | None]) -> None:
    """Run this source as a script of this name. It notes its frame in `ready`."""
    exec(compile(source, name, "exec"), {"note": lambda: ready.append(inspect.currentframe())})


def test_lines_of_the_script_are_named_from_the_innermost_one() -> None:
    found: list[FrameType | None] = []
    frame_of("def fetch():\n    note()\n\ndef load():\n    fetch()\n\nload()\n", "/somewhere/data.py", found)
    words = words_of(found[0])
    assert "data.py:2 in fetch, data.py:5 in load" in words and words.startswith("at ")


def test_what_is_installed_is_passed_over_but_where_there_is_nothing_else() -> None:
    found: list[FrameType | None] = []
    thread = threading.Thread(target=lambda: found.append(inspect.currentframe()))
    thread.start()
    thread.join()
    assert found[0] is not None
    assert words_of(found[0].f_back) == f"at threading.py:{found[0].f_back.f_lineno} in run"  # type: ignore[union-attr]
    assert words_of(None) == ""


def test_another_thread_sees_the_main_one() -> None:
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(of_training()))
    thread.start()
    thread.join()
    assert "in test_another_thread_sees_the_main_one" in told[0]
