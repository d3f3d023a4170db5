// A session whose peer is the test. The test sends what no correct peer sends. Each piece of memory is a separate
// block, freed as soon as this is allowed, so that the sanitizer sees any later access. See breaches.hpp.
#include "breaches.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "rail/session/session.hpp"
#include "team.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kEpoch = 1;
constexpr uint64_t kGroup = 1;
constexpr size_t kSmall = 700;
constexpr size_t kLarge = 100'000;

using Block = std::unique_ptr<char[]>;

// Sockets that deliver what the peer says, and keep what the session writes.
class Strings : public SocketLayer {
  public:
    ssize_t read(int fd, const iovec* pieces, int count) override {
        std::string& from = to_read[fd];
        size_t done = 0;
        for (int index = 0; index < count; ++index) {
            const size_t some = std::min(pieces[index].iov_len, from.size() - done);
            std::memcpy(pieces[index].iov_base, from.data() + done, some);
            done += some;
        }
        from.erase(0, done);
        return done == 0 ? -EAGAIN : static_cast<ssize_t>(done);
    }

    ssize_t write(int fd, const iovec* pieces, int count) override {
        size_t done = 0;
        for (int index = 0; index < count; ++index) {
            const size_t some = std::min(pieces[index].iov_len, room - std::min(room, done));
            written[fd].append(static_cast<const char*>(pieces[index].iov_base), some);
            done += some;
        }
        room -= done;
        return done == 0 ? -EAGAIN : static_cast<ssize_t>(done);
    }

    long queued(int) override { return 0; }

    bool is_awaited(int) override { return false; }

    void close(int) override {}

    uint64_t connection_of(int, bool) override { return 0; }

    std::map<int, std::string> to_read;
    std::map<int, std::string> written;
    size_t room = SIZE_MAX;  // how much can still be written
};

// One operation. It frees the memory of a part as soon as it is told that the part was sent or has arrived.
class Teller : public Party {
  public:
    void sent(int, uint32_t part) override { blocks.erase(part); }

    void arrived(int, uint32_t part) override {
        told.insert(part);
        blocks.erase(part);
    }

    void beginning(int, uint32_t) override {}

    void offered(int, uint32_t) override {}

    void differs(int, const Form&) override {}

    void failed(const Failure&) override {}

    void woken(int64_t) override {}

    uint64_t sequence() const override { return 1; }

    const Form& form() const override { return form_; }

    char* make(uint32_t part, size_t bytes, char fill) {
        Block& block = blocks[part] = std::make_unique<char[]>(bytes);
        std::fill_n(block.get(), bytes, fill);
        return block.get();
    }

    std::map<uint32_t, Block> blocks;
    std::set<uint32_t> told;

  private:
    const Form form_{};
};

Endpoint endpoint(char process) {
    Endpoint made;
    made.process = std::string(kProcessIdBytes, process);
    made.node = "node";
    made.rails = {{"a", "127.0.0.2", 1234, 8}, {"b", "127.0.0.3", 1234, 8}};
    return made;
}

// A frame that the peer sends. It is correct, except for what a test sets here.
struct Said {
    FrameHeader header{};

    Said(FrameType type, uint64_t number, uint32_t part, size_t bytes) {
        header.type = type;
        header.epoch = kEpoch;
        header.number = number;
        header.group = kGroup;
        header.sequence = 1;
        header.part = part;
        header.bytes = bytes;
        header.length = type == FrameType::kData ? static_cast<uint32_t>(bytes) : 0;
    }

    Said& piece(size_t offset, size_t length) {
        header.offset = offset;
        header.length = static_cast<uint32_t>(length);
        return *this;
    }

    Said& received(uint64_t through) {
        header.received = through;
        return *this;
    }

    std::string bytes() {
        seal(header);
        return std::string(reinterpret_cast<const char*>(&header), sizeof header) + std::string(header.length, 'x');
    }

    // The beginning of the frame, and (in rest()) its end.
    std::string half() { return bytes().substr(0, sizeof header + header.length / 2); }

