"""The doctor's field "libraries": Python, torch, its backends, taskd's two extensions, GPU and NPU libraries.

All that must be loaded to be judged is loaded by probe.py in another process under a time limit, so that neither a
crash nor a hang of a library reaches the doctor, and the command line itself never imports torch.
It does NOT run a collective or touch a device beyond asking for its name.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
from typing import Any

from taskd.cli.checks import Finding, fault, ok, warning
from taskd.cli.checks.probe import MARK

PROBE_LIMIT_S = 90
PYTHON_LEAST = (3, 10)
TOPIC = "libraries"
REBUILD = "build it against the torch that is installed: `pip install --no-build-isolation .`"

Stages = dict[str, dict[str, Any]]


def check() -> list[Finding]:
    """Every finding of this field."""
    stages, ending = probe()
    findings = [_python(), _native(stages), _torch(stages), *_backends(stages), *_c10d(stages)]
    if ending:
        findings.append(
            fault(TOPIC, "probe", ending, "load that library by hand: `python -X faulthandler -c 'import ...'`")
        )
    return [*findings, _nvidia(stages), _ascend(stages)]


def probe(limit_s: float = PROBE_LIMIT_S) -> tuple[Stages, str]:
    """What each stage of the probe found, and a sentence if it ended before its time."""
    environ = dict(os.environ)
    environ["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-m", "taskd.cli.checks.probe"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=limit_s, stdin=subprocess.DEVNULL)
        output, code = done.stdout, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, code = expired.stdout or b"", None
    stages: Stages = {}
    last = "python"
    for line in output.decode(errors="replace").splitlines():
        if line.startswith(MARK):
            found = json.loads(line[len(MARK) :])
            last = found.pop("stage")
            if not found.pop("begin", False):
                stages[last] = found
    if code == 0:
        return stages, ""
    how = f"was still loading after {limit_s:g} s" if code is None else f"was ended by {_cause(code)}"
    return stages, f"the process that loads the libraries {how} at the stage {last!r}"


def _cause(code: int) -> str:
    if code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _python() -> Finding:
    version = platform.python_version()
    if sys.version_info[:2] < PYTHON_LEAST:
        return fault(TOPIC, "python", f"Python {version} is too old", "use Python 3.10 or newer")
    return ok(TOPIC, "python", f"{version} ({sys.executable})")


def _native(stages: Stages) -> Finding:
    found = stages.get("native", {})
    if "file" in found:
        return ok(TOPIC, "taskd._native", f"loads ({found['file']})")
    reason = found.get("error", "it did not finish loading")
    return fault(TOPIC, "taskd._native", f"the extension does not load: {reason}", REBUILD)


def _torch(stages: Stages) -> Finding:
    found = stages.get("torch", {})
    if found.get("missing") == "torch":
        return warning(
            TOPIC,
            "torch",
            "torch is not installed for this Python: enough for the manager and this command, not for training",
            f"install torch for {sys.executable}, or run the doctor with the Python that trains",
        )
    if "version" not in found:
        reason = found.get("error", "it did not finish loading")
        return fault(TOPIC, "torch", f"torch does not load: {reason}", "reinstall torch")
    version, wanted = found["version"], _wanted_torch()
    if wanted and not version.startswith(wanted):
        return warning(
            TOPIC, "torch", f"{version} is installed, taskd was tested with {wanted}*", f"install torch {wanted}*"
        )
    return ok(TOPIC, "torch", f"{version}, {'CUDA ' + found['cuda'] if found['cuda'] else 'no CUDA'}")


def _wanted_torch() -> str:
    """The beginning of the version that this installation of taskd asks for ("2.13."); empty if it is not installed."""
    try:
        requires = importlib.metadata.requires("taskd") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    found = [re.match(r"torch\s*==\s*([0-9.]+)\*", line) for line in requires]
    return next((match[1] for match in found if match), "")


def _backends(stages: Stages) -> list[Finding]:
    if "version" not in stages.get("torch", {}):
        return []
    names = stages.get("backends", {}).get("names", [])
    if "gloo" not in names:
        shown = ", ".join(names) or "none"
        return [
            fault(TOPIC, "c10d backends", f"gloo is missing (available: {shown})", "install a torch built with gloo")
        ]
    return [ok(TOPIC, "c10d backends", ", ".join(names))]


def _c10d(stages: Stages) -> list[Finding]:
    if "version" not in stages.get("torch", {}):
        return []
    found = stages.get("c10d", {})
    if "file" in found:
        return [ok(TOPIC, "taskd._c10d", f"loads with torch {stages['torch']['version']}")]
    reason = found.get("error", "it did not finish loading")
    return [fault(TOPIC, "taskd._c10d", f"the extension does not load, no group is guarded: {reason}", REBUILD)]


def _nvidia(stages: Stages) -> Finding:
    found = stages.get("nvidia", {})
    devices = found.get("devices", [])
    if found.get("missing") == "pynvml":
        return warning(TOPIC, "gpu", "pynvml is not installed: GPU events go unseen", "`pip install nvidia-ml-py`")
    if "error" in found:
        return warning(TOPIC, "gpu", f"NVIDIA's library fails: {found['error']}", "check the driver with `nvidia-smi`")
    if not devices:
        return ok(TOPIC, "gpu", f"none ({found.get('reason', 'not asked')}); CPU jobs need none")
    torch = stages.get("torch", {})
    if "version" in torch and not torch["cuda"]:
        return warning(
            TOPIC, "gpu", f"{len(devices)} GPUs, but this torch is built without CUDA", "install a CUDA build of torch"
        )
    return ok(TOPIC, "gpu", f"{len(devices)} x {', '.join(sorted(set(devices)))}, driver {found['driver']}")


def _ascend(stages: Stages) -> Finding:
    found = stages.get("ascend", {})
    devices = found.get("devices", [])
    if not devices:
        return ok(TOPIC, "npu", "none; CPU and GPU jobs need none")
    if found["hccl_error"]:
        return warning(
            TOPIC,
            "npu",
            f"{len(devices)} NPUs, but libhccl.so does not load: {found['hccl_error']}",
            "source the Ascend toolkit's set_env.sh before the job",
        )
    if not found["torch_npu"]:
        return warning(TOPIC, "npu", f"{len(devices)} NPUs, but torch_npu is not installed", "`pip install taskd[npu]`")
    return ok(TOPIC, "npu", f"{len(devices)} NPUs, libhccl.so and torch_npu are there")
