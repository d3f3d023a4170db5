"""The kinds of faults of a simulated check, and what a check has to say of each: the truth, apart from the core.

A fault belongs to a node, to a link or to a rail of all nodes. A kind is exact if one verdict is right. A few kinds
come and go, or are too slight to be called a fault: there several verdicts are right, and only a node that leaves is
wrong. Nothing is played here: check.py does that."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.check.findings import Finding

NODE_FAULTS = {
    "dead": "a node answers nothing from the start",
    "ended": "the probe of a node ends, at the start or later, and its host says so",
    "leaves": "a node goes silent in the middle of the check",
    "hangs": "the probe of a node hangs, at the start or later; its agent answers",
    "cut": "no rail of a node works; the node itself can be heard",
    "wrong": "a node computes wrongly, and its own word admits that",
    "denies": "a node computes wrongly, and says that it does not",
    "damages": "what a node sends and gets is damaged, on all rails",
    "compute": "a node computes slowly",
    "memory": "the memory of a node is slow",
    "starved": "a node gets too little processor, so everything of it is slow, and it sees others late",
    "rail": "a rail of a node is dead",
    "one way": "what a node sends over one rail does not arrive",
    "damaged rail": "a rail of a node damages data",
    "slow rail": "a rail of a node is slow",
    "missing": "a node does not have a rail that the others have",
    "version": "a node has another version of torch",
    "accuses": "a node says that nothing of its partners arrives, and that they compute wrongly",
    "boasts": "a node computes slowly, and says that it does not",
    "clock": "the clock of a node is wrong by a factor",
    "flips": "a node computes wrongly now and then",
    "unsteady": "some tests with a node fail",
    "half": "a node is slow in some tests",
    "behind": "a node is a little slower than the others",
    "mute": "what a node reports of its tests gets lost; the tests are good",
}
LINK_FAULTS = {
    "link": "nothing passes between two nodes",
    "rail of a link": "nothing passes between two nodes over one rail",
    "slow link": "a rail between two nodes is slow",
    "damaged link": "a rail between two nodes damages data",
}
RAIL_FAULTS = {"switch": "a rail works between no nodes"}
FAULTS = {**NODE_FAULTS, **LINK_FAULTS, **RAIL_FAULTS}
"""Every kind of fault by the name that `--kinds` takes."""

SOFT = {"flips", "unsteady", "half", "behind", "mute"}
"""Kinds of which several verdicts are right."""
BEGINS_LATER = {"ended", "leaves", "hangs"}
NEEDS_MAJORITY = {"version", "missing"}
NEEDS_RAILS = {"missing", "switch"}
"""Kinds that a job with one rail does not have."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    kind: str
    nodes: tuple[int, ...]
    rail: str = ""
    factor: float = 1.0
    begins: int = 0  # in turns


def right_findings(fault: Fault, rails: int) -> set[Finding]:
    """Which findings about the node of a fault are right."""
    if fault.kind in BEGINS_LATER or fault.kind in ("dead", "cut"):
        return {Finding.DOWN}
    if fault.kind in ("rail", "one way", "missing") and rails == 1:
        return {Finding.DOWN}
    if fault.kind in ("wrong", "denies", "damages") or (fault.kind == "damaged rail" and rails == 1):
        return {Finding.WRONG}
    if fault.kind in ("accuses", "clock", "boasts"):
        return {Finding.LIES}
    return {
        "version": {Finding.UNLIKE},
        "flips": {Finding.WRONG, Finding.UNDECIDED, Finding.HEALTHY},
        "unsteady": {Finding.UNDECIDED, Finding.HEALTHY, Finding.STRAGGLER, Finding.DOWN},
        "half": {Finding.UNDECIDED, Finding.HEALTHY, Finding.STRAGGLER},
        "behind": {Finding.UNDECIDED, Finding.HEALTHY, Finding.STRAGGLER},
        "mute": {Finding.UNDECIDED},
    }.get(fault.kind, {Finding.STRAGGLER})


def right_components(fault: Fault) -> set[str] | None:
    """In what the node of a fault is slow. None: nothing definite."""
    if fault.kind in SOFT:
        return None
    if fault.kind == "starved":
        return {"compute", "memory"}
    if fault.kind in ("compute", "boasts"):
        return {"compute"}
    if fault.kind == "memory":
        return {"memory"}
    if fault.kind in ("rail", "one way", "damaged rail", "slow rail", "missing"):
        return {f"rail {fault.rail}"}
    return set()
