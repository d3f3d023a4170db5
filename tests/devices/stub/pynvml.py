"""Stands in for NVIDIA's module pynvml: answers as the real one does, from a recorded stream, the file STUB_NVML.

A stream has steps, which change what the library answers. The next step begins when a wait for events ends without
one. tests/devices/test_sources.py compares names, arguments and numbers with the real module.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from typing import Any

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_RESET_REQUIRED = 16
nvmlEventTypeXidCriticalError = 8


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return f"NVML Error with code {self.value}"


class _Opaque(ctypes.Structure):
    pass


class c_nvmlEventData_t(ctypes.Structure):
    _fields_ = [
        ("device", ctypes.POINTER(_Opaque)),
        ("eventType", ctypes.c_ulonglong),
        ("eventData", ctypes.c_ulonglong),
        ("gpuInstanceId", ctypes.c_uint),
        ("computeInstanceId", ctypes.c_uint),
    ]


class _Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid


_stream: dict[str, Any] = {}
_memory: list[_Opaque] = []
_all: dict[str, Any] = {}
_gpus: list[dict[str, Any]] = []
_events: list[tuple[int, int]] = []
_told: list[int] = []  # the events since the last wait that ended without one
_never = threading.Event()


def ended() -> bool:
    """Whether the stream has no step left."""
    return not _stream["steps"] and not _events


def _step() -> None:
    if not _stream["steps"]:
        return
    awaited = _stream["steps"][0].get("after_file")
    if awaited and not os.path.exists(awaited):
        return
    step = _stream["steps"].pop(0)
    _all.update(step.get("all", {}))
    for index, changes in step.get("gpu", {}).items():
        _gpus[int(index)].update(changes)
    _events.extend((index, code) for index, code in step.get("xid", []))


def _answers(state: dict[str, Any]) -> dict[str, Any]:
    """Do what the stream says of every call."""
    if "exits" in state:
        os._exit(state["exits"])
    if state.get("hangs"):
        _never.wait()
    if "breaks" in state:
        raise RuntimeError(state["breaks"])
    if "raises" in state:
        raise NVMLError(state["raises"])
    return state


def _of(handle: Any) -> dict[str, Any]:
    _answers(_all)
    address = ctypes.cast(handle, ctypes.c_void_p).value
    return _answers(_gpus[[ctypes.addressof(one) for one in _memory].index(address or 0)])


def _known(handle: Any, name: str) -> Any:
    state = _of(handle)
    if name not in state:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return state[name]


def nvmlInit() -> None:
    _stream.clear()
    with open(os.environ["STUB_NVML"], encoding="utf-8") as file:
        _stream.update(json.load(file))
    for held in (_memory, _all, _gpus, _events, _told):
        held.clear()
    _all.update(_stream.get("all", {}))
    _answers(_all)
    _memory.extend(_Opaque() for _ in range(_stream["gpus"]))
    _gpus.extend({**_stream.get("at_first", {})} for _ in _memory)
    for index, changes in _stream.get("gpu", {}).items():
        _gpus[int(index)].update(changes)


def nvmlShutdown() -> None:
    _answers(_all)


def nvmlDeviceGetCount() -> int:
    return len(_gpus)


def nvmlDeviceGetHandleByIndex(index: int) -> Any:
    _answers(_all)
    _answers(_gpus[index])
    return ctypes.cast(ctypes.pointer(_memory[index]), ctypes.POINTER(_Opaque))


def nvmlDeviceGetUUID(handle: Any) -> str:
    return f"GPU-{_gpus.index(_of(handle)):08x}-0000-0000-0000-000000000000"


def nvmlDeviceGetSupportedEventTypes(handle: Any) -> int:
    return int(_of(handle).get("events", 0x19F))


def nvmlDeviceRegisterEvents(handle: Any, eventTypes: int, eventSet: Any) -> None:
    _of(handle)


def nvmlEventSetCreate() -> Any:
    _answers(_all)
    return object()


def nvmlEventSetFree(eventSet: Any) -> None:
    _answers(_all)


def nvmlEventSetWait(eventSet: Any, timeoutms: int) -> Any:
    _answers(_all)
    if not _events:
        if not _told:
            _step()
        _told.clear()
        _answers(_all)
        if not _events:
            if _all.get("wait_raises"):
                raise NVMLError(_all["wait_raises"])
            _never.wait(min(timeoutms, 20) / 1000)
            raise NVMLError(NVML_ERROR_TIMEOUT)
    index, code = _events.pop(0)
    _told.append(code)
    handle = ctypes.cast(ctypes.pointer(_memory[index]), ctypes.POINTER(_Opaque))
    return c_nvmlEventData_t(handle, nvmlEventTypeXidCriticalError, code, 0xFFFFFFFF, 0xFFFFFFFF)


def nvmlDeviceGetComputeRunningProcesses(handle: Any) -> list[Any]:
    pids = _known(handle, "pids")
    if isinstance(pids, str):  # a file into which a process of the test writes its number
        with open(pids, encoding="utf-8") as file:
            pids = [int(file.read())]
    return [_Process(pid) for pid in pids]


def nvmlDeviceGetTotalEccErrors(handle: Any, errorType: int, counterType: int) -> int:
    return int(_known(handle, ("corrected", "uncorrected")[errorType]))


def nvmlDeviceGetRemappedRows(device: Any) -> tuple[int, int, int, int]:
    corrected, uncorrected, pending, failed = _known(device, "rows")
    return corrected, uncorrected, pending, failed


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: Any) -> int:
    return int(_known(handle, "reasons"))


def nvmlDeviceGetClockInfo(handle: Any, type: int) -> int:
    return int(_known(handle, "clock"))


def nvmlDeviceGetMaxClockInfo(handle: Any, type: int) -> int:
    return int(_known(handle, "most"))
