"""Refuses an update if the script's hooks are not those that this step should have (state/hooks.py).

That is asked before the first update after a repair, when the step has registered its hooks and still can be refused.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.state.coverage import listed
from taskd.state.others import hooks_unlike
from taskd.worker.registered import Registered

WHAT = "the hooks of the script"
UNLIKE = (
    "steps have registered or removed hooks, and no repair does that again, so this rank has too many or too few of "
    "{names}; register hooks before the loops, or where an epoch begins"
)


class Hooked:
    """The hooks of one session's script."""

    def __init__(self, registered: Registered, refuse: Callable[[str], None]) -> None:
        """`refuse` makes all ranks start over and never returns."""
        self._registered, self._refuse = registered, refuse

    def judge(self, is_whole: bool) -> None:
        """Refuse if this rank has hooks that it should not have. `is_whole`: also if it lacks some."""
        others = self._registered.local.variables.others
        if names := self._registered.doubts.look(WHAT, hooks_unlike, others, is_whole):
            self._refuse(UNLIKE.format(names=listed(names)))
