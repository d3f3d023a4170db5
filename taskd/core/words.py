"""Words for the core's sentences: lists of ranks, exits of processes, devices, late operations, durations.

Every decision is explained to people in one sentence. These few functions keep the sentences uniform and short. They
decide nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from signal import Signals

from taskd.core import limits

_MOST_SPANS = 8
LEFT_EARLY = "left with exit code 0 in the middle of step"
"""The reason of a death that looks like a good end. The step's number follows it."""
LEFT_UNSAID = "left with exit code 0 and without a word"
"""The reason of a good end that was not announced: the process called os._exit, for example."""
RAISED_AGAIN = "raised once more when the step was done again: "
"""The beginning of an error's words if a repair did not help."""
WOULD_BE_WRONG = "going on would be wrong: "
"""The beginning of a refusal's words if no newcomer could help. All ranks start over then."""
STOPPED_CODE = 75
"""The exit code of a job that an operator has stopped, and of all its launchers: EX_TEMPFAIL of sysexits.h."""
NOT_STARTED = "it could not be started: "
FOR_ITS_MEMORY = "killed for its memory: "
_FAILED_OPERATION = re.compile(r"Dist(Backend|Network|Store)?Error\b|RuntimeError: \[\S*gloo/")
"""The beginning of an uncaught exception's words if an operation has failed: torch's own errors, and gloo's."""


def cut(text: str, most: int = limits.MAX_TEXT) -> str:
    """Return the text, cut to the length of its field. Three dots mark where text is missing."""
    return text if len(text) <= most else text[: most - 3] + "..."


def sentence(text: str) -> str:
    """Return the text with a capital letter at its beginning."""
    return text[:1].upper() + text[1:]


def join(parts: Sequence[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def some(parts: Sequence[str], most: int = 4) -> str:
    """a, b, c and 60 more."""
    return join(parts) if len(parts) <= most else join([*parts[: most - 1], f"{len(parts) - most + 1} more"])


def rank_words(ranks: Iterable[int]) -> str:
    """`rank 2`, `ranks 0-3 and 7`; a long list is cut."""
    ordered = sorted(set(ranks))
    if not ordered:
        return "no rank"
    some_of = spans(ordered)[:_MOST_SPANS]
    texts = list(map(span_words, some_of))
    named = sum(high - low + 1 for low, high in some_of)
    if named < len(ordered):
        texts.append(f"{len(ordered) - named} more")
    return f"{'rank' if len(ordered) == 1 else 'ranks'} {join(texts)}"


def spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Return the runs of consecutive numbers, the first and last number of each."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def span_words(span: tuple[int, int]) -> str:
    """`0-3`, `7`."""
    low, high = span
    return f"{low}" if low == high else f"{low}-{high}"


def verb(count: int, one: str, many: str) -> str:
    """Return the word that agrees with the count."""
    return one if count == 1 else many


def late_words(who: str, operation: str, waited_ms: int, usual: str) -> str:
    """`rank 2 has waited 51 s for allreduce #812 of group 0@0-3, ten times its usual longest; nothing has failed`."""
    return f"{who} has waited {waited_ms // 1_000} s for {operation}, {usual}; nothing has failed"


def asked_words(by: str) -> str:
    """`ann asked for it`: why a rank was ended for an operator."""
    return f"{by} asked for it"


def lost_words(steps: int, saved: bool = False) -> str:
    """`9 steps lost`: what a start of all ranks from the beginning has cost, as far as was seen. `saved`: the last
    checkpoint was written before, and these steps are not in it."""
    if saved:
        one = steps < 2
        which = f"that {'is' if one else 'are'} not in the last checkpoint"
        return f"{steps or 'no'} {'step' if one else 'steps'} lost {which}"
    return f"{steps} {verb(steps, 'step', 'steps')} lost" if steps else "no finished step was seen"


def follows(reason: str) -> bool:
    """Whether a rank that died for this reason only raised that an operation with other ranks had failed. Then another
    rank is the cause."""
    return _FAILED_OPERATION.match(reason) is not None


def exit_words(exit_code: int) -> str:
    """`SIGKILL`, `exit code 3`."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def shell_code(exit_code: int) -> int:
    """Return the exit code that says how another process ended: never 0, and 128 + n for signal n."""
    if exit_code < 0:
        return min(128 - exit_code, 255)
    return exit_code if exit_code > 0 else 1


def device_words(device: int) -> str:
    """`device 3`, or `a device` if its number is not known."""
    return f"device {device}" if device >= 0 else "a device"


def seconds(duration_ns: int) -> str:
    """Return the duration in seconds: with one digit behind the point if it is short."""
    tenths = max(duration_ns, 0) * 10 // limits.SECOND
    return f"{tenths // 10}.{tenths % 10}" if tenths < 100 else str(tenths // 10)


def milliseconds(duration_ns: int) -> int:
    """Return the duration in milliseconds, rounded to the nearest one."""
    return (duration_ns + limits.MS // 2) // limits.MS
