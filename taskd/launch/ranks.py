"""Which ranks run on this node: torch's own rendezvous, of exactly the nodes that train, and spares beside them.

`--nnodes 2:3` means here: two nodes train and one more may wait. So the rendezvous is held for the least number of
nodes; who comes later, or comes again after its node was lost, joins nothing and restarts nobody: it is a spare.
What the launchers tell each other beyond that (where the manager is, how ranks are numbered) stands on the board.
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
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, create_handler
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig, _get_addr_and_port

from taskd import log
from taskd.errors import PeerError
from taskd.launch.board import Board

LOOK_SECONDS = 0.2
"""How often a node that waits to be let in looks whether the job has begun without it."""
MEET_SECONDS = 900
"""torchrun's own time for the nodes to meet; `--rdzv-conf timeout=` changes it."""
CONNECT_SECONDS = 10.0
SAY_SECONDS = 10.0
"""After this a node that waits for the first one says so."""
JOB = "job"
ENDED = "ended"
RESTARTS = "restarts"
_logger = log.get(__name__)


@dataclass
class Ranks:
    """Where this node stands."""

    spec: WorkerSpec
    handler: RendezvousHandler
    board: Board
    spare: bool
    group_rank: int = -1
    group_world_size: int = 0
    master_addr: str = ""
    master_port: int = 0
    places: list[RankPlace] = field(default_factory=list)  # of this node's own ranks
    told_world_size: int = 0  # for a spare
    rows: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)
    """By rank: its group, how many groups, its number in its role, how many are in that. A spare knows all ranks."""

    @property
    def world_size(self) -> int:
        """How many ranks the job has; 0: this is a spare that was not told yet."""
        return self.places[0].world_size if self.places else self.told_world_size


def meet(config: LaunchConfig, entrypoint: Any, arguments: list[str]) -> Ranks:
    """Take part in the rendezvous, or find out that this node is a spare. Raises PeerError when nobody is there."""
    try:
        if config.rdzv_backend == "static" and config.rdzv_configs.get("rank", 0) > 0:
            _await_first(config.rdzv_endpoint, float(config.rdzv_configs.get("timeout", MEET_SECONDS)))
        return _meet(config, entrypoint, arguments)
    except (DistError, RendezvousConnectionError, RendezvousTimeoutError) as error:
        why = next(filter(None, map(str, (error.__cause__ or "", error))), type(error).__name__).splitlines()[0]
        raise PeerError(f"the nodes of this job did not meet at {config.rdzv_endpoint}: {why}") from None


def _await_first(endpoint: str, seconds: float) -> None:
    """Wait until somebody listens where the first node is to be; torch would say nothing meanwhile, and little then."""
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
    """The configuration with an address at which others reach this node.

    torch takes the host's name where none is given, and waits for minutes where that name leads nowhere, as it does in
    many a container. Then it is the address from which the rendezvous is reached.
    """
    name = socket.getfqdn()
    if config.local_addr or config.rdzv_backend == "static" or _leads_somewhere(name):
        return config
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, default_port=29400)
    address = "127.0.0.1"
    with contextlib.suppress(OSError):
        family, kind, _, _, target = socket.getaddrinfo(host, port or 29400, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # sends nothing: it only asks the system for the way there
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


def _meet(config: LaunchConfig, entrypoint: Any, arguments: list[str]) -> Ranks:
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.min_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    store: Store | None = None
    if config.rdzv_backend == "c10d":
        backend, store = create_backend(parameters)
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
    """The rendezvous' outcome; None when the job has begun without this node."""
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

    # torch lets a node that is too many wait until the job is over; so it waits in a thread that may be left behind.
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
    """Raise PeerError when the job that this node would be a spare of is over."""
    if board.look(ENDED):
        name = handler.get_run_id()
        raise PeerError(f"job {name} of this rendezvous has ended: start the next one with another --rdzv-id or port")


def _last_look(ended: queue.SimpleQueue[RendezvousInfo | BaseException]) -> RendezvousInfo | None:
    """The job has begun: whoever is one of its nodes learns so within a moment of the first node's word."""
    try:
        outcome = ended.get(timeout=5 * LOOK_SECONDS + 1)
    except queue.Empty:
        return None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _too_late(info: RendezvousInfo, config: LaunchConfig, board: Board) -> bool:
    """Whether a node that names its own number is beyond those that train, or comes for the second time."""
    return info.rank >= config.min_nodes or (info.rank > 0 and board.next(f"came/{info.rank}") > 1)


def _place(spec: WorkerSpec, handler: RendezvousHandler, board: Board, info: RendezvousInfo) -> Ranks:
    address = info.bootstrap_store_info
    places = SimpleElasticAgent._assign_worker_ranks(None, info.store, info.rank, info.world_size, spec)  # type: ignore[arg-type]
    if isinstance(handler, DynamicRendezvousHandler):
        # Signs of life are for rendezvous that are held again. These would outlive the node that keeps them.
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
    """A spare reads at once what it may need when the node that keeps the board is the one that is lost."""
    for rank in range(ranks.world_size):
        group_rank, group_world_size, role_rank, role_world_size = ranks.board.read(f"rank/{rank}")
        ranks.rows[rank] = (group_rank, group_world_size, role_rank, role_world_size)


def environment_of(
    spec: WorkerSpec, place: RankPlace, group_rank: int, group_world_size: int, master: tuple[str, int], restarts: int
) -> dict[str, str]:
    """The variables that a worker finds, as torchrun sets them."""
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
