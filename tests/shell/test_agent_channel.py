"""The channel between worker and agent: sizes, descriptors, bad input, and the listener on a name."""

from __future__ import annotations

import os
import socket

import pytest

from taskd.core.limits import MAX_MESSAGE_BYTES
from taskd.wire import local


@pytest.fixture
def pair():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        yield one, other


@pytest.mark.parametrize(
    "size", [0, 1, local.INLINE_BYTES_MAX - 1, local.INLINE_BYTES_MAX, local.INLINE_BYTES_MAX + 1, 5 << 20]
)
def test_messages_of_every_size_arrive_whole(pair, size):
    payload = os.urandom(min(size, 1000)) * (size // 1000 + 1)
    payload = payload[:size]
    assert local.send(pair[0], payload)
    assert local.receive(pair[1]) == (payload, [])
    assert local.receive(pair[1]) is None


def test_descriptors_travel_beside_small_and_large_messages(pair):
    for size in (10, local.INLINE_BYTES_MAX + 10):
        read, write = os.pipe()
        assert local.send(pair[0], b"x" * size, (write,))
        os.close(write)
        payload, descriptors = local.receive(pair[1])
        assert len(payload) == size and len(descriptors) == 1
        assert not os.get_inheritable(descriptors[0])
        os.write(descriptors[0], b"through")
        local.close_all(descriptors)
        assert os.read(read, 100) == b"through"
        os.close(read)


def test_a_peer_that_does_not_read_is_never_waited_for(pair):
    sent = 0
    while local.send(pair[0], b"x" * local.INLINE_BYTES_MAX):
        sent += 1
        assert sent < 1000
    assert sent > 0


def test_what_a_peer_has_not_taken_is_counted(pair):
    assert local.unread(pair[0]) == 0
    assert local.send(pair[0], b"x")
    assert local.unread(pair[0]) > 0
    local.receive(pair[1])
    assert local.unread(pair[0]) == 0


def test_the_end_of_the_other_side_is_told(pair):
    pair[0].close()
    with pytest.raises(EOFError):
        local.receive(pair[1])
    with pytest.raises(OSError):
        local.send(pair[1], b"x")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_what_breaks_the_rules_is_refused_and_leaks_nothing(pair, tmp_path):
    big = tmp_path / "big"
    big.write_bytes(b"x" * 100)
    unsealed = os.open(big, os.O_RDONLY)
    sparse = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(sparse, MAX_MESSAGE_BYTES + 1)
    before = open_descriptors()
    many = [os.dup(0) for _ in range(local.DESCRIPTORS_MAX + 3)]
    cases = [
        (b"\7hello", ()),  # an unknown form
        (b"\1", ()),  # in memory, but without a descriptor
        (b"\1", (unsealed,)),
        (b"\1", (sparse,)),
        (b"\0x", tuple(many)),  # more descriptors than the channel carries
        (b"\0" + b"x" * (local.INLINE_BYTES_MAX + 500), ()),  # longer than a datagram of the channel
    ]
    for data, descriptors in cases:
        socket.send_fds(pair[0], [data], descriptors)
        with pytest.raises(local.Malformed):
            local.receive(pair[1])
    local.close_all(many)
    assert open_descriptors() == before
    os.close(unsealed)
    os.close(sparse)


def test_a_name_has_one_listener_and_comes_free_with_it():
    name = local.address("channel-test", f"node-{os.getpid()}")
    assert local.connect(name) is None
    listener = local.listen(name)
    assert listener is not None
    with listener:
        assert local.listen(name) is None
        found = local.connect(name)
        assert found is not None
        with found:
            accepted, _ = listener.accept()
            with accepted:
                assert local.peer(accepted) == (os.getpid(), os.geteuid())
    assert local.connect(name) is None


def test_names_that_are_too_long_are_shortened_and_stay_different():
    one, other = (local.address("j" * 64, "n" * 60 + ending) for ending in "ab")
    assert one != other
    assert max(len(name.encode()) for name in (one, other)) <= local.NAME_BYTES_MAX
    for name in (one, other):
        listener = local.listen(name)
        assert listener is not None
        listener.close()
