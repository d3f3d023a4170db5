"""The manager's port: it is taken at once and kept, so jobs that start at the same moment use different ports."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from taskd import config
from taskd.launch.manager import take_port
from tests.launched import Launched

TALKS = "import os; os.write(1, b'talks %s\\n' % os.environ['RANK'].encode())\n"


@pytest.fixture
def usual(monkeypatch: pytest.MonkeyPatch, free_port: Callable[[], int]) -> config.Config:
    """A configuration with a port that the user has not chosen and no other process uses."""
    loaded = config.load(environ={}, manager_bind="127.0.0.1", manager_port=free_port())
    loaded.sources["manager.port"] = "default"
    return loaded


@contextlib.contextmanager
def listening(port: int) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as line:
        line.linger = 0
        line.bind(f"tcp://127.0.0.1:{port}")
        yield line


def test_a_port_that_is_taken_is_nobody_elses(usual: config.Config) -> None:
    first, holder = take_port(usual)
    second, other = take_port(usual)
    assert holder is not None and other is not None
    with holder, other:
        assert first == usual.manager.port != second
        for _ in range(3):  # each life of the manager
            with listening(first):
                third, one_more = take_port(usual)
                assert third not in (first, second) and one_more is not None
                one_more.close()
                socket.create_connection(("127.0.0.1", first)).close()


def test_a_port_that_the_user_named_is_not_exchanged(usual: config.Config) -> None:
    usual.sources["manager.port"] = "TASKD_MANAGER_PORT"
    with socket.create_server(("127.0.0.1", usual.manager.port)):
        assert take_port(usual) == (usual.manager.port, None)


def test_jobs_that_start_at_one_moment(tmp_path: Path, free_port: Callable[[], int]) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    with contextlib.ExitStack() as stack:
        jobs = []
        for name in ("first", "second", "third"):
            folder = tmp_path / name
            folder.mkdir()
            words = ("--nproc-per-node", "1", str(tmp_path / "talks.py"))
            env = {"TASKD_MANAGER_PORT": None}
            jobs.append(stack.enter_context(Launched(folder, free_port(), *words, env=env, job=name, warm=True)))
        for job in jobs:
            job.end()
            assert job.said("talks") == ["0"]
            assert "is taken" not in job.text, job.text
