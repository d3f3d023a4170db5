"""Logging of taskd: one logger per module below `taskd`, quiet unless something needs a person, never the root logger.

A training job's terminal belongs to the user. So taskd prints only warnings and errors, on standard error. Each line
begins with the name of its process (`taskd[rank 3]: ...`). taskd writes a file only when TASKD_LOG_PATH names one. The
four variables of the original are supported: TASKD_LOG_PATH (a directory or a file), TASKD_FILE_LOG_LEVEL,
TASKD_STD_LOG_LEVEL and TASKD_LOG_STDOUT (off = print nothing).

Structured: pass facts as `extra=log.facts(epoch=3, node="a")`; the file holds them as key=value after the sentence.
It does NOT configure the root logger or any other logger, and never raises into the caller: a log file that cannot be
written costs one warning. It does not decide what is worth logging: the modules do.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from typing import Any

ROOT = "taskd"
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "off": logging.CRITICAL + 10,
}
FILE_BYTES_MAX = 20 * 1024 * 1024
ONCE_MAX = 4096

_identity: str | None = None
_said: set[str] = set()
_ready = False


def get(module: str) -> logging.Logger:
    """The logger of a module: `log.get(__name__)`. Names outside `taskd` are put below it."""
    if not _ready:
        configure()
    if module != ROOT and not module.startswith(ROOT + "."):
        module = f"{ROOT}.{module}"
    return logging.getLogger(module)


def identify(who: str) -> None:
    """Set the name of this process ("rank 3", "manager", "agent a"). It begins each line on the terminal, and names
    the file."""
    global _identity
    _identity = who


def identity() -> str | None:
    """The name of this process. A worker of torchrun that has not set one yet is named by its RANK."""
    if _identity is not None:
        return _identity
    # RANK alone is ambiguous: in a pod's own environment it is the node's rank. Only workers have LOCAL_RANK.
    if os.environ.get("LOCAL_RANK") and os.environ.get("RANK"):
        return f"rank {os.environ['RANK']}"
    return None


def facts(**values: Any) -> dict[str, Any]:
    """The `extra=` argument of a log call: facts in addition to its sentence."""
    return {"facts": values}


def once(logger: logging.Logger, level: int, key: str, message: str, *values: Any) -> bool:
    """Log a sentence with this key at most once per process; returns True when it was logged now."""
    if key in _said:
        return False
    if len(_said) >= ONCE_MAX:  # keys made from input must not use more and more memory
        return False
    _said.add(key)
    logger.log(level, message, *values)
    return True


def configure(
    path: str | None = None,
    file_level: str | None = None,
    std_level: str | None = None,
    stdout: bool | None = None,
) -> None:
    """Set up the `taskd` logger; what is None comes from the environment. May be called again: the last call wins.

    Handlers that the user put on the `taskd` logger stay, and then taskd adds no terminal handler of its own.
    """
    global _ready
    environ = os.environ
    troubles: list[str] = []
    path = environ.get("TASKD_LOG_PATH", "") if path is None else path
    file_level = environ.get("TASKD_FILE_LOG_LEVEL", "") if file_level is None else file_level
    std_level = environ.get("TASKD_STD_LOG_LEVEL", "") if std_level is None else std_level
    if stdout is None:
        stdout = environ.get("TASKD_LOG_STDOUT", "").strip().lower() not in ("false", "0", "off", "no")
    file_number = _level(file_level, logging.INFO, "TASKD_FILE_LOG_LEVEL", troubles)
    std_number = _level(std_level, logging.WARNING, "TASKD_STD_LOG_LEVEL", troubles)

    logger = logging.getLogger(ROOT)
    for handler in [h for h in logger.handlers if isinstance(h, (_Terminal, _File))]:
        logger.removeHandler(handler)
        handler.close()
    _ready = True
    users_own = bool(logger.handlers)
    levels = [] if not users_own else [logger.level or logging.WARNING]
    if stdout and not users_own:
        logger.addHandler(_Terminal(std_number))
        levels.append(std_number)
    if path:
        logger.addHandler(_File(path, file_number))
        levels.append(file_number)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())  # else logging.lastResort would print what the user switched off
    logger.setLevel(min(levels, default=logging.CRITICAL + 10))
    # If taskd has its own handlers, records must not reach the root logger: every warning would be printed twice.
    logger.propagate = users_own and logger.propagate
    for sentence in troubles:
        once(logger, logging.WARNING, sentence, sentence)


def _level(name: str, default: int, variable: str, troubles: list[str]) -> int:
    text = name.strip().lower()
    if not text:
        return default
    if text in LEVELS:
        return LEVELS[text]
    used = logging.getLevelName(default).lower()
    troubles.append(f"{variable}={name!r} is no level; {used} is used; allowed: {', '.join(LEVELS)}")
    return default


def _facts_text(record: logging.LogRecord) -> str:
    values = getattr(record, "facts", None)
    if not isinstance(values, dict) or not values:
        return ""
    return " " + " ".join(f"{name}={_quoted(value)}" for name, value in values.items())


def _quoted(value: Any) -> str:
    text = str(value)
    return repr(text) if not text or any(c in text for c in " \n\r\t\"'=") else text


class _Terminal(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to sys.stderr as it is when a record is logged, so a later redirection by the user is respected."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        raise AssertionError("the terminal handler follows sys.stderr")

    def format(self, record: logging.LogRecord) -> str:
        who = identity()
        text = f"taskd[{who}]: {record.getMessage()}" if who else f"taskd: {record.getMessage()}"
        if record.exc_info:
            text += "\n" + (self.formatter or _PLAIN).formatException(record.exc_info)
        return text

    def emit(self, record: logging.LogRecord) -> None:
        if sys.stderr is not None:  # a daemon may have closed it
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: a lost terminal must not add a traceback of the logging module to the job's output."""