    std::string rest() { return bytes().substr(sizeof header + header.length / 2); }
};

class Play : public SessionHost {
  public:
    Play()
        : session_(*this, sockets, counters_, Retry(), Pair{kEpoch, endpoint('b'), endpoint('a'), 1}),
          traffic(session_.traffic()) {
        for (size_t rail = 0; rail < 2; ++rail)
            session_.attach(rail, static_cast<int>(rail));
        pump();
    }

    ~Play() override { traffic.forget(party, kGroup); }

    int64_t now_ns() const override { return 1'000'000'000; }

    void post(Event event) override { events_.push_back(std::move(event)); }

    void dirty(Session&) override {}

    void wake_by(int64_t) override {}

    void watch(Session&, Link&) override {}

    void unwatch(Link&) override {}

    void dial(Session&, size_t) override {}

    void changed(Session&) override {}

    Link& link(size_t rail) { return *session_.paths()[rail].link(); }

    // Lets the peer's bytes come in on this rail. Then it tells the operations what they have to be told.
    void hear(size_t rail, const std::string& bytes) {
        sockets.to_read[static_cast<int>(rail)] += bytes;
        char scratch[16 << 10];
        link(rail).read(session_, scratch, sizeof scratch, SIZE_MAX);
        tell();
    }

    // Writes what can be written now.
    void pump() {
        for (size_t rail = 0; rail < 2; ++rail)
            link(rail).unblock();
        session_.pump();
        tell();
    }

    void send(uint32_t part, size_t bytes, char fill) {
        traffic.send(party, 0, {kGroup, 1, part}, party.make(part, bytes, fill), bytes, false);
        tell();
    }

    void receive(uint32_t part, size_t bytes) {
        traffic.receive(party, 0, {kGroup, 1, part}, party.make(part, bytes, 'o'), bytes);
        tell();
    }

    bool is_cut(size_t rail, const std::string& fault) {
        return link(rail).is_broken() && link(rail).fault() != nullptr && link(rail).fault() == fault;
    }

    Strings sockets;
    Teller party;

  private:
    void tell() {
        for (size_t index = 0; index < events_.size(); ++index)
            deliver(Event(events_[index]), now_ns());
        events_.clear();
    }

    Counters counters_{8};
    std::vector<Event> events_;
    Session session_;

  public:
    Traffic& traffic;
};

}  // namespace

// One message is a copy that the session made. The memory of the other is the caller's again after the acknowledgement.
void what_is_acknowledged_too_early_is_read_no_more(uint64_t) {
    for (const size_t room : {size_t{0}, sizeof(FrameHeader) + 10, 2 * sizeof(FrameHeader) + kSmall + 10}) {
        Play play;
        play.hear(0, Said(FrameType::kCredit, 1, 1, kLarge).bytes());
        play.pump();
        for (auto& [fd, written] : play.sockets.written)
            written.clear();
        play.sockets.room = room;
        play.send(0, kSmall, 's');
        play.send(1, kLarge, 'l');
        play.pump();
        CHECK(play.party.blocks.count(0) == 0 && play.party.blocks.count(1) == 1);
        play.hear(0, Said(FrameType::kAck, 0, 0, 0).received(100).bytes());
        CHECK(play.party.blocks.empty());
        play.sockets.room = SIZE_MAX;
        play.pump();
        const std::string written = play.sockets.written[0] + play.sockets.written[1];
        CHECK(std::count(written.begin(), written.end(), 's') >= static_cast<long>(kSmall));
        CHECK(std::count(written.begin(), written.end(), 'l') < 100);
    }
}

