"""Where the workers' output goes: torchrun's own log options, for workers that come again one by one.

torch decides the files (`LogsSpecs.reify`) and shows them on the terminal (`TailLog`); here they are opened, for a
first life from the start and for a further one at the end, so that nothing a dead rank said is lost. A folder that
torch made for nothing goes with the job.
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
    """The files and the threads that show them, for all places of this node."""

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
        """Begin to show what is to be shown."""
        for tail in self._tails:
            tail.start()

    def prepare(self, local_rank: int, environment: dict[str, str], again: bool) -> None:
        """Put the name of the error file into a worker's environment; what the life before wrote into it goes."""
        path = self.error_file(local_rank)
        environment["TORCHELASTIC_ERROR_FILE"] = "" if path == os.devnull else path
        if again and path != os.devnull:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)

    def error_file(self, local_rank: int) -> str:
        """Where torch's `record` writes what a worker died of."""
        return str(self._files.error_files[local_rank])

    def open(self, local_rank: int, again: bool) -> dict[str, int]:
        """Descriptors of the streams that do not go where the launcher's go, by name; the caller closes them."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if again else os.O_TRUNC)
        found = {}
        for name, paths in (("stdout", self._files.stdouts), ("stderr", self._files.stderrs)):
            if paths[local_rank]:
                found[name] = os.open(paths[local_rank], flags, 0o666)
        return found

    def stop(self) -> None:
        """Show the rest and end; returns when that is done."""
        for tail in self._tails:
            tail.stop()
        for file in self._filtered:
            file.close()


def put_away(config: LaunchConfig, log_dir: str | None) -> None:
    """Remove the folder that torch makes in the system's temporary one when no --log-dir is given, unless something
    lies in it: torchrun leaves an empty one behind with every job."""
    if log_dir is not None or type(config.logs_specs) is not DefaultLogsSpecs:
        return
    for folder, _, _ in os.walk(config.logs_specs.root_log_dir, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # refuses what is not empty


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
