"""Where the workers' output goes: torchrun's own log options, for workers that are replaced one by one.

torch chooses the files (`LogsSpecs.reify`) and shows them on the terminal (`TailLog`). Here they are opened. A rank's
first life overwrites its files, and later lives append to them, so that no output of a dead rank is lost. If torch made
a log folder that stays empty, the folder is removed at the end of the job.
"""

from __future__ import annotations

import contextlib
import os
import sys
from string import Template
from typing import TextIO

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.tail_log import TailLog
from torch.distributed.launcher.api import LaunchConfig


class Logs:
    """The log files of all places of this node, and the threads that show them."""

    def __init__(self, config: LaunchConfig, environments: dict[int, dict[str, str]]) -> None:
        """`environments` by local rank; each gets the variable that names its error file."""
        assert config.logs_specs is not None, "LaunchConfig fills it in"
        self._files = config.logs_specs.reify(environments)
        self._filtered: list[TextIO] = []
        prefixes = _prefixes(config, environments)
        role, files = config.role, self._files
        self._tails = [
            TailLog(role, files.tee_stdouts, sys.stdout, prefixes),
            TailLog(role, files.tee_stderrs, sys.stderr, prefixes),
        ]
        for words, path, source in (
            (config.duplicate_stdout_filters, files.filtered_stdout, files.tee_stdouts),
            (config.duplicate_stderr_filters, files.filtered_stderr, files.tee_stderrs),
        ):
            if words:
                target = open(path, "w", errors="replace", buffering=1)  # noqa: SIM115 - open as long as the job
                self._filtered.append(target)
                self._tails.append(TailLog(role, source, target, prefixes, log_line_filter=_having(words)))

    def start(self) -> None:
        """Start the threads that show the files."""
        for tail in self._tails:
            tail.start()

    def prepare(self, local_rank: int, environment: dict[str, str], again: bool) -> None:
        """Put the name of the error file into a worker's environment; the previous life's error file is deleted."""
        path = self.error_file(local_rank)
        environment["TORCHELASTIC_ERROR_FILE"] = "" if path == os.devnull else path
        if again and path != os.devnull:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def error_file(self, local_rank: int) -> str:
        """The file into which torch's `record` writes the error that ended a worker."""
        return str(self._files.error_files[local_rank])

    def open(self, local_rank: int, again: bool) -> dict[str, int]:
        """Open the streams that do not go to the launcher's own output. Returns descriptors by name.

        The caller closes them."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if again else os.O_TRUNC)
        found = {}
        for name, paths in (("stdout", self._files.stdouts), ("stderr", self._files.stderrs)):
            if paths[local_rank]:
                found[name] = os.open(paths[local_rank], flags, 0o666)
        return found

    def stop(self) -> None:
        """Show the rest and stop the threads; returns when that is done."""
        for tail in self._tails:
            tail.stop()
        for file in self._filtered:
            file.close()


def put_away(config: LaunchConfig, log_dir: str | None) -> None:
    """Remove the temporary folder that torch makes when no --log-dir is given, unless it contains something.

    torchrun leaves such an empty folder behind with every job."""
    if log_dir is not None or type(config.logs_specs) is not DefaultLogsSpecs:
        return
    for folder, _, _ in os.walk(config.logs_specs.root_log_dir, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # fails if the folder is not empty


def _prefixes(config: LaunchConfig, environments: dict[int, dict[str, str]]) -> dict[int, str] | None:
    if not config.log_line_prefix_template:
        return None
    template = Template(config.log_line_prefix_template)
    return {
        local_rank: template.safe_substitute(
            role_name=config.role, rank=environment.get("RANK", ""), local_rank=local_rank
        )
        for local_rank, environment in environments.items()
    }


def _having(words: list[str]):  # type: ignore[no-untyped-def]
    return lambda line: any(word in line for word in words)
