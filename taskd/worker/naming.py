"""What a script gives to `session.register`: one object, a list or a dict of them, as names and objects.

It looks at nothing but their kind and keeps nothing.
"""

from __future__ import annotations

from typing import Any

from taskd.errors import UsageError


def named(label: str, given: Any, kind: type) -> list[tuple[str, Any]]:
    """One object, a list or a dict of them, as (name, object) pairs. Raises UsageError."""
    if given is None:
        return []
    if isinstance(given, dict):
        pairs = [(f"{label} {name}", item) for name, item in given.items()]
    elif isinstance(given, (list, tuple)):
        pairs = [(f"{label} {at}", item) for at, item in enumerate(given)]
    else:
        pairs = [(label, given)]
    for name, item in pairs:
        if not isinstance(item, kind):
            raise UsageError(f"{name} is a {type(item).__name__}, not a {kind.__module__}.{kind.__qualname__}")
    return pairs
