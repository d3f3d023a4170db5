"""A fake of what taskd uses of torch_npu, with the signatures of torch_npu 2.13. It has no NPU, and sends nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class FakeNpu:
    """Notes each call to torch_npu. `answer`: what a rail switch reports; `no_op`: the switch does nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Any = None
        self.no_op = self.lent = False
        self.broken = ""
        self.uce = self.stopped = 0
        self.npu = SimpleNamespace(
            current_device=lambda: 3,
            _comm_switch_nic=self._comm_switch_nic,
            stop_device=self.stop_device,
            restart_device=self.restart_device,
            check_uce_in_memory=self.check_uce_in_memory,
        )
        self.distributed = SimpleNamespace(
            distributed_c10d=SimpleNamespace(reinit_process_group=self.reinit_process_group)
        )
        self._C = SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=self.ProcessGroupHCCL))

    class ProcessGroupHCCL:
        Options = SimpleNamespace

        def __init__(self, store: Any, rank: int, size: int, options: Any) -> None:
            self.made_of = store, rank, size, options

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if self.broken == call[0]:
            raise RuntimeError("ERR00100 PTA call acl api failed")

    def _comm_switch_nic(self, ranks: Any, useBackup: Any) -> Any:
        self._note("_comm_switch_nic", ranks, useBackup)
        if not self.no_op:
            self.lent = useBackup[0]
        return self.answer

    def stop_device(self, device_id: int) -> int:
        return self._note("stop_device", device_id) or self.stopped

    def restart_device(
        self, device_id: int, rebuild_all_resources: bool = False, disable_tensor_unsafe_check: bool = False
    ) -> None:
        self._note("restart_device", device_id, rebuild_all_resources, disable_tensor_unsafe_check)

    def check_uce_in_memory(self, device_id: int) -> int:
        self._note("check_uce_in_memory", device_id)
        return self.uce

    def reinit_process_group(self, group: Any = None, rebuild_link: bool = True) -> None:
        self._note("reinit_process_group", group, rebuild_link)
