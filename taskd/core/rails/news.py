"""The rail reports that a node sends with the next beat: changed lines at once, all other lines in turn.

A node of a large job has more lines (one rail toward one peer node) than fit into a beat, and their byte counts change
all the time. So a line whose state has changed is sent with every beat for a while, so that traffic on it is seen at
once. Any other line is sent again after a fixed time. Failure modes, and what follows:

- *A report is lost*: the next turn sends the same again, since counters only grow.
- *A line is not used any more*: it is sent for a while like any change, then no longer. The manager forgets it.

Invariant: no report is larger than its bound, and no line waits for ever. Not here: where readings come from.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits
from taskd.core.messages import RailReport
from taskd.core.times import long_ago


@dataclass(slots=True, eq=False)
class _Line:
    report: RailReport
    news_until: int
    told_at: int | None = None


class RailNews:
    """The lines of one node, as they were last read."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], _Line] = {}  # by rail and peer

    def read(self, reports: tuple[RailReport, ...], now: int) -> None:
        """Take one reading of all lines."""
        for report in reports:
            key = (report.rail, report.peer)
            line = self._lines.get(key)
            if line is not None:
                if _stands(report) != _stands(line.report):
                    line.news_until = now + limits.RAIL_NEWS_NS
                line.report = report
            elif len(self._lines) < limits.MAX_RAIL_RECORDS:
                self._lines[key] = _Line(report, now + limits.RAIL_NEWS_NS)

    def due(self, now: int) -> tuple[RailReport, ...]:
        """The reports for the beat that is sent now."""
        lines = [line for line in self._lines.values() if _is_due(line, now)]
        if len(lines) > limits.MAX_RAIL_REPORTS:
            lines.sort(key=lambda line: -1 if line.told_at is None else line.told_at)
            del lines[limits.MAX_RAIL_REPORTS :]
        for line in lines:
            line.told_at = now
        return tuple(line.report for line in lines)

    def again(self) -> None:
        """The manager may have forgotten everything: every line is due."""
        for line in self._lines.values():
            line.told_at = None


def _is_due(line: _Line, now: int) -> bool:
    if now < line.news_until:
        return True
    return line.report.pairs > 0 and long_ago(line.told_at, now, limits.FULL_REPORT_NS)


def _stands(report: RailReport) -> tuple[int, ...]:
    """The fields whose change counts as news: all but the traffic counters."""
    return (report.state, report.pairs, report.pairs_up, report.pairs_starved, report.downs, report.last_error)
