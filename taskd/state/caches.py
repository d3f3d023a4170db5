"""Sees what the script's caches remember of random numbers.

A function under `functools.lru_cache` may draw. A step that is done again finds there what its first attempt has drawn.
It draws nothing, so all that it draws later is different. A newcomer draws anew. No result can be put into such a
cache, so its contents are only compared. Whether a function draws is judged by the names in its code.

Failure modes: a cache of something that is always the same counts as drawn, or the results are not looked at although
they are random. It does NOT know what `cached_property` has stored, which is an attribute like any other.
"""

from __future__ import annotations

import dis
import gc
import re
import weakref
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

from taskd.state.held import Held
from taskd.state.plain import is_scalar
from taskd.state.sources import is_the_scripts, unwrapped

Cached = type(lru_cache(lambda: None))
_WORDS = "normal|uniform|choices?|r?sample|shuffle|permut(ation|ed)|multinomial|bernoulli|poisson|dropout|beta|gamma"
_WORDS += "|gauss|exponential|integers|laplace|cauchy|geometric|binomial|dirichlet|standard_normal|log_?normal|gumbel"
_OF_GLOBALS = frozenset(
    ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "IMPORT_NAME", "IMPORT_FROM", "LOAD_FROM_DICT_OR_GLOBALS")
)
"""Instructions that name a global, or a module that the code imports."""
_MOST = 512
"""In a cache of more results, no objects are looked at."""
_BEGIN = "rand(n|int|perm|om)?(_.*)?|trunc_.*|xavier_.*|kaiming_.*"
_DRAWS = re.compile(f"^((alpha_|feature_)?({_WORDS})(variate)?[123]?d?_?|{_BEGIN})$")
"""Names of functions that draw random numbers."""
_SEEDS = frozenset({"manual_seed", "seed"})
"""Names in a function that draws the same numbers whenever it is called."""
_seen = weakref.WeakKeyDictionary[Any, tuple[int, Fraction]]()
"""For each cache how often its function was called, and a digest of its results."""
_judged = weakref.WeakKeyDictionary[FunctionType, bool]()
"""For each function whether it may draw."""


def remembered(cache: Any) -> Iterator[Any]:
    """Return the cached results of a function: all that it refers to, except what belongs to the function itself."""
    own = {id(cache.__wrapped__), id(vars(cache))}
    for held in gc.get_referents(cache):
        if id(held) in own or isinstance(held, type):
            continue
        yield from ([*dict.values(held)] if type(held) is dict else [held])


def objects_in(cache: Any) -> Iterator[tuple[str, Any, dict[Any, Any]]]:
    """Return the objects of the script's classes that a cache keeps for plain arguments: the arguments as a text, the
    object, and the dict that has it."""
    for held in gc.get_referents(cache) if cache.cache_info().currsize <= _MOST else ():
        if type(held) is dict and held is not vars(cache):
            for key, item in [*held.items()]:
                given = key if type(key) is tuple else (key,)
                if is_the_scripts(type(item)) and all(map(is_scalar, given)):
                    yield f"({', '.join(map(repr, given))})", item, held


def drawn(cache: Any) -> Iterator[Fraction]:
    """Return a number for the results of a function that draws: the same object while it is not called anew. A fraction
    is no value that a repair would give back."""
    function = unwrapped(cache.__wrapped__)
    if function is None or not draws(function):
        return
    calls, found = cache.cache_info().misses, _seen.get(cache)
    if found is None or found[0] != calls:
        results = Held()
        results.look([*remembered(cache)], closely=True)
        found = _seen[cache] = calls, Fraction(results.digest)
    yield found[1]


def draws(function: FunctionType) -> bool:
    """Whether a function of the script may draw random numbers, or a function of the script that it calls."""
    if function not in _judged:
        _judged[function] = _may_draw(function)
    return _judged[function]


def _may_draw(function: FunctionType) -> bool:
    called = [unwrapped(function.__globals__.get(name)) for name in names_in(function.__code__)]
    codes = [function.__code__, *(one.__code__ for one in called if one is not None)]
    names = {name for code in codes for name in names_in(code)}
    return not names & _SEEDS and any(map(_DRAWS.search, names))


@lru_cache(maxsize=1024)
def names_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and attributes in this code, and in the functions defined inside it."""
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in names_in(one)]
    return tuple(dict.fromkeys((*code.co_names, *inner)))


@lru_cache(maxsize=1024)
def globals_in(code: CodeType) -> tuple[str, ...]:
    """Return the names of globals and imported modules among them. An attribute may have the name of a global."""
    own = [one.argval for one in dis.get_instructions(code) if one.opname in _OF_GLOBALS]
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in globals_in(one)]
    return tuple(dict.fromkeys((*own, *inner)))
