"""The manager's memory: the core, the journal behind it, and the notes for people. One call per event.

`begin` makes the core. It replays the journal if an earlier manager of this job left one. `step` hands the core an
event and keeps what matters. `commit` writes that to the journal before the loop sends anything. The core's clock
counts nanoseconds since the journal's first row. It continues where the last manager stopped, so it survives a reboot.

The manager resumes from a journal only if the journal belongs to this job. Its sizes and settings are the same, and
the job has not ended in good order. If it names processes of this host, at least one of them still lives. Otherwise
the journal is moved aside. The term always continues from the last one, so that no agent follows an older manager.

An event that breaks the core (a bug of taskd) must not end the manager. The agent that sent the event repeats it, so
it would end the next manager too. Such an event is written to a file of its own and ignored from then on. A new core
is replayed from the journal, as in a new process. An error without such an event, for example at a deadline, ends the
manager after a few times.

Rows are compacted into a snapshot when there are as many as the job has ranks, and at least some thousands. So neither
the journal nor the replay time grows with the number of repairs.

It does NOT know sockets or senders' connections.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections import deque
from dataclasses import dataclass, replace

from taskd import log
from taskd.config import Config
from taskd.core import limits
from taskd.core.budget import Budget
from taskd.core.effects import EndJob, ManagerEffect, Note
from taskd.core.events import ManagerEvent, Restarted, Said
from taskd.core.manager import Manager
from taskd.manager import record, replay, snapshot
from taskd.manager.journal import Broken, Journal
from taskd.manager.snapshot import Told
from taskd.policy import Source, handed, idle, load

_log = log.get(__name__)

JOURNAL_FILE = "journal.db"
TERM_FILE = "term"
ASIDE_FILE = "set-aside.txt"
ASIDE_BYTES_MAX = 1 << 20
BREAKS_MAX = 8
BREAKS_WINDOW_NS = 60 * limits.SECOND
"""BREAKS_MAX errors of the core are tolerated within this time. After more, a restart of the manager is better."""
ASIDE_MAX = 256
"""How many events that broke the core are remembered."""
CLOCK_SLACK_S = 2.0
"""How much the wall clock and the clock since boot may drift apart between two readings."""
FIRST_NS = limits.SECOND
"""The core's clock begins at this value, so that 0 can mean "never"."""
SNAPSHOT_ROWS = 10_000
"""Replaying this many rows takes a second or two. A snapshot costs some microseconds per rank, less than a row does.
Larger jobs wait for at least one row per rank, so this holds for them too."""


