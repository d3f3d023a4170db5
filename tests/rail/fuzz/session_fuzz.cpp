// A session whose other side knows the key and sends anything, while this side receives, sends, takes back and forgets.
// Every piece of memory is a separate block. It is freed as soon as the transport has no right to it any more, so that
// the sanitizer sees every later access, and every write past its end.
#include <set>

#include "fuzz.hpp"
#include "rail/session/session.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kEpoch = 5;
constexpr size_t kSizes[] = {0, 1, 700, kEagerBytes, kEagerBytes + 1, 300'000, (1 << 20) + 12'345};
constexpr int kActions = 150;

using Block = std::unique_ptr<char[]>;

class Operation : public Party {
  public:
    Operation(uint64_t group, uint64_t number, uint8_t kind) : group_(group), number_(number) { form_.kind = kind; }

    void sent(int, uint32_t part) override {
        CHECK(sends.count(part) != 0 && told_sent_.insert(part).second);
        sends.at(part).reset();
    }

    void arrived(int, uint32_t part) override {
        CHECK(receives.count(part) != 0 && told_arrived_.insert(part).second);
        receives.at(part).reset();
    }

    void beginning(int, uint32_t part) override { CHECK(receives.count(part) != 0 && receives.at(part)); }

    void offered(int, uint32_t part) override { CHECK(watches.count(part) != 0); }

    void differs(int, const Form& theirs) override { CHECK(theirs.kind <= 2); }  // or the sizes differ

    void failed(const Failure& failure) override { CHECK(!failure.text.empty()); }

    void woken(int64_t) override { CHECK(!"nobody asked to be woken"); }

    uint64_t sequence() const override { return number_; }

    const Form& form() const override { return form_; }

    uint64_t group() const { return group_; }

    std::map<uint32_t, Block> sends;
    std::map<uint32_t, Block> receives;
    std::set<uint32_t> watches;

  private:
    const uint64_t group_;
    const uint64_t number_;
    Form form_;
    std::set<uint32_t> told_sent_;
    std::set<uint32_t> told_arrived_;
};

class Members : public Roster {
  public:
    Party* find(uint64_t sequence) const override {
        const auto found = operations.find(sequence);
        return found == operations.end() ? nullptr : found->second.get();
    }

    const Form* form_of(uint64_t sequence) const override {
        const Party* const party = find(sequence);
        return party == nullptr ? nullptr : &party->form();
    }

    std::map<uint64_t, std::unique_ptr<Operation>> operations;
};

Endpoint endpoint(char process, size_t rails) {
    Endpoint made;
    made.process = std::string(kProcessIdBytes, process);
    made.node = "node";
    for (size_t index = 0; index < rails; ++index)
        made.rails.push_back({std::string(1, static_cast<char>('a' + index)), "127.0.0.2", 1234, 8});
    return made;
}

class Play : public SessionHost {
  public:
    explicit Play(Random& random) : random_(random), sockets_(random), counters_(8) {
        const size_t rails = 1 + random.below(3);
        const bool dials = random.once_in(2);
        session_ = std::make_unique<Session>(
            *this, sockets_, counters_, Retry(),
            Pair{kEpoch, endpoint(dials ? 'a' : 'b', rails), endpoint(dials ? 'b' : 'a', rails), 1});
        for (uint64_t group = 1; group <= 2; ++group)
            session_->traffic().enter(group, members_[group], 0);
    }

    ~Play() override {
        if (random_.once_in(2))
            session_->end("over");
        while (!all_.empty())
            forget();
        for (uint64_t group = 1; group <= 2; ++group)
            session_->traffic().leave(group, members_[group]);
        session_.reset();
        CHECK(sockets_.open_count() == 0);
    }

    void run() {
        for (int turn = 0; turn < kActions && !session_->life().is_over(); ++turn) {
            act();
            deliver();
            while (!session_->life().is_over() && session_->reap()) {
            }
            deliver();
            if (random_.once_in(2) && !session_->life().is_over())
                session_->pump();
            deliver();
        }
    }

    int64_t now_ns() const override { return now_; }

    void post(Event event) override { events_.push_back(std::move(event)); }

    void dirty(Session&) override {}

