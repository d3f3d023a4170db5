// The test vectors of RFC 4231 and of FIPS 180-4, and what else a key must do.
#include "rail/io/key.hpp"

#include <set>

#include "check.hpp"

namespace taskd::rail::test {
namespace {

std::string repeated(int byte, size_t count) {
    return std::string(count, static_cast<char>(byte));
}

void the_standard_s_digests() {
    CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(hex(sha256(repeated('a', 1000000))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

void the_vectors_of_rfc_4231() {
    std::string counting;
    for (char byte = 1; byte <= 25; ++byte)
        counting.push_back(byte);
    CHECK(hex(hmac_sha256(repeated(0x0b, 20), "Hi There")) ==
          "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) ==
          "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    CHECK(hex(hmac_sha256(repeated(0xaa, 20), repeated(0xdd, 50))) ==
          "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    CHECK(hex(hmac_sha256(counting, repeated(0xcd, 50))) ==
          "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    CHECK(hex(hmac_sha256(repeated(0x0c, 20), "Test With Truncation")).substr(0, 32) ==
          "a3b6167473100ee06e0c796c2955552b");
    CHECK(hex(hmac_sha256(repeated(0xaa, 131), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
          "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    CHECK(hex(hmac_sha256(repeated(0xaa, 131),
                          "This is a test using a larger than block-size key and a larger than block-size data. The "
                          "key needs to be hashed before being used by the HMAC algorithm.")) ==
          "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

void comparison_sees_every_bit() {
    const std::string proof = hmac_sha256("key", "text");
    CHECK(same_bytes(proof, std::string(proof)));
    CHECK(same_bytes("", ""));
    CHECK(!same_bytes(proof, proof.substr(1)));
    CHECK(!same_bytes("", proof));
    for (size_t bit = 0; bit < 8 * kDigestBytes; ++bit) {
        std::string other = proof;
        other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
        CHECK(!same_bytes(proof, other));
    }
}

void random_bytes_do_not_repeat() {
    CHECK(random_bytes(0).empty());
    CHECK(random_bytes(1 << 20).size() == 1 << 20);
    std::set<std::string> seen;
    for (int turn = 0; turn < 1000; ++turn)
        CHECK(seen.insert(random_bytes(16)).second);
}

}  // namespace

std::vector<Test> key_tests() {
    return {{"the standard's digests", the_standard_s_digests},
            {"the vectors of RFC 4231", the_vectors_of_rfc_4231},
            {"comparison sees every bit", comparison_sees_every_bit},
            {"random bytes do not repeat", random_bytes_do_not_repeat}};
}

}  // namespace taskd::rail::test
