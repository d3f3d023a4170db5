"""The options by which every command that asks a manager selects it, and the client that they select.

A module of its own, because these commands have the same options. taskd/client.py does the asking.
"""

from __future__ import annotations

import argparse

from taskd.client import Client
from taskd.client import NoManager as NoManager

EXIT_NO_MANAGER = 3
"""The exit code of a command that found no manager to ask."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the manager."""
    parser.add_argument("--job", help="the job's id (default: as configured, or the only one with a manager here)")
    parser.add_argument("--host", help="the manager's host")
    parser.add_argument("--port", type=int, help="the manager's port")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")


class Asker(Client):
    """The client that these options select."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments.job, host=arguments.host, port=arguments.port)