    void wake_by(int64_t) override {}

    void watch(Session&, Link& link) override { CHECK(watched_.insert(link.fd()).second); }

    void unwatch(Link& link) override { CHECK(watched_.erase(link.fd()) == 1); }

    void dial(Session&, size_t slot) override { dialled_.insert(slot); }

    void changed(Session&) override {}

  private:
    void act() {
        switch (random_.below(14)) {
            case 0:
            case 1:
                attach();
                break;
            case 2:
            case 3:
                begin();
                break;
            case 4:
                send();
                break;
            case 5:
                take_back();
                break;
            case 6:
                if (random_.once_in(2) && !all_.empty())
                    forget();
                break;
            case 7:
                now_ += static_cast<int64_t>(random_.below(200'000'000));
                session_->on_time(now_);
                break;
            case 8:
                if (random_.once_in(20))
                    session_->leave("it is enough");
                else if (random_.once_in(2))
                    session_->set_interface(random_.below(3), random_.once_in(2), "a wire");
                else
                    session_->set_order(random_.below(3), random_.once_in(2));
                break;
            default:
                hear();
        }
    }

    void attach() {
        const size_t index = random_.below(session_->paths().size());
        if (random_.once_in(6)) {
            session_->dial_failed(index, ECONNREFUSED, "refused");
        } else {
            const int fd = sockets_.open();
            sockets_.end(fd).keeps = false;
            session_->attach(index, fd);
        }
    }

    // Lets bytes come on one link, mostly possible frames.
    void hear() {
        Path& path = session_->paths()[random_.below(session_->paths().size())];
        if (!path.is_live())
            return;
        MemorySockets::End& end = sockets_.end(path.link()->fd());
        for (uint64_t frames = 1 + random_.below(4); frames > 0; --frames) {
            std::string bytes = frame();
            if (random_.once_in(40))
                mutate(random_, bytes);
            end.to_read += bytes;
        }
        end.is_over = random_.once_in(60);
        std::vector<char> scratch(32 << 10);
        for (uint64_t turns = 1 + random_.below(6); turns > 0 && !path.link()->is_broken(); --turns)
            path.link()->read(*session_, scratch.data(), scratch.size(), 1 + random_.below(1 << 20));
    }

    std::string frame() {
        FrameHeader header{};
        header.type = static_cast<FrameType>(random_.once_in(2) ? 1 : 1 + random_.below(11));
        header.epoch = kEpoch;
        if (is_numbered(header.type))
            header.number = random_.once_in(4) ? 1 + random_.below(next_ + 3) : next_++;
        header.received = random_.once_in(30) ? random_.odd_number() : random_.below(20);
        header.freed = random_.once_in(30) ? random_.odd_number() : random_.below(1 << 20);
        header.group = 1 + random_.below(2) + (random_.once_in(30) ? 7 : 0);
        header.sequence = last_sequence_ + 2 - random_.below(std::min<uint64_t>(last_sequence_ + 2, 6));
        header.part = static_cast<uint32_t>(random_.below(3));
        header.form.kind = static_cast<uint8_t>(random_.once_in(6) ? 2 : 1);
        header.bytes = size();
        std::string payload;
        if (header.type == FrameType::kData) {
            header.flags = random_.once_in(2) ? kHasMark : 0;
            header.length = static_cast<uint32_t>(header.bytes);
            if (header.bytes > kEagerBytes) {
                header.offset = random_.once_in(3) ? 0 : random_.below(header.bytes);
                header.length = static_cast<uint32_t>(std::min<uint64_t>(kLongestPiece, header.bytes - header.offset));
                if (random_.once_in(2))
                    header.length = static_cast<uint32_t>(random_.below(header.length + 1));
            }
            if (random_.once_in(20))
                header.length = static_cast<uint32_t>(random_.below(2000));
            payload = std::string(header.length, 'x');
        } else if (header.type == FrameType::kAck) {
            for (uint64_t ranges = random_.below(5); ranges > 0; --ranges) {
                const uint64_t first = random_.once_in(9) ? random_.odd_number() : 1 + random_.below(20);
                const Range range{first, random_.once_in(9) ? random_.odd_number() : first + random_.below(5)};
                payload.append(reinterpret_cast<const char*>(&range), sizeof range);
            }
            payload += std::string(random_.once_in(9) ? random_.below(16) : 0, 'r');
        } else if (header.type == FrameType::kBye) {
            header.type = random_.once_in(10) ? FrameType::kBye : FrameType::kPing;
            header.offset = random_.once_in(2) ? random_.below(3) : random_.odd_number();
            payload = random_.bytes(random_.below(100));
        } else if (header.type == FrameType::kPong) {
            header.offset = random_.once_in(2) ? static_cast<uint64_t>(now_) : random_.odd_number();
        }
        header.length = static_cast<uint32_t>(payload.size());
        seal(header);
        std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
        bytes += payload;
        if ((header.flags & kHasMark) != 0) {
            const uint64_t mark = random_.once_in(5) ? kMarkVoid : random_.once_in(50) ? 7 : kMarkGood;
            bytes.append(reinterpret_cast<const char*>(&mark), sizeof mark);
        }
        return bytes;
    }

