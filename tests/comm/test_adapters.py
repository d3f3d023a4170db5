"""Tests the adapters of the CPU, NCCL and HCCL, as far as that is possible without a GPU or an NPU.

A fake with exactly the signatures of torch_npu 2.13 stands for HCCL. Of NCCL, the settings and the error texts are
tested, and its abort is run on a group that notes the calls. Guards around such groups are tested in
tests/train/test_guard_adapters.py, and the behaviour of a real GPU in test_nccl_gpu.py.
"""

from __future__ import annotations

import importlib
import inspect
import socket
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from taskd import config
from taskd.comm import adapter, cpu, hccl, nccl, nic
from taskd.comm.adapter import PROOF_BYTES, Adapter, Fault, Switch, judge
from taskd.errors import BackendError, UsageError
from tests.comm.fake_npu import FakeNpu
from tests.patience import PATIENCE_S


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> FakeNpu:
    fake = FakeNpu()
    monkeypatch.setitem(sys.modules, "torch_npu", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(hccl, "_device", hccl._Device())
    monkeypatch.setattr(hccl, "_group_of", lambda guard: guard.group)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=SimpleNamespace(get_rank=lambda: 5)))
    return fake


MEET: dict[str, Any] = {"epoch": 2, "identity": "0@0-3", "members": [0, 1, 2, 3]}
WITHIN = timedelta(seconds=5)


def guarding(inner: Any, group: Any = None) -> Any:
    """Return a stand-in for a guard, with only what an adapter reads of it."""
    four = {"rank": lambda: 0, "size": lambda: 4, "members": [0, 1, 2, 3]}
    return SimpleNamespace(inner=inner, group=group, identity="0@0-3", timeout=WITHIN, handing_over=False, **four)


@pytest.mark.parametrize("module", [cpu, nccl, hccl], ids=["cpu", "nccl", "hccl"])
def test_each_has_every_method_of_the_adapter(module: Any) -> None:
    checked: Adapter = module
    assert checked.STREAM_ORDERED is (module is not cpu)
    methods = [name for name, one in vars(Adapter).items() if inspect.isfunction(one) and name[0] != "_"]
    assert len(methods) == 8
    for name in methods:
        wanted = [one for one in inspect.signature(getattr(Adapter, name)).parameters if one != "self"]
        assert list(inspect.signature(getattr(module, name)).parameters) == wanted, name


def test_the_backend_chooses_the_adapter() -> None:
    assert [adapter.of(name) for name in ("gloo", "nccl", "hccl")] == [cpu, nccl, hccl]
    assert adapter.loaded() == [cpu, nccl, hccl]
    with pytest.raises(UsageError, match="no groups of backend mpi; it knows gloo, nccl, hccl"):
        adapter.of("mpi")


def test_gloo_has_no_rail_to_choose_and_asks_for_nothing() -> None:
    environment: dict[str, str] = {}
    assert cpu.rails() == () and cpu.switch_rail("a", False).outcome is Switch.UNSUPPORTED
    assert cpu.prepare(environment, config.load()) == environment == {}
    assert cpu.probe(guarding(None)) is None


def test_a_rail_is_borrowed_and_switched_back(npu: FakeNpu) -> None:
    assert hccl.rails() == (), "no group, no device"
    hccl.make_inner(None, 0, 4, WITHIN, **MEET)
    assert hccl.rails() == ("npu",)
    assert hccl.switch_rail("npu", in_use=True).outcome is Switch.ASKED and not npu.calls, "it uses its own already"
    assert hccl.switch_rail("npu", in_use=False).outcome is Switch.ASKED
    assert hccl.switch_rail("npu", in_use=True).outcome is Switch.ASKED
    assert npu.calls == [("_comm_switch_nic", [5], [True]), ("_comm_switch_nic", [5], [False])]


