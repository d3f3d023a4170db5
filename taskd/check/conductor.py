"""The conductor of a check, in the first node's launcher: it hands out turns, gathers answers, and tells the verdicts.

What is tested, and what follows from it, is decided by the core (core/check). Failure modes: a node never comes, leaves
half-way, or answers nonsense. Invariant: every wait has a limit, and whoever does not answer within it is silent.
"""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from taskd import log
from taskd.board import Board
from taskd.check import rails, words
from taskd.check.node import START_SECONDS, here
from taskd.core.check.check import Check
from taskd.core.check.facts import Answers, Contact, Outcome, SelfTest, Side, Turn
from taskd.core.check.findings import Finding, NodeVerdict, Report
from taskd.core.check.lines import leaving_line, round_line
from taskd.core.limits import CHECK_PAIR_NS, SECOND
from taskd.errors import PeerError

SLACK_SECONDS = 1.5
"""How much longer than a turn's limit its answers are waited for: they have to travel."""
REST_SECONDS = 3.0
"""How long the check rests before another round, if a node was late."""
GRACE_SECONDS = 0.3
"""How long the answers of nodes are waited for that were silent before."""
TOKEN_BYTES = 16
_logger = log.get(__name__)


class Conductor:
    """One check of nodes."""

    def __init__(
        self, board: Board, nodes: Collection[int], say: Callable[[str], None], beside: int | None, stragglers: bool
    ) -> None:
        """`say`: print a line that users know. `beside`: the node on whose host this is. `stragglers`: they leave."""
        self._board, self._nodes, self._say = board, sorted(nodes), say
        self._beside, self._stragglers = beside, stragglers
        self._silent = set[int]()
        self._untested: dict[int, str] = {}
        """Nodes that cannot be tested, each with the reason. They stay."""
        self.seconds = 0.0
        """How long the tests took."""
        self._titles: dict[int, dict[str, str]] = {}
        """The names of each node's rails in verdicts."""

    def run(self, seconds: float) -> Report:
        """Check the nodes. `seconds`: how long they may take until each has tested itself. Raises PeerError if the
        board is gone."""
        number, verdicts = 0, dict[str, list[str]]()
        try:
            own, contacts = self._meet(seconds)
            begin = time.monotonic()
            self._nodes = [node for node in self._nodes if node not in self._untested]
            check = Check(self._nodes, own, contacts, self._beside)
            turn, said, late = check.turn, 0, False
            while turn is not None:
                if turn.round > said:
                    self._say(round_line(said, check.elapsed(said)))
                    said = turn.round
                    if late:
                        time.sleep(REST_SECONDS)  # who was held up may answer then, and is not taken for down
                    late = False
                answers = self._play(turn, number)
                late |= self._is_late(answers)
                turn, number = check.take(answers), number + 1
            assert check.report is not None
            if check.report.rounds > said:
                self._say(round_line(said, check.elapsed(said)))
            report = self._with_untested(check.report)
            verdicts, self.seconds = self._verdicts(report), time.monotonic() - begin
            return report
        finally:
            for ahead in range(2):  # an error may have come in the middle of a turn, whose orders the nodes have read
                self._board.try_to_tell(f"check/turn/{number + ahead}", {"verdicts": verdicts})

    def _is_late(self, answers: Answers) -> bool:
        """Whether a node that has come, and whose probe runs, has not answered in time."""
        ended = {node for node, contact in answers.contacts if contact is Contact.ENDED}
        return any(
            side is None and node in self._titles and node not in ended
            for outcome in answers.outcomes
            for node, side in zip(outcome.nodes, outcome.sides, strict=True)
        )

    def _with_untested(self, report: Report) -> Report:
        untested = [
            NodeVerdict(node, Finding.UNDECIDED, (), f"it cannot be tested: {why}", ())
            for node, why in self._untested.items()
        ]
        return replace(report, nodes=tuple(sorted((*report.nodes, *untested), key=lambda one: one.node)))

    def _meet(self, seconds: float) -> tuple[dict[int, SelfTest], dict[int, Contact]]:
        """Wait until each node has tested itself."""
        self._board.came([here(node) for node in self._nodes], seconds)
        came = [node for node in self._nodes if self._board.told(here(node))]
        self._silent = {node for node in self._nodes if node not in came}
        told = self._gather("check/node", self._nodes, START_SECONDS)
        self._titles = rails.titles({node: rails.read(answer.get("rails")) for node, answer in told.items()})
        for node, answer in told.items():
            if why := answer.get("cannot"):
                self._untested[node] = "".join(filter(str.isprintable, str(why)))
        return {node: one for node in told if (one := self._self_test(node, told[node])) is not None}, self._contacts(
            told
        )

    def _play(self, turn: Turn, number: int) -> Answers:
        """Let the nodes play a turn. Return what they answer."""
        pairs = [[*pair, secrets.token_hex(TOKEN_BYTES)] for pair in turn.pairs]
        self._board.tell(
            f"check/turn/{number}",
            {"round": turn.round, "again": turn.again, "pairs": pairs, "pair_ns": CHECK_PAIR_NS},
        )
        told = self._gather(f"check/answer/{number}", self._nodes, turn.limit_ns / SECOND + SLACK_SECONDS)
        sides = {node: self._side(node, answer) for node, answer in told.items()}
        outcomes = tuple(Outcome(pair, (sides.get(pair[0]), sides.get(pair[1]))) for pair in turn.pairs)
        again = [
            (node, one)
            for node in turn.again
            if node in told and (one := self._self_test(node, told[node])) is not None
        ]
        return Answers(outcomes, tuple(self._contacts(told).items()), tuple(again))

    def _gather(self, key: str, nodes: Collection[int], seconds: float) -> dict[int, dict[str, Any]]:
        """Return what nodes have written under this key within so much time. Those that were silent before get none."""
        keys = {node: f"{key}/{node}" for node in nodes}
        awaited = [keys[node] for node in nodes if node not in self._silent]
        if awaited:
            self._board.came(awaited, seconds)
        if len(awaited) < len(keys):
            self._board.came([*keys.values()], GRACE_SECONDS)
        found = {node: answer for node in nodes if isinstance(answer := self._board.look(keys[node]), dict)}
        self._silent = {node for node in self._nodes if node not in found}
        return found

    def _contacts(self, told: dict[int, dict[str, Any]]) -> dict[int, Contact]:
        return {
            node: Contact.SILENT
            if node not in told
            else Contact.ENDED
            if told[node].get("ended") is True
            else Contact.HEARD
            for node in self._nodes
        }

    def _self_test(self, node: int, answer: dict[str, Any]) -> SelfTest | None:
        """Read what a node says of itself, with the names that its rails have in verdicts. None: it is no answer."""
        one: SelfTest | None = _read(words.self_test, answer.get("self"))
        title = self._titles.get(node, {})
        return one and replace(one, rails=tuple((title.get(name, name), way) for name, way in one.rails))

    def _side(self, node: int, answer: dict[str, Any]) -> Side | None:
        """The same for what it says of a test."""
        one: Side | None = _read(words.side, answer.get("side"))
        title = self._titles.get(node, {})
        return one and replace(one, legs=tuple(replace(leg, rail=title.get(leg.rail, leg.rail)) for leg in one.legs))

    def _verdicts(self, report: Report) -> dict[str, list[str]]:
        return {
            str(one.node): [one.finding.value, one.reason, leaving_line(one, self._stragglers)] for one in report.nodes
        }


def as_json(report: Report, seconds: float) -> dict[str, Any]:
    """Return the verdicts as they are written to a file."""

    def plain(value: Any) -> Any:
        return getattr(value, "value", value)

    def row(verdict: Any) -> dict[str, Any]:
        return {name: plain(value) for name, value in dataclasses.asdict(verdict).items()}

    return {
        "nodes": [row(one) for one in report.nodes],
        "rails": [row(one) for one in report.rails],
        "links": [row(one) for one in report.links],
        "rounds": report.rounds,
        "turns": report.turns,
        "seconds": round(seconds, 3),
    }


def _read(read: Callable[[Any], Any], said: Any) -> Any:
    """Return an answer, or None if it is none."""
    try:
        return None if said is None else read(said)
    except PeerError:
        return None
