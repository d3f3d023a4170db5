"""The faults of a scenario as they strike: which rank, which node, for how long, and what else goes wrong with it.

A fault only does what the real world could do (end a process, cut a cable, stop a clock, repeat an old datagram). It
never touches the core. What a fault harms is marked as harmed, so that a checker can tell a right verdict from a
false alarm.
"""

from __future__ import annotations

from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.sim import error_faults
from taskd.sim.manager import TAIL
from taskd.sim.node import SimNode
from taskd.sim.rail_faults import RAIL_FAULTS, RailFaults
from taskd.sim.scenario import REACTION_NS, Fault
from taskd.sim.setting import NAME
from taskd.sim.worker import SimWorker
from taskd.sim.world import World

MS = 1_000_000
SECOND = 1_000_000_000


OF_ONE = {
    "error": error_faults.ends,
    "raise": error_faults.waits,
    "refuse": error_faults.refuses,
    "save": error_faults.saves,
    "pause": lambda world, _: world.pauses.strike(),
    "still": lambda world, victim: world.stands.strike(victim),
}
"""Faults that are implemented elsewhere, most of them of one rank."""


class Faults:
    """Strikes by the scenario's plan until `stop` is called, which heals what can heal."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._active = True
        self.rails = RailFaults(world)
        self._cuts: list[tuple[SimNode, bool]] = []
        for fault in world.scenario.faults:
            world.loop.at(fault.at_ns, self._strike, fault)

    def _strike(self, fault: Fault) -> None:
        if not self._active or self.world.over():
            return
        self.world.struck[fault.kind] += 1
        if fault.kind not in (*RAIL_FAULTS, "pause"):
            self.world.harm()
        self.world.loop.tell("fault", fault.kind)
        if fault.kind not in OF_ONE:
            getattr(self, f"_{fault.kind}")()
        elif (victim := self._victim()) is not None:
            OF_ONE[fault.kind](self.world, victim)

    # ---- processes ---------------------------------------------------------------------------------------------

    def _victim(self) -> SimWorker | None:
        living = [worker for worker in self.world.workers() if not worker.finished]
        return self.world.rng.choice(living) if living else None

    def _kill(self) -> None:
        victim = self._victim()
        if victim is not None:
            self.world.harm()
            victim.die(self.world.rng.choice((-9, -11, -6, 1)), "killed by a fault")

    def _kill_later(self, within_ns: int) -> None:
        self.world.loop.after(self.world.rng.randint(0, within_ns), self._kill_if_active)

    def _kill_if_active(self) -> None:
        if self._active:
            self._kill()

    def _kills(self) -> None:
        for _ in range(self.world.rng.randint(2, 6)):
            self._kill_later(20 * MS)

    def _double(self) -> None:
        if self.world.crowd.training():
            self._kill()
        self._wait_for_repair(self.world.loop.now + REACTION_NS)

    def _wait_for_repair(self, until: int) -> None:
        """Strike again after a repair has begun, a random time later so that every stage is hit."""
        world = self.world
        if not self._active or world.loop.now > until:
            return
        if not world.crowd.training():
            self._kill_later(world.rng.choice((5, 100, 1_000, 4_000)) * MS)
        else:
            world.loop.after(10 * MS, self._wait_for_repair, until)

    # ---- nodes and agents --------------------------------------------------------------------------------------

    def _node(self) -> None:
        world, rng = self.world, self.world.rng
        candidates = [node for node in world.nodes.values() if node.up]
        if len(candidates) < 2:
            return
        node = rng.choice(candidates)
        world.loop.tell(node.name, "is lost")
        node.up = False
        node.stop_agent()
        node.kill_workers()
        if rng.random() < 0.5:
            world.loop.after(rng.randint(0, 3 * SECOND), world.manager.connection_lost, node.name)
        world.count_capacity()
        if not world.scenario.launches or rng.random() < 0.6:
            world.returning.add(node.name)
            world.loop.after(rng.randint(1 * SECOND, 20 * SECOND), world.node_returns, node)

    def _agent(self) -> None:
        world, rng = self.world, self.world.rng
        candidates = [node for node in world.nodes.values() if node.up and node.core is not None]
        if not candidates:
            return
        node = rng.choice(candidates)
        node.disturbed = True
        node.stop_agent()
        world.loop.after(rng.randint(0, 5 * MS), world.manager.connection_lost, node.name)
        if world.scenario.launches:
            for worker in list(node.workers.values()):
                world.loop.after(rng.randint(0, 30 * MS), worker.die, -15, "its launcher died")
            world.count_capacity()
            if rng.random() < 0.8:
                world.returning.add(node.name)
                world.loop.after(rng.randint(300 * MS, 5 * SECOND), world.node_returns, node)
        else:
            world.loop.after(rng.randint(20 * MS, 2 * SECOND), node.start_agent)

    # ---- the manager -------------------------------------------------------------------------------------------

    def _manager(self) -> None:
        world, rng = self.world, self.world.rng
        if not world.manager.alive:
            return
        draw = rng.random()
        lost = 0 if draw < 0.6 else rng.randint(1, TAIL) if draw < 0.85 else len(world.manager.journal)
        world.loop.tell(NAME, f"dies; its journal loses {lost} of {len(world.manager.journal)} events")
        world.manager.crash(lost)
        for node in world.nodes.values():
            world.loop.after(rng.randint(0, 50 * MS), node.disconnect, node.life, node.line.connection)
        world.loop.after(rng.randint(50 * MS, 8 * SECOND), world.manager.restart)

    def _orphan(self) -> None:
        """The manager dies and never comes back, mostly in the middle of a repair."""
        self._kill()
        self.world.loop.after(self.world.rng.randint(0, 3_000) * MS, self._forsake)

    def _forsake(self) -> None:
        if self._active and self.world.manager.alive:
            self._manager()
            self.world.loop.tell(NAME, "never comes back")
            self.world.manager.gone = True

    def _sleep(self) -> None:
        world = self.world
        if world.manager.alive and world.manager.awake:
            duration_ns = world.rng.choice((500, 3_000, 20_000, 45_000)) * MS
            world.loop.tell(NAME, f"sleeps for {duration_ns // MS} ms")
            world.manager.sleep(duration_ns)

    # ---- the network -------------------------------------------------------------------------------------------

    def _replay(self) -> None:
        count = self.world.network.replay(self.world.rng.randint(10, 80))
        self.world.loop.tell("network", f"says {count} old datagrams again")

    def _partition(self) -> None:
        world, rng = self.world, self.world.rng
        node = rng.choice(list(world.nodes.values()))
        full = rng.random() < 0.4
        duration_ns = rng.choice((200, 1_000, 3_000, 12_000, 45_000)) * MS
        world.loop.tell(
            "network", f"cuts {node.name} off from {'everybody' if full else 'the manager'} for {duration_ns // MS} ms"
        )
        node.disturbed = True
        self._cut(node, full)
        if full:
            self._accuse(node)
        if rng.random() < 0.5:
            delay_ns = rng.randint(100 * MS, 3 * SECOND)
            world.loop.after(delay_ns, self._notice, node)
        world.loop.after(duration_ns, self._heal, node, full)

    def _cut(self, node: SimNode, full: bool) -> None:
        """Cut the node off from the manager. `full`: cut its data network, too."""
        world = self.world
        node.cut()
        world.network.cut(node.name, NAME)
        self._cuts.append((node, full))
        world.count_capacity()
        if full:
            world.crowd.cut(node.name)

    def _starve(self) -> None:
        """No process of a node runs for a while. All its connections stay, and other ranks wait for its ranks."""
        world, rng = self.world, self.world.rng
        candidates = [node for node in world.nodes.values() if node.well_heard()]
        if not candidates:
            return
        node = rng.choice(candidates)
        duration_ns = rng.choice((700, 2_000, 8_000, 15_000)) * MS  # less than its silence alone would prove
        world.loop.tell(node.name, f"is starved for {duration_ns // MS} ms")
        self._cut(node, True)
        witnesses = self._witnesses(node)
        for witness in rng.sample(witnesses, min(3, len(witnesses))):
            world.loop.after(rng.randint(0, duration_ns), self._waits, witness)
        world.loop.after(duration_ns, self._heal, node, True)

    def _waits(self, witness: SimWorker) -> None:
        """Send the evidence of a rank that waits for an operation: it is late, or it has reached its time limit."""
        who = (witness.rank, witness.incarnation)
        if not witness.alive or self.world.over():
            return
        if self.world.rng.random() < 0.75:
            evidence = Evidence(EvidenceKind.COLLECTIVE_LATE, -1, who[1], who[0], 0, "as never", "allreduce #7", 5_000)
        else:
            evidence = Evidence(EvidenceKind.COLLECTIVE_TIMEOUT, -1, who[1], who[0], 0, "no answer within 5000 ms")
        witness.home.worker_says(witness, evidence)

    def _witnesses(self, node: SimNode) -> list[SimWorker]:
        return [worker for worker in self.world.workers() if worker.home is not node and worker.group is not None]

    def _accuse(self, node: SimNode) -> None:
        """A rank on another node may see its collective fail against the node that is cut off."""
        world, rng = self.world, self.world.rng
        accused = [worker for worker in node.workers.values() if worker.group is not None]
        witnesses = self._witnesses(node)
        if accused and witnesses and rng.random() < 0.6:
            world.accuse(rng.choice(witnesses), rng.choice(accused), rng.randint(200 * MS, 3 * SECOND))

    def _notice(self, node: SimNode) -> None:
        """Both ends of a cut connection notice the cut and give the connection up."""
        world = self.world
        if world.network.is_cut(node.name, NAME):
            world.manager.connection_lost(node.name)
            node.disconnect(node.life, node.line.connection)

    def _heal(self, node: SimNode, full: bool) -> None:
        if (node, full) not in self._cuts:
            return
        self._cuts.remove((node, full))
        world = self.world
        world.network.mend(node.name, NAME)
        node.mend()
        if full:
            world.crowd.mend(node.name)
        world.count_capacity()
        world.loop.after(world.rng.randint(0, 200 * MS), node.connect, node.life)

    # ---- faults in a repair ------------------------------------------------------------------------------------

    def _slow(self) -> None:
        self._plan("slow")

    def _stuck(self) -> None:
        self._plan("stuck")

    def _rebuild(self) -> None:
        self._plan(self.world.rng.choice(("rebuild", "rebuild-die")))

    def _restore(self) -> None:
        plan = self.world.rng.choice(("restore", "restore", "restore-wrong"))
        if plan == "restore-wrong":
            self.world.proofs.refused()
        self._plan(plan)

    def _plan(self, what: str) -> None:
        """Kill one rank, and plan that another rank fails in the repair that follows."""
        planned, victim = self._victim(), self._victim()
        if planned is not None and victim is not None:
            planned.plan = what
            planned.harmed = what != "slow"  # a slow rank is not harmed: its state must not be lost
            victim.die(-9, "killed by a fault")

    def _setup(self) -> None:
        several = 6 if self.world.scenario.salt % 3 == 0 else 1
        self.world.planted[self.world.rng.choice(("setup", "setup", "spawn"))] += several
        self._kill()

    # ---- memory ------------------------------------------------------------------------------------------------

    def _flip(self) -> None:
        self.world.proofs.flip()

    # ---- rails -------------------------------------------------------------------------------------------------

    def _rail(self) -> None:
        self.rails.breaks()

    def _flap(self) -> None:
        self.rails.flaps()

    def _operator(self) -> None:
        self.rails.operator()

    def _unable(self) -> None:
        self.rails.hinders()

    def _railkill(self) -> None:
        delay_ns = self.world.rng.randint(0, 3_000) * MS
        if self.world.rng.random() < 0.5:
            self.rails.breaks()
            self._kill_later(delay_ns)
        else:
            self._kill()
            self.world.loop.after(delay_ns, self.rails.breaks)

    # ---- the end -----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End all faults: the network heals, a sleeping manager wakes, agents and the manager are started again."""
        world = self.world
        self._active = False
        world.planted.clear()
        self.rails.stop()
        world.stands.stop()
        world.pauses.stop()
        for node, full in list(self._cuts):
            self._heal(node, full)
        if not world.manager.alive:
            world.manager.restart()
        world.manager.wake()
        for worker in world.workers():
            worker.plan = ""
        for name in sorted(world.returning):
            world.loop.after(world.rng.randint(20 * MS, 2 * SECOND), world.node_returns, world.nodes[name])