void a_small_message_keeps_its_size(uint64_t) {
    const char fault[] = "a message that is of another size than it was";
    {
        Play play;
        play.hear(0, Said(FrameType::kData, 1, 0, kSmall).half());
        play.hear(1, Said(FrameType::kOffer, 2, 0, kEagerBytes).bytes());
        CHECK(play.is_cut(1, fault) && !play.link(0).is_broken());
        play.receive(0, kSmall);
        play.hear(0, Said(FrameType::kData, 1, 0, kSmall).rest());
        CHECK(play.party.told.count(0) == 1);
    }
    Play play;
    play.hear(0, Said(FrameType::kData, 1, 0, kSmall).half());
    play.hear(1, Said(FrameType::kData, 1, 0, kEagerBytes).bytes());
    CHECK(play.is_cut(1, fault) && play.party.told.empty());
}

// The message comes into the pool, to a receive that has asked for it, or to one that asks while it comes.
void a_small_message_comes_once(uint64_t) {
    for (const int asks : {0, 1, 2}) {
        Play play;
        if (asks == 1)
            play.receive(0, kSmall);
        play.hear(0, Said(FrameType::kData, 1, 0, kSmall).half());
        if (asks == 2)
            play.receive(0, kSmall);
        play.hear(1, Said(FrameType::kData, 2, 0, kSmall).bytes());
        CHECK(play.is_cut(1, "a small message that was sent twice") && play.party.told.empty());
        play.hear(0, Said(FrameType::kData, 1, 0, kSmall).rest());
        if (asks == 0)
            play.receive(0, kSmall);
        CHECK(play.party.told.count(0) == 1 && !play.link(0).is_broken());
    }
}

// The same frame comes on another rail, while the pool has room for only one.
void a_copy_of_a_small_message_needs_no_room(uint64_t) {
    Play play;
    const auto messages = static_cast<uint32_t>(kPoolBytes / kEagerBytes);
    for (uint32_t part = 1; part < messages; ++part)
        play.hear(0, Said(FrameType::kData, part, part, kEagerBytes).bytes());
    Said last(FrameType::kData, messages, 0, kEagerBytes);
    play.hear(0, last.half());
    play.hear(1, last.bytes());
    CHECK(!play.link(0).is_broken() && !play.link(1).is_broken());
    play.receive(0, kEagerBytes);
    CHECK(play.party.told.count(0) == 1);
    play.hear(1, Said(FrameType::kData, messages + 1, messages, kEagerBytes).bytes());
    play.hear(1, Said(FrameType::kData, messages + 2, messages + 1, 1).bytes());
    CHECK(play.is_cut(1, "a small message for which the pool has no room"));
}

// Two pieces have as many bytes as the whole message, while a third is still on its way.
void a_large_message_has_no_part_twice(uint64_t) {
    Play play;
    play.receive(0, kLarge);
    Said slow(FrameType::kData, 1, 0, kLarge);
    play.hear(0, slow.piece(0, kLarge / 2).half());
    play.hear(1, Said(FrameType::kData, 2, 0, kLarge).piece(0, kLarge / 2).bytes());
    CHECK(!play.link(1).is_broken());
    play.hear(1, Said(FrameType::kData, 3, 0, kLarge).piece(0, kLarge / 2).bytes());
    CHECK(play.is_cut(1, "more bytes of a message than it has") && play.party.told.empty());
    play.hear(0, slow.rest());
    CHECK(play.is_cut(0, "more bytes of a message than it has") && play.party.told.empty());
}

// A message is coming. Either the receive asks for another size, or the operation that asked is gone. Then nothing of
// the message stays in the pool, and the other side hears once that its bytes are free again.
void memory_that_goes_is_written_no_more(uint64_t) {
    for (const bool fits : {false, true}) {
        Play play;
        Said coming(FrameType::kData, 1, 0, kSmall);
        play.hear(0, coming.half());
        play.receive(0, fits ? kSmall : kSmall + 1);
        if (fits)
            play.traffic.forget(play.party, kGroup);
        play.party.blocks.clear();
        CHECK(play.traffic.inbox().freed() == 0);
        play.hear(0, coming.rest());
        CHECK(play.party.told.empty() && !play.link(0).is_broken());
        CHECK(play.traffic.inbox().freed() == kSmall && play.traffic.inbox().is_empty());
    }
}

}  // namespace taskd::rail::test
