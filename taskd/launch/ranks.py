"""Finds out which ranks run on this node, by torch's own rendezvous of the nodes that train. Other nodes are spares.

`--nnodes 2:3` means here: two nodes train and one more may wait. So the rendezvous is held for the least number of
nodes. A node that comes later, or comes again after it was lost, is a spare. It joins no rendezvous and restarts no
rank. The launchers exchange everything else on the board: where the manager is, and how ranks are numbered.
It does NOT start anything.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any

from torch.distributed import DistError, Store
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent, WorkerSpec
from torch.distributed.elastic.agent.server.api import Worker as RankPlace
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend, create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, _get_addr_and_port

from taskd import log
from taskd.board import Board
from taskd.errors import PeerError

LOOK_SECONDS = 0.2
"""How often a node that waits in the rendezvous checks whether the job has begun without it."""
MEET_SECONDS = 900
"""torchrun's own timeout for the rendezvous; `--rdzv-conf timeout=` changes it."""
CONNECT_SECONDS = 10.0
SAY_SECONDS = 10.0
"""After this time, a node that waits for the first one logs it."""
JOB = "job"
ENDED = "ended"
RESTARTS = "restarts"
_logger = log.get(__name__)


@dataclass
class Ranks:
    """This node's place in the job, and its ranks."""

    spec: WorkerSpec
    handler: RendezvousHandler
    board: Board
    spare: bool
    group_rank: int = -1
    group_world_size: int = 0
    master_addr: str = ""
    master_port: int = 0
    places: list[RankPlace] = field(default_factory=list)  # the places of this node's own ranks
    told_world_size: int = 0  # for a spare
    rows: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """For each rank: GROUP_RANK, GROUP_WORLD_SIZE, ROLE_RANK, ROLE_WORLD_SIZE. A spare knows all ranks."""

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0: this is a spare that does not know it yet."""
        return self.places[0].world_size if self.places else self.told_world_size


Opened = tuple[C10dRendezvousBackend, Store]
"""A rendezvous that is open already."""


def meet(config: LaunchConfig, entrypoint: Any, arguments: list[str], opened: Opened | None = None) -> Ranks:
    """Take part in the rendezvous, or find out that this node is a spare. Raises PeerError if the nodes do not meet."""
    try:
        if config.rdzv_backend == "static" and config.rdzv_configs.get("rank", 0) > 0:
            await_first(config.rdzv_endpoint, float(config.rdzv_configs.get("timeout", MEET_SECONDS)))
        return _meet(config, entrypoint, arguments, opened)
    except (DistError, RendezvousConnectionError, RendezvousTimeoutError) as error:
        why = next(filter(None, map(str, (error.__cause__ or "", error))), type(error).__name__).splitlines()[0]
        raise PeerError(f"the nodes of this job did not meet at {config.rdzv_endpoint}: {why}") from None


def await_first(endpoint: str, seconds: float) -> None:
    """Wait until the first node's address accepts connections. torch would log nothing during that wait, and give
    little reason for its failure."""
    host, port = parse_rendezvous_endpoint(endpoint, -1)
    begin, said, pause = time.monotonic(), False, threading.Event()
    while True:
        waited = time.monotonic() - begin
        try:
            socket.create_connection((host, port), max(LOOK_SECONDS, min(CONNECT_SECONDS, seconds - waited))).close()
            return
        except OSError as error:
            why = error.strerror or str(error)
        if waited >= seconds:
            raise PeerError(
                f"the first node's launcher was not to be found at {host}:{port} in {seconds:.0f} s ({why}): it was "
                "not started, or has ended, or this is not its address; --rdzv-conf timeout=SECONDS sets the time"
            )
        if not said and waited >= min(SAY_SECONDS, seconds / 2):
            said = True
            text = "waiting for the first node's launcher, which is not yet at %s:%d (%s), for %.0f s at most"
            _logger.warning(text, host, port, why, seconds)
        pause.wait(LOOK_SECONDS)


def with_address(config: LaunchConfig) -> LaunchConfig:
    """The configuration, extended by an address at which other nodes reach this node.

    If no address is given, torch uses the host's name. In many containers that name does not resolve, and torch waits
    for minutes. In that case, the local address from which this node reaches the rendezvous is used.
    """
    name = socket.getfqdn()
    if config.local_addr or config.rdzv_backend == "static" or _leads_somewhere(name):
        return config
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, default_port=29400)
    address = "127.0.0.1"
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, port or 29400, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: it only makes the system choose the route
            address = probe.getsockname()[0]
    if not (config.min_nodes == config.max_nodes == 1):
        text = "this host's name, %s, leads to no address: other nodes are told %s; --local-addr names another one"
        _logger.warning(text, name, address)
    return replace(config, local_addr=address)


def _leads_somewhere(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None))
    except OSError:
        return False


def parameters_of(config: LaunchConfig) -> RendezvousParameters:
    """Return what torch's rendezvous has to know."""
    return RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.min_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )


