"""The events of NVIDIA's GPUs, by way of NVML and its Python module pynvml.

XIDs come as events, for which the library waits. Counters and states are asked for every few seconds: ECC errors,
remapped memory rows, and why clocks are low. What can go wrong, and what follows:

- *The module, the library or the driver is missing*: Unusable, with the reason.
- *A GPU does not support a question, or this user may not ask it*: this GPU is not asked it again.
- *A call raises anything else*: this answer is not known. A wait that raises at once must not make the caller spin.
- *A GPU has fallen off the bus*: an XID may say so, or any call may fail with "GPU is lost". It is reported once.
- *A counter is high from the start*: only its growth is an event. A state (a row that waits to be remapped) is reported
  when it is first seen.

A call that hangs is not seen here: the process that reads these events is.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from taskd.core.events import DeviceSeen
from taskd.core.limits import MAX_DEVICE_PIDS, MAX_DEVICES, MAX_NAME
from taskd.core.types import DeviceKind, Harm
from taskd.devices.source import Unusable
from taskd.devices.xids import AFTERMATH, FALLEN_OFF, meaning

COUNTERS_S = 5.0
"""Time between two looks at the counters."""
_MOST_AT_ONCE = 64
_XID, _SINCE_DRIVER, _SM = 8, 0, 1
"""Numbers of NVML: the type of event, the counters since the driver was loaded, the clock of the multiprocessors."""
_SLOW = {
    0x80: "by its power supply",
    0x40: "by heat (hardware)",
    0x20: "by heat (software)",
    0x08: "by the hardware",
}
"""Reasons of low clocks that are not usual, the clearest first. A power limit is usual under load."""


@dataclass(eq=False)
class Gpu:
    """One GPU, and what was last known of it."""

    index: int
    handle: Any
    uuid: str
    lost: bool = False
    must_reset: bool = False
    slow: int = 0  # the unusual reason of its low clocks
    pids: tuple[int, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)  # questions that it does not answer


class Nvidia:
    """All GPUs that NVML shows."""

    def __init__(self, counters_s: float = COUNTERS_S) -> None:
        """Raises Unusable."""
        self._counters_s = counters_s
        self._due_at = 0.0
        self._found: list[DeviceSeen] = []
        self._pause = threading.Event()
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            count = min(self._nvml.nvmlDeviceGetCount(), MAX_DEVICES)
        except Exception as error:  # an import and a driver may raise anything
            raise Unusable(f"NVIDIA's library cannot be used: {_words(error)}") from None
        self._gpus = [self._gpu(index) for index in range(count)]
        self._events = self._registered()

    def look(self, wait_s: float) -> list[DeviceSeen]:
        """Return the events since the last call, or wait for one."""
        if time.monotonic() >= self._due_at:
            for gpu in self._gpus:
                self._ask_all(gpu)
            self._due_at = time.monotonic() + self._counters_s
        wait_ms = 0 if self._found else round(wait_s * 1000)
        for _ in range(_MOST_AT_ONCE):
            if not self._wait(wait_ms):
                break
            wait_ms = 0
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """Let go of the library."""
        if self._events is not None:
            self._answer("nvmlEventSetFree", self._events)
        self._answer("nvmlShutdown")

    # ---- the GPUs -------------------------------------------------------------------------------------------------

    def _gpu(self, index: int) -> Gpu:
        gpu = Gpu(index, None, "")
        gpu.handle = self._ask(gpu, "nvmlDeviceGetHandleByIndex", index)
        if gpu.handle is not None:
            gpu.uuid = str(self._ask(gpu, "nvmlDeviceGetUUID", gpu.handle) or "")[:MAX_NAME]
        return gpu

    def _registered(self) -> Any:
        """The set of events that the library waits for; None: it cannot."""
        events, some = self._answer("nvmlEventSetCreate"), False
        for gpu in self._gpus:
            if events is None or gpu.handle is None:
                continue
            if (self._ask(gpu, "nvmlDeviceGetSupportedEventTypes", gpu.handle) or 0) & _XID:
                some |= self._answer("nvmlDeviceRegisterEvents", gpu.handle, _XID, events, otherwise=False) is None
        return events if some else None

    def _tell(self, gpu: Gpu | None, kind: DeviceKind, code: int, text: str, harm: Harm) -> None:
        index, uuid, pids = (gpu.index, gpu.uuid, gpu.pids) if gpu is not None else (-1, "", ())
        self._found.append(DeviceSeen(index, uuid, kind, code, text, harm, pids))

    # ---- events ---------------------------------------------------------------------------------------------------

    def _wait(self, wait_ms: int) -> bool:
        """Wait for an event. Returns False if none came."""
        nvml = self._nvml
        if self._events is not None:
            try:
                data = nvml.nvmlEventSetWait(self._events, wait_ms)
                if data.eventType & _XID:
                    self._xid(self._owner(data.device), int(data.eventData))
                return True
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_TIMEOUT:
                    return False
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    self._due_at = 0.0  # the next look finds out which one
            except Exception:  # the module does not fit its library: only the counters are left
                self._events = None
        self._pause.wait(wait_ms / 1000)
        return False

    def _owner(self, handle: Any) -> Gpu | None:
        """The GPU with this handle: two handles of a GPU hold the same address."""
        address = ctypes.cast(handle, ctypes.c_void_p).value
        for gpu in self._gpus:
            if gpu.handle is not None and ctypes.cast(gpu.handle, ctypes.c_void_p).value == address:
                return gpu
        return None

    def _xid(self, gpu: Gpu | None, code: int) -> None:
        if code in AFTERMATH or (code == FALLEN_OFF and gpu is not None and gpu.lost):
            return
        if gpu is not None and code != FALLEN_OFF:
            self._ask_pids(gpu)
        text, harm = meaning(code)
        if code == FALLEN_OFF and gpu is not None:
            gpu.lost = True
        self._tell(gpu, DeviceKind.LOST if code == FALLEN_OFF else DeviceKind.XID, code, text, harm)

    # ---- counters and states --------------------------------------------------------------------------------------

    def _ask_all(self, gpu: Gpu) -> None:
        if gpu.lost or gpu.handle is None:
            return
        self._ask_pids(gpu)
        self._ask_ecc(gpu)
        self._ask_rows(gpu)
        self._ask_clocks(gpu)

    def _ask_pids(self, gpu: Gpu) -> None:
        running = self._ask(gpu, "nvmlDeviceGetComputeRunningProcesses", gpu.handle)
        if running is not None:
            gpu.pids = tuple(int(one.pid) for one in running)[:MAX_DEVICE_PIDS]

    def _ask_ecc(self, gpu: Gpu) -> None:
        kinds = (
            ("uncorrected", 1, DeviceKind.ECC_UNCORRECTED, Harm.DEVICE),
            ("corrected", 0, DeviceKind.ECC_CORRECTED, Harm.WARNING),
        )
        for name, number, kind, harm in kinds:
            count = self._ask(gpu, "nvmlDeviceGetTotalEccErrors", gpu.handle, number, _SINCE_DRIVER)
            new = self._growth(gpu, name, count)
            if new:
                self._tell(gpu, kind, 0, f"{new} {name} memory {'error' if new == 1 else 'errors'} (ECC)", harm)

    def _ask_rows(self, gpu: Gpu) -> None:
        rows = self._ask(gpu, "nvmlDeviceGetRemappedRows", gpu.handle)
        if rows is None:
            return
        _, _, pending, failed = rows
        if pending and not gpu.counts.get("pending"):
            text = "a memory row that is replaced at its next reset"
            self._tell(gpu, DeviceKind.REMAP_PENDING, 0, text, Harm.WARNING)
        if failed and not gpu.counts.get("failed"):
            self._tell(gpu, DeviceKind.REMAP_FAILED, 0, "a memory row that could not be replaced", Harm.DEVICE)
        gpu.counts["pending"], gpu.counts["failed"] = pending, failed

    def _ask_clocks(self, gpu: Gpu) -> None:
        reasons = self._ask(gpu, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle) or 0
        slow = next((bit for bit in _SLOW if reasons & bit), 0)
        if slow and slow != gpu.slow:
            clock = self._ask(gpu, "nvmlDeviceGetClockInfo", gpu.handle, _SM)
            most = self._ask(gpu, "nvmlDeviceGetMaxClockInfo", gpu.handle, _SM)
            now = f", to {clock} of {most} MHz" if clock and most else ""
            self._tell(gpu, DeviceKind.THROTTLED, slow, f"that it is slowed down {_SLOW[slow]}{now}", Harm.WARNING)
        gpu.slow = slow

    @staticmethod
    def _growth(gpu: Gpu, name: str, count: int | None) -> int:
        """How much a counter has grown since the last look; 0 at the first look, or if it was set back."""
        if count is None:
            return 0
        before = gpu.counts.get(name, count)
        gpu.counts[name] = count
        return max(count - before, 0)

    # ---- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, gpu: Gpu, name: str, *arguments: Any) -> Any:
        """What this function of the library answers about one GPU; None: it is not known."""
        if name in gpu.never or gpu.lost:
            return None
        nvml = self._nvml
        try:
            return getattr(nvml, name)(*arguments)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                gpu.lost = True
                self._tell(gpu, DeviceKind.LOST, 0, "its loss (NVML: GPU is lost)", Harm.DEVICE)
            elif error.value == nvml.NVML_ERROR_RESET_REQUIRED:
                if not gpu.must_reset:
                    self._tell(gpu, DeviceKind.HEALTH, error.value, "that it must be reset", Harm.DEVICE)
                gpu.must_reset = True
            elif error.value in (
                nvml.NVML_ERROR_NOT_SUPPORTED,
                nvml.NVML_ERROR_NO_PERMISSION,
                nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            ):
                gpu.never.add(name)
        except Exception:  # the module does not fit its library, or lacks this function
            gpu.never.add(name)
        return None

    def _answer(self, name: str, *arguments: Any, otherwise: Any = None) -> Any:
        """What this function of the library returns; `otherwise` if it raises."""
        try:
            return getattr(self._nvml, name)(*arguments)
        except Exception:  # then this is not known
            return otherwise


def _words(error: Exception) -> str:
    """An error in one line."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
