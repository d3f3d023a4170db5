"""What a probe does about each order: it tests its own node, or meets one partner."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from typing import Any

import torch

from taskd.check import rails, words
from taskd.check.blocks import Rail, receive, send
from taskd.check.door import Door
from taskd.check.meeting import Meeting, Order
from taskd.check.own import Own
from taskd.check.sizes import BLOCKS
from taskd.check.talk import Broken, Talk
from taskd.check.work import devices
from taskd.config import Config
from taskd.core.check.facts import SelfTest, Way
from taskd.nics import discovery
from taskd.nics.choice import ports

_SELF = "self"
RAIL_SECONDS = 1.0


class Probe:
    """The probe of one node."""

    def __init__(self, config: Config) -> None:
        """Raises TaskdError, OSError or RuntimeError if the node has nothing with which it could be tested."""
        addresses = {rail.name: rail.address for rail in discovery.find(config, one_host=False)}
        self._own = Own(devices(), addresses)
        self._own.exchange()  # the first use of a device takes long
        self._own.tried()
        self._door = Door(addresses, ports(config))

    def introduction(self) -> dict[str, Any]:
        """Say where partners reach this probe: the address and the port of each rail."""
        within = rails.networks(self._own.addresses)
        return {
            "rails": {
                name: [self._own.addresses[name], port, within.get(name, "")] for name, port in self._door.ports.items()
            }
        }

    def answer(self, order: dict[str, Any]) -> dict[str, Any]:
        """Follow an order that this node's launcher has passed on."""
        number = order["number"]
        if order["do"] == _SELF:
            return {"number": number, "self": words.of_self_test(self._self_test())}
        places = {name: (place.address, place.port) for name, place in rails.read(order["rails"]).items()}
        meeting = Meeting(Order(order["token"], order["calls"], places, order["limit_ns"]), self._own, self._door)
        return {"number": number, "side": words.of_side(meeting.hold())}

    def _self_test(self) -> SelfTest:
        self._own.begin()
        loops = tuple((name, self._loop(name)) for name in self._own.addresses)
        local = self._own.exchange()
        return SelfTest(torch.__version__, loops, self._own.tried(), local)

    def _loop(self, name: str) -> Way:
        """Send from this node to itself over a rail."""
        until, token, out = time.monotonic() + RAIL_SECONDS, secrets.token_hex(8), Rail(name)
        try:
            talk = self._door.connect(name, (self._own.addresses[name], self._door.ports[name]), until)
        except Broken as broken:
            return broken.way
        guests: list[Talk] = []

        def take() -> None:
            guests.extend(guest for _, guest in self._door.guests(token, RAIL_SECONDS))
            for guest in guests:
                with contextlib.suppress(Broken):
                    receive(guest, Rail(name), BLOCKS[1])

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        with contextlib.suppress(Broken):
            talk.say("hello", token)
            send(talk, out, BLOCKS[1])
        for end in (talk, *guests):
            end.close()
        thread.join(RAIL_SECONDS)
        return out.sent.way
