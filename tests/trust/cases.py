"""The trainings of this folder that `taskd bench trust --only kills` disturbs, and the places where a rank may die."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product


def _kinds(script: str, names: Iterable[str], *places: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the cases of a script with several kinds. The kind stands in front of the place."""
    return {(script, name): tuple(f"{name}, {place}" for place in places) for name in names}


_KINDS = ("delegating", "parametrized", "tied", "named", "trap", "subclass", "closed", "uneven", "nested_batch")
_STEP = ("forward", "backward", "reduced", "updated")
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
    **_kinds("groups", ("each", "kept", "late"), "before", "made", "used", "backward"),
    **_kinds("groups", ("outside",), "used", "backward"),
    **_kinds("kinds", _KINDS, "backward"),
    **_kinds("counted", map(", ".join, product(("frame", "module", "attribute"), ("before", "behind"))), *_STEP),
    **_kinds("handed", ("hidden", "dict", "sum", "kept"), *_STEP),
    ("everyday", "nowhere"): ("begun", "reduced", "counted", "updated"),
    ("newcomer/averages", ""): ("backward", "reduced", "averaged"),
    **_kinds("late", ("dropout", "noise", "numbers", "buffers", "local"), "reduced", "updated", "drawn", "handed"),
    **_kinds("found", ("teacher", "order", "given", "drawn", "ahead"), "forward", "updated"),
    **_kinds("reckoned", ("weight", "best", "history", "rate", "own"), "forward", "updated"),
    **_kinds("streams", ("cursor", "sampler own", "batches after", "dataset", "itself"), "begin", "backward", "end"),
    **_kinds("parts", ("pipeline", "tensor", "scaled"), "forward", "loss", "reduced", "updated"),
}
"""Maps a script, and the --place with which nobody dies, to the places where a rank dies."""
RANKS = {"parts": 4}
"""The ranks of scripts that do not have two."""
