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
    **_kinds("behind", ("value", "list", "rate", "closure"), "forward", "updated"),
    **_kinds("beside", ("forward", "queue", "anchor", "records"), "forward", "updated"),
    **_kinds("caught", ("scale", "object", "rate", "behind"), "end"),
    ("crowded", ""): ("forward", "updated"),
    **_kinds("exchanged", ("guarded", "late", "method", "loss", "hook", "made"), "forward", "updated"),
    **_kinds("follows", ("dict", "module", "rate", "norm"), "forward", "updated", "between"),
    **_kinds("gathered", ("number computes", "list weighs", "dict computes"), "forward", "updated"),
    **_kinds("hidden", ("single", "delegate"), "forward", "updated"),
    **_kinds("kept", ("NumPy", "setattr", "class", "optimizer hook", "flag", "Decimal", "cache"), "reduced", "behind"),
    **_kinds("kept_files", ("mean", "lines", "log"), "forward", "noted"),
    **_kinds("leftover", ("fed back", "late", "patched", "gradient", "mask"), "forward", "reduced"),
    **_kinds("moving", ("criterion", "previous", "given"), "backward", "updated"),
    **_kinds("numbered", ("rate", "zipped", "listed"), "forward", "behind"),
    **_kinds("odd", ("Enum", "group", "drawn", "queue", "array", "functions"), "reduced", "behind"),
    **_kinds("passed", ("mean plain", "window epochs"), "forward"),
    **_kinds("phases", ("phases", "objects"), "forward", "updated"),
    **_kinds("printed", ("number", "tensors"), "forward", "updated"),
    **_kinds("pruned", ("masks",), "forward", "between"),
    **_kinds("resumed", ("returned", "begun", "counted"), "forward", "updated"),
    **_kinds("sealed", ("fresh", "index", "group"), "forward", "updated"),
    **_kinds("shown", ("list", "object"), "forward"),
    **_kinds("sums", ("number", "deque"), "forward", "updated", "between"),
    **_kinds("uneven", ("list", "stream", "dead"), "backward", "end"),
    **_kinds("unsized", ("own", "drawn", "counted", "batches"), "end", "behind"),
    **_kinds("hsdp", ("plain", "clipped", "summed"), "inside", "backward"),
    **_kinds("hsdp", ("alone clipped", "alone mixed", "alone stepped"), "inside", "backward", "updating", "updated"),
    **_kinds("sliced", ("plain", "both"), "loss", "reduced", "updated"),
    **_kinds("parts", ("pipeline", "tensor", "scaled"), "forward", "loss", "reduced", "updated"),
}
"""Maps a script, and the --place with which nobody dies, to the places where a rank dies."""
RANKS = {"parts": 4, "hsdp": 4, "sliced": 4, "uneven": 3}
"""The ranks of scripts that do not have two."""
