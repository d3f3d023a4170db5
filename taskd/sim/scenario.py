"""The scenario of one seed: the shape of the job, its pace, its network, and which fault strikes when.

Almost everything is drawn here from one `random.Random(seed)` before the first event. Some choices need to know what is
there at that moment (which rank to kill). They come from a second generator that is seeded by the first. So the same
options always give the same scenario, on every machine and every Python.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from taskd.core.types import Cover, Strategy
from taskd.sim.crowd import Pace
from taskd.sim.network import CALM, WEATHERS, Weather

MS = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND

FAULTS = {
    "kill": "one rank's process dies by a signal",
    "kills": "several ranks die within some milliseconds",
    "double": "a rank dies while a repair is under way",
    "error": "a rank's own code raises and its process ends with exit code 1",
    "raise": "an error leaves the step of a rank, whose process lives and waits to do it again",
    "refuse": "a rank finds in its step that going on would be wrong: all have to start over",
    "save": "a rank finds that going on would be wrong, and the script writes a last checkpoint, or fails to",
    "node": "a whole node is lost, with its agent; it comes back later or never",
    "agent": "an agent's process dies; its workers start a side agent again, a launcher takes its workers along",
    "manager": "the manager dies and comes back from its journal: whole, without its last events, or empty",
    "sleep": "the manager does not run for a while, and its clock jumps",
    "replay": "old datagrams are said again",
    "partition": "a node is cut off from the manager, or from everybody, for a while",
    "starve": "a node gets no processor for a while: it is silent, and operations elsewhere are late or time out",
    "slow": "a survivor takes long to park, and shows work meanwhile or does not",
    "stuck": "a survivor hangs, and never parks",
    "setup": "a newcomer's set-up fails, dies or hangs; in some stories, that of several in a row",
    "rebuild": "a rank cannot make its communicators, or its process dies while it does",
    "restore": "a rank cannot fetch its state, or its source dies",
    "rail": "a rail of a node (or of all, or all of one) is lost, slow, or lies, for a while",
    "flap": "a rail comes and goes",
    "operator": "an operator takes a rail out and puts it back later, whatever else is going on",
    "pause": "an operator pauses the job, and renews that, resumes the job, or forgets it",
    "unable": "a rank cannot follow rail orders for a while, or does not answer them",
    "flip": "a bit flips in what one rank holds, and nothing fails",
    "orphan": "the manager dies and never comes back",
    "still": "a rank stands still for a while: stopped, asleep, at work, or holding up its interpreter",
    "railkill": "a rail is lost just before or during the repair of a killed rank",
}
"""Every kind of fault by the name that `--faults` takes."""

WEIGHTS = {"kill": 4, "kills": 2, "double": 3, "node": 2, "manager": 2, "partition": 2}
"""The weight with which a kind is drawn. Other kinds have weight 1."""
FAULTS_PER_MINUTE = 8
RAILS = ("red", "blue")
RAIL_RANKS = 12
"""Larger stories have no rails: traffic is counted for each pair of ranks."""
REACTION_NS = 15 * SECOND
"""A fault that waits for a repair to strike gives up after this."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller chooses. Equal options, with an equal seed, give the same story."""

    ranks: int
    minutes: float
    seed: int
    kinds: tuple[str, ...] = tuple(FAULTS)

    def __post_init__(self) -> None:
        """The order of the kinds means nothing: the command line cannot tell it, and would play another story."""
        object.__setattr__(self, "kinds", tuple(sorted(self.kinds, key=list(FAULTS).index)))

    def command(self) -> str:
        """The command that plays this story again."""
        named = "" if self.kinds == tuple(FAULTS) else f" --faults {','.join(self.kinds) or 'none'}"
        return f"taskd sim --ranks {self.ranks} --minutes {self.minutes:g} --seed {self.seed}{named}"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong at a time. Its victim is chosen when it strikes."""

    at_ns: int
    kind: str


@dataclass(frozen=True, slots=True)
class Scenario:
    """The fixed facts of one story."""

    options: Options
    launches: bool  # the agents are launchers, which start workers; else side processes of an external launcher
    per_node: int
    nodes: int  # nodes that hold ranks at first
    spares: int
    interval_ns: int  # how often an agent looks and reports
    pace: Pace
    weather: Weather
    setup_ns: tuple[int, int]
    park_ns: tuple[int, int]
    max_restarts: int
    strategies: frozenset[Strategy]
    faults: tuple[Fault, ...]
    ends: bool  # the training loop comes to its end when the faults have stopped
    salt: int

    def part_of(self, rank: int) -> int:
        """The part of the model that this rank holds. In some stories ranks alternate between two parts; in most, every
        rank holds the whole model."""
        ranks = self.options.ranks
        divided = self.salt % 4 == 0 and ranks >= 4 and ranks % 2 == 0
        return 1 + rank % 2 if divided else 0

    @property
    def cover(self) -> Cover:
        """What the ranks expect after a death."""
        return Cover.HEALED if self.salt % 5 else Cover.STARTS_OVER

    @property
    def saves(self) -> bool:
        """Whether the script can write a last checkpoint."""
        return "save" in self.options.kinds and self.salt % 3 > 0

    @property
    def duration_ns(self) -> int:
        """How long faults may strike."""
        return int(self.options.minutes * MINUTE)


def draw(options: Options) -> tuple[Scenario, random.Random]:
    """The scenario of these options, and the generator for choices during the story."""
    rng = random.Random(options.seed)
    per_node = min(rng.choice((1, 2, 4, 8, 8)), options.ranks) if options.ranks <= 256 else 64
    if options.ranks > 32:
        per_node = max(per_node, 8)
    launches = rng.random() < 0.85
    quiet = not options.kinds
    compute_ms = rng.choice((60, 250, 1_000))
    scenario = Scenario(
        options=options,
        launches=launches,
        per_node=per_node,
        nodes=-(-options.ranks // per_node),
        spares=rng.choice((0, 1, 2)) if launches else 0,
        interval_ns=rng.choice((100, 200, 250)) * MS,
        pace=Pace(
            compute_ms * MS,
            rng.randint(1, compute_ms) * MS,
            rng.randint(1, 20) * MS,
            rng.randint(1, compute_ms * 4 // 5) * MS,
        ),
        weather=CALM if quiet else rng.choice(WEATHERS),
        setup_ns=_range(rng, 50 * MS, rng.choice((500, 3_000)) * MS),
        park_ns=_range(rng, 1 * MS, rng.choice((50, 1_500)) * MS),
        max_restarts=rng.choice((3, 20, 1_000)),
        strategies=frozenset({Strategy.IN_PLACE, Strategy.RESPAWN, Strategy.RECOVER, Strategy.DUMP, Strategy.EXIT}),
        faults=_faults(rng, options),
        ends=rng.random() < 0.25,
        salt=rng.getrandbits(64),
    )
    return scenario, random.Random(rng.getrandbits(64))


def _range(rng: random.Random, low: int, high: int) -> tuple[int, int]:
    return low, rng.randint(low, high)


def _faults(rng: random.Random, options: Options) -> tuple[Fault, ...]:
    """Draw the faults and their times: some stories have one fault, some have many."""
    if not options.kinds:
        return ()
    most = max(1, round(options.minutes * FAULTS_PER_MINUTE))
    count = rng.randint(1, most)
    weights = [WEIGHTS.get(kind, 1) for kind in options.kinds]
    duration_ns = int(options.minutes * MINUTE)
    kinds = rng.choices(options.kinds, weights, k=count)
    times = sorted(rng.randint(0, duration_ns) for _ in range(count))
    return tuple(Fault(at_ns, kind) for at_ns, kind in zip(times, kinds, strict=True))
