// Strangers at the door. None gets in without the key, whatever it sends, and invented messages cost bounded space.
#include <set>

#include "rail/io/door.hpp"
#include "rail/io/endpoint.hpp"
#include "fuzz.hpp"
#include "rail/io/key.hpp"

namespace taskd::rail::test {
namespace {

constexpr Answer kYes = Answer::kWelcome;
constexpr Answer kNo = Answer::kStale;

class Keeper : public DoorKeeper {
  public:
    int64_t now_ns() const override { return now_; }

    void wake_by(int64_t) override {}

    void watch(int fd, uint64_t greeting) override { greetings_[greeting] = fd; }

    void unwatch(int fd, uint64_t greeting) override {
        CHECK(greetings_.at(greeting) == fd);
        greetings_.erase(greeting);
    }

    const Answer* judge(const Hello& hello) override {
        CHECK(knows_key);
        return hello.epoch == 1 ? &kYes : hello.epoch == 2 ? nullptr : &kNo;
    }

    size_t expected() const override { return 0; }

    void welcomed(const Hello& hello, int fd) override {
        CHECK(knows_key && hello.epoch == 1);
        mine.insert(fd);
    }

    void dialled(const Hello&, int) override { CHECK(!"nobody dialled"); }

    void dial_failed(const Hello&, int, const std::string&) override { CHECK(!"nobody dialled"); }

    void count(Stranger) override { ++strangers; }

    void blame(int64_t) noexcept override { CHECK(!"nothing throws"); }

    const std::map<uint64_t, int>& greetings() const { return greetings_; }

    bool knows_key = false;
    std::set<int> mine;
    int strangers = 0;
    int64_t now_ = 1;

  private:
    std::map<uint64_t, int> greetings_;
};

void settle(Door& door, Keeper& keeper, Random& random) {
    for (int turn = 0; turn < 200 && !keeper.greetings().empty(); ++turn) {
        auto place = keeper.greetings().begin();
        std::advance(place, static_cast<long>(random.below(keeper.greetings().size())));
        door.ready(place->first);
    }
}

}  // namespace

void fuzz_handshake(Random& random) {
    MemorySockets sockets(random);
    Keeper keeper;
    const std::string key = random.bytes(32);
    const std::string me = random.bytes(kProcessIdBytes);
    {
        Door door(keeper, sockets, key, me);
        const int fd = sockets.open();
        // These are an honest dialler's words, which may be damaged below. A thief has everything except the key.
        const bool is_honest = random.once_in(3);
        const std::string theirs = is_honest ? key : random.bytes(32);
        std::string hello = make_hello({random.bytes(kProcessIdBytes), me, static_cast<int64_t>(random.below(4)),
                                        static_cast<uint32_t>(random.below(20))},
                                       random.bytes(32));
        const std::string said = hello;
        if (random.once_in(2))
            mutate(random, hello);
        if (random.once_in(6))
            hello = random.bytes(random.below(400));
        keeper.knows_key = false;
        sockets.end(fd).to_read = hello;
        door.came(fd);
        settle(door, keeper, random);
        if (!keeper.greetings().empty()) {
            const std::string challenge = sockets.end(fd).written;
            std::string proof = make_proof(theirs, hello, challenge);
            const bool is_spoilt = random.once_in(3);
            if (is_spoilt)
                mutate(random, proof);
            keeper.knows_key = is_honest && (!is_spoilt || proof == make_proof(key, hello, challenge));
            // Bytes after a good proof belong to the link. So a proof counts if its beginning is good.
            keeper.knows_key = keeper.knows_key || (is_honest && proof.size() >= kProofBytes &&
                                                    proof.substr(0, kProofBytes) == make_proof(key, hello, challenge));
            sockets.end(fd).to_read += proof;
            settle(door, keeper, random);
            if (challenge.size() == kChallengeBytes && hello.size() == kHelloBytes)
                CHECK(check_challenge(theirs, hello, challenge) == is_honest);
        }
        door.judge_again();
        // After some time, every connection that has not proved itself is closed.
        keeper.now_ += int64_t{3600} * 1'000'000'000;
        door.on_time(keeper.now_);
        for (const int welcome : keeper.mine)
            sockets.close(welcome);
    }
    CHECK(sockets.open_count() == 0);
}

}  // namespace taskd::rail::test
