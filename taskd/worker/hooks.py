"""Progress marks: a training loop says where it is, and the beat page shows it to the node's agent.

Scripts call `step_end`, `optimizer_begin` and `optimizer_end` (through tft_pause_train and its family), or taskd's own
session marks its steps. Scripts that call nothing are followed through torch's global optimizer hooks: the first
optimizer that steps counts the steps, and further optimizers are ignored. Once a script has told its own number, that
number counts. Without a worker, every call only tests one variable. In a script without a session, these are also the
boundaries at which a rank stands for an operator's pause (pausing.py). Apart from that, nothing here blocks, waits,
sends or raises. This module does not import torch: the hooks are installed if the script has imported it.
"""

from __future__ import annotations

import logging
import operator
import sys
import threading
import weakref
from typing import TYPE_CHECKING, Any

from taskd import log
from taskd.core.types import Phase
from taskd.worker import pausing

if TYPE_CHECKING:
    from taskd._native import Page

_logger = log.get(__name__)
_OPTIMIZER = int(Phase.OPTIMIZER)
_APPLIED = int(Phase.APPLIED)
_BETWEEN = int(Phase.BETWEEN)
_STEP_MAX = 2**62


class _Progress:
    """What this process knows about its own step."""

    __slots__ = ("ends_told", "handles", "leader", "page", "step", "thread", "told", "under_way")

    def __init__(self) -> None:
        self.page: Page | None = None
        self.step = -1  # the current step, or the last one
        self.under_way = False
        self.told = False  # whether the script has told a number itself
        self.ends_told = False  # whether it tells the end of its steps
        self.thread: int | None = None  # the thread in which the session's loop runs
        self.leader: weakref.ref[Any] | None = None
        self.handles: list[Any] = []


_progress = _Progress()


def step_end(iteration: int) -> None:
    """Note that the training loop has ended step `iteration` (tft_pause_train's argument)."""
    page = _progress.page
    if page is None:
        return
    step = _number(iteration)
    if step is not None:
        _progress.step, _progress.under_way, _progress.told = step, False, True
        _progress.ends_told = True
        page.store_step(step, _BETWEEN)
        pausing.boundaries_known()
        if pausing.before_hooked(step + 1):
            page.store_phase(_BETWEEN)


def optimizer_begin(step: int = -1) -> None:
    """Note that the update of `step` begins; -1: of the step after the last one told."""
    page = _progress.page
    if page is None:
        return
    number = _number(step)
    if number is not None:
        number = number if number >= 0 else _progress.step + 1
        pausing.boundaries_known()
        if not _progress.ends_told:
            pausing.before_hooked(number)
        _begin(number)
        _progress.told = True
        page.store_step(_progress.step, _OPTIMIZER)


def optimizer_end(step: int = -1) -> None:
    """Note that the update of `step` is made; -1: of the step that began."""
    page = _progress.page
    if page is None:
        return
    number = _number(step)
    if number is not None:
        _begin(number if number >= 0 else _progress.step)
        _progress.under_way, _progress.told = False, True
        page.store_step(_progress.step, _APPLIED)


def mark_step(step: int, phase: Phase) -> None:
    """Mark step and phase for the session; from now on the script counts as having told its number."""
    page = _progress.page
    if page is not None:
        _progress.step, _progress.under_way, _progress.told = step, phase is not Phase.BETWEEN, True
        _progress.thread = threading.get_ident()
        page.store_step(step, phase)


def trained_in() -> int | None:
    """Return the thread in which steps are marked; None: no step was marked."""
    return _progress.thread


def mark_phase(phase: Phase) -> None:
    """Mark a phase inside a step, for the session."""
    page = _progress.page
    if page is not None:
        page.store_phase(phase)


def attach(page: Page) -> None:
    """Write progress into this page from now on, and follow torch's optimizers if the script has imported torch."""
    _progress.page = page
    optimizer = sys.modules.get("torch.optim.optimizer")
    if optimizer is None or _progress.handles:
        return
    # A compiled step must call the hooks uncompiled. torch.compiler.disable is not used: it would import the compiler
    # now, which takes long.
    uncompiled = getattr(sys.modules["torch"], "_disable_dynamo", lambda function: function)
    try:
        _progress.handles = [
            optimizer.register_optimizer_step_pre_hook(uncompiled(_before_update)),
            optimizer.register_optimizer_step_post_hook(uncompiled(_after_update)),
        ]
        pausing.boundaries_known()
    except AttributeError:
        log.once(
            _logger, logging.INFO, "hooks", "this torch has no global optimizer hooks; steps are shown only when told"
        )


def detach() -> None:
    """Stop writing, remove the hooks and forget the step: what follows is another run."""
    _progress.page = None
    for handle in _progress.handles:
        handle.remove()
    _progress.handles = []
    _progress.step, _progress.under_way, _progress.told, _progress.leader = -1, False, False, None
    _progress.thread, _progress.ends_told = None, False


def _begin(step: int) -> None:
    _progress.step, _progress.under_way = step, True


def _before_update(optimizer: Any, args: Any, kwargs: Any) -> None:
    page = _progress.page
    if page is None:
        return
    if _progress.told:
        # The last told number is that of the step that ended; this update and others beside it belong to the next step.
        if not _progress.under_way:
            _begin(_progress.step + 1)
    else:
        leader = _progress.leader() if _progress.leader is not None else None
        if leader is None:  # the first optimizer, or the first after the leader was deleted: the count goes on
            _progress.leader = weakref.ref(optimizer)
            leader = optimizer
        if leader is optimizer:
            pausing.before_hooked(_progress.step + 1)
            _begin(_progress.step + 1)
    page.store_step(_progress.step, _OPTIMIZER)


def _after_update(optimizer: Any, args: Any, kwargs: Any) -> None:
    page = _progress.page
    if page is not None:
        page.store_phase(_APPLIED)


def _number(value: Any) -> int | None:
    try:
        step = operator.index(value)
    except TypeError:
        step = -2
    if -1 <= step < _STEP_MAX:
        return step
    log.once(
        _logger,
        logging.WARNING,
        "step-number",
        "a step must be a whole number from 0 on, not %r; it is not shown",
        value,
    )
    return None
