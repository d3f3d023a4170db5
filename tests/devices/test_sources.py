"""The sources of device events: recorded streams of each kind, and libraries that are missing, raise or do not end."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from taskd.core.events import DeviceSeen
from taskd.core.types import DeviceKind, Harm
from taskd.devices import lines
from taskd.devices.ascend import Ascend
from taskd.devices.choice import Nothing, chosen, opened, present
from taskd.devices.nvidia import Nvidia
from taskd.devices.source import Source, Unusable
from taskd.devices.xids import meaning

HERE = Path(__file__).parent
STREAMS = sorted((HERE / "recorded").glob("*.json"))
MOST_LOOKS = 50


def load(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # the real one looks itself up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that stands in for pynvml, as if it were installed."""
    module = load("pynvml", HERE / "stub" / "pynvml.py")
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def play(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: dict[str, Any]) -> None:
    file = tmp_path / "stream.json"
    file.write_text(json.dumps(stream))
    monkeypatch.setenv("STUB_NVML", str(file))


def seen(source: Source, module: ModuleType) -> list[DeviceSeen]:
    """Return all events until the stream has ended, and those of one more look."""
    found: list[DeviceSeen] = []
    for _ in range(MOST_LOOKS):
        found += source.look(0)
        if module.ended():
            return found + source.look(0)
    raise AssertionError(f"the stream has not ended: {found}")


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_recorded_stream(path: Path, stub: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = json.loads(path.read_text())
    play(monkeypatch, tmp_path, stream)
    source = Nvidia(counters_s=0)
    found = seen(source, stub)
    wanted = [
        DeviceSeen(
            row["device"],
            event.uuid,
            DeviceKind[row["kind"].upper()],
            row["code"],
            row["text"],
            Harm[row["harm"].upper()],
            tuple(row["pids"]),
        )
        for row, event in zip(stream["events"], found, strict=False)
    ]
    assert found == wanted and len(found) == len(stream["events"]), stream["about"]
    assert all(event.uuid.startswith("GPU-") for event in found if path.stem != "lost_before")
    assert [lines.read(lines.line_of(event)) for event in found] == found
    source.close()


def test_the_stand_in_is_like_the_real_module(stub: ModuleType) -> None:
    path = Path(next(entry for entry in sys.path if (Path(entry) / "pynvml.py").exists())) / "pynvml.py"
    real = load("real_pynvml", path)
    assert "NVIDIA" in path.read_text()[:200]
    for name, value in vars(stub).items():
        if name.startswith("nvml") and callable(value):
            ours, theirs = inspect.signature(value).parameters, inspect.signature(getattr(real, name)).parameters
            assert [*ours] == [*theirs], name
        elif name.startswith(("NVML_", "nvmlEventType")):
            assert value == getattr(real, name), name
    fields = [name for name, _ in real.c_nvmlEventData_t._fields_]
    assert fields == [name for name, _ in stub.c_nvmlEventData_t._fields_]
    assert issubclass(real.NVMLError, Exception) and real.NVMLError(15).value == stub.NVMLError(15).value == 15
    assert (real.NVML_VOLATILE_ECC, real.NVML_CLOCK_SM, real.NVML_MEMORY_ERROR_TYPE_UNCORRECTED) == (0, 1, 1)
    reasons = [name for name in dir(real) if name.startswith("nvmlClocksThrottleReason")]
    bits = {getattr(real, name): name.removeprefix("nvmlClocksThrottleReason") for name in reasons}
    assert [bits[bit] for bit in (0x80, 0x40, 0x20, 0x08)] == [
        *("HwPowerBrakeSlowdown", "HwThermalSlowdown", "SwThermalSlowdown", "HwSlowdown"),
    ]


@pytest.mark.parametrize("how", [{"raises": 999}, {"breaks": "argument 1: wrong type"}, {"raises": 3}, {"raises": 16}])
def test_a_library_that_raises_at_every_call(
    how: dict[str, Any], stub: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From its start, it cannot be used. Later, nothing is known. Nobody spins."""
    play(monkeypatch, tmp_path, {"gpus": 2, "steps": [], "all": how})
    with pytest.raises(Unusable, match="cannot be used"):
        Nvidia()
    healthy = json.loads((HERE / "recorded" / "quiet.json").read_text())["at_first"]
    play(monkeypatch, tmp_path, {"gpus": 2, "at_first": healthy, "steps": [{"all": how}]})
    source = Nvidia(counters_s=0)
    waits: list[float | None] = []
    monkeypatch.setattr(source._pause, "wait", waits.append)
    found = [event for _ in range(5) for event in source.look(0.5)]
    assert {event.text for event in found} <= {"that it must be reset"}
    assert waits.count(0.5) >= 3
    source.close()


def test_each_call_may_raise_alone(stub: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An old module lacks functions, and a new one may want other arguments."""
    for name in [name for name, value in vars(stub).items() if name.startswith("nvml") and callable(value)]:
        play(monkeypatch, tmp_path, json.loads((HERE / "recorded" / "memory.json").read_text()))
        original = getattr(stub, name)
        for broken in (None, lambda: None, lambda *_: 1 / 0):
            monkeypatch.setattr(stub, name, broken)
            try:
                source = Nvidia(counters_s=0)
            except Unusable:
                assert name in ("nvmlInit", "nvmlDeviceGetCount")
                continue
            finally:
                monkeypatch.setattr(stub, name, original)
            monkeypatch.setattr(stub, name, broken)
            for _ in range(8):
                source.look(0)
            source.close()
            monkeypatch.setattr(stub, name, original)


def test_no_module_and_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stub: ModuleType) -> None:
    play(monkeypatch, tmp_path, {"gpus": 0, "steps": [], "all": {"raises": stub.NVML_ERROR_DRIVER_NOT_LOADED}})
    with pytest.raises(Unusable, match="NVML Error with code 9"):
        opened("nvidia")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Unusable, match="pynvml"):
        opened("nvidia")


