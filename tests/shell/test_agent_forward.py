"""The per-node proxy: it passes bytes unchanged in both directions, passes ends of streams on, and keeps its bounds."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from taskd.agent import forward
from taskd.api import destroy_taskd_proxy, init_taskd_proxy
from taskd.errors import UsageError
from tests.patience import PATIENCE_S


class Echo:
    """A server that sends back what it receives, and counts its connections."""

    def __init__(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.connections = 0
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            try:
                client, _ = self.server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client):
        with client:
            while data := client.recv(1 << 16):
                client.sendall(data)


@pytest.fixture
def echo():
    server = Echo()
    yield server
    server.server.shutdown(socket.SHUT_RDWR)
    server.server.close()


@pytest.fixture
def forwarder(echo):
    made = forward.Forwarder("127.0.0.1", 0, ("127.0.0.1", echo.port))
    made.start()
    yield made
    made.stop()


def read_all(sock: socket.socket) -> bytes:
    parts = []
    while part := sock.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_megabytes_pass_unchanged_and_the_end_is_passed_on(forwarder):
    data = os.urandom(8 << 20)
    with socket.create_connection(("127.0.0.1", forwarder.port)) as client:
        sender = threading.Thread(target=lambda: (client.sendall(data), client.shutdown(socket.SHUT_WR)))
        sender.start()
        assert read_all(client) == data
        sender.join()


def test_many_connections_at_once(forwarder):
    clients = [socket.create_connection(("127.0.0.1", forwarder.port)) for _ in range(50)]
    for number, client in enumerate(clients):
        client.sendall(b"%d" % number)
    for number, client in enumerate(clients):
        assert client.recv(100) == b"%d" % number
        client.close()


def test_beyond_its_bound_it_refuses_and_serves_on(forwarder, monkeypatch):
    monkeypatch.setattr(forward, "CONNECTIONS_MAX", 2)
    clients = [socket.create_connection(("127.0.0.1", forwarder.port)) for _ in range(2)]
    for client in clients:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    with socket.create_connection(("127.0.0.1", forwarder.port)) as refused:
        assert read_all(refused) == b""
    clients[0].sendall(b"y")
    assert clients[0].recv(1) == b"y"
    for client in clients:
        client.close()


def test_no_upstream_ends_the_client_and_not_the_proxy(free_port, echo):
    made = forward.Forwarder("127.0.0.1", 0, ("127.0.0.1", free_port()))
    made.start()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", made.port)) as client:
            client.settimeout(PATIENCE_S)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
    made.stop()


def test_stop_ends_connections_and_frees_the_port(forwarder, echo):
    with socket.create_connection(("127.0.0.1", forwarder.port)) as client:
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        port = forwarder.port
        forwarder.stop()
        client.settimeout(PATIENCE_S)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            pass
    socket.create_server(("127.0.0.1", port)).close()
    forwarder.stop = lambda: None


def test_a_taken_port_is_a_sentence(echo):
    with pytest.raises(UsageError, match="cannot listen"):
        forward.Forwarder("127.0.0.1", echo.port, ("127.0.0.1", echo.port))


def test_the_drop_in_names(echo, free_port):
    port = free_port()
    assert init_taskd_proxy(
        {"ListenPort": port, "UpstreamAddr": "localhost", "UpstreamPort": str(echo.port), "ServerRank": 0}
    )
    assert init_taskd_proxy({}) is True
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"hello")
        assert client.recv(10) == b"hello"
    assert destroy_taskd_proxy() is True
    assert destroy_taskd_proxy() is False


@pytest.mark.parametrize(
    "config",
    [
        None,
        [],
        {"ListenPort": 0},
        {"ListenPort": "x"},
        {"ListenPort": True},
        {"UpstreamPort": 70000},
        {"ListenAddr": 7},
        {"UpstreamAddr": "no.such.host.invalid"},
        {"ListenPort": 9601, "UpstreamPort": 9601, "UpstreamAddr": "127.0.0.1"},
    ],
)
def test_bad_input_is_false(config, caplog):
    assert init_taskd_proxy(config) is False
