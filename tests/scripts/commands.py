"""The commands that stories are written in: each command is one method of `Story`.

start nodes=2 ranks=4 [spares=1] [recover=off] [strategies=recover-in-place,respawn] [restarts=3] [launcher=torchrun]
    [parts=2] [cover=healed|starts_over] [hang=warn] [saves=on] [keeps=on]
before it: policy restartScope=All failPolicy=None ... | rule exitCodes=77 restartPolicy=Never ...
run 1s | apply ranks=0,1 | kill rank=2 signal=9 | exit rank=2 code=3 | finish | leave ranks=0,1
plant rank=1 stage=park do=hang|fail|be-wrong|die|waits:75|works:75|compiles:75 | cannot-start node=a | steps-take 75s
node-down b | node-up c slots=2 | silence node=a | heard node=a | connection-lost a | agent-dies a | rejoin a
device NODE NUMBER words kind=xid|lost|... harm=warning|process|device [code=79] [of=1, as the driver says]
devices
still RANK sleeps|works|compiles|stopped|... [words] | enters RANK | moves RANK | late RANK 51s operation
raise RANK error | relaunch | manager-down | manager-up | manager-up journal=lost|1500ms [term=2] | manager-sleeps 2s
say node=a life=old|now sequence=1 rank=2 incarnation=1 state=alive | evidence RANK ABOUT text
rails: start ... rails=a,b | break rail=a nodes=a,b how=down|silent|hollow|slow|gone | heal rail=a nodes=a | rails
flap rail=a node=b times=3 every=1s | rail-out a [b] | rail-back a [b]
plant rank=1 stage=rails do=hang|false|stuck:WORDS|WORDS
pause [step=12] [lease=5s] [request=p1] | resume [request=r1] | pauses | count-from RANK STEP
plant rank=1 stage=pause do=deaf|passes|cannot:WORDS
restart-rank RANK [request=e1] | drain-node NODE [request=e1] | stop [request=e1] [dump=on] | errand [request=e1]
prove 64 [rank=2|all differs=weight|moment] [ranks=0,1,2]: ranks tell their digests after this update
order rank=0 epoch=1 term=1 stage=parked | hello node=a rank=2 pid=7 [job=other] | agent job=other node=x | facts
last-proof | hang
"""

from __future__ import annotations

from taskd.core.events import ConnectionLost, DeviceSeen, ErrandWish, PauseWish, Said, Sender
from taskd.core.limits import DIGEST_WORD, MS, SECOND
from taskd.core.messages import AgentHello, Evidence, Order, Proof, RankReport, Report, WorkerHello
from taskd.core.policy.rules import DEFAULT, Policy
from taskd.core.types import Cover, DeviceKind, Doing, ErrandKind, EvidenceKind, Harm, Phase, RankState, Stage, Strategy
from taskd.policy import Source, parse
from taskd.sim.rails import Cables
from tests.scripts.harness import Node, World
from tests.scripts.process import Process

UNITS = ("modes", "weight", "moment")
REPAIRS = "recover-in-place,respawn,recover"


def duration_ns(text: str) -> int:
    """Return the nanoseconds of `200ms`, `3s` or `2min`."""
    for unit, size in (("ms", MS), ("min", 60 * SECOND), ("s", SECOND)):
        if text.endswith(unit):
            return round(float(text.removesuffix(unit)) * size)
    raise ValueError(f"{text!r} is no duration")


def ranks_of(text: str) -> list[int]:
    """Return the ranks of `0,1,3`."""
    return [int(part) for part in text.split(",")]