def test_what_a_node_has_is_known_from_its_files(tmp_path: Path) -> None:
    assert present(str(tmp_path)) == present(str(tmp_path / "none")) == ""
    for name in ("nvidiactl", "nvidia-uvm", "davinci_manager", "null"):
        (tmp_path / name).touch()
    assert present(str(tmp_path)) == ""
    (tmp_path / "davinci3").touch()
    assert present(str(tmp_path)) == "ascend"
    (tmp_path / "nvidia0").touch()
    assert present(str(tmp_path)) == "nvidia"
    assert chosen("off") == "" and chosen("ascend") == "ascend"
    nothing = opened("")
    assert isinstance(nothing, Nothing) and nothing.look(0) == []
    nothing.close()


def test_the_table_of_xids() -> None:
    assert meaning(79) == ("XID 79 (GPU has fallen off the bus)", Harm.DEVICE)
    harms = {code: meaning(code)[1] for code in (13, 31, 43, 48, 63, 64, 74, 92, 94, 95, 119, 120, 140)}
    process, device, warning = Harm.PROCESS, Harm.DEVICE, Harm.WARNING
    assert harms == {
        13: process, 31: process, 43: process, 48: device, 63: warning, 64: device, 74: device, 92: warning,
        94: process, 95: device, 119: device, 120: device, 140: device,
    }  # fmt: skip
    assert meaning(12_345) == ("XID 12345", Harm.WARNING)


# ---- Ascend -------------------------------------------------------------------------------------------------------

