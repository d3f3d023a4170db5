"""The events of Ascend's NPUs, by way of the tool npu-smi of their driver.

The tool is asked from time to time: for each chip its health with the driver's error codes, and its counts of memory
errors. What can go wrong, and what follows:

- *The tool is missing, or shows no chips*: Unusable, with the reason.
- *A call takes too long, fails, or prints something else*: this answer is not known.
- *The chip beside an NPU is its controller*: only chips with a logical number count. Scripts use this number.
- *A memory counter is high from the start*: only its growth is an event. A chip that is unhealthy is one at once.

It does NOT reset a chip or clear a counter.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass, field

from taskd.core.events import DeviceSeen
from taskd.core.limits import MAX_DEVICES
from taskd.core.types import DeviceKind, Harm
from taskd.core.words import cut
from taskd.devices.source import Unusable

LOOK_S = 15.0
"""Time between two looks: each question starts a process that takes up to a second."""
CALL_S = 20.0
"""The longest that one question may take."""
_ELSEWHERE = ("/usr/local/sbin/npu-smi", "/usr/local/bin/npu-smi")
_HARM = {"warning": Harm.WARNING, "alarm": Harm.DEVICE, "critical": Harm.DEVICE}
_CHIP = re.compile(r"^\s*(\d+)\s+(\d+)\s+(\d+)\s+\S", re.MULTILINE)
_HEALTH = re.compile(r"^\s*Health(?: Status)?\s*:\s*(\w+)", re.MULTILINE)
_CODE = re.compile(r"^\s*Error Code\s*:\s*(?:0[xX])?([0-9A-Fa-f]{4,})", re.MULTILINE)
_INFORMATION = re.compile(r"^\s*Error Information\s*:\s*(.+?)\s*$", re.MULTILINE)
_BITS = re.compile(r"^\s*(?:HBM|DDR) (Single|Double) Bit Error Count\s*:\s*(\d+)", re.MULTILINE)
_WORST_TEXT = 200


@dataclass(eq=False)
class Chip:
    """One chip, and what was last known of it."""

    npu: str
    chip: str
    number: int  # the logical number
    health: tuple[str, int] = ("ok", 0)
    unknown: int = 0  # for how many looks in a row it has been unknown
    counts: dict[str, int] = field(default_factory=dict)


class Ascend:
    """All chips that npu-smi shows."""

    def __init__(self, look_s: float = LOOK_S, call_s: float = CALL_S) -> None:
        """Raises Unusable."""
        self._look_s, self._call_s = look_s, call_s
        self._due_at = 0.0
        self._pause = threading.Event()
        self._found: list[DeviceSeen] = []
        self._tool = shutil.which("npu-smi") or next(filter(os.path.exists, _ELSEWHERE), "")
        if not self._tool:
            raise Unusable("the tool npu-smi is not installed")
        self._chips = [
            Chip(npu, chip, int(number))
            for npu, chip, number in _CHIP.findall(self._ask("-m"))
            if int(number) < MAX_DEVICES
        ]
        if not self._chips:
            raise Unusable("npu-smi shows no chip")

    def look(self, wait_s: float) -> list[DeviceSeen]:
        """Return the events since the last call, or wait until the tool may be asked again."""
        if time.monotonic() < self._due_at:
            self._pause.wait(max(min(wait_s, self._due_at - time.monotonic()), 0))
        else:
            for chip in self._chips:
                self._ask_health(chip)
                self._ask_memory(chip)
            self._due_at = time.monotonic() + self._look_s
        found, self._found = self._found, []
        return found

    def close(self) -> None:
        """There is nothing to let go of."""

    def _ask_health(self, chip: Chip) -> None:
        text = self._ask("-t", "health", "-i", chip.npu, "-c", chip.chip)
        found = _HEALTH.search(text)
        if found is None:
            return
        word, code, information = found[1].lower(), _CODE.search(text), _INFORMATION.search(text)
        health = (word, int(code[1][-15:], 16) if code is not None else 0)
        chip.unknown = chip.unknown + 1 if word == "unknown" else 0
        if chip.unknown == 1 or health == chip.health:  # a busy driver may not know it for a moment
            return
        chip.health = health
        said = information[1] if information is not None and information[1] != "NA" else ""
        if word == "unknown":
            self._tell(chip, DeviceKind.LOST, 0, "its loss (npu-smi: health UNKNOWN)", Harm.DEVICE)
        elif word in _HARM:
            named = f", error {code[1].upper()}" if code is not None else ""
            about = f": {cut(said, _WORST_TEXT)}" if said else ""
            self._tell(chip, DeviceKind.HEALTH, health[1], f"{_article(word)} {word}{named}{about}", _HARM[word])

    def _ask_memory(self, chip: Chip) -> None:
        counts = {"Single": 0, "Double": 0}
        found = _BITS.findall(self._ask("-t", "ecc", "-i", chip.npu, "-c", chip.chip))
        if not found:
            return
        for bits, count in found:
            counts[bits] += int(count)
        kinds = (
            ("Double", "uncorrected", DeviceKind.ECC_UNCORRECTED, Harm.DEVICE),
            ("Single", "corrected", DeviceKind.ECC_CORRECTED, Harm.WARNING),
        )
        for bits, name, kind, harm in kinds:
            new = counts[bits] - chip.counts.get(bits, counts[bits])
            chip.counts[bits] = max(counts[bits], chip.counts.get(bits, 0))
            if new > 0:
                self._tell(chip, kind, 0, f"{new} {name} memory {'error' if new == 1 else 'errors'} (ECC)", harm)

    def _tell(self, chip: Chip, kind: DeviceKind, code: int, text: str, harm: Harm) -> None:
        self._found.append(DeviceSeen(chip.number, "", kind, code, text, harm))

    def _ask(self, *words: str) -> str:
        """What the tool prints; empty if it fails or does not end."""
        command = [self._tool, "info", *words]
        try:
            done = subprocess.run(command, capture_output=True, timeout=self._call_s, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.decode(errors="replace")


def _article(word: str) -> str:
    return "an" if word.startswith("a") else "a"
