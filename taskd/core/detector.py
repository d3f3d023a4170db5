"""The detector: when does a node's silence mean something?

A crash needs no detector: the node's own agent proves it. Silence proves nothing by itself, so it is weighed in two
steps. A node that stays silent for longer than its own rhythm explains (smoothed mean and four deviations of its gaps,
within a floor and a ceiling) makes its ranks SUSPECT; a second witness (its connection broke, a collective elsewhere
failed), or a very long silence, makes them DEAD. What can go wrong, and what follows:

- *The manager slept*: all times here are of its waking hours, the caller's matter; no node looks silent for that.
- *The manager restarted*: every baseline starts anew.
- *A busy node*: the floor is longer than any stall that was measured; jitter widens the threshold.
- *A starved node*: its silence is seen by all who wait for its ranks. That their operations are late, or end after
  their time limit, is the same silence seen from elsewhere and no second witness: nothing has broken.
- *A side agent died, its workers live*: its broken connection is no witness, and as long as ranks elsewhere finish
  steps, which they could not without these, silence alone is none either.
- *A launcher is stopped, its workers live*: as long as ranks elsewhere finish steps, silence alone is no witness. Where
  no node at all is heard, nobody could take over, and it may be the manager that is cut off: a broken connection is no
  witness for that, and whose connection stands is waited for, as long as for any stage of a repair. When one is
  heard again, the others' time begins anew.
- *A witness long before the silence, or a connection that came back*: it has expired, or is forgotten.

Cost: a report touches four fields of its node. One heap entry per node, moved only when it falls due: a node that
reports ten times a second costs about two heap operations a second. Not here: what follows from a verdict.
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
        self._checks: list[tuple[int, bool, str]] = []  # when, whether it is silent, who
        self._nodes: dict[str, NodeRecord] = {}
        self._silent: dict[str, NodeRecord] = {}
        self._deaf_until = 0  # nobody at all was heard just before
        self._away_until: int | None = None  # the manager was; whose connection broke meanwhile it was not told
        self._collective_error_at: int | None = None
        self._collective_witness: tuple[str, str] = ("", "")

    def watch(self, node: NodeRecord, now: int) -> None:
        """From now on this node is expected to speak (a new one, or one that is back)."""
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
        """Its silence means nothing any more: it has left, or was given up."""
        self._nodes.pop(node.name, None)
        self._silent.pop(node.name, None)
        node.check_at = None

    def rebase(self, now: int) -> None:
        """The manager was away: nobody could be heard, so everybody was just heard."""
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
        """The transport says that a node's agent is gone. Worth something only beside silence."""
        node.connection_lost_at = now
        if node.name in self._silent:
            self._check(node, now)

    def collective_error(self, node: NodeRecord | None, witness: str, by: str, now: int) -> None:
        """A rank on node `by` saw a collective fail, because of somebody on `node` if it could tell."""
        if node is not None:
            if node.name != by:
                node.collective_error_at, node.witness = now, witness
        else:
            self._collective_error_at, self._collective_witness = now, (by, witness)
        for silent in self._silent.values():
            self._check(silent, now)

    def explained(self, node: NodeRecord, died: Sequence[int]) -> None:
        """Ranks of this node died, as its agent says: that is what others saw, and no witness for silence."""
        if died:
            node.collective_error_at = self._collective_error_at = None

    def _second_witness(self, node: NodeRecord, now: int) -> str:
        """The words of a witness whose word is still good; empty: there is none."""
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
        """When `verdict` has to be asked again."""
        while self._checks and not self._current(self._checks[0]):
            heappop(self._checks)
        return self._checks[0][0] if self._checks else None

    def verdict(self, now: int, progress_at: int | None, progress_node: str, others: bool) -> Verdict | None:
        """One thing that silence means by now, to be applied before the next is asked for; None: nothing (more).

        `progress_at`, `progress_node`: when and where a rank was last seen to go on to another step. `others`: there
        are ranks whose nodes are not silent.
        """
        while (due := self.next_check()) is not None and due <= now:
            _, silent, name = heappop(self._checks)
            node = self._nodes[name]
            node.check_at = None
            if silent and due < now:  # who else has fallen silent by now is found first
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
        """The verdict SUSPECT was applied: look for a second witness, now and later."""
        self._silent[node.name] = node
        self._check(node, now)

    def _weigh(self, node: NodeRecord, now: int, age_ns: int, progress_at: int | None, others: bool) -> Verdict | None:
        """A silent node: dead, or to be looked at again later."""
        silence = self._silence_words(node, age_ns)
        # If nobody is left to be heard, it is more likely this manager that is cut off, and training may well go on.
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
        """When its silence alone is enough."""
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
