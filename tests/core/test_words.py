"""How the core phrases its sentences."""

from __future__ import annotations

import pytest

from taskd.core import words


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], "no rank"),
        ([2], "rank 2"),
        ([3, 1, 2, 2], "ranks 1-3"),
        ([0, 2, 3, 9], "ranks 0, 2-3 and 9"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks(ranks: list[int], text: str) -> None:
    assert words.rank_words(ranks) == text


def test_exits() -> None:
    assert [words.exit_words(code) for code in (-9, -11, -99, 0, 3)] == [
        "SIGKILL",
        "SIGSEGV",
        "signal 99",
        "exit code 0",
        "exit code 3",
    ]
    assert [words.shell_code(code) for code in (-9, 0, 3, -255)] == [137, 1, 3, 255]


def test_long_texts_are_cut() -> None:
    assert words.cut("a" * 2000).endswith("...") and len(words.cut("a" * 2000)) == 1024
    assert words.cut("short") == "short"


@pytest.mark.parametrize(
    ("reason", "follows"),
    [
        ("DistBackendError: a collective has failed", True),
        ("DistStoreError: wait timeout", True),
        ("RuntimeError: [/src/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer", True),
        ("RuntimeError: shapes differ", False),
        ("DistanceError: too far", False),
        ("", False),
    ],
)
def test_who_only_raises_what_others_have_caused(reason: str, follows: bool) -> None:
    assert words.follows(reason) is follows


def test_what_a_restart_has_lost() -> None:
    assert [words.lost_words(steps) for steps in (9, 1)] == ["9 steps lost", "1 step lost"]
    assert words.lost_words(0) == "no finished step was seen"
