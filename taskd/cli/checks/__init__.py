"""The checks of `taskd doctor`, one file per field; each returns findings and changes nothing on the machine."""

from __future__ import annotations

from dataclasses import dataclass

OK = "ok"
WARNING = "warning"
FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """What one check found: a sentence, and the cure unless all is well."""

    topic: str
    check: str
    state: str
    sentence: str
    cure: str = ""


def ok(topic: str, check: str, sentence: str) -> Finding:
    """All is well, or the thing is not needed here."""
    return Finding(topic, check, OK, sentence)


def warning(topic: str, check: str, sentence: str, cure: str) -> Finding:
    """A job can run, but something will be slower, unseen or missing."""
    return Finding(topic, check, WARNING, sentence, cure)


def fault(topic: str, check: str, sentence: str, cure: str) -> Finding:
    """A job will not run as it should until this is mended."""
    return Finding(topic, check, FAULT, sentence, cure)