class Memory:
    """The core, its journal and its notes."""

    def __init__(self, config: Config) -> None:
        self.job = config.job.id
        self._directory = config.job.directory
        self.settings = replay.settings_of(config, _policy(config))
        self.notes: deque[Told] = deque(maxlen=limits.MAX_KEPT_EVENTS)
        self.core: Manager = replay.make_core(self.settings, 1)
        self.journal = Journal(os.path.join(config.job.directory, JOURNAL_FILE)) if config.manager.journal else None
        self.last_note = 0
        self.taken_up = False  # an earlier life of this job's manager left a journal, and this one goes on from it
        self._quiet_texts: set[str] = set()
        self._breaks = Budget(BREAKS_MAX, BREAKS_WINDOW_NS)
        self._aside: deque[Said] = deque(maxlen=ASIDE_MAX)
        self._zero_ns = time.monotonic_ns() - FIRST_NS

    @property
    def trouble(self) -> str:
        """Why nothing is written to the journal; empty if it is written."""
        return self.journal.trouble if self.journal is not None else "memory only, as configured (manager.journal off)"

    def now_ns(self) -> int:
        """The core's clock."""
        return time.monotonic_ns() - self._zero_ns

    def wall_ns(self, at_ns: int) -> int:
        """Convert a time of the core's clock to wall-clock time."""
        return time.time_ns() - (self.now_ns() - at_ns)

    def begin(self) -> list[ManagerEffect]:
        """Resume from the journal or begin a new one. Returns the effects of the restart, if it was one."""
        journal, given = self.journal, self.settings
        if journal is not None and journal.open():
            try:
                return self._take_up(journal)
            except (Broken, record.Unreadable) as error:
                self.settings = given
                aside = journal.start_over(f"it cannot be replayed ({error})", "damaged")
                _log.warning(
                    "the journal could not be replayed (%s): it was moved to %s and a new one begins, so what happened "
                    "before now is not known to this manager",
                    error,
                    aside,
                )
        self._begin_new(self._last_term() + 1)
        return []

    def _take_up(self, journal: Journal) -> list[ManagerEffect]:
        meta = journal.meta()
        if "settings" not in meta:
            self._begin_new(self._last_term() + 1)
            return []
        why = self._not_ours(meta)
        given = self.settings
        if not why:
            self.settings = json.loads(meta["settings"])
            past = self._recalled(journal)
            why = _all_gone(past)
        if why:
            self.settings = given
            journal.start_over(why, "old")
            self.notes.clear()
            self.last_note = 0
            self._begin_new(self._last_term() + 1)
            return []
        self.core, self.taken_up = past.core, True
        if self.settings != given:
            _log.warning("the policy has changed since the job began: it goes on under the one that it began with")
        away_ns = max(0, time.time_ns() - past.wall_ns) if past.wall_ns else 0
        self._zero_ns = time.monotonic_ns() - past.at_ns - away_ns
        effects = self.step(Restarted())
        self.commit()
        self._keep_term(self.term)
        _log.info("%d steps of the journal were replayed, the manager's term is now %d", past.steps, self.term)
        return effects

    @property
    def term(self) -> int:
        """The term of this manager: each new manager of the job has a higher one."""
        return self.core.term

    def _recalled(self, journal: Journal) -> _Past:
        """Replay the journal, including the notes for people."""
        rows, kept = list(journal.rows()), journal.snapshot()
        core, notes = replay.beginning(self.settings, int(journal.meta()["term"]), kept)
        self.notes.clear()
        self.notes.extend(notes)
        self.last_note = notes[-1].number if notes else 0
        past = _Past(core, FIRST_NS, 0) if kept is None else _Past(core, kept.at_ns, kept.wall_ns)
        for step in replay.steps(core, rows):
            past.at_ns, past.wall_ns = step.row.at_ns, step.row.wall_ns
            past.steps += 1
            # The notes as they were told then, including those of quiet steps. A replay might word them differently.
            self._tell(step.recorded, step.row.wall_ns)
        return past

    def _not_ours(self, meta: dict[str, str]) -> str:
        if meta.get("ended"):
            return f"its job has ended ({meta['ended']})"
        policy = {replay.POLICY: None}
        if json.loads(meta["settings"]) | policy != self.settings | policy:
            return "it belongs to a job of other sizes or settings"
        return ""

    def _begin_new(self, term: int) -> None:
        if not self._keep_term(term):
            # The next manager cannot read this term, and this one may not have read the last. The wall clock is higher
            # than any of them.
            term = max(term, int(time.time()))
        self.core = replay.make_core(self.settings, term)
        if self.journal is not None:
            self.journal.set_meta(settings=json.dumps(self.settings), term=str(term))

    def step(self, event: ManagerEvent) -> list[ManagerEffect]:
        """Hand the core one event, and keep what matters of it for `commit`."""
        now_ns = self.now_ns()
        if self._aside and isinstance(event, Said) and _repeatable(event) in self._aside:
            return []
        try:
            effects = self.core.step(now_ns, event)
            events = self.core.to_journal()
        except Exception:
            if not self._breaks.take(now_ns):
                raise
            return self._go_on_without(event)
        if self.journal is not None and (events or self._news(effects)):
            self.journal.append(now_ns, record.events_row(events, self.job), record.effects_row(effects))
        self._tell(effects, time.time_ns())
        return effects

    def _go_on_without(self, event: ManagerEvent) -> list[ManagerEffect]:
        """Set this event aside and rebuild the core. The event broke the core, so the core's state is unusable now."""
        found = traceback.format_exc()
        if isinstance(event, Said):  # others, such as a deadline or an operator's request, recur in another state
            self._aside.append(_repeatable(event))
        path = os.path.join(self._directory, ASIDE_FILE)
        _log.error(
            "THE MANAGER BROKE at %s: a mistake of taskd's. The event is set aside in %s, and the manager goes on from "
            "its journal without it; please report it\n%s",
            type(event.message if isinstance(event, Said) else event).__name__,
            path,
            found,
        )
        self._write_aside(path, f"{time.strftime('%Y-%m-%d %H:%M:%S')} {event!r}\n{found}\n")
        journal = self.journal
        if journal is None or journal.trouble:
            self._begin_new(self._last_term() + 1)
            return []
        journal.commit()
        self.core = self._recalled(journal).core
        effects = self.step(Restarted())
        self._keep_term(self.term)
        return effects

    @staticmethod
    def _write_aside(path: str, text: str) -> None:
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
                if file.tell() < ASIDE_BYTES_MAX:
                    file.write(text)
        except OSError as error:
            _log.warning("the event could not be written to %s: %s", path, error.strerror)

    def _news(self, effects: list[ManagerEffect]) -> bool:
        """Whether a step without events has a new note for people, such as a refusal, that is not in the journal."""
        texts = {effect.text for effect in effects if isinstance(effect, Note)} - self._quiet_texts
        if len(self._quiet_texts) + len(texts) > limits.MAX_UNHEARD_SENDERS:
            return False
        self._quiet_texts |= texts
        return bool(texts)

    def _tell(self, effects: list[ManagerEffect], wall_ns: int) -> None:
        for effect in effects:
            if isinstance(effect, Note):
                self.last_note += 1
                self.notes.append(Told(self.last_note, wall_ns, effect))
            elif isinstance(effect, EndJob) and self.journal is not None:
                self.journal.set_meta(ended=effect.reason)

    def _last_term(self) -> int:
        """The last term of this job's managers on this host, even if their journal is lost; 0: none is known."""
        try:
            with open(os.path.join(self._directory, TERM_FILE), encoding="ascii") as file:
                return int(file.read(20))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError):
            return int(time.time())  # the last term is unknown; this is higher than any term counted from 1

    def _keep_term(self, term: int) -> bool:
        path = os.path.join(self._directory, TERM_FILE)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path + ".new", flags, 0o600), "w", encoding="ascii") as file:
                file.write(str(term))
            os.replace(path + ".new", path)
        except OSError as error:
            _log.info("the term %d could not be kept in %s (%s)", term, path, error.strerror)
            return False
        return True

    def commit(self) -> None:
        """Write the kept steps to the journal, and compact the journal when it has many rows."""
        journal = self.journal
        if journal is None:
            return
        journal.commit()
        if journal.fresh_rows >= max(SNAPSHOT_ROWS, self.core.world_size) and not journal.trouble:
            journal.put_together(self.now_ns(), snapshot.packed(self.core, self.notes))

    def close(self, ended: str) -> None:
        """Close the journal. `ended` says why no manager shall resume from it; empty: one may."""
        if self.journal is not None:
            if ended:
                self.journal.set_meta(ended=ended)
            self.journal.close()


