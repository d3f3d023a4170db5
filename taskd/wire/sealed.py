"""A secret sealed for one asker: a reader of both public keys and the sealed secret learns nothing of the secret.

X25519 (RFC 7748) gives the asker and the giver a shared number that nobody else can compute. From this number, both
public keys and the purpose, BLAKE2b makes two things: a keystream, used once, and a key for a proof. The proof is
compared in constant time. The same secret for the same asker is sealed to the same bytes, so several givers with one
key pair cannot contradict each other. No keystream ever covers two secrets, because a giver's pair is derived from the
secret that it gives.
Failure modes: a public key that leads to the same number for everybody is refused. A box opens to None if it was
changed, or if it was sealed by or for another key pair or for another purpose. Input from outside never raises.
This module does NOT say to whom a public key belongs (every asker gets the secret: exchange.py says what that means).
It does not send anything or draw random numbers. Python's arithmetic takes longer for some values than for others, so
use this only a few times per key.
"""

from __future__ import annotations

import hashlib
import hmac

SECRET_BYTES = 32
PUBLIC_BYTES = 32
PROOF_BYTES = 32
BOX_BYTES = SECRET_BYTES + PROOF_BYTES
_PRIME = 2**255 - 19
_A24 = 121665
_BASE = (9).to_bytes(32, "little")


def x25519(scalar: bytes, point: bytes) -> bytes:
    """The X25519 function of RFC 7748, section 5: a Montgomery ladder over the points' first coordinates."""
    assert len(scalar) == len(point) == PUBLIC_BYTES
    number = int.from_bytes(scalar, "little") & ~7 & (2**254 - 1) | 2**254
    x1 = int.from_bytes(point, "little") % 2**255 % _PRIME
    x2, z2, x3, z3, swapped = 1, 0, x1, 1, 0
    for place in reversed(range(255)):
        bit = number >> place & 1
        if swapped ^ bit:
            x2, z2, x3, z3 = x3, z3, x2, z2
        swapped = bit
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % _PRIME, b * b % _PRIME, d * a % _PRIME, c * b % _PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % _PRIME, x1 * (da - cb) ** 2 % _PRIME
        x2, z2 = aa * bb % _PRIME, e * (aa + _A24 * e) % _PRIME
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _PRIME - 2, _PRIME) % _PRIME).to_bytes(32, "little")


def public_of(private: bytes) -> bytes:
    """The public key of a private key. The private key may be any 32 bytes that nobody can guess."""
    return x25519(private, _BASE)


def seal(secret: bytes, giver_private: bytes, giver: bytes, asker: bytes, purpose: bytes) -> bytes | None:
    """Seal the secret for the holder of the asker's public key, as the giver with this pair. None if the asker's key is
    unusable."""
    assert len(secret) == SECRET_BYTES
    if len(asker) != PUBLIC_BYTES:
        return None
    derived = _derive(giver_private, asker, giver, asker, purpose)
    if derived is None:
        return None
    hidden = _xor(secret, derived[:SECRET_BYTES])
    return hidden + _proof(hidden, derived[SECRET_BYTES:])


def unseal(box: bytes, asker_private: bytes, asker: bytes, giver: bytes, purpose: bytes) -> bytes | None:
    """The secret that this giver sealed for the asker with this pair and this purpose; None if the box is another."""
    if len(box) != BOX_BYTES or len(giver) != PUBLIC_BYTES:
        return None
    derived = _derive(asker_private, giver, giver, asker, purpose)
    if derived is None:
        return None
    hidden, proof = box[:SECRET_BYTES], box[SECRET_BYTES:]
    if not hmac.compare_digest(proof, _proof(hidden, derived[SECRET_BYTES:])):
        return None
    return _xor(hidden, derived[:SECRET_BYTES])


def _derive(private: bytes, other: bytes, giver: bytes, asker: bytes, purpose: bytes) -> bytes | None:
    """A keystream and a key for the proof; None for a point that gives everybody the same number (RFC 7748, 6.1)."""
    shared = x25519(private, other)
    if not any(shared):
        return None
    both = hashlib.blake2b(giver + asker + purpose, key=shared, digest_size=64, person=b"taskd sealed 1")
    return both.digest()


def _proof(hidden: bytes, key: bytes) -> bytes:
    return hashlib.blake2b(hidden, key=key, digest_size=PROOF_BYTES).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
