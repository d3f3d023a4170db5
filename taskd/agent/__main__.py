"""The agent as a side process: `python -m taskd.agent --fd N --node NAME`, started by a node's first worker.

It forks before anything else, so that no process waits for it and no launcher finds it among its children. It lives in
a session of its own until its last worker has gone. Its messages go to the log. Its output goes to a terminal if there
is one, else to a file in the job's folder. That file exists only if there was output.
It imports no torch, because it must be ready within a fraction of a second. It does NOT start workers (the launcher
does).
"""

from __future__ import annotations

import os
import sys


def main(arguments: list[str]) -> int:
    """Fork, and serve in the child; the first process ends at once."""
    # Fork before zmq is imported: its threads would not survive the fork.
    if os.fork():
        os._exit(0)
    os.setsid()
    return serve(arguments)


def serve(arguments: list[str]) -> int:
    """Serve this node on the listening socket that the worker made."""
    import argparse
    import signal
    import socket

    from taskd import config, log
    from taskd.agent.loop import AgentLoop
    from taskd.errors import TaskdError

    parser = argparse.ArgumentParser(prog="python -m taskd.agent", description="taskd's agent of one node")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the listening socket")
    parser.add_argument("--node", required=True, help="name of the node")
    options = parser.parse_args(arguments)
    log.identify(f"agent {options.node}")
    logger = log.get("taskd.agent")
    try:
        settings = config.load()
        if settings.log.path:
            log.configure(path=os.path.abspath(settings.log.path))
        if not os.isatty(2):
            sys.stderr = _LateFile(os.path.join(settings.job.directory, f"agent-{options.node}.log"))
        os.chdir("/")  # a daemon must not keep one of the user's file systems busy
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        loop = AgentLoop(settings, options.node, socket.socket(fileno=options.fd))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(
                number, lambda number, _frame: loop.stop(f"it was told to end by {signal.Signals(number).name}")
            )
        return loop.run()
    except TaskdError as error:
        logger.error("this node's agent ends: %s", error)
    except Exception:
        logger.exception("this node's agent ends by a mistake of its own; its workers start another one")
    return 1


class _LateFile:
    """Standard error of a process without a terminal: a file that is opened at the first write."""

    BYTES_MAX = 1 << 20

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = -1

    def write(self, text: str) -> int:
        if self._fd < 0:
            try:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, 0o600)
                if os.fstat(self._fd).st_size > self.BYTES_MAX:
                    os.ftruncate(self._fd, 0)
            except OSError:
                return len(text)  # there is no place to write it
        os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` does not buffer."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
