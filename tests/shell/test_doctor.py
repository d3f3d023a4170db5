"""taskd doctor against real problems: taken ports, readable keys, small limits, libraries that crash or hang."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from taskd import config
from taskd.cli.checks import FAULT, OK, WARNING, Finding, job, libraries, machine, network
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
MAIN = "import sys; from taskd.cli.main import main; sys.exit(main(['doctor', *sys.argv[1:]]))"


def only(findings: list[Finding], check: str) -> Finding:
    found = [finding for finding in findings if finding.check == check]
    assert len(found) == 1, findings
    return found[0]


def port_finding(**manager: Any) -> Finding:
    return only(network.check(config.load(environ={}, manager=manager)), "manager port")


def job_finding(check: str, **overrides: Any) -> Finding:
    return only(job.check(config.load(environ={}, **overrides)), check)


def test_all_checks_are_made_and_the_exit_code_counts_faults(
    run_python: Callable[..., Any], free_port: Callable[[], int]
) -> None:
    environ = {"TASKD_MANAGER_PORT": str(free_port())}
    done = run_python(MAIN, "--json", env=environ, check=False)
    report = json.loads(done.stdout)
    names = [check["check"] for check in report["checks"]]
    for name in (
        "settings", "job id", "run directory", "key", "LD_PRELOAD", "python", "taskd._native", "torch", "gpu", "npu",
        "open files", "shared memory", "memory files", "pid descriptors", "clock", "interfaces", "manager port",
    ):  # fmt: skip
        assert name in names
    topics = [check["topic"] for check in report["checks"]]
    assert topics == sorted(topics), "each field stands together, in order"
    states = [check["state"] for check in report["checks"]]
    assert (report["faults"], report["warnings"]) == (states.count(FAULT), states.count(WARNING))
    assert done.returncode == (1 if report["faults"] else 0)
    assert all(check["cure"] for check in report["checks"] if check["state"] != OK)


def test_the_table_shows_a_cure_below_its_finding(run_python: Callable[..., Any]) -> None:
    done = run_python(MAIN, env={"TASKD_MANAGER_PORT": "high"}, check=False)
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["TOPIC", "CHECK", "STATE", "FINDING"]
    row = next(number for number, line in enumerate(lines) if line.startswith("job        settings"))
    assert "fault" in lines[row] and "manager.port: 'high' is not a whole number" in lines[row]
    assert lines[row + 1].strip().startswith("-> correct it")
    assert done.returncode == 1
    assert "1 fault" in lines[-1]


def test_the_command_line_never_imports_torch(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys\nfrom taskd.cli.main import main\ncode = main(['doctor', '--json'])\n"
        "print({'torch', 'numpy', 'taskd._c10d'} & set(sys.modules), file=sys.stderr)"
    )
    assert run_python(code).stderr.splitlines()[-1] == "set()"


# ---- libraries


def library(tmp_path: Path, name: str, text: str) -> dict[str, str]:
    """Put a library on the path that runs `text` when it is imported."""
    folder = tmp_path / "site" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(text)
    return {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}"}


def findings_with(run_python: Callable[..., Any], environ: dict[str, str], limit_s: float = 60) -> dict[str, Any]:
    code = (
        "import dataclasses, json\nfrom taskd.cli.checks import libraries\n"
        f"libraries.probe.__defaults__ = ({limit_s!r},)\n"
        "print(json.dumps([dataclasses.asdict(finding) for finding in libraries.check()]))"
    )
    return {row["check"]: row for row in json.loads(run_python(code, env=environ).stdout)}


def test_a_library_that_crashes(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = library(tmp_path, "torch", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    found = findings_with(run_python, environ)
    assert found["probe"]["state"] == FAULT
    assert "ended by SIGSEGV at the stage 'torch'" in found["probe"]["sentence"]
    assert found["taskd._native"]["state"] == OK  # findings from before the crash are kept


def test_where_its_own_extension_does_not_load_it_still_speaks(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys\nsys.modules['taskd._native'] = None  # which makes its import fail\n"
        "from taskd import config\nfrom taskd.cli import doctor\n"
        "for finding in doctor.rails.check(config.load()): print(finding.check, finding.state, finding.cure)"
    )
    said = run_python(code).stdout.splitlines()
    assert "netlink warning mend taskd._native first (above)" in said and "rail net ok " in said


def test_a_library_that_hangs(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = library(tmp_path, "pynvml", "import threading; threading.Event().wait()")
    found = findings_with(run_python, environ, limit_s=5)
    assert "was still loading after 5 s at the stage 'nvidia'" in found["probe"]["sentence"]


def test_a_library_that_is_broken_or_old_or_prints(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = library(tmp_path, "torch", "raise ImportError('libtorch_cpu.so: undefined symbol: x')")
    found = findings_with(run_python, environ)
    assert found["torch"]["state"] == FAULT and "undefined symbol" in found["torch"]["sentence"]
    assert "c10d backends" not in found and "taskd._c10d" not in found
    environ = library(
        tmp_path,
        "torch",
        "import types\nprint('hello', end='')\n__version__ = '1.0'\nversion = types.SimpleNamespace(cuda=None)\n",
    )
    found = findings_with(run_python, environ)
    assert "1.0" in found["torch"]["sentence"]
    assert found["taskd._c10d"]["state"] == FAULT and "--no-build-isolation" in found["taskd._c10d"]["cure"]
    assert found["c10d backends"]["state"] == FAULT


def test_without_torch_the_rest_goes_on(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = library(tmp_path, "torch", "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    found = findings_with(run_python, environ)
    assert found["torch"]["state"] == WARNING and "not installed" in found["torch"]["sentence"]
    assert not [row for row in found.values() if row["state"] == FAULT]


# ---- machine


def test_few_open_files(run_python: Callable[..., Any]) -> None:
    code = (
        "import resource\nfrom taskd.cli.checks import machine\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (512, {hard}))\nprint(machine.check()[0])"
    )
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    shown = run_python(code.format(hard=hard)).stdout
    assert "state='warning'" in shown and "ulimit -n is 512" in shown and "`ulimit -n " in shown
    assert "raise the hard limit (512)" in run_python(code.format(hard=512)).stdout


def test_this_machine_can_run_a_job() -> None:
    found = {finding.check: finding.state for finding in machine.check()}
    assert found["memory files"] == OK and found["pid descriptors"] == OK


@pytest.mark.root
def test_a_container_without_network_and_shared_memory(tmp_path: Path) -> None:
    """The checks run in their own namespaces, with only loopback and a small /dev/shm."""
    if not shutil.which("unshare"):
        pytest.skip("needs unshare for namespaces; install util-linux to include it")
    code = (
        "from taskd import config\nfrom taskd.cli.checks import machine, network\n"
        "print(*network.check(config.load()), *machine.check(), sep='\\n')"
    )
    script = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$0" -c "$1"'
    done = subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", script, sys.executable, code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split("check='")[1].split("'")[0]: line for line in done.stdout.splitlines()}
    assert "state='warning'" in lines["interfaces"] and "no interface but loopback" in lines["interfaces"]
    assert "state='warning'" in lines["shared memory"] and "--shm-size" in lines["shared memory"]
    # 127.0.0.1 cannot be bound while lo is down. The finding must be a sentence and not a traceback.
    assert "manager port" in lines


# ---- network


def test_a_free_port(free_port: Callable[[], int]) -> None:
    port = free_port()
    finding = port_finding(port=port)
    assert (finding.state, finding.sentence) == (OK, f"{port} is free for a manager on this host")


@pytest.fixture
def taken(free_port: Callable[[], int]) -> Iterator[int]:
    with socket.create_server(("0.0.0.0", free_port())) as server:
        yield server.getsockname()[1]


def test_a_port_that_somebody_has(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LIMIT_S", 0.5)
    finding = port_finding(port=taken)
    assert finding.state == FAULT
    assert f"{taken} is taken by process {os.getpid()} (" in finding.sentence
    assert "TASKD_MANAGER_PORT" in finding.cure


def test_a_port_that_a_manager_has(free_port: Callable[[], int]) -> None:
    port = free_port()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.bind(f"tcp://0.0.0.0:{port}")
        finding = port_finding(port=port)
    assert finding.state == OK and f"held by process {os.getpid()}" in finding.sentence


def test_a_manager_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "LIMIT_S", 0.2)
    finding = port_finding(host="192.0.2.77")  # an address reserved for documentation: no host has it
    assert finding.state == WARNING and "no manager answers at 192.0.2.77:9601" in finding.sentence


def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = port_finding(host="no-such-host.invalid")
    assert finding.state == FAULT and "'no-such-host.invalid' of the manager's host is not known" in finding.sentence
    assert port_finding(host="\udcff..").state == FAULT


def test_an_address_that_is_not_ours(free_port: Callable[[], int]) -> None:
    finding = port_finding(bind="192.0.2.77", port=free_port())
    assert finding.state == FAULT and "TASKD_MANAGER_BIND" in finding.cure


# ---- job


def test_the_run_directory(tmp_path: Path) -> None:
    base = tmp_path / "run"
    assert job_finding("run directory", job_run_dir=str(base)).sentence.endswith("will be made")
    assert not base.exists(), "the doctor makes nothing"
    folder = base / "default"
    folder.mkdir(parents=True, mode=0o700)
    assert job_finding("run directory", job_run_dir=str(base)).state == OK
    folder.chmod(0o755)
    finding = job_finding("run directory", job_run_dir=str(base))
    assert finding.state == FAULT and "open to other users" in finding.sentence
    (tmp_path / "file").touch()
    finding = job_finding("run directory", job_run_dir=str(tmp_path / "file" / "run"))
    assert finding.state == FAULT and f"{tmp_path / 'file'} is not a directory" in finding.sentence


def test_the_key(tmp_path: Path) -> None:
    assert job_finding("key", job_run_dir=str(tmp_path)).sentence.startswith("none yet")
    assert job_finding("key", manager_key="ab" * 32).sentence == "32 bytes from TASKD_KEY"
    file = tmp_path / "key"
    file.write_text("cd" * 32)
    file.chmod(0o644)
    finding = job_finding("key", manager_key_file=str(file))
    assert finding.state == FAULT and "chmod 600" in finding.sentence
    file.chmod(0o600)
    finding = job_finding("key", manager_key_file=str(file))
    assert (finding.state, finding.sentence) == (OK, f"32 bytes from {file}")
    assert "cdcd" not in repr(job.check(config.load(environ={}, manager_key_file=str(file))))
    file.write_text("short")
    assert job_finding("key", manager_key_file=str(file)).state == FAULT
    assert job_finding("key", manager_key_file=str(tmp_path / "none")).state == FAULT


def test_a_settings_file_that_shows_the_key_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "taskd.yaml"
    file.write_text(f"manager: {{key: '{'ab' * 32}'}}\n")
    file.chmod(0o644)
    monkeypatch.setenv("TASKD_CONFIG", str(file))
    loaded, settings = job.load()
    assert settings.state == OK
    assert only(job.check(loaded), "key").state == FAULT
    file.chmod(0o600)
    assert only(job.check(loaded), "key").state == OK


def test_preloads_of_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = tmp_path / "libmspti.so"
    present.touch()
    monkeypatch.setenv("LD_PRELOAD", f"{present}:/usr/none/libtaskd.so libother.so")
    found = [finding for finding in job.check(config.load(environ={})) if finding.check == "LD_PRELOAD"]
    assert [finding.state for finding in found] == [OK, WARNING, OK]
    assert "libmspti.so belongs to the original; taskd needs no preload" in found[0].sentence
    assert "/usr/none/libtaskd.so does not exist" in found[1].sentence and found[1].cure
    assert "libother.so" in found[2].sentence


def test_settings_that_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "soon")
    loaded, settings = job.load()
    assert settings.state == FAULT and "HCCL_CONNECT_TIMEOUT" in settings.sentence
    assert loaded == config.Config()


def test_the_job_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "set MINDX_TASK_ID" in only(job.check(config.load(environ={})), "job id").sentence
    given = config.load(environ={"MINDX_TASK_ID": "a1"})
    assert only(job.check(given), "job id").sentence == "'a1' from environment MINDX_TASK_ID"


def test_torch_of_another_minor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.importlib.metadata, "requires", lambda name: ["pyzmq>=26", "torch==2.13.*"])
    stages = {"torch": {"version": "2.12.1", "cuda": None}}
    finding = libraries._torch(stages)
    assert finding.state == WARNING and "2.12.1 is installed, taskd was tested with 2.13.*" in finding.sentence
    stages["torch"]["version"] = "2.13.0+cpu"
    assert libraries._torch(stages).state == OK


def test_settings_that_forbid_identical_runs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from taskd.cli.checks import identity

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert [finding.state for finding in identity.check()][:2] == ["ok", "ok"]
    monkeypatch.setenv("OMP_NUM_THREADS", "2,1")
    assert "same" not in identity.check()[1].sentence and identity.check()[1].state == "warning"
    monkeypatch.setattr(identity.Path, "glob", lambda *_: iter([tmp_path]))
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert identity.check()[-1].state == "warning" and ":4096:8" in identity.check()[-1].cure
