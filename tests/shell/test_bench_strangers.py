"""The benchmark of strangers: it measures what it says, and says what it could not measure.

These tests do not ask whether a figure is good.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from taskd.bench import strangers
from tests.launched import wait_until

FIGURES = {
    "ports",
    "connections_held",
    "refused",
    "let_in",
    "incidents",
    "training_slowed_percent",
    "longest_step_ms",
    "longest_calm_step_ms",
    "late_ms",
    "memory_mb",
}


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("CONNECTIONS", 30),
        ("ANSWER_S", 60.0),
        ("WORDS", (16, 1, 100_000)),
        ("SETTLE_STEPS", 2),
        ("WATCH_S", 1.0),
    ):
        monkeypatch.setattr(strangers, name, value)


@pytest.fixture
def knock() -> Callable[[str], contextlib.AbstractContextManager[strangers._Strangers]]:
    @contextlib.contextmanager
    def made(port: str):  # type: ignore[no-untyped-def]
        one = strangers._Strangers(port)
        try:
            yield one
        finally:
            one.end()

    return made


Knock = Callable[[str], contextlib.AbstractContextManager[strangers._Strangers]]


@pytest.mark.usefixtures("few")
def test_a_job_is_measured_to_its_end() -> None:
    figures = strangers.measure()
    assert set(figures) == FIGURES
    assert all(figure.value is not None for figure in figures.values()), figures
    assert figures["let_in"].value == 0
    held, refused = figures["connections_held"].value, figures["refused"].value
    assert held is not None and refused is not None
    assert held + refused >= 30 * (figures["ports"].value or 0)


@pytest.mark.parametrize(
    ("digits", "host"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "127.0.0.1"),
        ("0200000A", "10.0.0.2"),
        ("00000000000000000000000001000000", "::1"),
        ("00000000000000000000000000000000", "::1"),
        ("0000000000000000FFFF00000100007F", "127.0.0.1"),
        ("000080FE00000000FF005450000000FE", "fe80::5054:ff:fe00:0"),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="these rows were written by a little-endian machine")
def test_addresses_in_the_systems_table(digits: str, host: str) -> None:
    assert strangers.host_of(digits) == host


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.usefixtures("few")
def test_strangers_come_to_every_address(host: str, knock: Knock) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family, backlog=100)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener:
        number = listener.getsockname()[1]
        (port,) = [one for one in strangers.ports_of([os.getpid()]) if one.endswith(f":{number}")]
        with knock(port) as crowd:
            assert crowd.hear(60.0) == {"open": 30, "waiting": 0, "closed": 0}
            assert crowd.ask() == {"open": 30, "waiting": 0, "closed": 0}


@pytest.mark.usefixtures("few")
def test_who_is_closed_counts_as_closed_and_comes_again(knock: Knock) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
    with listener, knock(f"127.0.0.1:{listener.getsockname()[1]}") as crowd:
        for _ in range(40):
            listener.accept()[0].close()
        kept = [listener.accept()[0] for _ in range(20)]
        found = crowd.ask()
        assert found is not None and found["closed"] >= 20 and found["open"] >= 20
        for one in kept:
            one.close()


@pytest.mark.usefixtures("few")
def test_who_is_not_accepted_is_not_held(knock: Knock) -> None:
    """A full queue of the kernel answers nobody: a connection that was never made must not count as one."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=3)
    with listener, knock(f"127.0.0.1:{listener.getsockname()[1]}") as crowd:
        assert crowd.hear(1.0) is None  # expires: most of them wait for an answer
        found = crowd.ask()
    assert found == {"open": 4, "waiting": 26, "closed": 0}


@pytest.mark.usefixtures("few")
def test_whoever_finds_nobody_says_so(knock: Knock, free_port: Callable[[], int]) -> None:
    with knock(f"127.0.0.1:{free_port()}") as crowd:
        found = crowd.hear(60.0)
    assert found is not None and found["open"] == 0 and found["closed"] >= 30


@pytest.mark.usefixtures("few")
def test_strangers_that_say_nothing_hold_nobody_up(knock: Knock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "ANSWER_S", 0.2)
    monkeypatch.setattr(strangers, "KNOCK", "-cimport signal; signal.pause()")
    with knock("127.0.0.1:1") as crowd:
        assert crowd.hear(0.0) is None and crowd.ask() is None
    assert crowd._process.returncode is not None
    monkeypatch.setattr(strangers, "KNOCK", "-cpass")
    with knock("127.0.0.1:1") as crowd:
        wait_until(lambda: crowd._process.poll() is not None, "its end")
        assert crowd.ask() is None


def test_what_is_missing_has_a_reason() -> None:
    """A rank was replaced, the manager does not answer, or strangers do not say what became of them."""
    for found in (
        strangers._training([], [1.0]),
        strangers._training([1.0], []),
        strangers._answers(None),
        strangers._crowd([], 1),
    ):
        assert all(figure.value is None and figure.reason for figure in found.values()), found
    whole = strangers._training([1.0, 2.0, 3.0], [2.0, 3.0, 40.0])
    assert whole["training_slowed_percent"].value == 50 and whole["late_ms"].value == 37
    counted = strangers._crowd([{"open": 5, "waiting": 1, "closed": 2}, {"open": 1, "waiting": 0, "closed": 0}], 2)
    assert (counted["connections_held"].value, counted["refused"].value) == (6, 3)


def test_all_processes_of_a_job_are_found() -> None:
    """Agents and this benchmark find children of children, whichever of its threads has started them."""
    code = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo up; cat; :'])"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        wait_until(lambda: len(strangers.started_by(process.pid, 100)) == 2, "the shell and its child")
        assert len(strangers.started_by(process.pid, 1)) == 1
        process.stdin.close()
    assert strangers.started_by(process.pid, 100) == []
