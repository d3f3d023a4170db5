"""The detector: decides when the silence of a node means that the node is suspect or dead.

A crash needs no detector: the node's own agent proves it. Silence alone proves nothing, so it is judged in two steps.
First, a node that is silent for longer than its own rhythm explains makes its ranks SUSPECT. (Its rhythm: smoothed mean
plus four deviations of its gaps, within a floor and a ceiling.) Then a second witness (its connection broke, a
collective elsewhere failed), or a very long silence, makes them DEAD. What can go wrong, and what follows:

- *The manager slept*: all times here are the manager's waking time, which the caller provides. No node looks silent
  because the manager slept.
- *The manager restarted*: every baseline starts anew.
- *A busy node*: the floor is longer than any stall that was measured, and jitter widens the threshold.
- *A starved node*: all ranks that wait for its ranks see its silence, too. Their operations are late, or end after
  their time limit. That is the same silence seen from elsewhere and no second witness: nothing has broken.
- *A side agent died, its workers live*: its broken connection is no witness. While ranks elsewhere finish steps, which
  needs these workers, silence alone is no witness either.
- *A launcher is stopped, its workers live*: while ranks elsewhere finish steps, silence alone is no witness. If no node
  at all is heard, no node could take over, and perhaps the manager is cut off. Then a broken connection is no witness.
  A node whose connection stands gets as much time as any stage of a repair. When one node is heard again, the time of
  the others begins anew.
- *A witness from long before the silence, or a connection that came back*: the witness has expired, or is forgotten.

Cost: a report touches four fields of its node. Each node has one heap entry, which moves only when it is due: a node
that reports ten times a second costs about two heap operations a second. Not here: what follows from a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from taskd.core import limits
from taskd.core.events import Verdict
from taskd.core.records import NodeRecord, NodeState
from taskd.core.times import lately
from taskd.core.types import RankState
from taskd.core.words import milliseconds


def threshold_ns(node: NodeRecord) -> int:
    """How long this node may be silent before it is suspected."""
    learned = round(node.gap_mean_ns + 4 * node.gap_deviation_ns)
    within = min(max(learned, limits.SILENCE_FLOOR_NS), limits.SILENCE_CEILING_NS)
    return max(within, 3 * node.interval_ns)


class Detector:
    """Watches the rhythm of all nodes. `now` is always the manager's waking time."""

    def __init__(self) -> None:
        self._checks: list[tuple[int, bool, str]] = []  # the time, whether the node is silent, the node's name
        self._nodes: dict[str, NodeRecord] = {}
        self._silent: dict[str, NodeRecord] = {}
        self._deaf_until = 0  # until then no node at all was heard
        self._away_until: int | None = None  # until then the manager was away, and was told of no broken connection
        self._collective_error_at: int | None = None
        self._collective_witness: tuple[str, str] = ("", "")

    def watch(self, node: NodeRecord, now: int) -> None:
        """Expect reports of this node from now on (a new node, or one that is back)."""
        if self._nobody_is_heard:
            self._deaf_until = now
        self._nodes[node.name] = node
        self._silent.pop(node.name, None)
        node.heard_at = now
        node.connection_lost_at = node.collective_error_at = None
        self._check(node, now + threshold_ns(node))

    def heard(self, node: NodeRecord, now: int) -> None:
        """A message of a node that is watched and not silent."""
        gap = now - node.heard_at
        node.heard_at = now
        surprise = gap - node.gap_mean_ns
        node.gap_mean_ns += surprise / 8
        node.gap_deviation_ns += (abs(surprise) - node.gap_deviation_ns) / 4

    def forget(self, node: NodeRecord) -> None:
        """Watch this node no longer: it has left, or was given up."""
        self._nodes.pop(node.name, None)
        self._silent.pop(node.name, None)
        node.check_at = None

    def rebase(self, now: int) -> None:
        """The manager was away and could hear no node, so every node counts as just heard."""
        self._collective_error_at = None
        self._away_until = now
        for node in list(self._nodes.values()):
            if node.state is NodeState.UP:
                self.watch(node, now)
            else:
                node.heard_at = now
                node.connection_lost_at = node.collective_error_at = None
                self._check(node, now + limits.SILENCE_ALONE_NS)

    # ---- witnesses --------------------------------------------------------------------------------------------

    def connection_lost(self, node: NodeRecord, now: int) -> None:
        """The transport says that a node's agent is gone. This counts only together with silence."""
        node.connection_lost_at = now
        if node.name in self._silent:
            self._check(node, now)

    def collective_error(self, node: NodeRecord | None, witness: str, by: str, now: int) -> None:
        """A rank on node `by` saw a collective fail, because of a rank on `node` if it could tell."""
        if node is not None:
            if node.name != by:
                node.collective_error_at, node.witness = now, witness
        else:
            self._collective_error_at, self._collective_witness = now, (by, witness)
        for silent in self._silent.values():
            self._check(silent, now)

    def explained(self, node: NodeRecord, died: Sequence[int]) -> None:
        """Ranks of this node died, as its agent says. This is what the others saw, so it is no witness for silence."""
        if died:
            node.collective_error_at = self._collective_error_at = None

    def _second_witness(self, node: NodeRecord, now: int) -> str:
        """Return the words of a witness that is still valid. Empty: there is none."""
        if node.spawns and lately(node.connection_lost_at, now, limits.WITNESS_NS):
            return "its connection broke"
        if lately(node.collective_error_at, now, limits.WITNESS_NS):
            return node.witness
        by, witness = self._collective_witness
        if lately(self._collective_error_at, now, limits.WITNESS_NS) and by != node.name:
            return witness
        return ""

    # ---- verdicts ---------------------------------------------------------------------------------------------

    def next_check(self) -> int | None:
        """Return when `verdict` has to be called again."""
        while self._checks and not self._current(self._checks[0]):
            heappop(self._checks)
        return self._checks[0][0] if self._checks else None

    def verdict(self, now: int, progress_at: int | None, progress_node: str, others: bool) -> Verdict | None:
        """Return one verdict about silence, to be applied before the next call. None: there is no (further) verdict.

        `progress_at`, `progress_node`: when and where a rank was last seen to go on to another step. `others`: there
        are ranks whose nodes are not silent.
        """
        while (due := self.next_check()) is not None and due <= now:
            _, silent, name = heappop(self._checks)
            node = self._nodes[name]
            node.check_at = None
            if silent and due < now:  # first find the other nodes that have fallen silent by now
                self._check(node, now)
                continue
            age = now - node.heard_at
            if node.state is NodeState.UP:
                if age >= threshold_ns(node):
                    return Verdict(name, RankState.SUSPECT, age, self._silence_words(node, age))
                self._check(node, node.heard_at + threshold_ns(node))
                continue
            verdict = self._weigh(node, now, age, progress_at if progress_node != name else None, others)
            if verdict is not None:
                return verdict
        return None

    def suspect(self, node: NodeRecord, now: int) -> None:
        """The verdict SUSPECT was applied: check for a second witness, now and later."""
        self._silent[node.name] = node
        self._check(node, now)

    def _weigh(self, node: NodeRecord, now: int, age_ns: int, progress_at: int | None, others: bool) -> Verdict | None:
        """Decide whether a silent node is dead, or has to be checked again later."""
        silence = self._silence_words(node, age_ns)
        # If no node is heard, more likely this manager itself is cut off, and training may well go on.
        witness = self._second_witness(node, now) if others or not node.ranks else ""
        if witness:
            return Verdict(node.name, RankState.DEAD, age_ns, f"{silence} and {witness}")
        alone_at = self._alone_at(node)
        if now < alone_at:
            self._check(node, min(alone_at, now + limits.SILENCE_ALONE_NS))
            return None
        if progress_at is not None and lately(progress_at, now, limits.WITNESS_NS):
            self._check(node, progress_at + limits.WITNESS_NS + 1)
            return None
        return Verdict(node.name, RankState.DEAD, age_ns, f"{silence}, too long to wait for a second witness")

    @property
    def _nobody_is_heard(self) -> bool:
        return 0 < len(self._nodes) == len(self._silent)

    def _alone_at(self, node: NodeRecord) -> int:
        """Return when its silence alone is enough."""
        lost_at, away_until = node.connection_lost_at, self._away_until
        stands = (lost_at is None or lost_at < node.heard_at) and (away_until is None or away_until < node.heard_at)
        if not node.spawns or not stands:
            return node.heard_at + limits.SILENCE_ALONE_NS
        if self._nobody_is_heard:
            return node.heard_at + limits.LONGEST_STAGE_NS
        return max(node.heard_at, self._deaf_until) + limits.SILENCE_ALONE_NS

    @staticmethod
    def _silence_words(node: NodeRecord, age_ns: int) -> str:
        return f"node {node.name} has been silent for {milliseconds(age_ns)} ms"

    def _check(self, node: NodeRecord, at: int) -> None:
        if node.check_at != at:
            node.check_at = at
            heappush(self._checks, (at, node.state is not NodeState.UP, node.name))

    def _current(self, check: tuple[int, bool, str]) -> bool:
        node = self._nodes.get(check[2])
        return node is not None and node.check_at == check[0]
