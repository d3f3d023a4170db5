"""Drop-in names of a node's agent: init_taskd_agent, start_taskd_agent, register_func.

A launcher with an elastic agent of its own keeps it. taskd's loop then watches beside it, in a thread.
`start_taskd_agent()` returns what the elastic agent's `run()` returns, and lets its exceptions pass, because they are
the launcher's own control flow. Without an elastic agent, taskd's loop runs in the caller's thread until its workers
have gone. Apart from those exceptions, these functions never raise.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from taskd import config as configuration
from taskd import log
from taskd.agent.loop import AgentLoop
from taskd.api.conventions import never_raises
from taskd.api.taskd_proxy_api import port_of, text_of
from taskd.core.messages import Stop
from taskd.errors import UsageError
from taskd.wire import local
from taskd.worker.identity import node_name

KEYS = ("Framework", "UpstreamAddr", "UpstreamPort", "ServerRank")
FRAMEWORKS = ("PyTorch", "MindSpore")
KILL_WORKER, START_ALL_WORKER, MONITOR = "KILL_WORKER", "START_ALL_WORKER", "MONITOR"
RESTART, START_WORKER_LIST = "RESTART", "START_WORKER_LIST"
CALLED = (KILL_WORKER, START_ALL_WORKER)
OPERATORS = (*CALLED, MONITOR, RESTART, START_WORKER_LIST)
STOP_SECONDS_MAX = 5
_logger = log.get(__name__)


class _Agent:
    """What init_taskd_agent prepared."""

    def __init__(self, settings: configuration.Config, node: str, elastic: Any) -> None:
        self.settings, self.node, self.elastic = settings, node, elastic
        self.running = False
        self.loop: AgentLoop | None = None
        self.finished = threading.Event()

    def watch(self) -> int:
        """Serve this node until `finish`. Without an elastic agent, serve it until the workers have gone."""
        status = 0
        while not self.finished.is_set():
            listener = local.listen(local.address(self.settings.job.id, self.node))
            if listener is None:
                _logger.warning("node %s has an agent already; this one watches nothing", self.node)
                return 0
            self.loop = AgentLoop(self.settings, self.node, listener, on_stop=self._stopped)
            if self.finished.is_set():  # `finish` was called between the check above and this line
                self.loop.stop("its launcher has ended")
            status = self.loop.run()
            if self.elastic is None:
                break
        return status

    def finish(self, thread: threading.Thread) -> None:
        """End the watching: the elastic agent has returned."""
        self.finished.set()
        if self.loop is not None:
            self.loop.stop("its launcher has ended")
        thread.join(STOP_SECONDS_MAX)

    def call(self, operator: str) -> Any:
        """Call a registered function with the worker group, if there is one, as the methods of elastic agents want
        it."""
        group = getattr(self.elastic, "_worker_group", None)
        return _functions[operator](*([] if group is None else [group]))

    def _stopped(self, stop: Stop) -> None:
        if KILL_WORKER in _functions:
            _logger.warning("the manager ends the job (%s): ending the workers", stop.reason)
            threading.Thread(target=self._kill, name="taskd-kill", daemon=True).start()

    def _kill(self) -> None:
        try:
            self.call(KILL_WORKER)
        except Exception:
            _logger.exception("the function registered as %s failed", KILL_WORKER)


_functions: dict[str, Callable[..., Any]] = {}
_agent: _Agent | None = None


@never_raises(_logger)
def init_taskd_agent(config: Mapping[str, Any], cls: Any = None) -> bool:
    """Prepare this node's agent. `cls` is the launcher's elastic agent: an object whose `run()` trains."""
    global _agent
    if not isinstance(config, Mapping):
        raise UsageError(f"the configuration is a dict with the keys {', '.join(KEYS)}, not {config!r:.80}")
    for key in config:
        if key not in KEYS:
            log.once(_logger, logging.WARNING, f"agent key {key}", "the key %.80r is unknown and is left aside", key)
    framework = text_of(config, "Framework", FRAMEWORKS[0])
    if framework not in FRAMEWORKS:
        raise UsageError(f"Framework is one of {', '.join(FRAMEWORKS)}, not {framework!r:.80}")
    if cls is not None and (isinstance(cls, type) or not callable(getattr(cls, "run", None))):
        raise UsageError("cls is the launcher's elastic agent itself, an object with a method run()")
    if _agent is not None and _agent.running:
        raise UsageError("this process' agent runs already")
    settings = configuration.load()
    manager = replace(
        settings.manager,
        host=text_of(config, "UpstreamAddr", settings.manager.host),
        port=port_of(config, "UpstreamPort", settings.manager.port),
    )
    _agent = _Agent(replace(settings, manager=manager), _node(settings, config.get("ServerRank")), cls)
    return True


@never_raises(_logger)
def register_func(operator: str, func: Callable[..., Any]) -> bool:
    """Register a function of the launcher. KILL_WORKER is called when the manager ends the job. START_ALL_WORKER is
    called at the start when there is no elastic agent. The others are never called, and a warning says so: an agent
    that only watches starts no single workers (taskd-run does)."""
    if operator not in OPERATORS:
        raise UsageError(f"an operator is one of {', '.join(OPERATORS)}, not {operator!r:.80}")
    if not callable(func):
        raise UsageError(f"what is registered as {operator} is a function, not {func!r:.80}")
    if operator not in CALLED:
        log.once(
            _logger,
            logging.WARNING,
            f"operator {operator}",
            "what is registered as %s is never called: this agent only watches; taskd-run replaces workers",
            operator,
        )
    _functions[operator] = func
    return True


def start_taskd_agent() -> Any:
    """Serve until the elastic agent has finished, and return its result; without one, True once the workers have
    gone."""
    agent = _agent
    if agent is None or agent.running:
        _logger.error(
            "start_taskd_agent: %s",
            "init_taskd_agent(config) has to come first" if agent is None else "it runs already",
        )
        return False
    if not agent.settings.enabled:
        log.once(
            _logger, logging.WARNING, "disabled", "TASKD_PROCESS_ENABLE is off: taskd does nothing in this process"
        )
        return True if agent.elastic is None else agent.elastic.run()
    agent.running = True
    try:
        if agent.elastic is None:
            return _watch_alone(agent)
        thread = threading.Thread(target=_watch_beside, args=(agent,), name="taskd-agent", daemon=True)
        thread.start()
        try:
            return agent.elastic.run()
        finally:
            agent.finish(thread)
    finally:
        agent.running = False


@never_raises(_logger)
def _watch_alone(agent: _Agent) -> bool:
    if START_ALL_WORKER in _functions:
        agent.call(START_ALL_WORKER)
    return agent.watch() == 0


@never_raises(_logger)
def _watch_beside(agent: _Agent) -> bool:
    return agent.watch() == 0


def _node(settings: configuration.Config, server_rank: Any) -> str:
    if isinstance(server_rank, (int, str)) and not isinstance(server_rank, bool) and str(server_rank).strip().isdigit():
        # The workers of this node find their agent by the node's name; torchrun numbers nodes as ServerRank does.
        return node_name(settings, {"GROUP_RANK": str(server_rank).strip()})
    if server_rank is not None:
        raise UsageError(f"ServerRank is the number of this node, not {server_rank!r:.80}")
    return node_name(settings, os.environ)
