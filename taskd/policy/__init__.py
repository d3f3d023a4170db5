"""Policy files: what a user writes about faults, read with the line of each word, and refused with it.

`load` reads a file, `parse` turns its text into a Policy of the core. The text travels to the manager and is kept in
its journal, so an edit of the file changes no running job. Not here: what a policy decides (core.policy).
"""

from __future__ import annotations

from taskd.policy.document import Source, handed, load, to_hand
from taskd.policy.reader import idle, parse

__all__ = ["Source", "handed", "idle", "load", "parse", "to_hand"]
