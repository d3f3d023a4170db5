"""The warm standby: a process that has imported torch already, and from which a node's workers are forked in no time.

Importing torch takes seconds, a fork milliseconds, so this is what makes replacing a rank quick. The standby is started
before anything else and with the workers' environment, because OMP_NUM_THREADS and its kind are read at import. One
standby serves every worker of the node; when it dies it is started again. Whoever wants a worker while there is none,
or with an environment that differs in what is read at import, is told why (`NotReady`) and starts one the cold way.
This module imports no torch. It does NOT know what a worker does or who wants one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from taskd import log
from taskd.launch.standby_process import REPLY_BYTES_MAX

ENTRY = "taskd.worker.boot:begin"
"""What a child does: named here, not imported, for this process is to stay light."""
IMPORTS = ("torch", "numpy", "torch.distributed", "torch.utils.data", "torch._dynamo", "torch.distributed.fsdp")
"""Optimizers import torch._dynamo when the first one is made: a second and a half of a newcomer's set-up."""
READ_AT_IMPORT = (
    "OMP_",
    "MKL_",
    "OPENBLAS_",
    "KMP_",
    "GOMP_",
    "BLIS_",
    "NUMEXPR_",
    "LD_",
    "MALLOC_",
    "PYTHON",
    "TORCH_",
    "PYTORCH_",
    "ATEN_",
    "TASKD_LOG",
    "LC_",
    "LANG",
)
TITLE_ROOM = " " * 1024
"""An argument without meaning: a child writes its script's name and arguments over those of this process."""
READY_SECONDS_MAX = 120
FORK_SECONDS_MAX = 3
DEATHS_MAX = 3
"""In a row, each before it was ready: after that the standby is given up and workers start cold."""
_logger = log.get(__name__)


class NotReady(Exception):
    """No worker can be forked just now; the text says why, as the end of a sentence."""


class Standby:
    """Started at once by `start`; `fork` asks it for a worker; `tend` is to be called whenever `fd` is readable."""

    def __init__(
        self, interpreter: str, environment: Mapping[str, str], folder: str = "", preload: Sequence[str] = ()
    ) -> None:
        """`folder` is where the script lies and `preload` names modules of the user's to import, too, or functions
        (MODULE:FUNCTION) to call then."""
        self.environment = dict(environment)
        self.ready = False
        self.threads = 0
        self.deaths_max = DEATHS_MAX
        self._parts = interpreter, folder, tuple(preload)
        self._command = [interpreter, "-u", "-m", "taskd.launch.standby_process"]
        self._imports = [folder, *IMPORTS, *preload]
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._reason = "it was not started"

    @property
    def fd(self) -> int:
        """Readable when there is something to tend; -1: never."""
        return self._line.fileno() if self._line is not None else -1

    @property
    def pid(self) -> int:
        """Its process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    def start(self) -> None:
        """Start the process; returns at once. It has a session of its own: a Ctrl-C is the launcher's to handle."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [*self._command, str(theirs.fileno()), str(os.getpid()), ENTRY, *self._imports, TITLE_ROOM],
                    env=self.environment,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                self._reason = f"it could not be started ({error.strerror})"
                return
        self._line, self._reason = ours, "it is still importing torch"

    def successor(self, *more: str) -> Standby:
        """One like this that does more before it is ready, and is tried once; it is not started."""
        interpreter, folder, preload = self._parts
        found = Standby(interpreter, self.environment, folder, (*preload, *more))
        found.deaths_max = 1
        return found

    def wait(self, seconds: float = READY_SECONDS_MAX) -> bool:
        """Wait until it is ready; False when it has died or the time is over."""
        ends = time.monotonic() + seconds
        while not self.ready and self._line is not None and self._poll(ends - time.monotonic()):
            self.tend()
        return self.ready

    def differs(self, environment: Mapping[str, str]) -> list[str]:
        """Names of variables that are read at import and have another value in this environment."""
        names = {name for name in (*environment, *self.environment) if name.startswith(READ_AT_IMPORT)}
        return sorted(name for name in names if environment.get(name) != self.environment.get(name))

    def fork(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """A new child of this process that serves the request in the first descriptor; its pid. Raises NotReady."""
        different = self.differs(environment)
        if different:
            raise NotReady(f"its environment has another {' and '.join(different[:4])}, which is read at import")
        if not self.ready or self._line is None:
            raise NotReady(self._reason)
        try:
            socket.send_fds(self._line, [b"fork"], list(descriptors))
            answer = self._line.recv(REPLY_BYTES_MAX).decode() if self._poll(FORK_SECONDS_MAX) else ""
        except OSError as error:
            answer = f"failed {error.strerror}"
        word, _, rest = answer.partition(" ")
        if word == "started":
            return int(rest)
        if word == "threads":
            raise NotReady(f"it has {rest} threads, and what they hold would be lost in a child")
        if word == "failed":
            raise NotReady(rest)
        self._died("it did not answer")
        raise NotReady(self._reason)

    def tend(self) -> None:
        """Take what it has to say: that it is ready, or nothing any more. In that case it is started again."""
        if self._line is None:
            return
        try:
            said = self._line.recv(REPLY_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said.startswith(b"ready"):
            self.ready, self._failures = True, 0
            self.threads = int(said.split()[1])
            return
        self._died("it has ended")

    def close(self) -> None:
        """End it; returns when it is gone."""
        was_ready, self.ready = self.ready, False
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)
                if not was_ready:  # it may have started something; children that it forked for us go their own way
                    os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _died(self, reason: str) -> None:
        was_ready = self.ready
        self.close()
        self._reason = reason
        self._failures += not was_ready
        if self._failures < self.deaths_max:
            _logger.warning("this node's standby is started again: %s", reason)
            self.start()
        else:
            self._reason = f"{reason}, {self._failures} times before it was ready"
            _logger.warning("this node goes on without a standby: %s", self._reason)

    def _poll(self, seconds: float) -> bool:
        assert self._line is not None
        poller = select.poll()
        poller.register(self._line, select.POLLIN)
        return bool(poller.poll(max(0.0, seconds) * 1000))
