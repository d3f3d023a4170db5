"""Logging: which process speaks, at which level, where to, and that it never disturbs a training job."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SPEAK = """
import logging, sys
from taskd import log
logger = log.get("taskd.manager.loop")
logger.debug("quiet"); logger.info("told", extra=log.facts(epoch=3, node="a b")); logger.warning("loud %d", 7)
"""


def test_quiet_but_for_warnings_on_standard_error(run_python: Callable[..., Any]) -> None:
    done = run_python(SPEAK)
    assert (done.stdout, done.stderr) == ("", "taskd: loud 7\n")


@pytest.mark.parametrize(
    ("environ", "opening"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1"}, "taskd[rank 3]: "),
        ({"RANK": "3"}, "taskd: "),  # in a pod's own environment RANK is the rank of the node
    ],
)
def test_a_line_opens_with_who_speaks(run_python: Callable[..., Any], environ: dict[str, str], opening: str) -> None:
    assert run_python(SPEAK, env=environ).stderr == f"{opening}loud 7\n"


def test_a_process_may_say_who_it_is(run_python: Callable[..., Any]) -> None:
    code = "from taskd import log; log.identify('manager'); log.get('taskd.x').error('no')"
    assert run_python(code, env={"RANK": "3", "LOCAL_RANK": "1"}).stderr == "taskd[manager]: no\n"


def test_the_root_logger_stays_as_it_is(run_python: Callable[..., Any]) -> None:
    code = SPEAK + "\nassert not logging.getLogger().handlers\nlogging.basicConfig()\nlogger.warning('again')"
    assert run_python(code).stderr == "taskd: loud 7\ntaskd: again\n"


def test_handlers_of_the_user_stand_in_for_ours(run_python: Callable[..., Any]) -> None:
    code = "import logging, sys\nlogging.getLogger('taskd').addHandler(logging.StreamHandler(sys.stdout))\n" + SPEAK
    done = run_python(code)
    assert (done.stdout, done.stderr) == ("loud 7\n", "")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TASKD_STD_LOG_LEVEL": "DEBUG"}, ["quiet", "told", "loud 7"]),
        ({"TASKD_STD_LOG_LEVEL": "INFO"}, ["told", "loud 7"]),
        ({"TASKD_STD_LOG_LEVEL": "error"}, []),
        ({"TASKD_STD_LOG_LEVEL": "off"}, []),
        ({"TASKD_LOG_STDOUT": "False"}, []),
        ({"TASKD_LOG_STDOUT": "True"}, ["loud 7"]),
    ],
)
def test_levels_of_the_terminal(run_python: Callable[..., Any], environ: dict[str, str], expected: list[str]) -> None:
    assert run_python(SPEAK, env=environ).stderr.splitlines() == [f"taskd: {line}" for line in expected]


def test_a_level_that_is_none_is_said_once_and_costs_nothing_else(run_python: Callable[..., Any]) -> None:
    lines = run_python(SPEAK + "\nlog.configure()", env={"TASKD_STD_LOG_LEVEL": "loudly"}).stderr.splitlines()
    assert len(lines) == 2 and lines[1] == "taskd: loud 7"
    assert "TASKD_STD_LOG_LEVEL='loudly' is no level; warning is used; allowed: debug, info" in lines[0]


def test_a_sentence_is_said_once(run_python: Callable[..., Any]) -> None:
    code = (
        "import logging\nfrom taskd import log\nlogger = log.get('taskd.x')\n"
        "print([log.once(logger, logging.WARNING, key, '%s is odd', key) for key in 'aaba'])"
    )
    done = run_python(code)
    assert done.stdout.strip() == "[True, False, True, False]"
    assert done.stderr == "taskd: a is odd\ntaskd: b is odd\n"


def test_a_directory_gets_a_file_named_for_who_speaks(run_python: Callable[..., Any], tmp_path: Path) -> None:
    run_python(SPEAK, env={"TASKD_LOG_PATH": str(tmp_path / "logs"), "RANK": "3", "LOCAL_RANK": "1"})
    file = tmp_path / "logs" / "taskd-rank-3.log"
    lines = file.read_text().splitlines()
    assert len(lines) == 2  # info is the file's default
    assert " info taskd.manager.loop pid=" in lines[0] and lines[0].endswith(" told epoch=3 node='a b'")
    assert " warning " in lines[1] and lines[1].endswith(" loud 7")
    assert file.stat().st_mode & 0o007 == 0


def test_a_file_is_that_file(run_python: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "one.log"
    for _ in range(2):
        run_python(SPEAK, env={"TASKD_LOG_PATH": str(file), "TASKD_FILE_LOG_LEVEL": "DEBUG"})
    assert len(file.read_text().splitlines()) == 6


def test_a_forked_child_writes_its_own_lines(run_python: Callable[..., Any], tmp_path: Path) -> None:
    code = SPEAK + (
        "\nimport os\npid = os.fork()\nlog.identify('rank %d' % (pid == 0))\nlogger.warning('here')\n"
        "if pid == 0: os._exit(0)\nos.waitpid(pid, 0)"
    )
    run_python(code, env={"TASKD_LOG_PATH": str(tmp_path / "logs"), "TASKD_FILE_LOG_LEVEL": "WARNING"})
    lines = {path.name: path.read_text().count("\n") for path in (tmp_path / "logs").iterdir()}
    assert lines.pop("taskd-rank-1.log") == 1
    assert list(lines.values()) == [2]


@pytest.mark.parametrize("path", ["/proc/taskd", "/dev/full", "/dev/null/taskd"])
def test_a_log_that_cannot_be_written_costs_one_warning(run_python: Callable[..., Any], path: str) -> None:
    code = SPEAK + "\nlogger.warning('and on')\nprint('trained')"
    done = run_python(code, env={"TASKD_LOG_PATH": path})
    assert done.stdout == "trained\n"
    lines = done.stderr.splitlines()
    assert sum("cannot be written" in line for line in lines) == 1
    assert [line for line in lines if "cannot be written" not in line] == ["taskd: loud 7", "taskd: and on"]


def test_a_full_disk_costs_one_warning(run_python: Callable[..., Any], tmp_path: Path) -> None:
    os.symlink("/dev/full", tmp_path / "full.log")
    done = run_python(SPEAK + "\nlogger.warning('and on')", env={"TASKD_LOG_PATH": str(tmp_path / "full.log")})
    assert sum("No space left" in line for line in done.stderr.splitlines()) == 1


def test_a_big_file_is_turned_over_once(run_python: Callable[..., Any], tmp_path: Path) -> None:
    code = (
        "from taskd import log\nlog.FILE_BYTES_MAX = 2000\nlogger = log.get('taskd.x')\n"
        "for number in range(100): logger.info('number %d', number)"
    )
    file = tmp_path / "one.log"
    run_python(code, env={"TASKD_LOG_PATH": str(file)})
    assert sorted(path.name for path in tmp_path.glob("one*")) == ["one.log", "one.log.1"]
    assert file.stat().st_size <= 2200 and (tmp_path / "one.log.1").stat().st_size <= 2200


def test_a_terminal_that_went_away_is_no_error(run_python: Callable[..., Any]) -> None:
    code = "import os, sys\n" + SPEAK + "\nos.close(2)\nlogger.warning('x')\nsys.stderr = None\nlogger.warning('y')"
    assert run_python(code + "\nprint('trained')").stdout == "trained\n"


def test_an_exception_comes_with_its_traceback(run_python: Callable[..., Any], tmp_path: Path) -> None:
    code = "from taskd import log\ntry: 1 / 0\nexcept ZeroDivisionError: log.get('taskd.x').exception('it broke')"
    done = run_python(code, env={"TASKD_LOG_PATH": str(tmp_path / "one.log")})
    for text in (done.stderr, (tmp_path / "one.log").read_text()):
        assert "it broke\nTraceback" in text and "ZeroDivisionError" in text