def _policy(config: Config) -> Source | None:
    """The job's policy file: what the launcher has handed over, or the one that the settings name."""
    found = handed(os.environ)
    if found is None and config.recover.policy:
        found = load(config.recover.policy)
    if found is not None:
        for key in idle(found):
            _log.warning("%s in the policy %s does nothing: no job changes its size", key, found.name)
        if not config.recover.process_recover:
            _log.warning("recovery is off in this job, so its policy %s decides nothing", found.name)
    return found


def _repeatable(event: Said) -> Said:
    """The event without its sender's sequence number, which differs when the sender repeats it."""
    return replace(event, sender=replace(event.sender, sequence=0))


@dataclass
class _Past:
    """The result of a replay: the core, the time of its last step, and the number of replayed steps.

    The time is given by the core's clock and by the wall clock (0: unknown)."""

    core: Manager
    at_ns: int
    wall_ns: int
    steps: int = 0


def _all_gone(past: _Past) -> str:
    """Why the job of this journal is over although no end was recorded: all its processes on this host are gone.

    The manager runs on a host of the job. All of the job's processes there may be gone, because a run was ended
    together with its manager and is now started again. That is a new run, and it must not meet the ranks of the first.
    """
    pids = past.core.processes(os.uname().nodename)
    if not pids or any(_lives_since(pid, past.wall_ns) for pid in pids):
        return ""
    return f"its job has ended, none of its {len(pids)} processes on this host lives"


def _lives_since(pid: int, wall_ns: int) -> bool:
    """Whether this process lives and already existed at `wall_ns`. The kernel reuses process ids."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    if fields[0] in "ZX":
        return False
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return age_s + CLOCK_SLACK_S >= (time.time_ns() - wall_ns) / 1e9
