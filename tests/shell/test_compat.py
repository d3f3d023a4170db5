"""The import finder: real packages always win. Without them the documented names work, and say what has no effect."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from taskd import _native, compat, config
from taskd.compat import MODULES, controller, framework
from taskd.config import values
from taskd.core.types import Phase

# The names of the original and their parameters, as scripts call them.
FRAMEWORK = {
    "tft_init_controller": "rank world_size enable_local_copy enable_arf=False enable_zit=False",
    "tft_start_controller": "bind_ip port enable_tls=True tls_info=''",
    "tft_destroy_controller": "",
    "tft_query_high_availability_switch": "",
    "tft_init_processor": "rank world_size enable_local_copy enable_tls=True tls_info='' enable_uce=True "
    "enable_arf=False enable_zit=False",
    "tft_start_processor": "master_ip port local_ip=''",
    "tft_destroy_processor": "",
    "tft_start_updating_os": "backup_step=-1",
    "tft_end_updating_os": "step",
    "tft_start_copy_os": "",
    "tft_set_optimizer_replica": "rank replica_info",
    "tft_set_dp_group_info": "rank dp_rank_list",
    "tft_exception_handler": "func",
    "tft_set_step_args": "args",
    "tft_pause_train": "cur_step",
    "tft_register_save_ckpt_handler": "func ctx=None",
    "tft_register_rename_handler": "func ctx=None",
    "tft_register_stop_handler": "func ctx=None",
    "tft_register_clean_handler": "func ctx=None",
    "tft_register_rebuild_group_handler": "func ctx=None",
    "tft_register_repair_handler": "func ctx=None",
    "tft_register_rollback_handler": "func ctx=None",
    "tft_register_stream_sync_handler": "func ctx=None",
    "tft_register_exit_handler": "func ctx=None",
    "tft_register_zit_downgrade_rebuild_handler": "func ctx=None",
    "tft_register_zit_upgrade_rebuild_handler": "func ctx=None",
    "tft_register_zit_upgrade_repair_handler": "func ctx=None",
    "tft_register_zit_upgrade_rollback_handler": "func ctx=None",
    "tft_register_exception_handler": "fault_pattern fault_type fault_handle",
    "tft_register_decrypt_handler": "decryptor",
    "tft_report_error": "error_type error_code=''",
    "tft_wait_next_action": "",
    "tft_wait_repair_action": "",
    "tft_get_repair_step": "",
    "tft_get_repair_type": "",
    "tft_is_reboot_node": "",
    "tft_get_reboot_type": "",
    "tft_reset_limit_step": "",
    "tft_report_load_ckpt_step": "step",
    "tft_can_do_uce_repair": "hbm_error_time start_time=None end_time=None",
    "tft_set_update_start_time": "t=None",
    "tft_set_update_end_time": "t=None",
    "set_mindio_export_version": "name",
    "tft_register_mindx_callback": "action func",
    "tft_notify_controller_stop_train": "fault_ranks stop_type='stop' timeout=None",
    "tft_notify_controller_on_global_rank": "fault_ranks time=1",
    "tft_notify_controller_change_strategy": "strategy params=''",
    "tft_notify_controller_prepare_action": "action fault_ranks=None",
    "tft_notify_controller_dump": "",
}
ENUMS = {
    "ReportState": "RS_NORMAL RS_RETRY RS_UCE RS_UCE_CORRUPTED RS_HCCL_FAILED RS_UNKNOWN RS_INIT_FINISH "
    "RS_PREREPAIR_FINISH RS_STEP_FINISH",
    "RepairType": "RT_SEND RT_UCE_HIGHLEVEL RT_UCE_LOWLEVEL RT_ROLLBACK RT_RECV_REPAIR RT_LOAD_CKPT RT_LOAD_REBUILD",
    "OptimizerType": "ATTENTION MOE",
    "Action": "RETRY EXIT",
}
NEUTRAL = {
    "tft_query_high_availability_switch": False,
    "tft_wait_next_action": 1,
    "tft_wait_repair_action": 1,
    "tft_get_repair_step": 0,
    "tft_get_repair_type": "unknown",
    "tft_is_reboot_node": False,
    "tft_get_reboot_type": "",
    "tft_can_do_uce_repair": False,
    "tft_register_mindx_callback": 1,
    "tft_notify_controller_stop_train": 1,
    "tft_notify_controller_on_global_rank": 1,
    "tft_notify_controller_change_strategy": 1,
    "tft_notify_controller_prepare_action": 1,
    "tft_notify_controller_dump": 1,
}


def parameters(function: Callable[..., Any]) -> str:
    shown = []
    for parameter in inspect.signature(function).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(parameter.name + default)
    return " ".join(shown)


def test_every_name_has_its_signature() -> None:
    assert set(framework.__all__) == {*FRAMEWORK, *ENUMS}
    assert {name: parameters(getattr(framework, name)) for name in FRAMEWORK} == FRAMEWORK
    assert set(controller.__all__) < set(framework.__all__)


def test_enums_have_their_members() -> None:
    for name, members in ENUMS.items():
        assert [member.name for member in getattr(framework, name)] == members.split()
    assert (framework.Action.RETRY, framework.Action.EXIT, framework.OptimizerType.MOE) == (0, 1, 1)


def test_what_has_no_effect_returns_the_neutral_value() -> None:
    meaningful = {"tft_pause_train", "tft_start_updating_os", "tft_end_updating_os", "tft_exception_handler"}
    for name in FRAMEWORK.keys() - meaningful - {"set_mindio_export_version"}:
        function = getattr(framework, name)
        wanted = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        arguments = [print if p.name in ("func", "fault_handle", "decryptor") else 1 for p in wanted]
        assert function(*arguments) == NEUTRAL.get(name), name


@pytest.mark.parametrize("name", [name for name in FRAMEWORK if "_register_" in name or "_exception_" in name])
def test_a_handler_must_be_callable(name: str) -> None:
    arguments = [7] * len(FRAMEWORK[name].split())
    with pytest.raises(TypeError, match=f"{name}.* needs a callable .*not int"):
        getattr(framework, name)(*arguments)


def test_versions_that_the_original_does_not_know() -> None:
    assert framework.set_mindio_export_version("MindSpeed-LLM") is None
    with pytest.raises(ValueError, match="MindSpeed and MindSpeed-LLM, not 'Other'"):
        framework.set_mindio_export_version("Other")


def test_the_exception_handler_runs_the_function() -> None:
    @framework.tft_exception_handler
    def train(steps: int, *, name: str) -> str:
        """Trains."""
        if steps < 0:
            raise KeyError(name)
        return f"{name} {steps}"

    assert train(3, name="gpt") == "gpt 3"
    assert (train.__name__, train.__doc__) == ("train", "Trains.")
    with pytest.raises(KeyError, match="gpt"):
        train(-1, name="gpt")


def test_steps_reach_the_beat_page() -> None:
    from taskd.worker import hooks

    page = _native.Page.create(0, 1)
    hooks.attach(page)
    try:
        seen = []
        for call, step in [
            (framework.tft_pause_train, 6),
            (framework.tft_start_updating_os, 7),
            (framework.tft_end_updating_os, 7),
            (framework.tft_pause_train, 7),
        ]:
            call(step)
            beat = page.read()
            assert beat is not None
            seen.append((beat.step, Phase(beat.phase)))
    finally:
        hooks.detach()
    assert seen == [(6, Phase.BETWEEN), (7, Phase.OPTIMIZER), (7, Phase.APPLIED), (7, Phase.BETWEEN)]


def test_without_a_worker_a_step_costs_nothing(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, timeit, taskd.api\nfrom mindio_ttp.framework_ttp import tft_pause_train as pause\n"
        "assert 'taskd.worker' not in sys.modules\npause(1)\nassert 'torch' not in sys.modules\n"
        "print(min(timeit.repeat(lambda: pause(1), number=10000, repeat=5)) / 10000)"
    )
    done = run_python(code)
    assert float(done.stdout) < 10e-6
    assert not done.stderr


def test_it_answers_when_the_real_ones_are_absent(run_python: Callable[..., Any]) -> None:
    imports = "".join(f"import {name}\n" for name in MODULES)
    code = (
        f"import taskd.api\n{imports}import sys\n"
        "import mindio_ttp.framework_ttp as framework, mindio_ttp.controller_ttp as controller\n"
        "from mindio_ttp import framework_ttp\nfrom mindio_ttp.framework_ttp import *\nimport taskd.compat.framework\n"
        "assert framework_ttp is framework and tft_pause_train is framework.tft_pause_train\n"
        "assert framework.tft_init_controller is controller.tft_init_controller\n"
        "assert framework.ReportState is taskd.compat.framework.ReportState\n"
        "assert not {'torch', 'zmq', 'yaml'} & set(sys.modules)\n"
        "try: import mindio_ttp.other\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = run_python(code)
    assert done.stdout == "No module named 'mindio_ttp.other'\n"
    assert len(done.stderr.splitlines()) == 1 and "taskd-run" in done.stderr, "what an import in torchrun is told"


def test_it_stands_last_and_once_and_loads_nothing(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, taskd\nbefore, loaded = list(sys.meta_path), set(sys.modules)\nimport taskd.compat\n"
        "had_it = any(type(finder).__name__ == 'Finder' for finder in before)\n"
        "assert [finder for finder in sys.meta_path if finder in before] == before\n"
        "assert had_it or type(sys.meta_path[-1]) is taskd.compat.Finder\n"
        "assert set(sys.modules) - loaded <= {'taskd.compat'}, set(sys.modules) - loaded\n"
        "import importlib\nimportlib.reload(taskd.compat)\ntaskd.compat.install()\n"
        "assert sum(getattr(finder, 'is_of_taskd', False) for finder in sys.meta_path) == 1"
    )
    run_python(code)


def real(tmp_path: Path, *names: str) -> dict[str, str]:
    """Make packages that stand for really installed ones: each file sets REAL."""
    for name in names:
        file = tmp_path / "site" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("REAL = True\n")
    return {"PYTHONPATH": f"{tmp_path / 'site'}:{Path(__file__).parents[2]}"}


def test_the_real_ones_win(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = real(
        tmp_path,
        "mindio_ttp/__init__.py",
        "mindio_ttp/framework_ttp.py",
        "mindx_elastic/__init__.py",
        "mindx_elastic/api.py",
    )
    code = (
        "import taskd.api\nimport mindio_ttp.framework_ttp, mindx_elastic.api\n"
        "print(mindio_ttp.REAL, mindio_ttp.framework_ttp.REAL, mindx_elastic.api.REAL)"
    )
    assert run_python(code, env=environ).stdout == "True True True\n"


def test_half_a_real_one_stays_half(run_python: Callable[..., Any], tmp_path: Path) -> None:
    environ = real(tmp_path, "mindio_ttp/__init__.py", "mindx_elastic/other.py")  # the second package has no __init__
    code = (
        "import taskd.api\nimport mindio_ttp\n"
        "for name in ('mindio_ttp.framework_ttp', 'mindio_ttp.controller_ttp', 'mindx_elastic.api'):\n"
        "    try: __import__(name)\n"
        "    except ModuleNotFoundError as error: print(error)"
    )
    assert run_python(code, env=environ).stdout.splitlines() == [
        "No module named 'mindio_ttp.framework_ttp'",
        "No module named 'mindio_ttp.controller_ttp'",
        "No module named 'mindx_elastic.api'",
    ]


def test_rank_0_warns_of_each_call_without_effect_once(run_python: Callable[..., Any]) -> None:
    code = (
        "import taskd.api\nfrom mindio_ttp.framework_ttp import *\n"
        "for _ in range(3):\n    tft_set_step_args(1)\n    tft_register_stop_handler(print)\n    tft_start_copy_os()"
    )
    names = ["tft_set_step_args", "tft_register_stop_handler", "tft_start_copy_os"]
    for rank, level in (("0", "warning"), ("1", "info")):
        lines = run_python(code, env={"RANK": rank, "TASKD_STD_LOG_LEVEL": level}).stderr.splitlines()
        assert [line.split("()")[0] for line in lines] == [f"taskd: {name}" for name in names]
    assert "docs/compatibility.md" in run_python(code).stderr.splitlines()[0]
    assert not run_python(code, env={"RANK": "1"}).stderr


def test_the_launcher_imports_say_what_to_use(run_python: Callable[..., Any]) -> None:
    code = "import taskd.compat, mindx_elastic.api, taskd.python.adaptor.patch"
    (line,) = run_python(code, env={"PROCESS_RECOVER": None}).stderr.splitlines()
    assert "start the job with taskd-run" in line
    assert not run_python(code, env={"PROCESS_RECOVER": "on"}).stderr


def test_nobody_else_meets_the_finder_of_torchs_launcher(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, taskd.compat\nprint(type(sys.meta_path[0]).__name__ == 'LauncherFinder', 'torch' in sys.modules)"
    )
    for environ, found in (
        ({"PROCESS_RECOVER": None}, "False False"),
        ({"PROCESS_RECOVER": "off"}, "False False"),
        ({"PROCESS_RECOVER": "on", "TASKD_PROCESS_ENABLE": "off"}, "False False"),
        ({"PROCESS_RECOVER": "on", "TASKD_RECOVER_PROCESS_RECOVER": "off"}, "False False"),
        ({"PROCESS_RECOVER": "on"}, "True False"),
        ({"ELASTIC_PROCESS_RECOVER_ENABLE": "1"}, "True False"),
    ):
        assert run_python(code, env=environ).stdout.strip() == found, environ


def test_its_words_are_those_of_the_configuration() -> None:
    assert compat.YES == values.YES
    variables = config.leaves()["recover.process_recover"].variables
    assert {*compat.RECOVER} == {*variables}
