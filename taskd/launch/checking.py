"""Checks the nodes of a job before they meet for training: `taskd-run --network-check`.

All nodes that come are checked, also those that may become spares. A node whose fault is proved does not train: its
launcher says why, and exits with LEAVES. The others go on to the rendezvous and are numbered anew where they have
numbers. The first node that came conducts the check (taskd/check); its output has the lines that users know.

Failure modes: a node never comes, or comes when the check is over or the job has begun; the conductor is gone; too few
nodes are left; the node that leaves holds the rendezvous. Invariants: every wait has a limit. A node that was not
checked goes on, and says so. It does NOT decide who is at fault (core/check).
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from datetime import timedelta

from torch.distributed import DistError, Store, TCPStore
from torch.distributed.elastic.rendezvous import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.launcher.api import LaunchConfig

from taskd import log
from taskd.board import Board
from taskd.check.command import READ_SECONDS, conducted
from taskd.check.node import Node, Verdict, here
from taskd.core.check.findings import Finding, Report
from taskd.errors import PeerError, UsageError
from taskd.launch.ranks import JOB, MEET_SECONDS, Opened, await_first, parameters_of
from taskd.processes import has_one_of, listening_at

AGAIN_SECONDS = 0.05
_logger = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says of the check."""

    stragglers: bool
    """Slow nodes leave, too."""
    seconds: float
    """How long nodes may take to come, and each to test itself."""


@dataclass(slots=True)
class Checked:
    """What becomes of this node."""

    config: LaunchConfig
    """As it is to be used from here on."""
    backend: Opened | None = None
    """The rendezvous, if it is open already."""
    store: Store | None = None
    """It has to be kept until the nodes have met, since other nodes are connected to it."""
    leaves: Verdict | None = None
    """Why this node does not train."""


def check(config: LaunchConfig, wishes: Wishes) -> Checked:
    """Check the nodes of this job. Raises PeerError if they do not come, or too few of them are left."""
    if config.max_nodes < 2:
        _logger.warning("--network-check: one node has no other to be checked with; `taskd doctor` checks it alone")
        return Checked(config)
    try:
        return _checked(config, wishes)
    except (DistError, RendezvousConnectionError, RuntimeError, OSError) as error:
        why = next(filter(None, map(str, (error.__cause__ or "", error))), type(error).__name__).splitlines()[0]
        raise PeerError(f"the nodes of this job were not checked at {config.rdzv_endpoint}: {why}") from None


def _checked(config: LaunchConfig, wishes: Wishes) -> Checked:
    found = _open(config)
    assert found.store is not None
    board = Board(found.store, config.run_id)
    if board.told(JOB):
        _logger.warning("--network-check: the job has begun already, so this node is not checked")
        return found
    number = config.rdzv_configs["rank"] if config.rdzv_backend == "static" else board.next("check/nodes that came") - 1
    if board.next(f"check/came/{number}") > 1:
        _logger.warning("--network-check: node %d has come before, so it is not checked again", number)
        return found
    node = Node(board.apart(), number, parse_rendezvous_endpoint(config.rdzv_endpoint, 29400)[0])
    try:
        holds = _holds(config)
        board.tell(here(number), holds)
        nodes = _agreed(board, config, number, wishes.seconds)
        if number not in nodes:
            _logger.warning("--network-check: the nodes are being checked without this one, which came too late")
            return found
        holder = next((one for one in nodes if board.look(here(one)) is True), None)
        if number == min(nodes):
            report = conducted(board, node, nodes, wishes.seconds, wishes.stragglers, _say).report
            assert report is not None
            _tell(report)
        else:
            node.run()
            board.try_to_tell(f"check/read/{number}", True)
            if holds:  # the others read their verdicts here
                board.came([f"check/read/{one}" for one in nodes if one != min(nodes)], READ_SECONDS)
    finally:
        node.probe.end()
    if node.verdicts is None:
        board.told(JOB)  # raises an error if it is the board that is gone, since the nodes cannot meet then
        return found
    return _outcome(found, nodes, number, node.verdicts, holder)


