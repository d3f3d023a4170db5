"""Inner groups over rails: this process' one engine, and how the members of a group find each other.

The engine (csrc/rail) listens on every rail and carries all groups of the process. A group meets in a c10d store, where
each member tells its endpoint and is told the others' (agreement.py); all groups of a job prove themselves with one
key, which lies in the job's store for whoever belongs to it. Without a guard, `register()` makes "rail" a backend of
torch by its own name: `init_process_group("cpu:rail")`.

Does not decide when a group is made or ended (guard.py does), find rails (nics/discovery.py does), or carry a byte.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from taskd import _c10d, config, log
from taskd.comm import agreement, counters, cpu
from taskd.comm.cpu import InnerGroup
from taskd.errors import BackendError, UsageError
from taskd.nics import discovery
from taskd.nics.choice import Rail, ports
from taskd.wire import keys

KEY_BYTES = 32
KEY_KEY = "taskd/rail/key"
"""Store key, without any prefix: what all processes of the job prove themselves with to each other."""
OVER = "rail"
"""What the members say that they go over (agreement.py)."""
REACH = timedelta(seconds=60)
"""All members are there and listen: who is not reached by then cannot be, whatever the group's timeout is."""
Place = tuple[str | None, str | None]
"""A host name or an interface to be used where no rails are named."""
_KEY_PURPOSE = b"taskd rail 1"
_logger = log.get(__name__)


class _Process:
    """What this process has one of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.engine: Any = None
        self.key = b""
        self.place: Place = (None, None)
        self.rails: Sequence[Rail] = ()
        self.out: set[str] = set()  # rails that an order keeps from use
        self.counts: dict[tuple[int, ...], int] = {}
        self.inherited: list[Any] = []  # a parent's engines, whose threads do not exist here: never destroyed


_process = _Process()


def _after_fork() -> None:
    global _process
    parents = _process
    _process = _Process()
    _process.inherited = [*parents.inherited, parents.engine]


os.register_at_fork(after_in_child=_after_fork)


# ---- groups -----------------------------------------------------------------------------------------------------


def make_inner(
    store: Any,
    rank: int,
    timeout: timedelta,
    *,
    epoch: int,
    identity: str,
    members: Sequence[int],
    hostname: str | None = None,
    interface: str | None = None,
) -> InnerGroup:
    """A group of these ranks that meet in `store`, over the rails of this process, or this one address or interface.

    Blocks until every member is reached by one rail at least. Raises BackendError if somebody does not come within
    `timeout`, cannot be reached then, or goes over something else; UsageError for a named rail that cannot be.
    """
    me = members[rank]
    try:
        with agreement.or_decline(store, rank, len(members)):
            engine = _engine(_agreed_key(store), (hostname, interface), me)
        endpoints = agreement.exchange(store, rank, members, OVER, engine.endpoint, timeout)
    except (RuntimeError, ValueError) as error:
        raise BackendError(f"rank {me} could not join group {identity} over rails: {error}") from error
    try:
        within = min(timeout, REACH)
        backend = engine.join(epoch, identity, endpoints, list(members), rank, within=within, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        here = ", ".join(f"{one.name} ({one.address})" for one in _process.rails)
        raise BackendError(
            f"rank {me}, whose rails are {here}, could not join group {identity}: {error} TASKD_RAILS names the rails "
            "of each node."
        ) from error
    return InnerGroup(backend)


def end_epochs_before(epoch: int) -> None:
    """Ends the groups of all epochs before this one; afterwards none of their operations touches a tensor."""
    with _process.lock:
        engine = _process.engine
    if engine is not None and epoch > 0:
        engine.abort(epoch - 1, f"epoch {epoch} has begun")


# ---- the engine --------------------------------------------------------------------------------------------------


def _engine(key: bytes, place: Place, rank: int) -> Any:
    """This process' engine. A new one if there is none yet, or if the job has another key or place for it now."""
    with _process.lock:
        if _process.engine is not None and (_process.key, _process.place) == (key, place):
            return _process.engine
        settings = cpu.settings()
        rails, title = _rails(settings, place), f"rank {rank}"
        retry = settings.retry
        engine = _c10d.RailEngine(
            [(one.name, one.address, one.interface, one.expected) for one in rails],
            key,
            title=title,
            node=settings.job.node,
            ports=ports(settings),
            retry_enabled=bool(retry.levels),
            retry_count=retry.max_count,
            retry_hold=timedelta(milliseconds=retry.hold_ms),
            retry_interval=timedelta(milliseconds=retry.interval_ms),
        )
        # Groups over the one before keep it for as long as they live.
        _process.engine, _process.key, _process.place = engine, key, place
        _process.rails = rails
        if engine.counters_fd >= 0:
            counters.show(engine.counters_fd)
        else:
            _logger.warning("no memory file can be made (see ulimit -f); nobody sees how the rails of %s stand", title)
        for name in _process.out.intersection(states()):
            engine.set_rail(name, False)
        return engine


def _rails(settings: config.Config, place: Place) -> Sequence[Rail]:
    hostname, interface = place
    if settings.rail.rails or place == (None, None):
        return discovery.find(settings, again=cpu.ran_before())
    if interface is not None:
        return discovery.find(config.load(rail_rails=f"net={interface}"))
    found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)[0][4]
    return (Rail("net", str(found[0])),)


def _agreed_key(store: Any) -> bytes:
    """The key of the job's rails. It lies in the job's store; whoever comes first puts it there.

    What lies there is derived from the job's own key, where this process knows it, and tells nothing about that.
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    offer = _process.key or _key_of_job() or secrets.token_bytes(KEY_BYTES)
    found = bytes.fromhex(bytes(store.compare_set(KEY_KEY, "", offer.hex())).decode("ascii"))
    if len(found) != KEY_BYTES:
        raise BackendError(f"the job's store holds no key under {KEY_KEY}; let nobody else write there")
    return found


def _key_of_job() -> bytes:
    try:
        key = keys.find(cpu.settings())
    except UsageError as error:
        log.once(_logger, logging.WARNING, "key", "the rails have a key of their own: %s", error)
        return b""
    return b"" if key is None else hashlib.blake2b(_KEY_PURPOSE, key=key.secret, digest_size=KEY_BYTES).digest()


def states() -> tuple[str, ...]:
    """The names of the rails of this process; none before its first group."""
    return tuple(one.name for one in _process.rails)


def set_in_use(name: str, in_use: bool) -> None:
    """A rail carries nothing new (False), or may carry again. Raises UsageError for a name that there is not."""
    with _process.lock:
        if name not in states():
            raise UsageError(f"there is no rail {name}; this process has {', '.join(states()) or 'none yet'}.")
        _process.engine.set_rail(name, in_use)
        if in_use:
            _process.out.discard(name)
        else:
            _process.out.add(name)


# ---- a backend of its own ----------------------------------------------------------------------------------------


def register() -> None:
    """Makes "rail" a backend that torch.distributed knows, without a guard. May be called again."""
    if "rail" not in dist.Backend.backend_list:
        dist.Backend.register_backend("rail", _make_backend, extended_api=True, devices=["cpu"])


def _make_backend(options: Any, _: Any = None) -> Any:
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    with _process.lock:
        ordinal = _process.counts.get(tuple(members), 0)
        _process.counts[tuple(members)] = ordinal + 1
    identity = f"unguarded {_c10d.identity_of(members, ordinal)}"
    epoch = _c10d.control.epoch
    inner = make_inner(
        options.store, options.group_rank, options.timeout, epoch=epoch, identity=identity, members=members
    )
    return inner.backend