TOOL = """#!/bin/sh
case "$*" in
    "info -m") cat "$FAKE_NPU/mapping" ;;
    "info -t health -i 0 -c 0") cat "$FAKE_NPU/health0" ;;
    "info -t health -i 0 -c 1") cat "$FAKE_NPU/health1" ;;
    "info -t ecc -i 0 -c 0") cat "$FAKE_NPU/ecc0" ;;
    *) echo "Error parameter of: $*"; exit 1 ;;
esac
"""
MAPPING = """
        NPU ID                         Chip ID                        Chip Logic ID                  Chip Name
        0                              0                              0                              Ascend 910B
        0                              1                              1                              Ascend 910B
        0                              2                              -                              Mcu
"""
HEALTH = """
        Health Status                  : {word}
        Error Code                     : {code}
        Error Information              : {about}
"""
ECC = """
        NPU ID                                   : 0
        Chip Count                               : 1

        DDR Single Bit Error Count               : 0
        DDR Double Bit Error Count               : 0
        HBM Single Bit Error Count               : {single}
        HBM Double Bit Error Count               : {double}
        HBM Double Bit Aggregate Total Err Cnt   : 900
        Chip ID                                  : 0
"""


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A folder with what npu-smi prints."""
    tool = tmp_path / "bin" / "npu-smi"
    tool.parent.mkdir()
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_NPU", str(tmp_path))
    (tmp_path / "mapping").write_text(MAPPING)
    for chip in (0, 1):
        (tmp_path / f"health{chip}").write_text(HEALTH.format(word="OK", code="NA", about="NA"))
    (tmp_path / "ecc0").write_text(ECC.format(single=40, double=1))
    yield tmp_path


def test_ascend(npu: Path) -> None:
    source = Ascend(look_s=0)
    assert [(chip.npu, chip.chip, chip.number) for chip in source._chips] == [("0", "0", 0), ("0", "1", 1)]
    assert source.look(0) == []
    (npu / "ecc0").write_text(ECC.format(single=42, double=2))
    about = "node type=AIC, sensor type=RAS State, event state=module error can not be fixed"
    (npu / "health1").write_text(HEALTH.format(word="Alarm", code="80C98001", about=about))
    found = source.look(0)
    assert [(event.device, event.kind, event.text, event.harm) for event in found] == [
        (0, DeviceKind.ECC_UNCORRECTED, "1 uncorrected memory error (ECC)", Harm.DEVICE),
        (0, DeviceKind.ECC_CORRECTED, "2 corrected memory errors (ECC)", Harm.WARNING),
        (1, DeviceKind.HEALTH, f"an alarm, error 80C98001: {about}", Harm.DEVICE),
    ]
    assert found[2].code == 0x80C98001 and source.look(0) == []
    (npu / "ecc0").write_text("nothing of the kind")
    (npu / "health1").write_text(HEALTH.format(word="UNKNOWN", code="NA", about="NA"))
    assert source.look(0) == [], "a busy driver may not know it for a moment"
    lost = source.look(0)
    assert [(one.device, one.kind, one.harm) for one in lost] == [(1, DeviceKind.LOST, Harm.DEVICE)]
    assert source.look(0) == []
    (npu / "ecc0").write_text(ECC.format(single=42, double=2))
    (npu / "health1").write_text(HEALTH.format(word="Warning", code="NA", about="NA"))
    assert [(one.text, one.harm) for one in source.look(0)] == [("a warning", Harm.WARNING)]
    source.close()


def test_ascend_without_its_tool(npu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (npu / "mapping").write_text("dcmi model initialized failed, because the device is used. ret is -8020")
    with pytest.raises(Unusable, match="shows no chip"):
        Ascend()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unusable, match="not installed"):
        Ascend()


def test_a_tool_that_does_not_end(npu: Path) -> None:
    source = Ascend(look_s=0, call_s=0.3)  # expires: the tool never ends
    (npu / "bin" / "npu-smi").write_text("#!/bin/sh\nexec sleep 1000\n")
    assert source.look(0) == []


def test_lines_that_make_no_sense() -> None:
    good = DeviceSeen(1, "GPU-1", DeviceKind.XID, 31, "XID 31", Harm.PROCESS, (7,))
    wild = DeviceSeen(99_999, "u" * 999, DeviceKind.XID, 2**80, "x" * 9_999, Harm.PROCESS, tuple(range(5_000)))
    assert lines.read(lines.line_of(good)) == good and lines.read(lines.BEAT) is None
    read = lines.read(lines.line_of(wild))
    assert isinstance(read, DeviceSeen) and read.device == -1 and len(read.uuid) == 128 and len(read.pids) == 256
    assert lines.read(lines.unusable("no driver")) == "no driver"
    for line in (b"", b"[]", b"1", b'{"device": 1}', lines.line_of(good).replace(b'"kind": 1', b'"kind": 77'), b"\xff"):
        with pytest.raises(ValueError):
            lines.read(line)