def _meet(config: LaunchConfig, entrypoint: Any, arguments: list[str], opened: Opened | None) -> Ranks:
    parameters = parameters_of(config)
    store: Store | None = None
    if config.rdzv_backend == "c10d":
        backend, store = opened if opened is not None else create_backend(parameters)
        handler: RendezvousHandler = create_handler(store, backend, parameters)
    else:
        handler = get_rendezvous_handler(parameters)
        if config.max_nodes > config.min_nodes and config.rdzv_backend != "static":
            _logger.warning(
                "with the rendezvous %s no node can be a spare: %d nodes train, further ones wait",
                config.rdzv_backend,
                config.min_nodes,
            )
    master_addr, master_port = _get_addr_and_port(parameters)
    spec = WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(arguments),
        rdzv_handler=handler,
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )
    info = _join(handler, Board(store, config.run_id) if store is not None else None)
    if info is None:
        assert store is not None, "only a node that can look at the board can find that it is too late"
        return Ranks(spec, handler, Board(store, config.run_id), spare=True)
    board = Board(store if store is not None else info.store, config.run_id)
    if config.rdzv_backend == "static" and _too_late(info, config, board):
        _refuse_the_end(board, handler)
        return Ranks(spec, handler, board, spare=True)
    return _place(spec, handler, board, info)


def _join(handler: RendezvousHandler, board: Board | None) -> RendezvousInfo | None:
    """Join the rendezvous and return its result; None when the job has begun without this node."""
    if board is None:
        return handler.next_rendezvous()
    if board.told(JOB):
        _refuse_the_end(board, handler)
        return None
    ended: queue.SimpleQueue[RendezvousInfo | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            ended.put(handler.next_rendezvous())
        except BaseException as error:
            ended.put(error)

    # torch makes a surplus node wait until the job is over. So it waits in a thread that may be left behind.
    threading.Thread(target=work, name="taskd-rendezvous", daemon=True).start()
    while True:
        try:
            outcome = ended.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            if board.told(JOB) and ended.empty():
                return _last_look(ended)
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def _refuse_the_end(board: Board, handler: RendezvousHandler) -> None:
    """Raise PeerError if the job for which this node would be a spare is over."""
    if board.look(ENDED):
        name = handler.get_run_id()
        raise PeerError(f"job {name} of this rendezvous has ended: start the next one with another --rdzv-id or port")


def _last_look(ended: queue.SimpleQueue[RendezvousInfo | BaseException]) -> RendezvousInfo | None:
    """Wait a last moment for the rendezvous: the job has begun, so each of its nodes gets the result about now."""
    try:
        outcome = ended.get(timeout=5 * LOOK_SECONDS + 1)
    except queue.Empty:
        return None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _too_late(info: RendezvousInfo, config: LaunchConfig, board: Board) -> bool:
    """Whether a node with a given number is not among those that train, or comes for the second time."""
    return info.rank >= config.min_nodes or (info.rank > 0 and board.next(f"came/{info.rank}") > 1)


def _place(spec: WorkerSpec, handler: RendezvousHandler, board: Board, info: RendezvousInfo) -> Ranks:
    address = info.bootstrap_store_info
    places = SimpleElasticAgent._assign_worker_ranks(None, info.store, info.rank, info.world_size, spec)  # type: ignore[arg-type]
    if isinstance(handler, DynamicRendezvousHandler):
        # torch's heartbeats are only needed for a second rendezvous. They would outlive the node that hosts the store.
        handler._stop_heartbeats()
    rows = {place.global_rank: (info.rank, info.world_size, place.role_rank, place.role_world_size) for place in places}
    for rank, row in rows.items():
        board.tell(f"rank/{rank}", row)
    return Ranks(
        spec,
        handler,
        board,
        spare=False,
        group_rank=info.rank,
        group_world_size=info.world_size,
        master_addr=spec.master_addr or address.master_addr,
        master_port=spec.master_port or address.master_port,
        places=places,
        rows=rows,
    )


def learn_all(ranks: Ranks) -> None:
    """Read all ranks' rows now. A spare may need them when the node with the board is lost."""
    for rank in range(ranks.world_size):
        group_rank, group_world_size, role_rank, role_world_size = ranks.board.read(f"rank/{rank}")
        ranks.rows[rank] = (group_rank, group_world_size, role_rank, role_world_size)


def environment_of(
    spec: WorkerSpec, place: RankPlace, group_rank: int, group_world_size: int, master: tuple[str, int], restarts: int
) -> dict[str, str]:
    """The environment variables of a worker, as torchrun sets them."""
    found = {
        "RANK": place.global_rank,
        "GROUP_RANK": group_rank,
        "ROLE_RANK": place.role_rank,
        "ROLE_NAME": spec.role,
        "LOCAL_WORLD_SIZE": spec.local_world_size,
        "WORLD_SIZE": place.world_size,
        "GROUP_WORLD_SIZE": group_world_size,
        "ROLE_WORLD_SIZE": place.role_world_size,
        "MASTER_ADDR": master[0],
        "MASTER_PORT": master[1],
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "TORCHELASTIC_MAX_RESTARTS": spec.max_restarts,
        "TORCHELASTIC_RUN_ID": spec.rdzv_handler.get_run_id(),
        "TORCHELASTIC_USE_AGENT_STORE": spec.rdzv_handler.use_agent_store,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        "LOCAL_RANK": place.local_rank,
    }
    if spec.virtual_local_rank:
        devices = os.getenv("CUDA_VISIBLE_DEVICES")
        names = devices.split(",") if devices is not None else [str(n) for n in range(spec.local_world_size)]
        if place.local_rank >= len(names):
            raise ValueError(f"local_rank {place.local_rank} exceeds available GPUs in CUDA_VISIBLE_DEVICES={devices}")
        found |= {"LOCAL_RANK": 0, "CUDA_VISIBLE_DEVICES": names[place.local_rank].strip()}
    return {name: str(value) for name, value in found.items()}
