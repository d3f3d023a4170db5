"""The trainings of this folder that `taskd bench trust --only kills` disturbs, and the places where a rank may die."""

from __future__ import annotations


def _kinds(script: str, names: str, *places: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Of a script that trains in several ways: it is told which one in front of the place."""
    return {(script, name): tuple(f"{name}, {place}" for place in places) for name in names.split()}


CASES: dict[tuple[str, str], tuple[str, ...]] = {
    ("batch_entry", ""): ("forward", "backward"),
    ("modes", ""): ("evaluation", "evaluation after the update"),
    ("attributes", ""): ("backward", "metric", "end"),
    ("perturbed", ""): ("second forward",),
    ("perturbed", "in place"): ("second forward in place",),
    ("swapped", ""): ("evaluation", "evaluation after the update"),
    ("teacher", ""): ("metric", "second metric"),
    ("teacher", "plain"): ("plain metric", "plain second metric"),
    ("outside", ""): ("backward",),
    ("outside", "clip"): ("backward, clip",),
    ("talking", ""): ("backward", "behind"),
    **_kinds("groups", "each kept late", "before", "made", "used", "backward"),
    **_kinds("groups", "outside", "used", "backward"),
    **_kinds("kinds", "delegating parametrized tied named trap subclass closed uneven", "backward"),
}
"""By script and by the --place with which nobody dies: the places where somebody does."""
