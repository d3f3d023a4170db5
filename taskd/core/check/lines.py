"""The lines of the check that users and their tools read already, letter for letter.

They are the words of the launcher that scripts were written for: one line for each round, and one for each node that
leaves. A node that has failed shows 3600.0 there, although it took seconds. This module decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core.check.findings import Finding, NodeVerdict

DOWN = "The node is down."
STRAGGLER = "The node is a straggler and exits."


def round_line(number: int, elapsed: Mapping[int, float]) -> str:
    """`Round 0: The node elapsed time are {2: 20.307, 3: 3600.0}`: seconds by node."""
    return (
        f"Round {number}: The node elapsed time are { ({node: round(time_s, 3) for node, time_s in elapsed.items()}) }"
    )


def leaving_line(verdict: NodeVerdict, exclude_straggler: bool) -> str:
    """What the launcher of a node says when the node leaves. Empty: it stays."""
    if not verdict.leaves(exclude_straggler):
        return ""
    proved = verdict.finding in (Finding.DOWN, Finding.WRONG, Finding.UNLIKE)
    return DOWN if proved else STRAGGLER
