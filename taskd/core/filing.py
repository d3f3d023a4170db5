"""Files a node's beat: takes each report into the record of its rank, and returns which of them are news.

A report that changes nothing costs one comparison per rank and no allocation. No report makes this code walk the whole
job. What can go wrong, and what follows:

- *An older incarnation reports*: if it lives, it is refused. If it is dead, it is confirmed, so that its agent stops
  repeating it.
- *Two processes claim a rank*: the known process stays. The other one is refused until the first is gone.
- *An incarnation number belongs to a dead process* (its agent has lost its memory): the live process has to come back
  under the next number.
- *A verdict was wrong* (the node was only cut off): a rank that was not replaced simply returns.

Invariant: no report brings back a rank whose process is known to have ended. Not here: which rank sits on which node
(membership), duplicate and late messages, and what is done about news (nodes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.membership import Membership
from taskd.core.messages import Confirmed, RankReport, Refused
from taskd.core.records import LIVE, RANK, NodeRecord, RankCause, RankRecord
from taskd.core.types import Phase, RankState


@dataclass(slots=True)
class Filed:
    """What one report changed: the ranks by what happened to them, and what to answer the agent."""

    joined: list[int] = field(default_factory=list)
    died: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    returned: list[int] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    rivals: list[int] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)  # another incarnation took the seat of a live one
    confirmed: list[Confirmed] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class Filing:
    """Takes the reports of agents into the records of their ranks."""

    def __init__(self, members: Membership) -> None:
        self._members = members

    def file(self, node: NodeRecord, reports: tuple[RankReport, ...], now: int) -> Filed | None:
        """Take a node's beat. None: nothing changed that needs an action (the quiet path)."""
        filed: Filed | None = None
        ranks = self._members.ranks
        size = len(ranks)
        for report in reports:
            rank = report.rank
            if rank >= size:
                self._members.counters.count("rank beyond the world size")
                continue
            record = ranks[rank]
            last = record.report
            if (
                last is not None
                and report.acknowledged
                and record.node is node
                and not record.watched
                and (report.phase is not Phase.DONE or last.phase is Phase.DONE)
                and report.state is last.state
                and report.incarnation == last.incarnation
                and report.epoch == last.epoch
                and report.stage is last.stage
                and report.updates == last.updates
                and report.ok == last.ok
                and report.pid == last.pid
                and report.saves is last.saves
                and report.part == last.part
            ):
                if report.step > last.step:
                    self._members.went_on(node, report, now)
                record.report = report
                continue
            if filed is None:
                filed = Filed()
            self._file(node, record, report, now, filed)
        return filed

    def _file(self, node: NodeRecord, record: RankRecord, report: RankReport, now: int, filed: Filed) -> None:
        if report.incarnation < record.incarnation or (report.incarnation == 0 and report.state in LIVE):
            self._stale(node, record, report, filed)
        elif report.incarnation == record.incarnation:
            self._same(node, record, report, now, filed)
        elif report.incarnation - record.incarnation > limits.MAX_LIVES:
            self._members.counters.count("incarnation out of reach")
            text = f"rank {report.rank} cannot be in incarnation {report.incarnation} after {record.incarnation}"
            filed.refused.append(Refused(report.rank, report.incarnation, 0, text))
        elif record.live and record.node is not node and not node.spawns:
            self._rival(node, record, report, filed)
        else:
            # This manager does not remember an order for this incarnation. Our launchers start no rank without an
            # order, so the manager has lost its journal. Elsewhere another launcher has started it. Seat it anew.
            if record.live and record.incarnation > 0:
                filed.replaced.append(record.rank)
            self._members.seat(record, report.incarnation, node)
            self._same(node, record, report, now, filed)

    def _stale(self, node: NodeRecord, record: RankRecord, report: RankReport, filed: Filed) -> None:
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        if not node.spawns and (record.node is node or not record.live):
            # A side agent numbers processes that others start. A new one does not know its predecessor's last number.
            if record.live and record.pid == report.pid:
                self._ask_back(report, record.incarnation, filed)
                return
            if self._members.kill(record, 0, True, f"process {report.pid} runs in its place"):
                filed.died.append(record.rank)
            self._number_taken(record, report, filed)
            return
        self._members.counters.count("stale incarnation")
        text = f"rank {report.rank} goes on as incarnation {record.incarnation} on node {record.where}"
        filed.refused.append(Refused(report.rank, report.incarnation, 0, text))

    def _rival(self, node: NodeRecord, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """A process on another node claims a rank whose known process still lives."""
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        self._members.counters.count("rank claimed twice")
        text = f"rank {report.rank} is held by process {record.pid} on node {record.where}"
        filed.refused.append(Refused(report.rank, report.incarnation, 0, text))
        if node.name not in record.rivals:
            record.rivals.add(node.name)
            node.former_ranks.add(record.rank)
            filed.rivals.append(report.rank)

    def _same(self, node: NodeRecord, record: RankRecord, report: RankReport, now: int, filed: Filed) -> None:
        """Take a report of the same incarnation that is on record."""
        if record.node is not node:
            if record.live:
                self._rival(node, record, report, filed)
                return
            if record.node is not None:
                self._number_taken(record, report, filed)
                return
            record.node = node
            node.ranks.add(record.rank)
        elif record.pid not in (0, report.pid) and report.pid and record.state is not RankState.STARTING:
            # An agent speaks for its node: if it reports another process, the known one is gone.
            if self._members.kill(record, 0, True, f"process {report.pid} runs in its place"):
                filed.died.append(record.rank)
            self._number_taken(record, report, filed)
            return
        if report.state in LIVE and record.state in (RankState.DEAD, RankState.LEFT):
            if record.given_up is not None:
                self._members.counters.count("report of a rank that was given up")
                return
            if record.proved:
                self._number_taken(record, report, filed)
                return
            self._members.move(record, RankCause.RETURNED)
            filed.returned.append(record.rank)
        last = record.report
        self._members.keep_steps(record)  # a new agent may know less of a process than the one before
        record.report = report
        record.pid = report.pid or record.pid
        self._follow(record, report, filed)
        if last is None or report.step > last.step or report.updates > last.updates:
            self._members.went_on(node, report, now)
        if not report.acknowledged:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
        filed.moved.append(record.rank)

    def _number_taken(self, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """The number of this process belongs to an ended one; its agent forgot. If it lives, it gets the next one."""
        if report.state not in LIVE:
            filed.confirmed.append(Confirmed(report.rank, report.incarnation))
            return
        self._members.counters.count("incarnation of an ended process")
        self._ask_back(report, record.incarnation + 1 if record.incarnation < limits.MAX_INCARNATION else 0, filed)

    @staticmethod
    def _ask_back(report: RankReport, incarnation: int, filed: Filed) -> None:
        text = (
            f"incarnation {report.incarnation} of rank {report.rank} has ended; this one is {incarnation or 'too many'}"
        )
        filed.refused.append(Refused(report.rank, report.incarnation, incarnation, text))

    def _follow(self, record: RankRecord, report: RankReport, filed: Filed) -> None:
        """Change the rank's state to what the report says of its process."""
        if report.state is RankState.DEAD:
            if self._members.kill(record, report.exit_code, True, report.reason):
                filed.died.append(record.rank)
        elif report.state is RankState.LEFT:
            if RANK.allows(record.state, RankCause.LEFT):
                self._members.move(record, RankCause.LEFT)
                record.proved = True
                filed.left.append(record.rank)
        elif report.state is RankState.STARTING:
            if RANK.allows(record.state, RankCause.STARTED):
                self._members.move(record, RankCause.STARTED)
        elif record.state is RankState.SUSPECT:
            self._members.move(record, RankCause.RETURNED)
        elif report.state is RankState.ALIVE and RANK.allows(record.state, RankCause.JOINED):
            self._members.move(record, RankCause.JOINED)
            filed.joined.append(record.rank)
