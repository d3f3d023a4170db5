"""The agent's watch of the devices: a process of its own, which may be missing, hang, crash or write nonsense.

The processes are real, and the library is the stand-in of tests/devices/stub.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd import log
from taskd.agent import devices
from taskd.agent.devices import DeviceWatch, has_open
from taskd.core.events import DeviceSeen
from taskd.core.limits import SECOND
from taskd.core.types import DeviceKind
from tests.launched import Launched
from tests.patience import PATIENCE_S
from tests.ready import readable

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
HEALTHY = json.loads((HERE / "recorded" / "quiet.json").read_text())["at_first"]
Watch = Callable[..., DeviceWatch]


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged at the level of information or above."""
    found: list[str] = []
    monkeypatch.setattr(log, "_said", set())
    logger = logging.getLogger("taskd.agent.devices")
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: found.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    return found


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Watch]:
    """Make watches of NVIDIA's devices over streams. All are closed at the end."""
    made: list[DeviceWatch] = []

    def make(stream: dict[str, Any], seen: list[DeviceSeen], **settings: Any) -> DeviceWatch:
        (tmp_path / "stream.json").write_text(json.dumps({"gpus": 2, "at_first": HEALTHY, "steps": [], **stream}))
        monkeypatch.setenv("STUB_NVML", str(tmp_path / "stream.json"))
        monkeypatch.setenv("PYTHONPATH", str(HERE / "stub"))
        made.append(DeviceWatch("nvidia", lambda: [os.getpid()], seen.append, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


def turn(one: DeviceWatch) -> None:
    """Do what the agent's loop does in a turn."""
    one.tend(time.monotonic_ns())
    if one.fd >= 0 and readable([one.fd], 0.05):  # expires: then its deadlines are looked at again
        one.serve()


def until(one: DeviceWatch, condition: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends, "nothing came"
        turn(one)


def test_events_come_through_another_process(watch: Watch, said: list[str]) -> None:
    seen: list[DeviceSeen] = []
    one = watch({"steps": [{"gpu": {"1": {"pids": [4711]}}, "xid": [[1, 31], [0, 79]]}]}, seen)
    until(one, lambda: len(seen) == 2)
    assert [(event.device, event.kind, event.code, event.pids) for event in seen] == [
        (1, DeviceKind.XID, 31, (4711,)),
        (0, DeviceKind.LOST, 79, ()),
    ]
    assert all(event.holders == () for event in seen), "this process has no GPU open"
    assert not said and not one.nonsense


def test_without_devices_nothing_is_started() -> None:
    one = DeviceWatch("", list, lambda _: None)
    one.tend(time.monotonic_ns())
    assert one.fd == -1 and one.next_check_ns() is None
    one.close()


def test_a_library_that_cannot_be_used_is_said_once(watch: Watch, said: list[str]) -> None:
    one = watch({"all": {"raises": 9}}, [])
    until(one, lambda: said)
    assert said == [
        "INFO events of this node's devices are not seen: NVIDIA's library cannot be used: NVML Error with code 9"
    ]
    one.tend(time.monotonic_ns() + 10**15)
    assert one.fd == -1 and one.next_check_ns() is None, "it is not tried again"


def test_a_library_that_hangs(watch: Watch, said: list[str]) -> None:
    """The loop goes on, the process is killed, and another one is started."""
    seen: list[DeviceSeen] = []
    one = watch({"steps": [{"xid": [[0, 13]]}, {"all": {"hangs": True}}]}, seen)
    until(one, lambda: seen)
    process = one._process
    assert process is not None
    for _ in range(3):
        turn(one)
    assert one._process is process
    heard_ns = one._heard_ns
    assert one.next_check_ns() == heard_ns + devices.PATIENCE_NS
    one.tend(heard_ns + devices.PATIENCE_NS)
    assert said == ["INFO events of this node's devices are not seen: the library has not answered for 60 s"]
    assert process.poll() is not None and one.fd == -1
    seen.clear()
    until(one, lambda: seen)
    assert one._process is not process


def test_a_process_that_cannot_be_killed_is_not_waited_for(
    watch: Watch, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = watch({"all": {"hangs": True}}, [], patience_ns=SECOND)
    turn(one)
    process = one._process
    assert process is not None
    with monkeypatch.context() as patched:
        patched.setattr(process, "kill", lambda: None)
        one.tend(time.monotonic_ns() + SECOND)
    assert process.poll() is None and one.fd == -1
    assert said[-1] == f"INFO process {process.pid} hangs inside the driver of the devices and cannot be ended"
    process.kill()
    process.wait()


def test_a_library_that_crashes_is_tried_a_few_times(watch: Watch, said: list[str]) -> None:
    one = watch({"all": {"exits": 11}}, [])
    now, started = time.monotonic_ns(), 0
    for _ in range(20):
        one.tend(now)
        if one.fd < 0:
            now = one.next_check_ns() or now
            assert now < time.monotonic_ns() + 3 * devices.STARTS_WITHIN_NS
            continue
        started += 1
        while one.fd >= 0:
            assert readable([one.fd], PATIENCE_S)
            one.serve()
        if started == devices.STARTS:
            break
    assert started == devices.STARTS and len(said) == 1
    assert "the process that asks them has ended" in said[0]
    one.tend(now)
    assert one.fd == -1, "that was enough within an hour"


def test_nonsense_is_counted(watch: Watch, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What is not a line of ours is ignored, in pieces or not. The next line is read."""
    seen: list[DeviceSeen] = []
    good = '{"device": 1, "uuid": "u", "kind": 1, "code": 31, "text": "XID 31", "harm": 1, "pids": []}'
    script = tmp_path / "python"
    pieces = ('\\377\\n[1]\\n{"dev', f'ice": 1}}\\n{good}\\n')
    script.write_text("\n".join(["#!/bin/sh", *(f"printf '{piece}'" for piece in pieces), "exec sleep 1000"]))
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    one = watch({}, seen)
    until(one, lambda: seen)
    assert one.nonsense == 3 and [event.code for event in seen] == [31]


def test_it_ends_with_its_agent(watch: Watch, tmp_path: Path) -> None:
    """An agent that is killed cannot end it."""
    watch({}, [])
    code = (
        "import os, sys, time\nfrom taskd.agent.devices import DeviceWatch\n"
        "one = DeviceWatch('nvidia', list, print)\none.tend(time.monotonic_ns())\n"
        "print(one._process.pid, flush=True)\nsys.stdin.read()\n"
    )
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}:{HERE / 'stub'}"}
    agent = subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert agent.stdout is not None and agent.stdin is not None
    pidfd = os.pidfd_open(int(agent.stdout.readline()))
    agent.kill()
    agent.wait()
    assert readable([pidfd], PATIENCE_S)
    os.close(pidfd)
    agent.stdin.close()
    agent.stdout.close()


def test_which_processes_have_a_device_open(tmp_path: Path) -> None:
    folder = tmp_path / "7" / "fd"
    folder.mkdir(parents=True)
    for number, target in enumerate(("/dev/nvidiactl", "/dev/null", "socket:[1]", "/dev/davinci0")):
        (folder / str(number)).symlink_to(target)
    assert not has_open(7, "nvidia", str(tmp_path)) and has_open(7, "ascend", str(tmp_path))
    (folder / "9").symlink_to("/dev/nvidia3")
    assert has_open(7, "nvidia", str(tmp_path)) and not has_open(8, "nvidia", str(tmp_path))


JOB = """
import os, signal, time
import torch, torch.distributed as dist, taskd

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps([torch.ones(1, 2)] * 20):
    with step as batch:
        if rank == 1 and step.number == 8 and not step.rehearsal and not os.path.exists("struck"):
            open("pid.new", "w").write(str(os.getpid()))
            os.replace("pid.new", "pid")
            open("struck", "x").close()
            while not os.path.exists("die"):
                time.sleep(0.01)  # for a file there is no event
            os.abort()
        optimizer.zero_grad()
        model(batch).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_death_is_explained_by_its_device(tmp_path: Path, free_port: Callable[[], int]) -> None:
    """A whole job: the event is told at once, and it is the reason of the death that follows."""
    (tmp_path / "job.py").write_text(JOB)
    (tmp_path / "pid").write_text("0")
    stream = {
        "gpus": 2,
        "at_first": HEALTHY,
        "gpu": {"1": {"pids": str(tmp_path / "pid")}},
        "steps": [{"after_file": str(tmp_path / "struck"), "xid": [[1, 95]]}],
    }
    (tmp_path / "stream.json").write_text(json.dumps(stream))
    variables = {
        "PYTHONPATH": f"{ROOT}:{HERE / 'stub'}",
        "STUB_NVML": str(tmp_path / "stream.json"),
        "TASKD_AGENT_DEVICES": "nvidia",
    }
    with Launched(tmp_path, free_port(), "--nproc-per-node", "2", "job.py", env=variables, warm=True) as launched:
        launched.stands = True
        told = launched.wait_for_line("reported XID 95")
        assert "device 1 of node node-0, which rank 1 uses, reported XID 95 (uncontained memory error)" in told
        status = subprocess.run(
            [sys.executable, "-m", "taskd", "status"], env=launched.environment, capture_output=True, text=True
        )
        assert "device 1 of node node-0 (rank 1) reported XID 95 (uncontained memory error)" in status.stdout
        (tmp_path / "die").touch()
        reason = "rank 1 died (SIGABRT: device 1 reported XID 95 (uncontained memory error)"
        assert reason in launched.wait_for_line("it was replaced, the others went on")
        launched.end()
