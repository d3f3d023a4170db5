"""Whose fault: the few exceptions taskd raises, sorted by who can do something about them.

UsageError is the caller's (a wrong argument, a wrong setting), PeerError another rank's or another process's,
BackendError a library's (torch, gloo, NCCL, zmq). There is no class for our own mistakes: a broken invariant of ours is
an assert. Every message is one sentence that says what was wrong and what to do. Nothing here logs, formats tracebacks
or decides a recovery.
"""

from __future__ import annotations


class TaskdError(Exception):
    """Base of every error that taskd raises on purpose."""


class UsageError(TaskdError):
    """The caller's fault: an argument, a setting or an order of calls that taskd cannot accept."""


class Misfit(UsageError):
    """This process is a newcomer and is not set up like those that it is to join: it must not go on."""


class PeerError(TaskdError):
    """Another rank's or another taskd process's fault: it is gone, is silent, or said something it must not say."""


class BackendError(TaskdError):
    """A library's fault: torch, a communication backend or the operating system refused what it should have done."""


class StepAbandoned(BaseException):
    """Leaves the body of a step that was given up, on its way to the `with step:` that will do the step again.

    A BaseException, so that a training loop's `except Exception` does not swallow it half-way. Users never catch it.
    """
