"""A check by itself, without a job: nodes meet at an address, are checked, and each learns what was found about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import DistError, TCPStore

from taskd.board import Board
from taskd.check.conductor import Conductor
from taskd.check.meet import Meet
from taskd.check.node import Node, Verdict, here
from taskd.core.check.findings import Report
from taskd.errors import PeerError

READ_SECONDS = 5.0
"""How long the first node waits for the others to read their verdicts, before the board goes with it."""


class Found(NamedTuple):
    """What a check has found."""

    verdict: Verdict | None
    """About this node. None: nothing is known."""
    report: Report | None = None
    """All of it, on the first node."""
    seconds: float = 0.0
    """How long it took since each node had tested itself."""


def check(meet: Meet, stragglers: bool, say: Callable[[str], None]) -> Found:
    """Check the nodes. `stragglers`: they leave. `say`: print a line that users know. Raises PeerError if the nodes do
    not meet."""
    try:
        store = TCPStore(
            meet.host,
            meet.port,
            is_master=meet.number == 0,
            timeout=timedelta(seconds=meet.seconds),
            wait_for_workers=False,
        )
    except (DistError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        raise PeerError(f"the nodes did not meet at {meet.host}:{meet.port}: {why}") from None
    board = Board(store, "check")
    if board.next(f"check/came/{meet.number}") > 1:
        raise PeerError(f"node {meet.number} is here already: each node needs a --node-rank of its own")
    board.tell(here(meet.number), True)
    if meet.number:
        verdict = Node(board, meet.number, meet.host).run()
        board.try_to_tell(f"check/read/{meet.number}", True)
        return Found(verdict)
    return conducted(board, Node(board.apart(), 0, meet.host), range(meet.nodes), meet.seconds, stragglers, say)


def conducted(
    board: Board, node: Node, nodes: Sequence[int], seconds: float, stragglers: bool, say: Callable[[str], None]
) -> Found:
    """Check the nodes as `node`, the first of them."""
    found: list[Verdict | None] = []
    number = node.number
    thread = threading.Thread(target=lambda: found.append(node.run()), name="taskd-check", daemon=True)
    thread.start()
    conductor = Conductor(board, nodes, say, number, stragglers)
    try:
        report = conductor.run(seconds)
    finally:
        thread.join(READ_SECONDS)
        node.probe.end()
    # who has left is not waited for
    silent = {one.node for one in report.nodes if "the manager" in one.witnesses}
    board.came([f"check/read/{other}" for other in nodes if other != number and other not in silent], READ_SECONDS)
    return Found((found or [None])[0], report, conductor.seconds)
