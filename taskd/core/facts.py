"""The state of a job, as plain values for people and programs: what `taskd status` shows.

It reads the state machines and changes nothing. Ages are in milliseconds of the manager's waking time.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.hangs import Hang
from taskd.core.job import Job
from taskd.core.membership import Membership
from taskd.core.proof.proofs import Proofs
from taskd.core.rails.rails import Rails
from taskd.core.records import NodeRecord, RankRecord
from taskd.core.repair.case import Case
from taskd.core.types import Cover
from taskd.core.words import milliseconds

_MOST_EXCEPTED = 64
_FEW = 64


def of_job(
    name: str, node_count: int, job: Job, case: Case, rails: Rails, counters: Counters, at: int, first: int
) -> dict[str, Any]:
    """Return the state of the whole job, with STATUS_ROWS of its ranks and nodes from the place `first` on."""
    members, attempt = job.members, case.attempts.attempt
    end = first + limits.STATUS_ROWS
    under_way = int(case.incident is not None) + len(rails.incidents.open)
    return {
        "job": name,
        "term": job.term,
        "epoch": job.epoch,
        "world_size": members.world_size,
        "node_count": node_count,
        "over": None if job.over is None else {"exit_code": job.over.exit_code, "reason": job.over.reason},
        "incidents": {
            "known": len(case.history) + len(rails.incidents.history) + under_way,
            "open": under_way,
            "started_over": job.starts_over.times,  # how often all ranks began anew
            "steps_lost": job.starts_over.steps_lost,  # steps that were seen to be done before these restarts
            "saved": job.starts_over.saved,  # their steps in the last checkpoint do not count
        },
        "stage": None if attempt is None else attempt.state.value,
        "counters": dict(sorted(counters.by_reason.items())),
        "states": {state.name.lower(): count for state, count in members.counts.items() if count},
        "nodes": [_node(members.nodes[node], at) for node in sorted(members.nodes)[first:end]],
        "ranks": [_rank(record) for record in members.ranks[first:end]],
        "next": end if end < max(len(members.nodes), members.world_size) else None,
    }


def of_proofs(proofs: Proofs, found: int, at: int) -> dict[str, Any]:
    """Return when all ranks were last seen to hold the same state. `found`: how often they did not."""
    last = proofs.last
    return {
        "updates": last.updates if last is not None else -1,  # -1: there was none yet
        "ranks": last.ranks if last is not None else 0,
        "age_ms": milliseconds(max(at - last.at, 0)) if last is not None else 0,
        "whole_every": last.every if last is not None else 0,  # in this many updates the whole state is compared once
        "differences": found,
        "not_compared": proofs.excepted[:_MOST_EXCEPTED],
    }


def of_uncovered(members: Membership) -> list[int]:
    """Return the first few ranks that know that a death would make all ranks start over."""
    found = (record.rank for record in members.ranks if record.cover is Cover.STARTS_OVER)
    return [*islice(found, _FEW)]


def of_hang(hang: Hang | None, at: int) -> dict[str, Any] | None:
    """Return the hang of the job. None: it does not hang, as far as is known."""
    if hang is None:
        return None
    return {"age_ms": milliseconds(max(at - hang.since, 0)), "ranks": list(hang.ranks), "text": hang.text}


def _node(node: NodeRecord, at: int) -> dict[str, Any]:
    return {
        "node": node.name,
        "host": node.host,
        "pid": node.pid,
        "state": node.state.value,
        "age_ms": milliseconds(max(at - node.heard_at, 0)),
        "spawns": node.spawns,
        "slots": node.slots,
        "ranks": len(node.ranks),
    }


def _rank(record: RankRecord) -> dict[str, Any]:
    report = record.report or record.last
    return {
        "rank": record.rank,
        "node": record.where,
        "pid": record.pid,
        "incarnation": record.incarnation,
        "state": record.state.name.lower(),
        "epoch": max(report.epoch, 1) if report else 0,  # a rank that got no order yet is in the first epoch
        "stage": report.stage.name.lower() if report else "running",
        "updates": report.updates if report else -1,
        "step": report.step if report else -1,
        "phase": report.phase.name.lower() if report else "setup",
        "beat_age_ms": report.beat_age_ms if report else 0,
        "step_ms": report.step_ms if report else 0,
        "exit_code": record.exit_code,
        "restarts": record.restarts,
        "cover": record.cover.name.lower(),
        "reason": record.reason,
    }
