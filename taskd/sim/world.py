"""One simulated job: the loop, the network, manager, nodes and crowd together, and what they ask of each other.

It starts the workers at the very beginning, as the job's launcher does. If the launcher is external, it starts them
again each time a worker has died. It knows which ends of a job are justified. The course of a story is in `phases`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskd.core import limits
from taskd.core.effects import EndJob
from taskd.core.events import ManagerEvent
from taskd.core.messages import Evidence, RailOrder, Report
from taskd.core.types import EvidenceKind
from taskd.sim.crowd import Group
from taskd.sim.manager import SimManager
from taskd.sim.node import SimNode
from taskd.sim.pauses import SimPauses
from taskd.sim.proofs import SimProofs
from taskd.sim.rail_watch import RailChecks
from taskd.sim.rails import Cables, crews_of
from taskd.sim.scenario import RAIL_RANKS, RAILS, Options
from taskd.sim.setting import Machines, Setting
from taskd.sim.stand_watch import StandWatch
from taskd.sim.watch import Violation
from taskd.sim.worker import SimWorker

MS = 1_000_000
SECOND = 1_000_000_000

KNOWN_NS = limits.FULL_REPORT_NS + 2 * SECOND
"""This long after the first step, a running manager knows that the job has begun to train."""


class World(Setting):
    """Everything of one story except its faults."""

    def __init__(self, options: Options, machines: Machines) -> None:
        super().__init__(options, machines)
        scenario = self.scenario
        self.crowd.when_completed = self._completed
        self.crowd.when_fresh = self.started_from_nothing
        self.ending = False
        self.capacity_short_at = -1
        self.harms: list[int] = []
        self.wasted: dict[int, int] = {}  # time at which an agent ended a process -> the updates that it held
        self.returning: set[str] = set()  # lost nodes and dead launchers that will come back
        self._relaunching = False
        self.nodes: dict[str, SimNode] = {}
        self.manager = SimManager(self)
        for number in range(scenario.nodes + scenario.spares):
            name = f"n{number}"
            self.nodes[name] = SimNode(self, name)
        self.cables = Cables(RAILS) if options.ranks <= RAIL_RANKS and options.kinds else None
        self.rail_checks = RailChecks(self.manager, self.nodes, self.cables)
        self.proofs = SimProofs(self)
        self.pauses = SimPauses(self, self.manager)
        self.stands = StandWatch(self, self.manager, self.nodes, lambda: len(self.harms) + sum(self.struck.values()))

    # ---- what shells ask ---------------------------------------------------------------------------------------

    def workers(self) -> list[SimWorker]:
        """All living processes, in the order of their nodes and starts."""
        return [worker for node in self.nodes.values() for worker in node.workers.values() if worker.alive]

    def with_rails(self, node: str, message: Any) -> Any:
        """The report with the rail counters that the node's agent reads."""
        if self.cables is None or not isinstance(message, Report):
            return message
        crews = crews_of(((worker.home.name, worker) for worker in self.workers()), lambda worker: worker.training)
        return replace(message, rails=self.cables.reports(node, crews, self.loop.now))

    def manager_lives(self) -> bool:
        """Whether the manager lives, so that an agent can connect."""
        return self.manager.alive

    # ---- what shells tell --------------------------------------------------------------------------------------

    def worker_started(self, worker: SimWorker) -> None:
        """A worker was started in place of another one."""
        if self.strikes("setup"):
            self.harm()
            worker.plan = "setup"
            worker.harmed = True

    def worker_died(self, worker: SimWorker, exit_code: int) -> None:
        """A process has ended. Peers may see their collective fail. An external launcher starts the whole job again."""
        crowd = self.crowd
        if exit_code:
            self.watch.starts.died(worker.rank, worker.pid, self.loop.now, self.watch.steps)
        if exit_code and crowd.current is not None and worker.rank in crowd.current.resumed and self.rng.random() < 0.5:
            witnesses = [other for other in crowd.current.resumed.values() if other.group is crowd.current]
            if witnesses:
                witness = self.rng.choice(witnesses)
                assert isinstance(witness, SimWorker)
                self.accuse(witness, worker, self.rng.randint(1 * MS, 500 * MS))
        if exit_code and not self.scenario.launches and not self.ending:
            self._relaunch()

    def accuse(self, witness: SimWorker, accused: SimWorker, delay_ns: int) -> None:
        """A rank reports that its collective failed against another."""
        accused.home.accused = True
        evidence = Evidence(
            EvidenceKind.COLLECTIVE_ERROR,
            accused.rank,
            accused.incarnation,
            witness.rank,
            0,
            "connection reset by peer",
        )
        self.loop.after(delay_ns, self._accuse, witness, evidence)

    def _accuse(self, witness: SimWorker, evidence: Evidence) -> None:
        if witness.alive:
            witness.home.worker_says(witness, evidence)

    def ends(self, worker: SimWorker, reason: str) -> None:
        """An agent ends a process. It must not be an unharmed one that trains in the newest group."""
        self.watch.starts.ordered(worker.pid)
        if self.proofs.found and "goes on as incarnation" in reason:
            return  # every rank's state is in doubt then, and all start over
        group = worker.group
        trains = group is not None and group is self.crowd.current and group.running() and self.crowd.last_progress_at
        if trains and not worker.harmed and not worker.home.disturbed and not self.over():
            raise Violation("healthy-stays", f"{worker} trained in good health and is ended: {reason}")
        held = worker.updates if group is None else group.held_by(worker, self.loop.now)
        if held > 0 and self._known_to_train() and not worker.harmed and not worker.out_of_reach():
            self.wasted[self.loop.now] = max(held, self.wasted.get(self.loop.now, 0))

    def _known_to_train(self) -> bool:
        """Whether a step was made, and the manager has had the time to hear of it."""
        return self.crowd.trained_at >= 0 and self.loop.now - self.crowd.trained_at > KNOWN_NS

    def started_from_nothing(self) -> None:
        """All ranks start over with fresh parameters. No rank with more updates may have been ended for that."""
        repairs = [incident for incident in self.manager.incidents() if incident["kind"] != "rail"]
        since = max((incident["opened_at_ns"] for incident in repairs), default=0)
        held = max((held for at, held in self.wasted.items() if at >= since), default=0)
        if held and not self._earned() and not self.watch.apart():
            raise Violation(
                "nothing-lost", f"all ranks start from nothing; one that held {held} updates was ended for it"
            )

    def job_ended(self, end: EndJob) -> None:
        """The manager says that the job is over: with code 0 at the end of training, or with a justified reason."""
        self.ended = end
        self.loop.tell("job", end)
        if end.exit_code == 0:
            if not self.ending:
                raise Violation("live", f"the job was ended as complete while it trained: {end.reason}")
        elif not self._earned():
            raise Violation("live", f"the job was given up without need: {end.reason}")

    def _earned(self) -> bool:
        """Whether the ladder had really ended: too many restarts, no room, no attempts left, or no set-up succeeds."""
        codes = self.codes.values()
        if len(codes) == self.scenario.options.ranks and min(codes) > 0 and not self._known_to_train():
            return True
        most = max(self.restarts.values(), default=0)
        if most >= self.scenario.max_restarts:
            return True
        recent = limits.DEADLINE_SPARE_NS + limits.SILENCE_ALONE_NS
        if self.capacity_short_at >= 0 and self.loop.now - self.capacity_short_at <= recent:
            return True
        return any(self._used_up(incident) for incident in self.manager.incidents())

    def _used_up(self, incident: dict[str, Any]) -> bool:
        """Whether an incident has used up its attempts because of enough faults. A repair may not fail by itself."""
        since = incident["opened_at_ns"] - limits.SILENCE_ALONE_NS
        went_wrong = sum(1 for at in self.harms if at >= since)
        return bool(incident["attempts"] >= limits.MAX_ATTEMPTS and went_wrong >= limits.MAX_ATTEMPTS)

    def harm(self) -> None:
        """Note that something goes wrong now that may make a repair fail."""
        self.harms.append(self.loop.now)

    def count_capacity(self) -> None:
        """Note when the nodes that can be reached had too little room for all ranks."""
        self.loop.after(0, self._count_capacity)

    def _count_capacity(self) -> None:
        reachable = [
            node
            for node in self.nodes.values()
            if node.core is not None and not self.network.is_cut(node.name, "manager")
        ]
        if len(reachable) * self.scenario.per_node < self.scenario.options.ranks:
            self.capacity_short_at = self.loop.now
            self.loop.after(1 * SECOND, self._count_capacity)

    def wrote(self, event: ManagerEvent) -> None:
        """The manager has written this into its journal."""
        self.proofs.verdict(event)
        self.stands.verdict(event)

    def rails_ordered(self, node: str, order: RailOrder) -> None:
        """The manager sends a node a rail order."""
        self.rail_checks.ordered(node, order)

    def given_up(self, node: str, text: str) -> None:
        """The manager declares a node lost."""
        self.nodes[node].given_up(text)

    def manager_restarts(self) -> None:
        """A new manager has read the journal. What the old one knew of rails, or of starts, may be lost."""
        self.watch.starts.forget()
        self.rail_checks.manager_restarted()

    def manager_is_back(self) -> None:
        """Agents connect again."""
        for node in self.nodes.values():
            self.loop.after(self.rng.randint(1 * MS, 200 * MS), node.connect, node.life)

    def node_returns(self, node: SimNode) -> None:
        """A lost node comes back, empty and with a new agent."""
        if not self.over() and node.core is None and not node.left:
            self.returning.discard(node.name)
            node.up = True
            node.start_agent()
            if not self.scenario.launches:
                self._relaunch()

    # ---- starting ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the nodes one after the other, and the workers on them."""
        for node in self.nodes.values():
            self.loop.after(self.rng.randint(0, 300 * MS), node.start_agent)
        self._place_workers(500 * MS)

    def _place_workers(self, within_ns: int) -> None:
        names = list(self.nodes)
        for rank in range(self.scenario.options.ranks):
            node = self.nodes[names[rank // self.scenario.per_node]]
            self.loop.after(
                self.rng.randint(300 * MS, 300 * MS + within_ns), self._start_worker, node, rank, self.generation
            )

    def _start_worker(self, node: SimNode, rank: int, generation: int) -> None:
        gone = node.left or (self.scenario.launches and node.core is None)  # a dead launcher starts no worker
        if generation == self.generation and node.up and not gone and not self.over():
            worker = SimWorker(node, rank, int(self.scenario.launches), 0, newcomer=False)
            node.adopt(worker)

    def _relaunch(self) -> None:
        """The external launcher ends all workers and starts them again, once all nodes are there."""
        if not self._relaunching and not self.over():
            self._relaunching = True
            self.loop.after(self.rng.randint(50 * MS, 2 * SECOND), self._relaunch_now)

    def _relaunch_now(self) -> None:
        self.generation += 1
        for worker in self.workers():
            worker.die(-15, "its launcher starts everybody again")
        self._relaunching = False
        if all(node.up for node in self.nodes.values()):
            self._place_workers(200 * MS)

    # ---- steps -------------------------------------------------------------------------------------------------

    def _completed(self, group: Group) -> None:
        self.proofs.completed(group)
        self.pauses.completed(group)
        if group.done == group.base + 1 and group.key > 0:
            for member in list(group.resumed.values()):
                assert isinstance(member, SimWorker)
                self.loop.after(self.crowd.apply_delay_ns(member.rank, group.done), member.first_step_made, group)
        if self.ending:
            for member in list(group.resumed.values()):
                assert isinstance(member, SimWorker)
                self.loop.after(self.crowd.apply_delay_ns(member.rank, group.done), member.finish)
