"""Inner groups over rails: the one engine of this process, and how the members of a group find each other.

The engine (csrc/rail) listens on every rail and carries all groups of the process. The members of a group meet in a
c10d store, where each one writes its endpoint and reads the others' (agreement.py). All groups of a job authenticate
with one key. It is in the job's store, where the processes of the job find it. Without a guard, `register()` makes
"rail" a torch backend of its own: `init_process_group("cpu:rail")`.

This module does not decide when a group is made or ended (guard.py does), find rails (nics/discovery.py does), or carry
a byte.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from taskd import _c10d, config, descriptors, log
from taskd.comm import agreement, counters, cpu_settings, rail_engine, sockets
from taskd.comm.adapter import InnerGroup
from taskd.comm.rail_engine import Place
from taskd.errors import BackendError, UsageError
from taskd.nics import discovery
from taskd.nics.choice import Rail, ports
from taskd.wire import keys

KEY_BYTES = 32
KEY_KEY = "taskd/rail/key"
"""Store key, without any prefix, of the key with which all processes of the job authenticate to each other."""
OVER = "rail"
"""The name of this transport in what the members tell each other (agreement.py)."""
REACH = timedelta(seconds=60)
"""All members listen already, so a member not reached in this time is unreachable, whatever the group's timeout is."""
_KEY_PURPOSE = b"taskd rail 1"
_logger = log.get(__name__)


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
    together: bool = False,
) -> InnerGroup:
    """Make a group of these ranks, over the rails of this process, or over this one address or interface.

    The ranks meet in `store`. `together`: all ranks make all their groups anew for this epoch, the largest first. The
    members of such a group do not meet again for a smaller one.
    Blocks until every member is reached over at least one rail. Raises BackendError if a member does not come within
    `timeout`, cannot be reached, or uses another transport; UsageError for a named rail that is not possible.
    """
    me, met = members[rank], rail_engine.own.met
    engine, endpoints = rail_engine.own.engine, met.endpoints(epoch, members) if together else None
    if endpoints is None:
        engine, endpoints = _meet(store, rank, members, identity, timeout, (hostname, interface))
        if together:
            met.note(epoch, members, endpoints)
    try:
        within = min(timeout, REACH)
        backend = engine.join(epoch, identity, endpoints, list(members), rank, within=within, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        here = ", ".join(f"{one.name} ({one.address})" for one in rail_engine.own.rails)
        raise BackendError(
            f"rank {me}, whose rails are {here}, could not join group {identity}: {error} TASKD_RAILS names the rails "
            "of each node."
        ) from error
    return InnerGroup(backend)


def _meet(
    store: Any, rank: int, members: Sequence[int], identity: str, timeout: timedelta, place: Place
) -> tuple[Any, list[bytes]]:
    """Return this process' engine, and the endpoints of the engines of all members."""
    me = members[rank]
    try:
        with agreement.or_decline(store, rank, len(members)):
            engine = _engine(_agreed_key(store), place, me)
        return engine, agreement.exchange(store, rank, members, OVER, engine.endpoint, timeout)
    except (RuntimeError, ValueError) as error:
        raise BackendError(f"rank {me} could not join group {identity} over rails: {error}") from error


# ---- the engine --------------------------------------------------------------------------------------------------


def _engine(key: bytes, place: Place, rank: int) -> Any:
    """Return this process' engine. Make a new one if there is none yet, or if the job's key or place has changed."""
    with rail_engine.own.lock:
        if rail_engine.own.engine is not None and (rail_engine.own.key, rail_engine.own.place) == (key, place):
            return rail_engine.own.engine
        settings = cpu_settings.current()
        rails, title = _rails(settings, place), f"rank {rank}"
        retry = settings.retry
        descriptors.allow(descriptors.MOST)
        with sockets.kept():
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
        # Groups over the previous engine keep it for as long as they live.
        rail_engine.own.engine, rail_engine.own.key, rail_engine.own.place = engine, key, place
        rail_engine.own.rails = rails
        if engine.counters_fd >= 0:
            counters.show(engine.counters_fd)
        else:
            _logger.warning("no memory file can be made (see ulimit -f); nobody sees how the rails of %s stand", title)
        for name in rail_engine.own.out.intersection(rail_engine.states()):
            engine.set_rail(name, False)
        return engine


def _rails(settings: config.Config, place: Place) -> Sequence[Rail]:
    hostname, interface = place
    if settings.rail.rails or place == (None, None):
        return discovery.find(settings, again=cpu_settings.ran_before())
    if interface is not None:
        return discovery.find(config.load(rail_rails=f"net={interface}"))
    found = socket.getaddrinfo(hostname, None, type=socket.SOCK_STREAM)[0][4]
    return (Rail("net", str(found[0])),)


def _agreed_key(store: Any) -> bytes:
    """Return the key of the job's rails from the job's store; the first process puts it there.

    If that process knows the job's own key, the rails' key is derived from it. It reveals nothing about the job's key.
    """
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    offer = rail_engine.own.key or _key_of_job() or secrets.token_bytes(KEY_BYTES)
    found = bytes.fromhex(bytes(store.compare_set(KEY_KEY, "", offer.hex())).decode("ascii"))
    if len(found) != KEY_BYTES:
        raise BackendError(f"the job's store holds no key under {KEY_KEY}; let nobody else write there")
    return found


def _key_of_job() -> bytes:
    try:
        key = keys.find(cpu_settings.current())
    except UsageError as error:
        log.once(_logger, logging.WARNING, "key", "the rails have a key of their own: %s", error)
        return b""
    return b"" if key is None else hashlib.blake2b(_KEY_PURPOSE, key=key.secret, digest_size=KEY_BYTES).digest()


# ---- a backend of its own ----------------------------------------------------------------------------------------


def register() -> None:
    """Make "rail" a backend that torch.distributed knows, without a guard. It may be called again."""
    if "rail" not in dist.Backend.backend_list:
        dist.Backend.register_backend("rail", _make_backend, extended_api=True, devices=["cpu"])


def _make_backend(options: Any, _: Any = None) -> Any:
    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    with rail_engine.own.lock:
        ordinal = rail_engine.own.counts.get(tuple(members), 0)
        rail_engine.own.counts[tuple(members)] = ordinal + 1
    identity = f"unguarded {_c10d.identity_of(members, ordinal)}"
    epoch = _c10d.control.epoch
    inner = make_inner(
        options.store, options.group_rank, options.timeout, epoch=epoch, identity=identity, members=members
    )
    return inner.backend
