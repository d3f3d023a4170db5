"""The configuration tree: every setting of taskd, its type, its default, its bounds and one sentence about it.

Settings stand in nested frozen dataclasses, one group per part of the product, every duration with its unit last in
its name. The sentence about each option is data (`taskd config show` and the docs print it), so that it cannot be
forgotten. A test freezes the set of options: growth is a decision.
This module does NOT read anything: sources.py finds the values, values.py judges them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

STRATEGIES = ("retry", "recover-in-place", "recover", "elastic-training", "dump", "exit")
"""The ladder, from cheap to dear; a failed strategy falls to the next one that is allowed."""
REPAIRS = frozenset({"recover-in-place", "recover"})
"""Those of them by which a rank is replaced."""
RETRY_LEVELS = ("L0", "L1", "L2")
"""Where a collective may be executed again: within a server, between servers, between superpods."""
LOG_LEVELS = ("debug", "info", "warning", "error", "critical", "off")
PAUSE_LIMIT_MS_MAX = 7_200_000
NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._:@+-]{0,63}"
NAME_ALLOWED = "1 to 64 letters, digits and . _ : @ + -, starting with a letter, a digit or _"
_ERROR = r"\s*[^\W\d]\w*(?:\.[^\W\d]\w*)*\s*"
_RAIL = r"\s*(?:[A-Za-z0-9_][A-Za-z0-9_.-]{0,30}\s*=\s*)?[^\s,=]{1,64}\s*"
RAILS_PATTERN = f"(?:{_RAIL}(?:,{_RAIL})*)?"


def option(
    default: Any,
    doc: str,
    *,
    low: int | None = None,
    high: int | None = None,
    choices: tuple[str, ...] = (),
    env: tuple[str, ...] = (),
    hints: tuple[str, ...] = (),
    pattern: str = "",
    allowed: str = "",
    secret: bool = False,
) -> Any:
    """One setting. `env` are further variables that set it, as strong as its own; `hints` only give a better default.

    A callable default is computed for each tree. `pattern` must match the whole text, `allowed` says it in words.
    """
    metadata = MappingProxyType(
        {
            "doc": doc,
            "low": low,
            "high": high,
            "choices": choices,
            "env": env,
            "hints": hints,
            "pattern": pattern,
            "allowed": allowed,
            "secret": secret,
        }
    )
    if callable(default):
        return field(default_factory=default, metadata=metadata, repr=not secret)
    return field(default=default, metadata=metadata, repr=not secret)


def _user_directory() -> str:
    return f"/tmp/taskd-{os.getuid()}"


def _host_name() -> str:
    return os.uname().nodename or "localhost"


@dataclass(frozen=True)
class JobConfig:
    """Which job this is, where this process stands in it, and where its few files lie."""

    id: str = option(
        "default",
        "Name of the job; processes of one job find each other by it.",
        env=("TASKD_JOB_ID", "MINDX_TASK_ID"),
        pattern=NAME_PATTERN,
        allowed=NAME_ALLOWED,
    )
    node: str = option(
        _host_name,
        "Name of this node; two simulated nodes on one machine need two names.",
        env=("TASKD_NODE",),
        pattern=NAME_PATTERN,
        allowed=NAME_ALLOWED,
    )
    address: str = option(
        "", "Address at which other nodes reach this one; empty: found from the route.", hints=("POD_IP",)
    )
    node_nums: int = option(1, "Number of nodes in the job.", low=1, high=100_000, hints=("GROUP_WORLD_SIZE",))
    proc_per_node: int = option(
        1, "Number of training processes on each node.", low=1, high=1024, hints=("LOCAL_WORLD_SIZE",)
    )
    run_dir: str = option(
        _user_directory,
        "Directory of the user's keys and journals, one folder per job in it, readable by this user only.",
        env=("TASKD_RUN_DIR",),
        pattern=r"/.*",
        allowed="an absolute path",
    )

    @property
    def directory(self) -> str:
        """The folder of this job below the run directory."""
        return os.path.join(self.run_dir, self.id)


@dataclass(frozen=True)
class ManagerConfig:
    """The manager: one process per job that decides."""

    host: str = option("127.0.0.1", "Host on which the manager runs, as agents reach it.", hints=("MASTER_ADDR",))
    bind: str = option("0.0.0.0", "Address on which the manager listens; peers without the job's key are refused.")
    port: int = option(9601, "TCP port of the manager.", low=1, high=65535)
    key: str = option(
        "",
        "The job's 32-byte key in hexadecimal; empty: taken from key_file, or made by the manager.",
        env=("TASKD_KEY",),
        pattern=r"(?:[0-9a-fA-F]{64})?",
        allowed="64 hexadecimal digits",
        secret=True,
    )
    key_file: str = option("", "File that holds the job's key, mode 0600; empty: none.", env=("TASKD_KEY_FILE",))
    journal: bool = option(True, "Whether the manager writes its decisions to disk, so that it may be restarted.")


@dataclass(frozen=True)
class AgentConfig:
    """The agent: one process per node that reads the beats and relays commands."""

    beat_interval_ms: int = option(
        100, "Time between two messages to the manager while ranks move.", low=10, high=60_000
    )
    linger_ms: int = option(2000, "How long an agent stays after its last worker has gone.", low=0, high=600_000)
    devices: str = option(
        "auto",
        "Whose events the agent watches: those of the devices that /dev shows, of one vendor, or none.",
        choices=("auto", "nvidia", "ascend", "off"),
    )


@dataclass(frozen=True)
class WorkerConfig:
    """taskd's part of a training process."""

    beat_period_ms: int = option(50, "Time between two signs of life of a training process.", low=1, high=10_000)
    register_wait_ms: int = option(
        3000, "How long start_taskd_worker() waits for the manager's acknowledgement.", low=0, high=600_000
    )
    inner: str = option(
        "rail",
        "What carries guarded collectives of CPU tensors: rail heals itself and can be aborted, gloo is torch's own.",
        choices=("rail", "gloo"),
        env=("TASKD_INNER",),
    )


