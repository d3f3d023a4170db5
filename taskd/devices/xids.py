"""The errors that NVIDIA's driver reports by number (XIDs): what each one is, and whom it harms.

The meanings follow NVIDIA's public catalog (https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). Its
action says whom an error harms: if only the application has to be started again, a process; if the GPU or the host has
to be reset, the device. An error that the catalog says to ignore is a warning. It does NOT know subcodes.
"""

from __future__ import annotations

from taskd.core.types import Harm

FALLEN_OFF = 79
"""The device does not answer any more."""
AFTERMATH = frozenset({14, 45, 106, 107})
"""Errors that say nothing: tests, and 45, by which the driver clears up after a process that has ended."""

_PROCESS = {
    8: "GPU stopped processing",
    11: "invalid command stream",
    13: "graphics engine exception",
    25: "invalid command stream",
    31: "GPU memory page fault",
    32: "corrupted command stream",
    43: "GPU stopped processing",
    60: "video processor exception",
    69: "graphics engine class error",
    80: "corrupted data sent to the GPU",
    94: "contained memory error",
    137: "NVLink privilege error",
    **dict.fromkeys((39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine error"),
    **dict.fromkeys((68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139), "video engine error"),
}
_DEVICE = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory row remapping failure",
    74: "NVLink error",
    FALLEN_OFF: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "link training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    **dict.fromkeys(range(144, 151), "NVLink error"),
    151: "key rotation error",
    155: "NVLink software error",
    156: "resource retirement",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
    169: "internal micro-controller halt",
}
_WARNING = {
    37: "driver firmware error",
    38: "driver firmware error",
    44: "graphics engine fault during a context switch",
    63: "memory row remapping",
    66: "illegal access by the driver",
    67: "illegal access by the driver",
    78: "vGPU start error",
    92: "high rate of single bit ECC errors",
    93: "InfoROM wear limit",
    121: "corrected C2C link error",
    141: "CUDA fast path error",
    142: "video engine error",
    154: "recovery action changed",
    157: "resource retirement failure",
    160: "channel retirement",
    161: "channel retirement failure",
    171: "details of an uncorrectable DRAM error",
    172: "details of an uncorrectable SRAM error",
}


def meaning(code: int) -> tuple[str, Harm]:
    """The words for an XID, and whom it harms. A number that is not in the table is a warning."""
    for harm, table in ((Harm.PROCESS, _PROCESS), (Harm.DEVICE, _DEVICE), (Harm.WARNING, _WARNING)):
        if code in table:
            return f"XID {code} ({table[code]})", harm
    return f"XID {code}", Harm.WARNING
