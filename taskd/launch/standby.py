"""The warm standby: a process that has already imported torch, and from which a node's workers are forked quickly.

Importing torch takes seconds and a fork takes milliseconds. This makes the replacement of a rank quick. The standby is
started before anything else and with the workers' environment, because variables such as OMP_NUM_THREADS are read at
import. One standby serves all workers of the node. If it dies, it is started again. `fork` raises `NotReady` with the
reason if there is no standby, or if a variable that is read at import differs. The caller then starts the worker cold.
This module imports no torch. It does NOT know what a worker does, or which code asks for one.
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
"""The function that a child runs. It is only named here, not imported, so that this process stays small."""
IMPORTS = ("torch", "numpy", "torch.distributed", "torch.utils.data", "torch._dynamo", "torch.distributed.fsdp")
"""torch imports torch._dynamo when the first optimizer is made: a second and a half of a newcomer's set-up."""
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
"""An argument without meaning, which makes room: a child overwrites the standby's command line with its own."""
READY_SECONDS_MAX = 120
FORK_SECONDS_MAX = 3
DEATHS_MAX = 3
"""After this many deaths in a row, each before it was ready, the standby is given up and workers start cold."""
_logger = log.get(__name__)


class NotReady(Exception):
    """No worker can be forked now; the text gives the reason, as the end of a sentence."""


class Standby:
    """The launcher's side of the standby. `start` starts it, `fork` asks it for a worker.

    Call `tend` whenever `fd` is readable."""

    def __init__(
        self, interpreter: str, environment: Mapping[str, str], folder: str = "", preload: Sequence[str] = ()
    ) -> None:
        """`folder` is the script's folder. `preload` names modules of the user to import as well, or functions
        (MODULE:FUNCTION) to call after the import."""
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
        self._awaited_until = 0.0
        self._reason = "it was not started"

    @property
    def fd(self) -> int:
        """A descriptor that is readable when `tend` must be called; -1: there is none."""
        return self._line.fileno() if self._line is not None else -1

    @property
    def pid(self) -> int:
        """The pid of its process; 0: there is none."""
        return self._process.pid if self._process is not None else 0

    @property
    def awaited(self) -> bool:
        """Whether it is about to be ready for the first time: until then, no worker starts sooner without it."""
        return self._line is not None and not self.ready and time.monotonic() < self._awaited_until

    def start(self) -> None:
        """Start the process; returns at once. It has its own session, so that a Ctrl-C reaches only the launcher."""
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
        if not self._awaited_until:
            self._awaited_until = time.monotonic() + READY_SECONDS_MAX

    def successor(self, *more: str) -> Standby:
        """Make a similar standby that imports or calls `more` before it is ready. It is not started here.

        If it dies before it is ready, it is not started again."""
        interpreter, folder, preload = self._parts
        found = Standby(interpreter, self.environment, folder, (*preload, *more))
        found.deaths_max = 1
        return found

    def wait(self, seconds: float = READY_SECONDS_MAX) -> bool:
        """Wait until it is ready; returns False when it has died or the time is over."""
        ends = time.monotonic() + seconds
        while not self.ready and self._line is not None and self._poll(ends - time.monotonic()):
            self.tend()
        return self.ready

    def differs(self, environment: Mapping[str, str]) -> list[str]:
        """The names of variables that are read at import and have another value in this environment."""
        names = {name for name in (*environment, *self.environment) if name.startswith(READ_AT_IMPORT)}
        return sorted(name for name in names if environment.get(name) != self.environment.get(name))

    def fork(self, environment: Mapping[str, str], descriptors: Sequence[int]) -> int:
        """Fork a worker, a child of this process, for the request in the first descriptor. Returns its pid.

        Raises NotReady."""
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
        """Read its message: it is ready, or it has ended. If it has ended, it is started again."""
        if self._line is None:
            return
        try:
            said = self._line.recv(REPLY_BYTES_MAX, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said.startswith(b"ready"):
            self.ready, self._failures, self._awaited_until = True, 0, -1.0
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
                if not was_ready:  # also end what it has started; once ready, its group may hold forked workers
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
