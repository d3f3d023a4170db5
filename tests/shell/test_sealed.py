"""The key sealed for one asker: the numbers of RFC 7748, which side can open it, and what garbage does."""

from __future__ import annotations

import secrets

import pytest
import zmq
from zmq.utils import z85

from taskd.wire import keys, sealed

PURPOSE = b"a purpose"
VECTORS = [  # RFC 7748, section 5.2: scalar, point, result
    (
        "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
        "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
    ),
    (
        "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
        "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
        "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
    ),
]
ROUNDS = {  # the same section: the result after this many rounds
    1: "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079",
    1000: "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51",
}
SMALL_ORDER = [  # points that give zero for every scalar
    bytes(32),
    (1).to_bytes(32, "little"),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    (2**255 - 20).to_bytes(32, "little"),
    (2**255 - 19).to_bytes(32, "little"),
    (2**255 - 18).to_bytes(32, "little"),
    (2**256 - 19).to_bytes(32, "little"),
]


def seal(secret: bytes, giver: bytes, asker: bytes) -> bytes | None:
    return sealed.seal(secret, giver, sealed.public_of(giver), asker, PURPOSE)


def unseal(box: bytes, asker: bytes, giver: bytes, purpose: bytes = PURPOSE) -> bytes | None:
    return sealed.unseal(box, asker, sealed.public_of(asker), giver, purpose)


@pytest.mark.parametrize(("scalar", "point", "result"), VECTORS)
def test_the_numbers_of_the_rfc(scalar: str, point: str, result: str) -> None:
    assert sealed.x25519(bytes.fromhex(scalar), bytes.fromhex(point)).hex() == result


def test_the_rounds_of_the_rfc() -> None:
    scalar = point = (9).to_bytes(32, "little")
    for done in range(1, max(ROUNDS) + 1):
        scalar, point = sealed.x25519(scalar, point), scalar
        assert scalar.hex() == ROUNDS.get(done, scalar.hex())


def test_the_exchange_of_the_rfc() -> None:
    """The numbers are those of section 6.1."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert sealed.public_of(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert sealed.public_of(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    assert sealed.x25519(alice, sealed.public_of(bob)).hex() == shared
    assert sealed.x25519(bob, sealed.public_of(alice)).hex() == shared


def test_pairs_of_zmq_are_such_pairs() -> None:
    for _ in range(20):
        public, private = zmq.curve_keypair()
        assert sealed.public_of(z85.decode(private)) == z85.decode(public)
    key = keys.Key(b"1" * 32, "a")
    assert sealed.public_of(key.giver_private) == key.giver_public


def test_only_the_asker_opens_what_was_sealed_for_it() -> None:
    secret, giver, asker, other = (secrets.token_bytes(32) for _ in range(4))
    box = seal(secret, giver, sealed.public_of(asker))
    assert box is not None and len(box) == sealed.BOX_BYTES and secret not in box
    assert box == seal(secret, giver, sealed.public_of(asker)), "several givers say the same"
    assert unseal(box, asker, sealed.public_of(giver)) == secret
    assert unseal(box, other, sealed.public_of(giver)) is None
    assert unseal(box, asker, sealed.public_of(other)) is None
    assert unseal(box, asker, sealed.public_of(giver), b"another") is None
    # a reader of the store has the public keys and the box, but no private key
    assert unseal(box, sealed.public_of(asker), sealed.public_of(giver)) is None
    assert unseal(box, sealed.public_of(giver), sealed.public_of(asker)) is None


def test_a_changed_bit_or_length_opens_to_nothing() -> None:
    secret, giver, asker = (secrets.token_bytes(32) for _ in range(3))
    box = seal(secret, giver, sealed.public_of(asker))
    assert box is not None
    for place in range(len(box)):
        wrong = bytearray(box)
        wrong[place] ^= 1 << place % 8
        assert unseal(bytes(wrong), asker, sealed.public_of(giver)) is None
    for wrong_box in (b"", box[:-1], box + b"x"):
        assert unseal(wrong_box, asker, sealed.public_of(giver)) is None
    assert unseal(box, asker, b"short") is None


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_that_leads_to_zero_gets_and_opens_nothing(point: bytes) -> None:
    """Everybody could open what is sealed for such a key."""
    secret, own = secrets.token_bytes(32), secrets.token_bytes(32)
    assert sealed.x25519(own, point) == bytes(32)
    assert seal(secret, own, point) is None
    assert unseal(bytes(sealed.BOX_BYTES), own, point) is None


@pytest.mark.parametrize("length", [0, 1, 31, 33, 1000])
def test_a_key_of_another_length_gets_nothing(length: int) -> None:
    assert seal(b"1" * 32, b"2" * 32, b"3" * length) is None
