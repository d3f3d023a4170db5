"""The few exceptions that taskd raises, sorted by who can correct the error.

UsageError is the caller's fault (a wrong argument, a wrong setting). PeerError is the fault of another rank or process.
BackendError is the fault of a library (torch, gloo, NCCL, zmq). There is no class for taskd's own bugs: a broken
invariant of taskd is an assert. Every message is one sentence that says what was wrong and what to do. Nothing here
logs, formats tracebacks or decides a recovery.
"""

from __future__ import annotations


class TaskdError(Exception):
    """Base of every error that taskd raises on purpose."""


class UsageError(TaskdError):
    """The caller's fault: an argument, a setting or an order of calls that taskd cannot accept."""


class Misfit(UsageError):
    """This newcomer is not set up like the processes that it is to join, so it must not go on."""


class PeerError(TaskdError):
    """Another rank's or another taskd process's fault: it is gone, is silent, or said something it must not say."""


class BackendError(TaskdError):
    """A library's fault: torch, a communication backend or the operating system refused what it should have done."""


class StepAbandoned(BaseException):
    """Leaves the body of an abandoned step. The enclosing `with step:` catches it and repeats the step.

    It is a BaseException, so that a training loop's `except Exception` does not catch it. Users never catch it.
    """
