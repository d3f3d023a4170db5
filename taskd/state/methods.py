"""What calls of libraries do to their objects and arguments, judged by the names of the functions and methods.

A call of a function of the script is followed. Of any other call, only the name is known before it runs, and most
libraries use the names of Python's containers, of torch and of pandas. A name that stands here by mistake hides what a
call does or answers, so a name is listed only if it means the same in every library where it is common.
"""

from __future__ import annotations

import ast

_SHOWS = (
    *("print", "log", "info", "debug", "warn", "error", "write", "show", "display", "report", "plot"),
    *("add_scalar", "add_image", "add_hist", "add_text", "set_post", "set_desc"),
    *("dump", "savefig", "savetxt", "savez", "to_csv", "to_json", "semilog", "fill_between"),
    *("set_title", "set_xl", "set_yl", "lineplot", "histplot", "add_row"),
)
_SAVES = ("save", "to_", "push_to", "flush", "close", "commit")
_OF_LISTS = frozenset({"append", "appendleft", "extend", "insert"})
GATHERS = _OF_LISTS | {"add"}
"""Methods that leave in their object what it had, whatever it is. Others do so in a container."""
KEEPS = GATHERS | {"update", "setdefault", "put", "push"}
"""Methods that put their arguments into their object."""
TAKES = frozenset({"pop", "popleft", "popitem", "remove", "discard", "sort", "reverse"})
"""Methods that change what is in their object."""
EDITS = _OF_LISTS | TAKES | {"setdefault", "clear", "to", "cuda", "cpu"}
"""Methods of lists, dicts and tensors. What has given such an object does not hear of them."""
EMPTIES = frozenset({"clear", "zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "set_"})
"""Methods that overwrite all that was there."""
ADDS = frozenset({"add_", "sub_", "index_add_", "scatter_add_"})
"""Methods that add to what was there."""
MEETS = frozenset({"all_reduce", "reduce", "broadcast", "all_gather_object", "gather_object", "broadcast_object_list"})
"""Collectives: what each of their arguments holds afterwards comes from all of them. Others fail if ranks have more or
less to give, as a newcomer may."""
_HARMLESS = frozenset({"requires_grad_", "share_memory_", "clip_grad_norm_", "clip_grad_value_"})
"""Methods that change no values, though their names end like those that do."""


def name_of(call: ast.Call) -> str:
    """Return the name of the called function or method."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def shows(call: ast.Call) -> bool:
    """Whether this call only shows its arguments."""
    return name_of(call).lstrip("_").startswith(_SHOWS)


def saves(call: ast.Call) -> bool:
    """Whether this call only writes down what its object has, if nobody uses its result."""
    return name_of(call).startswith(_SAVES)


def changes(call: ast.Call) -> bool:
    """Whether this call changes something in place."""
    name = name_of(call)
    in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    return isinstance(call.func, ast.Attribute) and (in_place or name == "clear")