def test_a_refused_switch_is_not_a_switch(npu: FakeNpu) -> None:
    assert hccl.switch_rail("npu", in_use=False).outcome is Switch.UNSUPPORTED, "no group, nothing to switch"
    hccl.make_inner(None, 0, 4, WITHIN, **MEET)
    npu.answer = False
    assert hccl.switch_rail("npu", in_use=False).outcome is Switch.REFUSED
    npu.broken = "_comm_switch_nic"
    refused = hccl.switch_rail("npu", in_use=False)
    assert refused.outcome is Switch.REFUSED and "ERR00100" in refused.words
    del npu.npu._comm_switch_nic
    assert hccl.switch_rail("npu", in_use=False).outcome is Switch.UNSUPPORTED


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Install a fake of the driver's tool, which prints how many bytes the NICs of devices 3 and 2 have sent."""
    tool = tmp_path / nic.TOOL
    tool.write_text(f"#!/bin/sh\necho packet statistics:\necho mac_tx_total_oct_num:$(cat {tmp_path}/$2)\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    def set_sent(own: int, beside: int) -> None:
        (tmp_path / "3").write_text(str(own))
        (tmp_path / "2").write_text(str(beside))

    set_sent(1_000, 5_000)
    return set_sent


def test_a_switch_of_hccl_is_proved_by_the_bytes_on_both_nics(
    npu: FakeNpu, counted: Callable[[int, int], None]
) -> None:
    hccl.make_inner(None, 0, 4, WITHIN, **MEET)
    lent = hccl.switch_rail("npu", in_use=False)
    assert lent.outcome is Switch.ASKED and lent.proof is not None
    assert lent.proof().outcome is Switch.ASKED, "nothing has been sent since"
    counted(1_000 + 8 * PROOF_BYTES, 5_000)
    assert lent.proof().outcome is Switch.NO_OP, "it reported success, and bytes flow as before"
    counted(1_000, 5_000 + 8 * PROOF_BYTES)
    assert lent.proof().outcome is Switch.MOVED
    back = hccl.switch_rail("npu", in_use=True)
    counted(1_000, 5_000 + 16 * PROOF_BYTES)
    assert back.proof is not None and back.proof().outcome is Switch.NO_OP


def test_where_nobody_counts_a_switch_of_hccl_stays_asked(npu: FakeNpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    hccl.make_inner(None, 0, 4, WITHIN, **MEET)
    lent = hccl.switch_rail("npu", in_use=False)
    assert lent.outcome is Switch.ASKED and lent.proof is None and nic.TOOL in lent.words


@pytest.mark.parametrize("says", ["", "mac_tx_total_oct_num:many", "error: no such device"])
def test_a_tool_that_says_something_else_counts_nothing(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / nic.TOOL
    tool.write_text(f"#!/bin/sh\necho '{says}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    assert nic.sent(0) is None and nic.traffic(0) == {}


def test_a_no_op_that_reports_success_is_recognised() -> None:
    before = {"own": 1_000, "neighbour": 5_000}
    borrowed = judge("own", False, before, {"own": 1_000, "neighbour": 5_000 + 8 * PROOF_BYTES})
    no_op = judge("own", False, before, {"own": 1_000 + 8 * PROOF_BYTES, "neighbour": 5_000})
    back = judge("own", True, before, {"own": 1_001, "neighbour": 5_000})
    not_back = judge("own", True, before, {"own": 1_000, "neighbour": 5_000 + 8 * PROOF_BYTES})
    idle = [judge("own", in_use, before, before) for in_use in (True, False)]
    assert borrowed.outcome is Switch.MOVED and no_op.outcome is Switch.NO_OP
    assert back.outcome is Switch.MOVED and not_back.outcome is Switch.NO_OP
    assert [one.outcome for one in idle] == [Switch.ASKED, Switch.ASKED]


def test_hccl_is_stopped_restarted_once_and_each_group_made_anew(npu: FakeNpu) -> None:
    guards = [guarding(object(), "world"), guarding(object(), "pair")]
    hccl.abort(guards, 2, "a rank died")
    for guard in guards:
        assert hccl.rebuild(guard, None, WITHIN, epoch=2).backend is guard.inner
    assert npu.calls == [
        ("stop_device", 3),
        ("restart_device", 3, False, False),
        ("reinit_process_group", "world", True),
        ("reinit_process_group", "pair", True),
    ]
    hccl.rebuild(guards[0], None, WITHIN, epoch=3)
    assert [call[0] for call in npu.calls].count("restart_device") == 2


def test_a_newcomer_makes_its_group(npu: FakeNpu) -> None:
    asked = SimpleNamespace(global_ranks_in_group=[0, 2], group_id="7")
    made = hccl.rebuild(guarding(None), "store", WITHIN, epoch=2, options=asked).backend
    store, rank, size, options = made.made_of
    assert (store, rank, size, options._timeout) == ("store", 0, 4, WITHIN)
    assert (options.global_ranks_in_group, options.group_id) == ([0, 2], "7") and not npu.calls


@pytest.mark.parametrize("broken", ["stop_device", "restart_device", "reinit_process_group"])
def test_what_hccl_cannot_do_is_said(npu: FakeNpu, broken: str) -> None:
    npu.broken = broken
    guard = guarding(object())
    with pytest.raises(BackendError, match="ERR00100"):
        hccl.abort([guard], 2, "a rank died")
        hccl.rebuild(guard, None, WITHIN, epoch=2)


def test_a_device_that_does_not_stop_is_told(npu: FakeNpu) -> None:
    """On a failure, torch_npu returns 1 and raises nothing."""
    hccl.abort([guarding(object())], 2, "a rank died")
    npu.stopped = 1
    with pytest.raises(BackendError, match="stop_device gave 1"):
        hccl.abort([guarding(object())], 3, "a rank died")


def test_hccl_probes_its_memory(npu: FakeNpu) -> None:
    assert hccl.probe(guarding(object())) is None
    npu.uce = 2
    assert hccl.probe(guarding(object())) is Fault.OTHER


def test_without_torch_npu_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_npu", None)  # type: ignore[arg-type]
    with pytest.raises(BackendError, match="install it and CANN"):
        hccl.probe(guarding(object()))


def test_retry_in_the_words_of_hccl() -> None:
    environment: dict[str, str] = {}
    assert hccl.prepare(environment, config.load()) == {}, "nobody has said anything: HCCL's own defaults stand"
    said = config.load(retry_levels=("L1", "L2"), retry_max_count=5, retry_hold_ms=100, retry_interval_ms=20)
    assert hccl.prepare(environment, said) == environment
    assert environment == {
        "HCCL_OP_RETRY_ENABLE": "L0:0, L1:1, L2:1",
        "HCCL_OP_RETRY_PARAMS": "MaxCnt:5, HoldTime:100, IntervalTime:20",
    }


# ---- NCCL


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, str], tuple[int, int, int]], dict[str, str]]:
    def run(environment: dict[str, str], version: tuple[int, int, int]) -> dict[str, str]:
        monkeypatch.setattr(nccl, "version", lambda: version)
        return nccl.prepare(environment, config.load())

    return run


def test_an_error_of_nccl_must_not_end_the_process(prepare: Any) -> None:
    environment = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
    changed = prepare(environment, (2, 27, 0))
    assert environment["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0" == environment["TORCH_NCCL_ENABLE_MONITORING"]
    assert nccl.PORT_FAILOVER not in changed and nccl.PORT_RECOVERY not in changed
    assert prepare(environment, (2, 27, 0)) == {}, "nothing is left to be set"


@pytest.mark.parametrize(
    "version,failover,recovery", [((2, 29, 6), 0, 0), ((2, 29, 7), 1, 0), ((2, 30, 0), 1, 1), ((3, 0, 0), 1, 1)]
)
def test_port_failover_where_nccl_has_it(
    prepare: Any, version: tuple[int, int, int], failover: int, recovery: int
) -> None:
    environment: dict[str, str] = {}
    prepare(environment, version)
    assert (nccl.PORT_FAILOVER in environment, nccl.PORT_RECOVERY in environment) == (failover, recovery)
    chosen = {nccl.PORT_FAILOVER: "0"}
    prepare(chosen, version)
    assert chosen[nccl.PORT_FAILOVER] == "0", "what the user has chosen stays"


def test_a_torch_without_nccl_says_so() -> None:
    torch = pytest.importorskip("torch")
    if torch.distributed.is_nccl_available():
        pytest.skip("this torch has NCCL")
    with pytest.raises(BackendError, match="built without NCCL"):
        nccl.version()


class NotedGroup:
    """An NCCL group with only what abort and probe use. Its abort ends when those of `parties` groups have begun."""

    def __init__(self, calls: list[str], name: str, error: str = "SUCCESS", parties: Any = None) -> None:
        self.calls, self.name, self.error, self.parties = calls, name, error, parties

    def abort(self) -> None:
        self.calls.append(self.name)
        if self.parties is not None:
            self.parties.wait(PATIENCE_S)
        if self.name == "broken":
            raise RuntimeError("ncclInternalError")

    def get_error(self) -> Any:
        return SimpleNamespace(name=self.error)


class MadeGroup(NotedGroup):
    """What `make_inner` makes."""

    Options = SimpleNamespace

    def __init__(self, *_: Any) -> None:
        super().__init__([], "made")


class Handing(SimpleNamespace):
    """A guard whose inner group has not taken an operation as long as `thread` lives."""

    identity = "1@0-1"

    def __init__(self, inner: Any, thread: threading.Thread) -> None:
        super().__init__(inner=inner, thread=thread)

    @property
    def handing_over(self) -> bool:
        return bool(self.thread.is_alive())


def test_groups_are_aborted_together() -> None:
    calls: list[str] = []
    both = threading.Barrier(2)
    one, two = NotedGroup(calls, "one", parties=both), NotedGroup(calls, "two", parties=both)
    nccl.abort([guarding(one), guarding(None), guarding(two)], 2, "a rank died")
    assert sorted(calls) == ["one", "two"], "a newcomer's guard has nothing to abort"
    nccl.abort([], 2, "nothing to abort")
    with pytest.raises(BackendError, match="restart this rank"):
        nccl.abort([guarding(NotedGroup(calls, "broken"))], 2, "a rank died")


def test_a_communicator_that_is_being_made_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL waits on a listening socket for a rank that never comes; an abort does not reach it."""
    monkeypatch.setattr(nccl, "_class", lambda: MadeGroup)
    errors: list[OSError] = []

    def make_communicator(listens: threading.Event) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            listens.set()
            try:
                server.accept()
            except OSError as error:
                errors.append(error)

    with socket.create_server(("127.0.0.1", 0)) as others:
        options = {"epoch": 1, "identity": "1@0-1", "members": [0, 1]}
        inner = nccl.make_inner(None, 0, 2, timedelta(seconds=PATIENCE_S), **options).backend
        listens = threading.Event()
        thread = threading.Thread(target=make_communicator, args=(listens,))
        thread.start()
        assert listens.wait(PATIENCE_S)
        nccl.abort([Handing(inner, thread)], 2, "a rank died")
        thread.join(PATIENCE_S)
        assert len(errors) == 1 and not thread.is_alive()
        with socket.create_connection(others.getsockname()):
            others.accept()[0].close()  # a server that was there before goes on


def test_what_nccl_says() -> None:
    words = ("SUCCESS", "TIMEOUT", "COMM_ERROR", "NEW")
    found = [nccl.probe(guarding(NotedGroup([], "one", error))) for error in words]
    assert found == [None, Fault.SILENCE, Fault.PEER_GONE, Fault.OTHER] and nccl.probe(guarding(None)) is None
    refused = nccl.switch_rail("a", False)
    assert refused.outcome is Switch.UNSUPPORTED and "once per process" in refused.words and nccl.rails() == ()


@pytest.mark.parametrize(
    "module,text,fault",
    [
        (nccl, "NCCL error: remote process exited or there was a network error, ncclRemoteError", Fault.PEER_GONE),
        (nccl, "ncclSystemError: System call (e.g. socket, malloc) or external library call failed", Fault.PEER_GONE),
        (nccl, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", Fault.SILENCE),
        (nccl, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library", Fault.ARGUMENTS),
        (nccl, "CUDA error: an illegal memory access was encountered", Fault.OTHER),
        (hccl, "HCCL OP RETRY FAILED", Fault.PEER_GONE),
        (hccl, "The wait execution of the Notify register times out: HCCL_EXEC_TIMEOUT", Fault.SILENCE),
        (hccl, "error cqe status", Fault.PEER_GONE),
        (hccl, "UCE ERROR", Fault.OTHER),
    ],
)
def test_errors_are_sorted(module: Any, text: str, fault: Fault) -> None:
    assert module.classify(RuntimeError(text)) is fault


def test_nothing_is_loaded_that_is_not_needed() -> None:
    importlib.reload(adapter)
    assert "torch_npu" not in sys.modules
