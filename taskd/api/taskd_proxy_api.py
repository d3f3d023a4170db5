"""Drop-in names of the per-node proxy: init_taskd_proxy, destroy_taskd_proxy.

The proxy is real: it listens on ListenAddr:ListenPort (127.0.0.1:9602) and relays the bytes of this node's agents to
UpstreamAddr:UpstreamPort (the manager). They stay encrypted from end to end. Both functions never raise.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping
from typing import Any

from taskd import config as configuration
from taskd import log
from taskd.agent.forward import Forwarder
from taskd.api.conventions import never_raises
from taskd.errors import UsageError

KEYS = ("ListenAddr", "ListenPort", "UpstreamAddr", "UpstreamPort", "ServerRank")
_logger = log.get(__name__)
_forwarder: Forwarder | None = None


@never_raises(_logger)
def init_taskd_proxy(config: Mapping[str, Any]) -> bool:
    """Start the relay in the background; True once it listens. ServerRank is accepted and has no effect here."""
    global _forwarder
    settings = configuration.load()
    if not settings.enabled:
        log.once(_logger, logging.WARNING, "disabled", "TASKD_PROCESS_ENABLE is off: the proxy does nothing")
        return True
    if _forwarder is not None:
        _logger.warning("init_taskd_proxy: the proxy listens on port %d already; nothing to do", _forwarder.port)
        return True
    if not isinstance(config, Mapping):
        raise UsageError(f"the configuration is a dict with the keys {', '.join(KEYS)}, not {config!r:.80}")
    for key in config:
        if key not in KEYS:
            log.once(_logger, logging.WARNING, f"proxy key {key}", "the key %.80r is unknown and is left aside", key)
    listen = text_of(config, "ListenAddr", settings.proxy.host), port_of(config, "ListenPort", settings.proxy.port)
    upstream = (
        text_of(config, "UpstreamAddr", settings.manager.host),
        port_of(config, "UpstreamPort", settings.manager.port),
    )
    forwarder = Forwarder(*listen, (_resolved(upstream[0]), upstream[1]))
    if forwarder.port == upstream[1] and _resolved(listen[0]) == _resolved(upstream[0]):
        forwarder.stop()
        raise UsageError(
            f"the proxy would relay to itself: UpstreamAddr and UpstreamPort are its own {listen[0]}:{listen[1]}"
        )
    forwarder.start()
    _forwarder = forwarder
    _logger.info("the proxy relays port %d to %s:%d", forwarder.port, *upstream)
    return True


@never_raises(_logger)
def destroy_taskd_proxy() -> bool:
    """Close the relay and its connections; False when there was none."""
    global _forwarder
    if _forwarder is None:
        _logger.warning("destroy_taskd_proxy: there is no proxy in this process; nothing to do")
        return False
    _forwarder.stop()
    _forwarder = None
    return True


def text_of(settings: Mapping[str, Any], key: str, default: str) -> str:
    """The text under this key, or the default. Raises UsageError."""
    value = settings.get(key)
    if value is None or value == "":
        return default
    if not isinstance(value, str):
        raise UsageError(f"{key} is a text, not {value!r:.80}")
    return value.strip()


def port_of(settings: Mapping[str, Any], key: str, default: int) -> int:
    """The port under this key, given as a number or its digits, or the default. Raises UsageError."""
    value = settings.get(key)
    if value is None or value == "":
        return default
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value.strip()) <= 5:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise UsageError(f"{key} is a port from 1 to 65535, not {value!r:.80}")
    return value


def _resolved(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise UsageError(f"the host {host!r:.80} cannot be found ({error.strerror}); correct the address") from None