@dataclass(frozen=True)
class ProxyConfig:
    """The per-node proxy of the original, an address that older scripts expect on loopback."""

    host: str = option("127.0.0.1", "Address on which the proxy listens.")
    port: int = option(9602, "TCP port of the proxy.", low=1, high=65535)


@dataclass(frozen=True)
class RecoverConfig:
    """What may be done about a fault."""

    process_recover: bool = option(
        False,
        "Whether faulty processes are recovered one by one instead of ending the job.",
        env=("PROCESS_RECOVER", "ELASTIC_PROCESS_RECOVER_ENABLE"),
    )
    strategies: tuple[str, ...] = option(
        STRATEGIES,
        "Strategies that may be used, in the ladder's order; exit is always the last. Ranks are repaired by "
        "recover-in-place and recover, and by both where neither is named, unless it is exit alone; retry is the "
        "transport's own, dump writes the script's last checkpoint, elastic-training is never chosen.",
        choices=STRATEGIES,
        env=("HIGH_AVAILABILITY",),
    )
    restart_fault_process: bool = option(
        False,
        "Whether just the faulty process may be started again in its pod, whatever the strategies say.",
        env=("ENABLE_RESTART_FAULT_PROCESS",),
    )
    max_restarts: int = option(
        3,
        "How often one rank may be replaced before the job gives up; each hour that it lives after one gives one back.",
        low=0,
        high=10_000,
    )
    spare_wait_ms: int = option(
        20_000, "How long the ranks of a lost node wait for a node with room.", low=0, high=3_600_000
    )
    unrepaired_ms: int = option(
        15_000,
        "How long a collective that has failed waits for a repair, before the script sees its error.",
        low=0,
        high=3_600_000,
    )
    hang: str = option(
        "replace",
        "What becomes of a rank that a signal has stopped while all others wait for it: it is replaced, or only named.",
        choices=("replace", "warn"),
    )
    term_wait_ms: int = option(
        25_000,
        "How long a launcher that gets SIGTERM waits until its ranks are moved, or the last checkpoint is written.",
        low=0,
        high=3_600_000,
    )
    policy: str = option(
        "",
        "File that says which faults are repaired, how much starts again, and how often; empty: each in the cheapest "
        "way (docs/policy.md).",
        env=("TASKD_POLICY",),
    )
    never_retry: str = option(
        "",
        "Errors of the script's that are raised at once, and not tried again in their step: names of classes with "
        "commas between them, each with its module or without; what is derived from one counts, too.",
        pattern=rf"\s*(?:{_ERROR}(?:,{_ERROR})*)?",
        allowed="a comma list of names like ValueError or module.Class",
    )

    another_loss: str = option(
        "start-over",
        "What follows if a step that is done again after a death has another loss than in its first attempt: all start "
        "over; or it is only said, for scripts that draw anew each time.",
        choices=("start-over", "say"),
    )
    keep_shards: str = option(
        "auto",
        "Whether each rank keeps what only it has of a sharded model in memory of its host, to be replaced in place: "
        "auto ends it if it takes more than a tenth of each step.",
        choices=("auto", "always", "never"),
    )

    @property
    def meant(self) -> tuple[str, ...]:
        """The names in never_retry."""
        return tuple(filter(None, map(str.strip, self.never_retry.split(","))))

    @property
    def allowed(self) -> tuple[str, ...]:
        """The strategies in the ladder's order, with what restart_fault_process adds and exit as the last resort.

        A list without any way to replace a rank (dump, say) is a wish for more and no order to repair nothing."""
        names = {*self.strategies, "exit"}
        if not names & REPAIRS and names != {"exit"}:
            names |= REPAIRS
        if self.restart_fault_process:
            names.add("recover-in-place")
        return tuple(name for name in STRATEGIES if name in names)


