"""The command taskd: what it answers, how it refuses, and that it starts at once without heavy imports."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd.cli import errands, table
from taskd.cli.main import COMMANDS
from tests.patience import PATIENCE_S

MAIN = "import sys; from taskd.cli.main import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def taskd(run_python: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: str, **more: Any) -> Any:
        return run_python(MAIN, *arguments, check=False, **more)

    return run


def test_help_names_every_command_and_loads_nothing(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys\nfrom taskd.cli.main import main\ncode = main(['--help'])\n"
        "heavy = {'torch', 'zmq', 'yaml', 'numpy', 'logging', 'taskd.config', *sys.argv[1:]} & set(sys.modules)\n"
        "print(code, *heavy, file=sys.stderr)"
    )
    done = run_python(code, *(module for _, _, module in COMMANDS))
    code, *heavy = done.stderr.split()
    assert code == "0" and not heavy
    for name, line, _ in COMMANDS:
        assert any(row.split(maxsplit=1) == [name, line] for row in done.stdout.splitlines())


@pytest.mark.parametrize(("name", "line", "module"), COMMANDS)
def test_every_command_loads_and_explains_itself(taskd: Any, name: str, line: str, module: str) -> None:
    done = taskd(name, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: taskd {name}")
    shared = {errand.name: errands.__name__ for errand in errands.ERRANDS}
    assert module == shared.get(name, f"taskd.cli.{name}")
    assert len(line) < 80 and not line.endswith(".")
    assert f"{line[0].upper()}{line[1:]}." in " ".join(done.stdout.split())


def test_alone_it_shows_its_help_and_its_version(taskd: Any) -> None:
    from taskd import __version__

    assert taskd().stdout == taskd("--help").stdout
    assert taskd("--version").stdout == f"taskd {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["cofig"], "there is no command 'cofig'; did you mean config?"),
        (["zzz"], "there is no command 'zzz'; there are "),
        (["config"], "the following arguments are required: VERB; see `taskd config --help`"),
        (["config", "shew"], "invalid choice: 'shew'"),
        (["config", "show", "--loud"], "unrecognized arguments: --loud; see `taskd config --help`"),
        (["--loud"], "--loud; see `taskd --help`"),
        (["config", "show", "--file", "/none.yaml"], "file: the file '/none.yaml' cannot be read (No such file"),
        (["doctor", "extra"], "unrecognized arguments: extra; see `taskd doctor --help`"),
    ],
)
def test_usage_errors_are_one_sentence_and_2(taskd: Any, arguments: list[str], sentence: str) -> None:
    done = taskd(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("taskd: ") and done.stderr.count("\n") == 1
    assert sentence in done.stderr


def test_errors_of_taskd_come_without_a_traceback(run_python: Callable[..., Any]) -> None:
    for kind, code in (("UsageError", 2), ("PeerError", 1), ("BackendError", 1)):
        done = run_python(
            "import sys\nfrom taskd import errors\nfrom taskd.cli import main, config\n"
            f"def run(arguments): raise errors.{kind}('it was so')\n"
            "config.run = run\nsys.exit(main.main(['config', 'show']))",
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (code, "", "taskd: it was so\n")


def test_a_reader_that_goes_away_is_quiet(tmp_path: Path) -> None:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "config", "show", "--docs"],
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=environ,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_interrupt_is_quiet_and_130(tmp_path: Path) -> None:
    fifo = tmp_path / "settings.yaml"
    os.mkfifo(fifo)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "config", "show", "--file", str(fifo)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    # Opening for writing waits until the command opens the other end. The command is then busy reading.
    with fifo.open("w"):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_config_show(taskd: Any, tmp_path: Path) -> None:
    file = tmp_path / "taskd.yaml"
    file.write_text("job: {node_nums: 4}\nretry: off\n")
    environ = {"TASKD_CONFIG": str(file), "TASKD_MANAGER_PORT": "9700", "TASKD_KEY": "ab" * 32, "MASTER_ADDR": "h0"}
    rows = {line.split()[0]: line.split()[1:] for line in taskd("config", "show", env=environ).stdout.splitlines()}
    assert rows["SETTING"] == ["VALUE", "SOURCE"]
    assert rows["manager.port"] == ["9700", "environment", "TASKD_MANAGER_PORT"]
    assert rows["manager.host"] == ["h0", "default", "from", "MASTER_ADDR"]
    assert rows["manager.key"] == ["(hidden)", "environment", "TASKD_KEY"]
    assert rows["job.node_nums"] == ["4", "file", str(file)]
    assert rows["retry.levels"] == ["(none)", "file", str(file)]
    assert rows["log.path"] == ["-", "default"]


def test_config_show_as_json_and_with_docs(taskd: Any) -> None:
    done = taskd("config", "show", "--json", env={"TASKD_MANAGER_PORT": "9700"})
    found = {row.pop("path"): row for row in json.loads(done.stdout)["settings"]}
    assert found["manager.port"] == {
        "value": 9700,
        "source": "environment TASKD_MANAGER_PORT",
        "doc": "TCP port of the manager.",
        "allowed": "a whole number from 1 to 65535",
        "variables": ["TASKD_MANAGER_PORT"],
    }
    assert found["recover.strategies"]["value"][-1] == "exit"
    docs = taskd("config", "show", "--docs").stdout
    for path, row in found.items():
        assert f"{path} = " in docs and row["doc"] in docs and ", ".join(row["variables"]) in docs


def test_a_refused_setting_is_one_sentence(taskd: Any) -> None:
    done = taskd("config", "show", env={"TASKD_MANAGER_PORT": "high"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "taskd: manager.port: 'high' is not a whole number (from environment TASKD_MANAGER_PORT); "
        "allowed: a whole number from 1 to 65535\n"
    )


def test_tables_are_aligned() -> None:
    rows = [("a", 5, None), ("long name", 12345, "x"), ("日本", 1, "")]
    assert table.render(("NAME", "NUMBER", "REST"), rows, right={"NUMBER"}).splitlines() == [
        "NAME       NUMBER  REST",
        "a               5  -",
        "long name   12345  x",
        "日本            1",
    ]
    assert table.render(("NAME",), []) == "NAME\n"


def test_lines_are_cut_and_wrapped_by_what_is_seen_of_them() -> None:
    red, end = "\x1b[31m", "\x1b[0m"
    assert table.cut("abc", 3) == "abc" and table.cut("abcd", 0) == "abcd" and table.cut("abcd", 3) == "ab…"
    assert table.cut(f"a{red}bcd{end}", 4) == f"a{red}bcd{end}" and table.cut(f"a{red}bcd{end}", 3) == f"a{red}b{end}…"
    assert table.cut("節点節点", 6) == "節点…"
    assert table.wrap(["job a", f"{red}term 1{end}", "x"], " | ", 14) == f"job a | {red}term 1{end}\nx"
    assert table.wrap(["a", "b"], " | ", 0) == "a | b"


def test_what_others_wrote_cannot_reach_the_terminal() -> None:
    evil = "node\x1b[2J\r\nroot\u202e\x9b"
    shown = table.render(("NODE",), [(evil,)])
    assert not {"\x1b", "\r", "\u202e", "\x9b"} & set(shown)
    assert shown.count("\n") == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_where_they_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    rows = [(table.Cell("dead", "red"), "x")]
    terminal, pipe = Terminal(), io.StringIO()
    table.show(("STATE", "REST"), rows, stream=terminal)
    table.show(("STATE", "REST"), rows, stream=pipe)
    assert "\x1b[31mdead\x1b[0m" in terminal.getvalue()
    assert pipe.getvalue() == "STATE  REST\ndead   x\n"
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as context:
            context.setenv(name, value)
            terminal = Terminal()
            table.show(("STATE", "REST"), rows, stream=terminal)
            assert terminal.getvalue() == pipe.getvalue()