class _File(logging.Handler):
    """Writes one line per record to a file. The file is opened at the first record, and renamed to `.1` and begun
    anew at FILE_BYTES_MAX."""

    def __init__(self, path: str, level: int) -> None:
        super().__init__(level)
        self.asked = path
        self.stream: Any = None
        self.pid = 0
        self.broken = False
        self.size = 0
        self.target = ""

    def emit(self, record: logging.LogRecord) -> None:
        if self.broken:
            return
        try:
            # A forked child opens its own file: two processes that share a buffer would mix their lines.
            if self.stream is None or self.pid != os.getpid():
                self._open()
            line = self._line(record)
            self.stream.write(line)
            self.stream.flush()
            self.size += len(line)
            if self.size > FILE_BYTES_MAX:
                self._turn_over()
        except OSError as error:
            self.broken = True
            reason = error.strerror or str(error)
            once(
                logging.getLogger(ROOT),
                logging.WARNING,
                f"log-file {self.asked}",
                f"the log file {self.target or self.asked!r} cannot be written ({reason}); logging to a file is off: "
                "point TASKD_LOG_PATH at a directory this user may write",
            )

    def close(self) -> None:
        if self.stream is not None:
            with contextlib.suppress(OSError):  # closing a full disk: everything was flushed line by line already
                self.stream.close()
            self.stream = None
        super().close()

    def _open(self) -> None:
        self.target = file_for(self.asked)
        os.makedirs(os.path.dirname(os.path.abspath(self.target)), mode=0o750, exist_ok=True)
        descriptor = os.open(self.target, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        self.stream = os.fdopen(descriptor, "a", encoding="utf-8", errors="backslashreplace")
        self.size = os.fstat(descriptor).st_size
        self.pid = os.getpid()

    def _turn_over(self) -> None:
        self.stream.close()
        self.stream = None
        os.replace(self.target, self.target + ".1")

    def _line(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        sentence = record.getMessage().replace("\n", "\\n")
        line = (
            f"{seconds}.{int(record.msecs):03d} {record.levelname.lower()} {record.name} pid={record.process} "
            f"{sentence}{_facts_text(record)}\n"
        )
        if record.exc_info:
            line += (self.formatter or _PLAIN).formatException(record.exc_info) + "\n"
        return line


def file_for(path: str) -> str:
    """The log file for a TASKD_LOG_PATH: a path with a suffix is a file, any other path is a directory."""
    is_directory = path.endswith(os.sep) or os.path.isdir(path) or not os.path.splitext(path)[1]
    if not is_directory:
        return path
    who = identity()
    name = "".join(c if c.isalnum() or c in "-_." else "-" for c in who) if who else str(os.getpid())
    return os.path.join(path, f"taskd-{name}.log")


_PLAIN = logging.Formatter()
