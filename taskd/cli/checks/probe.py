"""What `taskd doctor` runs in a process of its own: loading libraries that may be slow, may hang and may crash.

Each stage says that it begins and then what it found, one JSON line each, so that the doctor knows where a process that
crashed or hung had been. Run as `python -m taskd.cli.checks.probe`. It does NOT judge: libraries.py does that.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any

MARK = "taskd-probe "
BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")


def main() -> None:
    """Run every stage; one that raises says so and the next one runs."""
    # A vendor's plug-in that torch would load by itself could hang or crash here; it has a stage of its own.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    for name, stage in STAGES.items():
        _say({"stage": name, "begin": True})
        try:
            found = stage()
        except ModuleNotFoundError as error:
            found = {"missing": error.name or str(error), "error": str(error)}
        except Exception as error:  # whatever a library throws at its import is the finding
            found = {"error": f"{type(error).__name__}: {error}"}
        _say({"stage": name, **found})


def _say(line: dict[str, Any]) -> None:
    # Past sys.stdout: a library that prints while it loads must not end up in the middle of a line.
    os.write(1, f"\n{MARK}{json.dumps(line)}\n".encode())


def _native() -> dict[str, Any]:
    module = importlib.import_module("taskd._native")
    return {"file": module.__file__}


def _torch() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    return {"version": torch.__version__, "cuda": torch.version.cuda, "file": torch.__file__}


def _backends() -> dict[str, Any]:
    dist = importlib.import_module("torch.distributed")
    if not dist.is_available():
        return {"names": []}
    return {"names": [name for name in BACKENDS if getattr(dist, f"is_{name}_available", lambda: False)()]}


def _c10d() -> dict[str, Any]:
    module = importlib.import_module("taskd._c10d")
    return {"file": module.__file__}


def _nvidia() -> dict[str, Any]:
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"devices": [], "reason": str(error)}
    devices = [nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(i)) for i in range(nvml.nvmlDeviceGetCount())]
    return {"devices": devices, "driver": nvml.nvmlSystemGetDriverVersion()}


def _ascend() -> dict[str, Any]:
    devices = sorted(name for name in os.listdir("/dev") if name.startswith("davinci") and name[7:].isdigit())
    try:
        ctypes.CDLL("libhccl.so")
        hccl = ""
    except OSError as error:
        hccl = str(error)
    return {"devices": devices, "hccl_error": hccl, "torch_npu": importlib.util.find_spec("torch_npu") is not None}


STAGES: dict[str, Callable[[], dict[str, Any]]] = {
    "native": _native,
    "nvidia": _nvidia,
    "ascend": _ascend,
    "torch": _torch,
    "backends": _backends,
    "c10d": _c10d,
}

if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # a vendor's exit handlers are none of the doctor's business, and some of them hang