@dataclass(frozen=True)
class RailConfig:
    """The rails: network interfaces, or addresses, over which the ranks of the job exchange tensors."""

    rails: str = option(
        "",
        "The rails of this node by name, a=eth1,b=eth2, or by address, a=127.0.0.2,b=127.0.0.3; empty: found.",
        env=("TASKD_RAILS",),
        hints=("GLOO_SOCKET_IFNAME",),
        pattern=RAILS_PATTERN,
        allowed="a comma list of NAME=INTERFACE or NAME=ADDRESS, each name with 31 letters, digits and . _ - at most",
    )
    ports: str = option(
        "",
        "Ports on which the rails listen, 20000-20999; empty: whatever is free.",
        pattern=r"(?:[0-9]{1,5}\s*-\s*[0-9]{1,5})?",
        allowed="a range like 20000-20999",
    )


@dataclass(frozen=True)
class RetryConfig:
    """Executing a failed collective again. TASKD_RETRY sets it all: "off", "on" or "MaxCnt:3, HoldTime:0, L0:0"."""

    levels: tuple[str, ...] = option(
        RETRY_LEVELS,
        "Where a collective may be executed again: L0 within a server, L1 between servers, L2 between superpods.",
        choices=RETRY_LEVELS,
    )
    max_count: int = option(3, "How often one collective is executed again before it fails.", low=1, high=10)
    hold_ms: int = option(5000, "Longest wait for a rail before the first retry.", low=0, high=60_000)
    interval_ms: int = option(1000, "Wait between two retries.", low=0, high=60_000)


@dataclass(frozen=True)
class PauseConfig:
    """Holding all ranks before one step because an operator wants it: `taskd pause`."""

    limit_ms: int = option(
        300_000,
        "How long a pause lasts if nobody renews it. Set, also the longest time that an operator may name at once. "
        "HCCL_CONNECT_TIMEOUT (s) sets 2.5 times itself.",
        low=1000,
        high=PAUSE_LIMIT_MS_MAX,
    )


@dataclass(frozen=True)
class LogConfig:
    """Where taskd's sentences go."""

    path: str = option("", "Directory or file for the log; empty: no log file.")
    file_level: str = option(
        "info", "Least level that is written to the file.", choices=LOG_LEVELS, env=("TASKD_FILE_LOG_LEVEL",)
    )
    std_level: str = option(
        "warning",
        "Least level that is printed on the terminal.",
        choices=LOG_LEVELS,
        env=("TASKD_STD_LOG_LEVEL",),
    )
    stdout: bool = option(True, "Whether anything is printed on the terminal (standard error) at all.")


@dataclass(frozen=True)
class Config:
    """The whole tree. `taskd.config.load()` makes one from keyword arguments, environment and file."""

    enabled: bool = option(
        True, "Whether taskd does anything; of TASKD_PROCESS_ENABLE only off disables.", env=("TASKD_PROCESS_ENABLE",)
    )
    job: JobConfig = field(default_factory=JobConfig)
    manager: ManagerConfig = field(default_factory=ManagerConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    proxy: ProxyConfig = field(default_factory=ProxyConfig)
    recover: RecoverConfig = field(default_factory=RecoverConfig)
    rail: RailConfig = field(default_factory=RailConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    pause: PauseConfig = field(default_factory=PauseConfig)
    log: LogConfig = field(default_factory=LogConfig)
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Path of a setting -> where its value came from; a path that is absent stands at its default."""


GROUPS: dict[str, Callable[..., Any]] = {
    "job": JobConfig,
    "manager": ManagerConfig,
    "agent": AgentConfig,
    "worker": WorkerConfig,
    "proxy": ProxyConfig,
    "recover": RecoverConfig,
    "rail": RailConfig,
    "retry": RetryConfig,
    "pause": PauseConfig,
    "log": LogConfig,
}


@dataclass(frozen=True)
class Leaf:
    """One option as the loader sees it."""

    path: str
    kind: str
    variables: tuple[str, ...]
    meta: Mapping[str, Any]

    @property
    def doc(self) -> str:
        return str(self.meta["doc"])


_leaves: dict[str, Leaf] = {}


def leaves() -> Mapping[str, Leaf]:
    """Every option by its path, in the tree's order; its own TASKD_ variable stands first among its variables."""
    if not _leaves:
        for group, cls in {"": Config, **GROUPS}.items():
            for name, spec in cls.__dataclass_fields__.items():  # type: ignore[attr-defined]
                if "doc" not in spec.metadata:
                    continue  # a group, or the record of sources
                path = f"{group}.{name}" if group else name
                own = "TASKD_" + path.replace(".", "_").upper()
                more = tuple(v for v in spec.metadata["env"] if v != own)
                _leaves[path] = Leaf(path, spec.type, (own, *more), spec.metadata)
    return _leaves