    size_t size() { return kSizes[random_.below(sizeof kSizes / sizeof kSizes[0])]; }

    Operation* some() { return all_.empty() ? nullptr : all_[random_.below(all_.size())]; }

    // Begins an operation that receives, or that watches and then receives.
    void begin() {
        Operation* mine = random_.once_in(2) ? some() : nullptr;
        if (mine == nullptr) {
            const uint64_t group = 1 + random_.below(2);
            auto made = std::make_unique<Operation>(group, ++last_sequence_, 1);
            mine = made.get();
            members_[group].operations[last_sequence_] = std::move(made);
            all_.push_back(mine);
        }
        const auto part = static_cast<uint32_t>(random_.below(3));
        const MessageKey key{mine->group(), mine->sequence(), part};
        if (mine->receives.count(part) != 0)
            return;
        if (random_.once_in(4) && mine->watches.insert(part).second) {
            session_->traffic().watch(*mine, 0, key);
            return;
        }
        const size_t bytes = size();
        char* const block = (mine->receives[part] = std::make_unique<char[]>(bytes)).get();
        session_->traffic().receive(*mine, 0, key, block, bytes);
    }

    void send() {
        Operation* const mine = some();
        const auto part = static_cast<uint32_t>(random_.below(3));
        if (mine == nullptr || mine->sends.count(part) != 0)
            return;
        const size_t bytes = size();
        char* const block = (mine->sends[part] = std::make_unique<char[]>(bytes)).get();
        const MessageKey key{mine->group(), mine->sequence(), part};
        session_->traffic().send(*mine, 0, key, block, bytes, random_.once_in(2));
        if (random_.once_in(8))
            session_->traffic().describe(key, mine->form());
    }

    void take_back() {
        Operation* const mine = some();
        if (mine == nullptr || mine->sends.empty())
            return;
        const uint32_t part = mine->sends.begin()->first;
        session_->traffic().release({mine->group(), mine->sequence(), part});
        mine->sends.at(part).reset();
    }

    void forget() {
        const size_t place = random_.below(all_.size());
        Operation* const gone = all_[place];
        deliver();
        session_->traffic().forget(*gone, gone->group());
        all_.erase(all_.begin() + static_cast<long>(place));
        members_[gone->group()].operations.erase(gone->sequence());
    }

    void deliver() {
        for (size_t index = 0; index < events_.size(); ++index) {
            const Event event = events_[index];
            CHECK(std::find(all_.begin(), all_.end(), event.party) != all_.end());
            taskd::rail::deliver(event, now_);
        }
        events_.clear();
    }

    Random& random_;
    MemorySockets sockets_;
    Counters counters_;
    std::map<uint64_t, Members> members_;
    std::vector<Operation*> all_;
    std::vector<Event> events_;
    std::set<int> watched_;
    std::set<size_t> dialled_;
    std::unique_ptr<Session> session_;
    int64_t now_ = 1'000'000'000;
    uint64_t next_ = 1;
    uint64_t last_sequence_ = 0;
};

}  // namespace

void fuzz_session(Random& random) {
    Play play(random);
    play.run();
}

}  // namespace taskd::rail::test
