"""Proofs in the simulated job: the digests that ranks report, bits that flip in a model, and what must be found.

Each rank reports digests of its state after the first step, after the steps that follow a repair, and every few steps.
The state is the model that the crowd trains, and the damage of this rank alone. A rank that takes a damaged rank's
state also takes the damage. The checks know which ranks are damaged. They demand three things. No difference is
reported in a job in which all ranks are alike. A sound majority does not accuse a sound rank. Ranks that differ do not
stay unreported.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.events import ManagerEvent, ProofVerdict
from taskd.core.messages import Proof
from taskd.core.types import ProofFinding
from taskd.sim.crowd import Group
from taskd.sim.model import mix
from taskd.sim.setting import Setting
from taskd.sim.watch import Violation
from taskd.sim.worker import SimWorker

EVERY = 8
"""Updates between two proofs."""
UNITS = ("step", "weight", "moment")
LAYOUT = 7


class SimProofs:
    """Sends proofs for the ranks, and checks what the manager finds."""

    def __init__(self, world: Setting) -> None:
        self.world = world
        self.struck = 0
        self.found = 0
        self.said = False  # whether any difference between ranks was reported, in any form

    def refused(self) -> None:
        """A rank says that going on would be wrong, or will say so. This also puts all states in doubt."""
        self.found += 1

    # ---- what ranks tell ---------------------------------------------------------------------------------------

    def completed(self, group: Group) -> None:
        """All ranks of a group have made an update, or will in a moment. Let them send proofs if one is due."""
        repaired = group.key > 0 and group.done - group.base <= limits.PROOF_REPAIRED
        if group.done == 1 or repaired or group.done % EVERY == 0:
            for member in list(group.resumed.values()):
                delay_ns = self.world.crowd.apply_delay_ns(member.rank, group.done)
                self.world.loop.after(delay_ns, self._tell, member, group, group.done, group.models[1])

    def _tell(self, member: SimWorker, group: Group, updates: int, model: int) -> None:
        if not member.alive or member.group is not group:
            return
        words = (updates, mix(model ^ member.damage), mix(model))
        data = b"".join(word.to_bytes(limits.DIGEST_WORD, "little") for word in words)
        names = "\n".join(UNITS) if member.rank == 0 else ""
        who = (member.rank, member.incarnation, member.core.epoch)
        member.home.worker_says(
            member, Proof(*who, updates, EVERY, LAYOUT, len(UNITS), 1, member.taken, 0, data, names, "")
        )

    # ---- the fault ---------------------------------------------------------------------------------------------

    def flip(self) -> None:
        """Flip a bit in the state of one rank."""
        world = self.world
        group = world.crowd.current
        if group is None or not group.running():
            return
        rank = world.rng.choice(sorted(group.resumed))
        victim = group.resumed[rank]
        victim.damage ^= 1 << world.rng.randint(0, 62)
        self.struck += 1
        world.loop.tell(f"rank {rank}", "a bit flips in its model")

    # ---- the checks --------------------------------------------------------------------------------------------

    def verdict(self, event: ManagerEvent) -> None:
        """Check a verdict that the manager has journaled."""
        if not isinstance(event, ProofVerdict):
            return
        self.said |= bool(event.units)
        if event.finding is not ProofFinding.DIFFERS:
            return
        self.found += 1
        if not self.struck:
            raise Violation("proof-true", f"nothing was ever damaged, and it is said that {event.reason}")
        group = self.world.crowd.current
        damaged = {rank for rank, member in group.resumed.items() if member.damage} if group is not None else set()
        accused = set(event.ranks) if event.named else set()
        if damaged and 2 * len(damaged) < self.world.crowd.world_size and not accused <= damaged:
            raise Violation("proof-true", f"{sorted(damaged)} are damaged, and it is said that {event.reason}")

    def unsaid(self) -> str:
        """Why the story is wrong: ranks that differ train on, and no difference was reported. Empty: it is not."""
        group = self.world.crowd.current
        if group is None or not group.running() or self.said:
            return ""
        held = {member.damage for member in group.resumed.values()}
        return "ranks hold different models, and nobody says so" if len(held) > 1 else ""