def _open(config: LaunchConfig) -> Checked:
    """Open the rendezvous, without taking part in it."""
    if config.rdzv_backend == "c10d":
        backend = create_backend(parameters_of(config))
        return Checked(config, backend, backend[1])
    if config.rdzv_backend != "static":
        raise UsageError(f"--network-check needs the rendezvous c10d or static; {config.rdzv_backend} has no board")
    seconds = float(config.rdzv_configs.get("timeout", MEET_SECONDS))
    host, port = parse_rendezvous_endpoint(config.rdzv_endpoint, -1)
    first = config.rdzv_configs["rank"] == 0
    if not first:
        await_first(config.rdzv_endpoint, seconds)
    # in one process, a second store at the same port uses this one's server: torch's rendezvous opens it so
    store = TCPStore(
        host, port, is_master=first, timeout=timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
    )
    return Checked(config, store=store)


def _agreed(board: Board, config: LaunchConfig, number: int, seconds: float) -> list[int]:
    """Return the nodes that are checked. The first one says which have come."""
    most = max(float(config.rdzv_configs.get("timeout", MEET_SECONDS)), seconds)
    if number:
        return [int(node) for node in board.polled("check/nodes", most)]
    begin = time.monotonic()
    while True:
        came = [node for node in range(config.max_nodes) if board.told(here(node))]
        waited = time.monotonic() - begin
        if len(came) == config.max_nodes or (waited >= seconds and len(came) >= config.min_nodes):
            board.tell("check/nodes", came)
            return came
        if waited >= most:
            raise PeerError(
                f"--network-check: only {len(came)} of the {config.min_nodes} nodes that this job needs have come "
                f"within {most:.0f} s"
            )
        time.sleep(AGAIN_SECONDS)  # the board can wait for all keys, but not for some of them


def _outcome(
    found: Checked, nodes: list[int], number: int, verdicts: dict[int, Verdict], holder: int | None
) -> Checked:
    """Return what becomes of this node. `holder`: the node that holds the rendezvous."""
    config = found.config
    if verdicts[number].line:
        found.leaves = verdicts[number]
        return found
    left = [node for node in nodes if verdicts[node].line]
    stay = [node for node in nodes if node not in left]
    if holder in left:
        raise PeerError(
            f"node {holder}, which holds the rendezvous at {config.rdzv_endpoint}, is {verdicts[holder].finding}: "
            "start the job again, with the rendezvous on another node"
        )
    if len(stay) < config.min_nodes:
        why = "; ".join(f"node {node} is {verdicts[node].finding}: {verdicts[node].reason}" for node in left)
        raise PeerError(f"the check leaves {len(stay)} of the {config.min_nodes} nodes that this job needs: {why}")
    if config.rdzv_backend == "static" and (new := stay.index(number)) != number:
        _logger.warning("node %d is node %d of this job from here on", number, new)
        found.config = replace(config, rdzv_configs={**config.rdzv_configs, "rank": new})
        if "NODE_RANK" in os.environ:
            os.environ["NODE_RANK"] = str(new)
    return found


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _tell(report: Report) -> None:
    for one in report.nodes:
        if one.finding is not Finding.HEALTHY:
            _logger.warning("node %d is %s: %s", one.node, one.finding.value, one.reason)
    for reason in [*(rail.reason for rail in report.rails), *(link.reason for link in report.links)]:
        _logger.warning("%s", reason)


def _holds(config: LaunchConfig) -> bool:
    """Whether this process listens at the port of the rendezvous."""
    if config.rdzv_configs.get("store_type", "tcp") != "tcp":
        return False
    _, port = parse_rendezvous_endpoint(config.rdzv_endpoint, 29400)
    return has_one_of("self", listening_at(port))