class Story:
    """The commands of one story file, carried out in one world."""

    def __init__(self) -> None:
        self.world = World()
        self.keys: dict[str, str] = {}
        self.rules: list[dict[str, str]] = []

    def do(self, line: str) -> None:
        """Carry out one line."""
        name, *words = line.split()
        named = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        getattr(self, "do_" + name.replace("-", "_"))(*plain, **named)

    # ---- the job ----------------------------------------------------------------------------------------------

    def do_start(
        self,
        nodes: str,
        ranks: str,
        spares: str = "0",
        recover: str = "on",
        strategies: str = REPAIRS,
        restarts: str = "3",
        launcher: str = "taskd",
        broken: str = "",
        rails: str = "",
        parts: str = "0",
        cover: str = "unknown",
        hang: str = "replace",
        saves: str = "off",
        keeps: str = "off",
    ) -> None:
        policy = self.policy()
        self.world.saves, self.world.keeps = saves == "on", keeps == "on"
        strategies += ",dump" if self.world.saves else ""
        self.world.parts, self.world.cover = int(parts), Cover[cover.upper()]
        self.world.cables = Cables(rails.split(",")) if rails else None
        ours = launcher == "taskd"
        names = "abcdefgh"[: int(nodes) + int(spares)]
        each = int(ranks) // int(nodes)
        self.world.start(
            [(name, ours, each) for name in names],
            {rank: names[rank // each] for rank in range(int(ranks))},
            world_size=int(ranks),
            strategies=frozenset(Strategy(word) for word in strategies.split(",")),
            recover=recover == "on" and ours,
            max_restarts=int(restarts) if policy.limit is None else policy.limit,
            policy=policy,
            replaces_hung=hang == "replace",
        )
        for process in self.world.processes.values():
            if broken == "all":
                process.planted["setup"] = "die"

    def do_policy(self, **keys: str) -> None:
        self.keys.update(keys)

    def do_rule(self, **keys: str) -> None:
        self.rules.append(keys)

    def policy(self) -> Policy:
        """Return the policy of the commands before: its keys are lines 1 to N of a file, then come the rules."""
        lines = [f"{key}: {value}" for key, value in self.keys.items()]
        if self.rules:
            lines.append("faultTolerantPolicy:")
        for rule in self.rules:
            lines += [f"{'  ' if at else '- '}{key}: {value}" for at, (key, value) in enumerate(rule.items())]
        return parse(Source("policy.yaml", "\n".join(lines))) if lines else DEFAULT

    def do_run(self, time: str) -> None:
        self.world.run(duration_ns(time))

    def do_apply(self, ranks: str) -> None:
        for rank in ranks_of(ranks):
            self.process(rank).updates += 1

    def process(self, rank: int | str) -> Process:
        return self.world.processes[int(rank)]

    # ---- processes --------------------------------------------------------------------------------------------

    def do_kill(self, rank: str, signal: str = "9") -> None:
        self.process(rank).die(-int(signal), "")

    def do_exit(self, rank: str, code: str) -> None:
        self.process(rank).die(int(code), "")

    def do_leave(self, ranks: str) -> None:
        for rank in ranks_of(ranks):
            process = self.process(rank)
            process.phase = Phase.DONE
            process.node.leaves(process)

    def do_vanish(self, ranks: str) -> None:
        """They end with exit code 0 between two steps, and say so to nobody."""
        for rank in ranks_of(ranks):
            self.process(rank).phase = Phase.APPLIED
            self.process(rank).die(0, "")

    def do_finish(self) -> None:
        self.do_leave(",".join(str(rank) for rank in self.world.processes))

    def do_end_loop(self, ranks: str) -> None:
        for rank in ranks_of(ranks):
            self.process(rank).phase = Phase.DONE

    def do_plant(self, rank: str, stage: str, do: str) -> None:
        self.process(rank).planted[stage] = do

    def do_steps_take(self, time: str) -> None:
        for process in self.world.processes.values():
            process.step_ms = duration_ns(time) // MS

    def do_cannot_start(self, node: str) -> None:
        self.world.nodes[node].start_fails = True

    def do_relaunch(self) -> None:
        """A foreign launcher ends all workers and starts them again."""
        for process in list(self.world.processes.values()):
            process.die(-15, "")
        self.world.after(1 * SECOND, self._relaunch)

    def _relaunch(self) -> None:
        for rank, process in list(self.world.processes.items()):
            self.world.processes[rank] = Process(self.world, process.node, rank, 0, 0, False)

    # ---- nodes ------------------------------------------------------------------------------------------------

    def do_node_down(self, node: str) -> None:
        self.world.nodes[node].down()

    def do_node_up(self, node: str, slots: str) -> None:
        self.world.nodes[node] = Node(self.world, node, True, int(slots))

    def do_silence(self, node: str) -> None:
        self.world.nodes[node].silent = True

    def do_heard(self, node: str) -> None:
        there = self.world.nodes[node]
        there.silent = False
        if there.agent is not None and not there.agent.post.connected:
            self.world.after(20 * MS, there.connect)  # the manager that it was connected to is gone

    def do_connection_lost(self, node: str) -> None:
        self.world.tell_manager(ConnectionLost(node))

    def do_agent_dies(self, node: str) -> None:
        self.world.nodes[node].agent = None
        self.world.tell_manager(ConnectionLost(node))

    def do_rejoin(self, node: str) -> None:
        """The workers of a node start another agent and say hello to it."""
        for process in self.world.processes.values():
            if process.node.name == node and process.alive:
                process.hello()

    # ---- the manager ------------------------------------------------------------------------------------------

    def do_manager_down(self) -> None:
        self.world.manager_dies()

    def do_manager_up(self, journal: str = "kept", term: str = "1") -> None:
        """Start the manager with its whole journal, with none, or with the part until a time: `journal=1500ms`. `term`:
        what it knows of its own life although the journal is lost."""
        until = {"kept": self.world.now, "lost": -1}
        self.world.settings["term"] = int(term)
        self.world.manager_returns(until[journal] if journal in until else duration_ns(journal))

    def do_manager_sleeps(self, time: str) -> None:
        self.world.asleep_until = self.world.now + duration_ns(time)

    # ---- rails ------------------------------------------------------------------------------------------------

    def do_break(self, rail: str, nodes: str, how: str = "down") -> None:
        assert self.world.cables is not None
        for node in nodes.split(","):
            self.world.cables.breaks(node, rail, how, self.world.now)

    def do_heal(self, rail: str, nodes: str) -> None:
        assert self.world.cables is not None
        for node in nodes.split(","):
            self.world.cables.heals(node, rail, self.world.now)

    def do_flap(self, rail: str, node: str, times: str, every: str) -> None:
        for _ in range(int(times)):
            self.do_break(rail, node)
            self.do_run(every)
            self.do_heal(rail, node)
            self.do_run(every)

    def do_rail_out(self, rail: str, node: str = "") -> None:
        self.wish(rail, node, True)

    def do_rail_back(self, rail: str, node: str = "") -> None:
        self.wish(rail, node, False)

    def wish(self, rail: str, node: str, out: bool) -> None:
        assert self.world.manager is not None
        wish = self.world.manager.rail_wish(rail, node, out)
        if isinstance(wish, str):
            self.world.say("operator", f"is refused: {wish}")
        else:
            self.world.tell_manager(wish)

    def do_rails(self) -> None:
        assert self.world.manager is not None
        for rail in self.world.manager.rails(self.world.now)["rails"]:
            by = f", borrowed by {' '.join(rail['borrowers'])}" if rail["borrowers"] else ""
            self.world.say("facts", f"rail {rail['rail']} of {rail['node']}: {rail['state']}, {rail['use']}{by}")

    # ---- pauses -----------------------------------------------------------------------------------------------

    def do_pause(self, step: str = "-1", lease: str = "600s", request: str = "p1", by: str = "ann") -> None:
        self.wants(PauseWish(request, by, int(step), duration_ns(lease)))

    def do_resume(self, request: str = "r1", by: str = "ann") -> None:
        self.wants(PauseWish(request, by))

    def do_restart_rank(self, rank: str, request: str = "e1", by: str = "ann") -> None:
        self.wants(ErrandWish(request, by, ErrandKind.RESTART, (int(rank),), "", 60 * SECOND))

    def do_drain_node(self, node: str, request: str = "e1", by: str = "ann") -> None:
        self.wants(ErrandWish(request, by, ErrandKind.VACATE, (), node, 60 * SECOND))

    def do_stop(self, request: str = "e1", by: str = "ann", dump: str = "off", node: str = "") -> None:
        kind = ErrandKind.SAVE if dump == "on" else ErrandKind.STOP
        self.wants(ErrandWish(request, by, kind, (), node, 60 * SECOND))

    def wants(self, wish: PauseWish | ErrandWish) -> None:
        assert self.world.manager is not None
        found = self.world.manager.wish(self.world.now, wish)
        if found is None or isinstance(found, str):
            told = "hears that nothing is to be done" if found is None else f"is refused: {found}"
            self.world.say("operator", told)
        else:
            self.world.tell_manager(found)

    def do_errand(self, request: str = "e1") -> None:
        assert self.world.manager is not None
        errand = self.world.manager.pause(self.world.now, request)["errand"]
        if errand is None:
            self.world.say("facts", f"no errand {request} is known")
            return
        seats = " ".join(f"{row['rank']}#{row['incarnation_now']}@{row['node_now']}" for row in errand["ranks"])
        how = "done" if errand["done"] else "failed" if errand["over"] else "under way"
        self.world.say(
            "facts", f"{errand['what']} by {errand['by']}: {how}, {errand['words'] or errand['state']}; {seats}"
        )

    def do_pauses(self) -> None:
        assert self.world.manager is not None
        facts = self.world.manager.pause(self.world.now)
        pause, last = facts["pause"], facts["last"]
        if pause is not None:
            left = "as long as nobody stands" if pause["left_ms"] is None else f"{pause['left_ms']} ms left"
            text = f"{pause['state']} {pause['place']} by {pause['by']}, {left}"
        else:
            text = "nothing is paused" + ("" if last is None else f"; the last one {last['outcome']}: {last['words']}")
        self.world.say("facts", f"{text}; {facts['standing']} of {facts['world_size']} ranks stand")

    def do_count_from(self, rank: str, step: str) -> None:
        """The script of this rank counts its steps from this number on."""
        self.process(rank).counts_from = int(step)

    # ---- strange messages -------------------------------------------------------------------------------------

    def do_say(
        self, node: str, rank: str, incarnation: str, state: str, life: str = "now", sequence: str = "", pid: str = "7"
    ) -> None:
        there = self.world.nodes[node]
        if not sequence:
            there.sequence += 1
        sender = Sender(node, there.life if life == "now" else 10_000, int(sequence or there.sequence))
        report = RankReport(
            int(rank), int(incarnation), int(pid), RankState[state.upper()], 0, False, 0, Stage.RUNNING, 0, 5,
            Phase.BODY, 1, 100, "",
        )  # fmt: skip
        self.world.tell_manager(Said(sender, Report(False, 1, (report,))))

    def do_evidence(self, rank: str, about: str, *words: str) -> None:
        process = self.process(rank)
        kind = EvidenceKind.COLLECTIVE_ERROR
        against = int(about)
        incarnation = self.process(against).incarnation if against >= 0 else 0
        process.node.hear(Evidence(kind, against, incarnation, int(rank), 0, " ".join(words)), process)

    def do_still(self, rank: str, doing: str, *words: str) -> None:
        self.process(rank).stands(Doing[doing.upper()], " ".join(words))

    def do_device(
        self, node: str, number: str, *words: str, kind: str, harm: str, code: str = "0", of: str = ""
    ) -> None:
        """A device of a node reports an event. Its driver says that these ranks' processes use it."""
        pids = tuple(self.process(rank).pid for rank in ranks_of(of)) if of else ()
        what = (f"GPU-{node}{number}", DeviceKind[kind.upper()], int(code), " ".join(words), Harm[harm.upper()])
        holders = tuple(process.pid for process in self.world.processes.values())
        self.world.nodes[node].step(DeviceSeen(int(number), *what, pids, holders))

    def do_devices(self) -> None:
        assert self.world.manager is not None
        for row in self.world.manager.facts(self.world.now)["devices"]:
            what = f"{row['kind']} {row['code']}, {row['text']}, {row['harm']}"
            often = f"ranks {row['ranks']}, {row['times']} times"
            self.world.say("facts", f"device {row['device']} of {row['node']}: {what}, {often}, {row['age_ms']} ms ago")

    def do_enters(self, rank: str) -> None:
        self.process(rank).enters()

    def do_moves(self, rank: str) -> None:
        self.process(rank).stands(None, "")

    def do_hang(self) -> None:
        assert self.world.manager is not None
        hang = self.world.manager.facts(self.world.now)["hang"]
        text = "no hang" if hang is None else f"for {hang['age_ms']} ms, ranks {hang['ranks']}: {hang['text']}"
        self.world.say("facts", text)

    def do_late(self, rank: str, time: str, *words: str) -> None:
        process, kind = self.process(rank), EvidenceKind.COLLECTIVE_LATE
        waited_ms = duration_ns(time) // MS
        usual = "at least ten times its usual longest"
        process.node.hear(Evidence(kind, -1, 1, int(rank), 0, usual, " ".join(words), waited_ms), process)

    def do_raise(self, rank: str, *words: str) -> None:
        self.process(rank).raises(" ".join(words))

    def do_prove(self, updates: str, rank: str = "-1", differs: str = "", ranks: str = "") -> None:
        """Each rank sends the digests of three units. One rank holds something else in one unit, or all ranks do."""
        told = ranks_of(ranks) if ranks else [*self.world.processes]
        for number in told:
            process = self.process(number)
            part = process.part
            own = 50 + number if rank == "all" else 50 if number == int(rank) else 0
            words = [own if own and name == differs else at + part for at, name in enumerate(UNITS, 1)]
            who = (number, process.incarnation, process.core.epoch)
            data = b"".join(word.to_bytes(DIGEST_WORD, "little") for word in words)
            names = "\n".join(UNITS) if number == max(part - 1, 0) else ""
            process.node.hear(
                Proof(*who, int(updates), 64, 7 + part, len(UNITS), 1, process.taken, 0, data, names, "", part), process
            )

    def do_order(self, rank: str, epoch: str, term: str, stage: str) -> None:
        order = Order(int(term), int(epoch), Stage[stage.upper()], 1, -1, (), (), "")
        process = self.process(rank)
        process.hear(order)
        self.world.say(f"rank {rank}", f"has refused {process.core.counters.by_reason}")

    def do_hello(self, node: str, rank: str, pid: str, job: str = "story", size: str = "") -> None:
        there, process = self.world.nodes[node], self.process(0)
        world_size = int(size or self.world.size)
        hello = WorkerHello(job, int(rank), world_size, 0, int(pid), 0, "pt", 0, Stage.RUNNING, b"")
        there.hear(hello, process)

    def do_agent(self, node: str, job: str, life: str = "77") -> None:
        hello = AgentHello(job, node, "elsewhere", 9, 0, True, 1, 100)
        self.world.tell_manager(Said(Sender(node, int(life), 1), hello))

    def do_repeat(self, node: str, times: str) -> None:
        """The last messages of a node arrive again, as can happen in a network."""
        there = self.world.nodes[node]
        for back in range(int(times)):
            sender = Sender(node, there.life, there.sequence - back)
            self.world.tell_manager(Said(sender, Report(True, 1, ())))

    def do_facts(self) -> None:
        assert self.world.manager is not None
        facts = self.world.manager.facts(self.world.now)
        ranks = " ".join(f"{row['rank']}#{row['incarnation']}@{row['node']}:{row['state']}" for row in facts["ranks"])
        self.world.say("facts", f"term {facts['term']}, epoch {facts['epoch']}, {ranks}, refused {facts['counters']}")

    def do_last_proof(self) -> None:
        assert self.world.manager is not None
        proof = self.world.manager.facts(self.world.now)["proof"]
        out = f", not compared: {', '.join(proof['not_compared'])}" if proof["not_compared"] else ""
        last = f"update {proof['updates']}, {proof['ranks']} ranks alike"
        self.world.say("facts", f"last proof: {last}, {proof['differences']} differences{out}")

    def do_incident(self, number: str = "1") -> None:
        assert self.world.manager is not None
        rows = self.world.manager.incidents(self.world.now)
        row = next(row for row in rows if row["id"] == int(number))
        phases = ", ".join(f"{phase['name']} {phase['ms']} ms" for phase in row["phases"])
        self.world.say(
            "facts",
            f"incident {row['id']} {row['outcome']} by {row['strategy']}, ranks {row['ranks']}, nodes {row['nodes']}, "
            f"attempts {row['attempts']}, {row['duration_ms']} ms: {phases}",
        )
