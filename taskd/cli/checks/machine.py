"""The doctor's field "machine": what the kernel and its limits give a job on this node.

Open files, shared memory, memory files for beat pages, pid descriptors, the clock. Everything is tried on the spot and
undone at once. It does NOT change a limit: the sentence says how to.
"""

from __future__ import annotations

import mmap
import os
import resource
import time
from pathlib import Path

import taskd
from taskd.cli.checks import Finding, fault, ok, warning

TOPIC = "machine"
FILES_LEAST = 4096
SHM_BYTES_LEAST = 256 * 1024 * 1024
PAGE_BYTES = 4096
SLOW_CLOCKS = {"hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit"}


def check() -> list[Finding]:
    """Every finding of this field."""
    return [_files(), _shared_memory(), _memory_file(), _pid_descriptor(), _clock()]


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= FILES_LEAST:
        return ok(TOPIC, "open files", f"ulimit -n is {'unlimited' if soft == resource.RLIM_INFINITY else soft}")
    may_raise = hard == resource.RLIM_INFINITY or hard >= FILES_LEAST
    cure = (
        f"`ulimit -n {FILES_LEAST if hard == resource.RLIM_INFINITY else hard}` before the job"
        if may_raise
        else f"raise the hard limit ({hard}) in limits.conf or in the container's settings"
    )
    return warning(
        TOPIC, "open files", f"ulimit -n is {soft}; a job of many ranks and data workers needs {FILES_LEAST}", cure
    )


def _shared_memory() -> Finding:
    try:
        found = os.statvfs("/dev/shm")
    except OSError as error:
        return warning(
            TOPIC,
            "shared memory",
            f"/dev/shm is not there ({error.strerror}): data workers cannot hand tensors over",
            "mount a tmpfs on /dev/shm",
        )
    total, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    sentence = f"/dev/shm has {_size(free)} free of {_size(total)}"
    if free < SHM_BYTES_LEAST:
        return warning(
            TOPIC,
            "shared memory",
            f"{sentence}, which data workers soon fill",
            "give the container more (`--shm-size=8g`, or an emptyDir with medium: Memory), or remove what fills it",
        )
    return ok(TOPIC, "shared memory", sentence)


def _memory_file() -> Finding:
    try:
        descriptor = os.memfd_create("taskd-doctor", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, PAGE_BYTES)
            with mmap.mmap(descriptor, PAGE_BYTES) as page:
                page[0] = 1
        finally:
            os.close(descriptor)
    except (OSError, AttributeError) as error:
        return fault(
            TOPIC,
            "memory files",
            f"memfd_create does not work ({error}), so no worker can have a beat page",
            "allow memfd_create in the container's seccomp profile, or use a kernel from 3.17 on",
        )
    return ok(TOPIC, "memory files", "memfd_create works")


def _pid_descriptor() -> Finding:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (OSError, AttributeError) as error:
        return warning(
            TOPIC,
            "pid descriptors",
            f"pidfd_open does not work ({error}), so the end of a process is closed in the records later",
            "allow pidfd_open in the container's seccomp profile, or use a kernel from 5.3 on",
        )
    return ok(TOPIC, "pid descriptors", f"pidfd_open works (Linux {os.uname().release})")


def _clock() -> Finding:
    source = _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if source in SLOW_CLOCKS:
        return warning(
            TOPIC,
            "clock",
            f"the kernel's clock source is {source}, which makes every beat dear",
            "boot with tsc=reliable",
        )
    # Files of this installation cannot come from the future: a clock that says so is wrong, and so is each log line.
    installed = os.stat(taskd.__file__).st_mtime
    if time.time() < installed - 24 * 3600:
        return warning(
            TOPIC, "clock", f"the clock says {time.ctime()}, before taskd was installed", "set the clock (NTP)"
        )
    return ok(TOPIC, "clock", f"{time.strftime('%Y-%m-%d %H:%M:%S %Z')}" + (f", source {source}" if source else ""))


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"
