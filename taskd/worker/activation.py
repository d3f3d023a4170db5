"""The start of the node's agent: the first worker that finds no agent listening starts it.

The worker binds the listening socket and hands the descriptor on, so the name is taken before the agent runs. A second
worker connects instead of starting another agent, and nothing is polled. The agent forks away and gets a session of its
own. It belongs to no process group of the launcher, and Ctrl-C does not end it.
It does NOT wait until the agent is ready: connections queue in the socket meanwhile.
"""

from __future__ import annotations

import os
import site
import socket
import subprocess
import sys
from pathlib import Path

from taskd.config import Config, leaves, value_at
from taskd.errors import BackendError
from taskd.worker.identity import Identity

START_SECONDS_MAX = 30
"""How long Python may take to start and fork on an overloaded machine."""
HANDED_ON = ("job.", "manager.", "agent.", "log.")


def start_agent(listener: socket.socket, config: Config, identity: Identity) -> None:
    """Start the agent of this node on this socket; raises BackendError when that fails. The caller keeps the socket."""
    command = [sys.executable, "-m", "taskd.agent", "--fd", str(listener.fileno()), "--node", identity.node]
    # A pipe held by a process that outlives the job would keep `torchrun ... | tee log` from ending.
    errors = sys.__stderr__.fileno() if _is_terminal() and sys.__stderr__ is not None else subprocess.DEVNULL
    try:
        midwife = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=(listener.fileno(),),
            start_new_session=True,
            env=environment(config),
        )
        status = midwife.wait(START_SECONDS_MAX)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise BackendError(f"this node's agent could not be started: {error}") from None
    if status:
        raise BackendError(
            f"this node's agent could not be started: {sys.executable} -m taskd.agent ended with {status}"
        )


def environment(config: Config) -> dict[str, str]:
    """This process' environment with its configuration written out, so that the agent reads the same values."""
    found = dict(os.environ)
    found.pop("LD_PRELOAD", None)  # preloaded profilers and allocators are meant for the training process
    for path, leaf in leaves().items():
        source = config.sources.get(path, "default")
        if path.startswith(HANDED_ON) and not leaf.meta["secret"] and source.startswith("keyword"):
            value = value_at(config, path)
            found[leaf.variables[0]] = ",".join(value) if isinstance(value, tuple) else _text(value)
    # The agent must find this taskd from any folder, and a file in the script's folder must not shadow a library.
    root = str(Path(__file__).resolve().parents[2])
    found["PYTHONSAFEPATH"] = "1"
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        found["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [found.get("PYTHONPATH", "")])])
    return found


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _is_terminal() -> bool:
    try:
        return sys.__stderr__ is not None and os.isatty(sys.__stderr__.fileno())
    except (OSError, ValueError):
        return False
