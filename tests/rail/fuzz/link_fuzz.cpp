// Streams of whole and damaged frames into a link. A whole frame arrives byte for byte, and a damaged frame ends the
// link. No byte is ever written outside the place that was named for it.
#include "rail/counters.hpp"
#include "fuzz.hpp"
#include "rail/io/link.hpp"
#include "rail/session/outbox.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kEpoch = 5;

struct Sent {
    FrameHeader header;
    std::string payload;
    bool is_void = false;
};

FrameHeader random_header(Random& random, size_t longest) {
    FrameHeader header{};
    header.type = static_cast<FrameType>(1 + random.below(10));
    header.epoch = kEpoch;
    header.number = is_numbered(header.type) ? 1 + random.below(1000) : 0;
    header.group = random.below(3);
    header.sequence = random.below(5);
    header.part = static_cast<uint32_t>(random.below(3));
    if (header.type == FrameType::kData) {
        header.length = static_cast<uint32_t>(random.below(random.once_in(8) ? longest : 500));
        header.bytes = header.length;
        if (random.once_in(2)) {
            header.bytes = kEagerBytes + 1 + random.below(1 << 20) + header.length;
            header.offset = random.below(header.bytes - header.length + 1);
        } else if (header.bytes > kEagerBytes) {
            header.bytes += 1 + random.below(1000);
        }
        header.flags = random.once_in(2) ? kHasMark : 0;
    } else {
        header.length = static_cast<uint32_t>(random.below(kLongestControl + 1));
    }
    return header;
}

std::string bytes_of(Sent& sent) {
    seal(sent.header);
    std::string bytes(reinterpret_cast<const char*>(&sent.header), sizeof sent.header);
    bytes += sent.payload;
    if ((sent.header.flags & kHasMark) != 0) {
        const uint64_t mark = sent.is_void ? kMarkVoid : kMarkGood;
        bytes.append(reinterpret_cast<const char*>(&mark), sizeof mark);
    }
    return bytes;
}

bool same(const FrameHeader& one, const FrameHeader& other) {
    return std::memcmp(&one, &other, sizeof one) == 0;
}

// Takes everything, and checks it against what was sent. A damaged payload looks like any other payload.
class Taker : public LinkReader {
  public:
    Taker(Random& random, const std::vector<Sent>& sent, bool is_damaged)
        : random_(random), sent_(sent), is_damaged_(is_damaged) {}

    char* data_begins(Link& link, const FrameHeader& header) override {
        CHECK(!link.is_broken() && !is_open_ && header.type == FrameType::kData);
        CHECK(fault_of(header, kEpoch) == nullptr);
        is_open_ = true;
        is_redirected_ = false;
        // The block has exactly this size, so that the sanitizer sees a write of one byte more.
        block_ = random_.once_in(8) ? nullptr : std::make_unique<char[]>(header.length);
        header_ = header;
        return block_.get();
    }

    void data_ended(Link& link, const FrameHeader& header, bool counts) override {
        CHECK(is_open_ && same(header, header_) && (link.is_broken() || !is_redirected_ || !counts));
        is_open_ = false;
        if (next_ < sent_.size() && same(sent_[next_].header, header)) {
            CHECK(is_damaged_ || counts == (!is_redirected_ && !sent_[next_].is_void));
            if (block_ && !is_redirected_ && !is_damaged_)
                CHECK(std::memcmp(block_.get(), sent_[next_].payload.data(), header.length) == 0);
            ++next_;
        }
        block_.reset();
    }

    void control(Link& link, const FrameHeader& header, const char* payload) override {
        CHECK(!link.is_broken() && !is_open_ && header.length <= kLongestControl);
        if (next_ < sent_.size() && same(sent_[next_].header, header)) {
            CHECK(is_damaged_ || std::memcmp(payload, sent_[next_].payload.data(), header.length) == 0);
            ++next_;
        }
    }

    // Redirects the link, as a session does when another link takes a message over or its memory is freed.
    void interfere(Link& link) {
        if (!is_open_ || link.incoming() == 0 || !random_.once_in(4))
            return;
        link.redirect(false);
        is_redirected_ = true;
        block_.reset();  // the sanitizer sees any later write there
    }

    size_t taken() const { return next_; }

  private:
    Random& random_;
    const std::vector<Sent>& sent_;
    const bool is_damaged_;
    size_t next_ = 0;
    bool is_open_ = false;
    bool is_redirected_ = false;
    FrameHeader header_{};
    std::unique_ptr<char[]> block_;
};

}  // namespace

void fuzz_link(Random& random) {
    MemorySockets sockets(random);
    Counters counters(4);
    CounterRecord& record = counters.open("a", 1, "n", kEpoch, 0);
    std::vector<Sent> sent(1 + random.below(12));
    std::string stream;
    for (Sent& one : sent) {
        one.header = random_header(random, kLongestPiece);
        one.payload = random.bytes(one.header.length);
        one.is_void = (one.header.flags & kHasMark) != 0 && random.once_in(4);
        stream += bytes_of(one);
    }
    const bool is_damaged = random.once_in(2);
    if (is_damaged && random.once_in(4)) {
        stream = random.bytes(random.below(1000));
    } else if (is_damaged) {
        mutate(random, stream);
    }
    const int fd = sockets.open();
    sockets.end(fd).to_read = stream;
    sockets.end(fd).is_over = true;
    Taker taker(random, sent, is_damaged);
    {
        Link link(sockets, fd, kEpoch, 0, record);
        std::vector<char> scratch((4 << 10) + random.below(60 << 10));
        while (!link.is_broken()) {
            link.read(taker, scratch.data(), scratch.size(), 1 + random.below(100000));
            taker.interfere(link);
        }
        CHECK(is_damaged || taker.taken() == sent.size());
        CHECK(is_damaged || link.error() == ECONNRESET);
    }
    CHECK(sockets.open_count() == 0);
}

}  // namespace taskd::rail::test
