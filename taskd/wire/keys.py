"""The job's key: 32 bytes that all processes with the right to speak hold, and the CURVE key pairs derived from it.

No configuration is needed. The manager makes a key when none is given, and the job passes it on to its nodes, sealed
for each asker (exchange.py). A key from TASKD_KEY or TASKD_KEY_FILE wins, and is not passed on. The server pair and the
client pair are both derived from the one key. So the public key of a peer proves that the peer holds the job's key. An
agent needs only those 32 bytes to recognise the true manager.

This module does NOT open sockets (the manager's loop and the agent's link do) or carry the key anywhere.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from taskd.core.limits import KEY_BYTES
from taskd.errors import UsageError
from taskd.wire import run_dir

if TYPE_CHECKING:
    from taskd.config import Config

KEY_FILE = "key"
FINGERPRINT_BYTES = 8
ZAP_ENDPOINT = "inproc://zeromq.zap.01"
"""Where libzmq asks which peers are allowed; libzmq defines this name."""
ZAP_DOMAIN = b"taskd"


@dataclass(frozen=True)
class Pair:
    """A CURVE key pair in Z85, as zmq's options take it."""

    public: bytes
    secret: bytes

    def __repr__(self) -> str:  # the secret must reach no log
        return f"Pair(public={self.public!r})"


class Key:
    """The job's key and what is derived from it."""

    def __init__(self, secret: bytes, source: str) -> None:
        assert len(secret) == KEY_BYTES
        self.secret = secret
        self.source = source  # where it came from, for `taskd doctor` and logs
        self.server = _pair(secret, b"taskd curve server 1")
        self.client = _pair(secret, b"taskd curve client 1")
        giver = _pair(secret, b"taskd giver 1")
        self.giver_private, self.giver_public = z85.decode(giver.secret), z85.decode(giver.public)
        """The pair that seals the key for askers (exchange.py). All holders of the key have the same pair."""
        self.copies = hashlib.blake2b(b"taskd copies 1", key=secret, digest_size=KEY_BYTES).digest()
        """The key that authenticates copies of records (backup/copy_frame.py)."""
        self.fingerprint = hashlib.blake2b(b"taskd fingerprint 1", key=secret, digest_size=FINGERPRINT_BYTES).digest()
        """Two nodes see by it that they were given different keys. It reveals nothing about a randomly drawn key."""

    def __repr__(self) -> str:
        return f"Key(from {self.source})"

    def protect_server(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket, before it is bound, speak only with holders of this key (a ZAP handler must answer)."""
        socket.zap_domain = ZAP_DOMAIN
        socket.curve_server = True
        socket.curve_secretkey = self.server.secret
        socket.curve_publickey = self.server.public

    def protect_client(self, socket: zmq.Socket[bytes]) -> None:
        """Make a socket, before it connects, prove that it holds this key and accept no manager that does not."""
        socket.curve_serverkey = self.server.public
        socket.curve_secretkey = self.client.secret
        socket.curve_publickey = self.client.public


def find(config: Config) -> Key | None:
    """The key that this process was given or finds on this host, or None. Raises UsageError for an unusable key."""
    if config.manager.key:
        return Key(bytes.fromhex(config.manager.key), "TASKD_KEY")
    if config.manager.key_file:
        # A file that the user names may be a link, as mounted secrets are. Its target is checked all the same.
        return Key(_read(config.manager.key_file, follow=True), config.manager.key_file)
    path = os.path.join(config.job.directory, KEY_FILE)
    if not os.path.lexists(path):
        return None
    run_dir.check(config.job.directory)
    return Key(_read(path), path)


def is_given(config: Config) -> bool:
    """Whether the user has given this process the key. Such a key is not passed on."""
    return bool(config.manager.key or config.manager.key_file)


def load_or_create(config: Config) -> Key:
    """The key that `find` finds, else a new key, stored in the run directory with mode 0600."""
    key = find(config)
    if key is not None:
        return key
    path = os.path.join(run_dir.ensure(config.job.directory), KEY_FILE)
    # The file is written beside its place and then linked: no reader sees half a key, and one of two writers wins.
    beside = f"{path}.{os.getpid()}"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(KEY_BYTES) + "\n")
        try:
            os.link(beside, path)
        except FileExistsError:
            pass  # another process was quicker: its key is the job's
        os.unlink(beside)
    except OSError as error:
        raise UsageError(
            f"the job's key cannot be kept in {path} ({error.strerror}): make room there, or give a key by TASKD_KEY"
        ) from None
    return Key(_read(path), path)


def zap_answer(request: list[bytes], client_public: bytes) -> tuple[list[bytes], str]:
    """The reply to one question from libzmq, and the address that was refused ("" if the peer is allowed).

    Only a peer that has proved by CURVE that it holds the derived client key is allowed. A malformed request gets no
    reply (an empty list): libzmq then drops the connection.
    """
    if len(request) < 6 or request[0] != b"1.0":
        return [], "unknown"
    number, address, mechanism = request[1], request[3], request[5]
    known = mechanism == b"CURVE" and len(request) == 7 and hmac.compare_digest(request[6], z85.decode(client_public))
    if known:
        return [b"1.0", number, b"200", b"OK", b"", b""], ""
    refusal = b"this job's key is wanted"
    return [b"1.0", number, b"400", refusal, b"", b""], address.decode("ascii", "replace") or "unknown"


def _pair(secret: bytes, purpose: bytes) -> Pair:
    # HKDF with SHA-256 (RFC 5869), one block: an independent key for each purpose. No key reveals another.
    extracted = hmac.new(b"taskd", secret, hashlib.sha256).digest()
    private = z85.encode(hmac.new(extracted, purpose + b"\x01", hashlib.sha256).digest())
    return Pair(zmq.curve_public(private), private)


def _read(path: str, follow: bool = False) -> bytes:
    # Non-blocking: otherwise a pipe in the file's place would block us for ever.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        why = "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        raise UsageError(f"the key file {path} cannot be read ({why})") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"the key file {path} is no plain file: name a file that holds 64 hexadecimal digits")
        if found.st_uid not in (0, os.getuid()):
            raise UsageError(f"the key file {path} belongs to another user (uid {found.st_uid}): use one of your own")
        if found.st_mode & 0o077:
            raise UsageError(f"the key file {path} can be used by other users: `chmod 600 {path}`, and make a new key")
        text = os.read(descriptor, 4 * KEY_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(text) == KEY_BYTES:
        return text
    try:
        secret = bytes.fromhex(text.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != KEY_BYTES:
        raise UsageError(
            f"the key file {path} holds no key: 64 hexadecimal digits are wanted (`openssl rand -hex 32 > {path}`)"
        )
    return secret
