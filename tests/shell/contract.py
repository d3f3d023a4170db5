"""The names that taskd has to be compatible with, by subject, as the users' guides of the original list them.

This is a list of facts. Nothing here is read from taskd, so the tests notice a name that taskd has forgotten.
docs/compatibility.md says what each name does, and test_compatibility.py compares the two.
"""

from __future__ import annotations

FUNCTIONS = {
    "init_taskd_manager",
    "start_taskd_manager",
    "init_taskd_worker",
    "start_taskd_worker",
    "destroy_taskd_worker",
    "init_taskd_agent",
    "start_taskd_agent",
    "register_func",
    "init_taskd_proxy",
    "destroy_taskd_proxy",
}
OPERATORS = {"KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST"}
KEYS = {
    "job_id",
    "node_nums",
    "proc_per_node",
    "plugin_dir",
    "fault_recover",
    "taskd_enable",
    "cluster_infos",
    "rank_id",
    "upper_limit_of_disk_in_mb",
    "framework",
    "Framework",
    "UpstreamAddr",
    "UpstreamPort",
    "ServerRank",
    "ListenAddr",
    "ListenPort",
}
IMPORTS = {"mindio_ttp.framework_ttp", "mindx_elastic.api", "taskd.python.adaptor.patch"}
HOOKS = {
    "tft_pause_train",
    "tft_start_updating_os",
    "tft_end_updating_os",
    "tft_exception_handler",
    "tft_register_save_ckpt_handler",
    "tft_register_rename_handler",
    "tft_register_stop_handler",
    "tft_register_clean_handler",
    "tft_register_rebuild_group_handler",
    "tft_register_repair_handler",
    "tft_register_rollback_handler",
    "tft_register_stream_sync_handler",
    "tft_set_optimizer_replica",
    "tft_report_error",
    "tft_wait_next_action",
    "tft_get_repair_step",
    "tft_get_repair_type",
    "tft_is_reboot_node",
}
VARIABLES = {
    "PROCESS_RECOVER",
    "ELASTIC_PROCESS_RECOVER_ENABLE",
    "HIGH_AVAILABILITY",
    "ENABLE_RESTART_FAULT_PROCESS",
    "TASKD_PROCESS_ENABLE",
    "MINDX_TASK_ID",
    "MASTER_ADDR",
    "POD_IP",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "LOCAL_RANK",
    "TASKD_LOG_PATH",
    "TASKD_FILE_LOG_LEVEL",
    "TASKD_STD_LOG_LEVEL",
    "TASKD_LOG_STDOUT",
    "HCCL_OP_RETRY_ENABLE",
    "HCCL_OP_RETRY_PARAMS",
    "HCCL_CONNECT_TIMEOUT",
}
STRATEGIES = {"retry", "recover-in-place", "recover", "elastic-training", "dump", "exit"}
PORTS = {"9601", "9602", "8000", "8899"}
LABELS = {
    "process-recover-enable",
    "fault-scheduling",
    "pod-rescheduling",
    "subHealthyStrategy",
    "recover-strategy",
}
CALLS = {
    "/Recover/Init",
    "/Recover/Register",
    "/Recover/SubscribeProcessManageSignal",
    "/Recover/ReportStopComplete",
    "/Recover/ReportRecoverStrategy",
    "/Recover/ReportRecoverStatus",
    "/Recover/ReportProcessFault",
    "/Recover/SwitchNicTrack",
    "/Recover/SubscribeNotifySwitch",
    "/Recover/ReplySwitchNicResult",
    "/Recover/SubscribeSwitchNicSignal",
    "/Recover/StressTest",
    "/Recover/SubscribeNotifyExecStressTest",
    "/Recover/ReplyStressTestResult",
    "/Recover/HealthCheck",
}
"""The calls of the cluster service."""
NODE_CHECK = {"dlrover-run", "--network-check", "--exclude-straggler", "NODE_RANK", "DLROVER_MASTER_ADDR"}
POLICY = {
    "faultTolerant",
    "completePolicy",
    "failPolicy",
    "minReplicas",
    "maxReplicas",
    "restartPolicy",
    "restartScope",
    "restartLimit",
    "restartTimeLimit",
    "restartTimeout",
    "faultTolerantPolicy",
    "exitCodes",
    "exceptionalEvent",
    "hostdiscovery",
}
"""The keys of a job that a cluster operator manages, and the script that lists the job's hosts."""
EVENTS = {"Pending", "Creating", "Running", "Scaling"}
"""The events of such a job."""
ALL = set().union(
    FUNCTIONS,
    OPERATORS,
    KEYS,
    IMPORTS,
    HOOKS,
    VARIABLES,
    STRATEGIES,
    PORTS,
    LABELS,
    CALLS,
    NODE_CHECK,
    POLICY,
    EVENTS,
)
