#include "rail/io/link.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rail/counters.hpp"

namespace taskd::rail {
namespace {

constexpr int kPieces = 48;
constexpr size_t kZeros = 64 << 10;
constexpr size_t kBulk = 64 << 10;
constexpr size_t kBehindBulk = 4 << 10;  // read together with bulk: the next header, and little that has to be copied

const char g_zeros[kZeros] = {};

}  // namespace

Link::Link(SocketLayer& sockets, int fd, int64_t epoch, size_t slot, CounterRecord& record)
    : sockets_(sockets), fd_(fd), epoch_(epoch), slot_(slot), reads_short_(sockets.reads_short()), record_(record) {}

Link::~Link() {
    sockets_.close(fd_);
}

void Link::cut(int error, const char* fault) {
    if (broken_ != 0)
        return;
    broken_ = error;
    fault_ = fault;
    if (fault != nullptr)
        add(record_.garbage, 1);
    queue_.clear();
    staged_bytes_ = 0;
}

void Link::stage(const FrameHeader& header, const char* payload, std::shared_ptr<const Outgoing> owner) {
    queue_.push_back({header, payload, std::move(owner), kMarkGood, {}, 0});
    seal(queue_.back().header);
    staged_bytes_ += queue_.back().size();
}

void Link::stage(const FrameHeader& header, std::string text) {
    queue_.push_back({header, nullptr, nullptr, kMarkGood, std::move(text), 0});
    seal(queue_.back().header);
    staged_bytes_ += queue_.back().size();
}

int Link::gather(void* pieces, size_t budget) const {
    auto* out = static_cast<iovec*>(pieces);
    int count = 0;
    size_t total = 0;
    const auto put = [&](const void* from, size_t bytes) {
        out[count++] = {const_cast<void*>(from), bytes};
        total += bytes;
    };
    for (const Staged& frame : queue_) {
        if (count + 3 > kPieces || total >= budget)
            break;
        size_t done = frame.done;
        if (done < sizeof frame.header)
            put(reinterpret_cast<const char*>(&frame.header) + done, sizeof frame.header - done);
        done = std::max(done, sizeof frame.header) - sizeof frame.header;
        const char* payload = frame.text.empty() ? frame.payload : frame.text.data();
        if (done < frame.header.length && payload != nullptr)
            put(payload + done, frame.header.length - done);
        while (done < frame.header.length && payload == nullptr) {
            if (count == kPieces)
                return count;
            const size_t some = std::min(kZeros, frame.header.length - done);
            put(g_zeros, some);
            done += some;
        }
        if (count == kPieces)
            break;
        const size_t before_mark = sizeof frame.header + frame.header.length;
        if (frame.size() > before_mark) {
            const size_t begun = frame.done > before_mark ? frame.done - before_mark : 0;
            put(reinterpret_cast<const char*>(&frame.mark) + begun, 8 - begun);
        }
    }
    return count;
}

void Link::written(size_t bytes) {
    staged_bytes_ -= bytes;
    bytes_written_ += bytes;
    while (bytes > 0) {
        Staged& frame = queue_.front();
        const size_t some = std::min(bytes, frame.size() - frame.done);
        frame.done += some;
        bytes -= some;
        if (frame.done < frame.size())
            return;
        add(record_.frames_out, 1);
        if (frame.header.type == FrameType::kData)
            add(record_.bytes_out, frame.header.length);
        queue_.pop_front();
    }
}

Link::Progress Link::write(size_t budget) {
    while (!queue_.empty() && broken_ == 0) {
        if (budget == 0)
            return Progress::kMore;
        iovec pieces[kPieces];
        const int count = gather(pieces, budget);
        size_t wanted = 0;
        for (int index = 0; index < count; ++index)
            wanted += pieces[index].iov_len;
        const ssize_t done = sockets_.write(fd_, pieces, count);
        if (done < 0) {
            if (done == -EAGAIN) {
                blocked_ = true;
                return Progress::kBlocked;
            }
            if (done == -EPIPE || done == -ECONNRESET) {
                // Bytes that came before the end may still be unread, perhaps a last word; the next read finds them and
                // the end.
                hung_up_ = blocked_ = true;
                return Progress::kBlocked;
            }
            if (done != -EINTR)
                cut(static_cast<int>(-done));
            continue;
        }
        written(static_cast<size_t>(done));
        budget -= std::min(budget, static_cast<size_t>(done));
        if (static_cast<size_t>(done) < wanted && budget > 0)
            continue;  // the next call returns EAGAIN, and the system will report when there is room
    }
    return Progress::kDone;
}

void Link::let_go(const Outgoing* owner) {
    for (Staged& frame : queue_) {
        if (frame.owner.get() == owner && broken_ == 0)
            pad(frame);
    }
}

void Link::let_go_frame(uint64_t number) {
    for (Staged& frame : queue_) {
        if (frame.header.number == number && frame.owner != nullptr && broken_ == 0) {
            pad(frame);
            return;
        }
    }
}

void Link::pad(Staged& frame) {
    const size_t size = frame.size();
    frame.owner = nullptr;
    frame.payload = nullptr;
    if (frame.done == 0) {
        frame.header.type = FrameType::kVoid;
        frame.header.length = 0;
        frame.header.flags = 0;
        seal(frame.header);
        staged_bytes_ -= size - frame.size();
        return;
    }
    if (size - frame.done > sizeof frame.mark)  // otherwise all of its payload has left
        frame.mark = kMarkVoid;
}

void Link::redirect(bool counts) {
    target_ = nullptr;
    is_placed_ = false;
    is_dropped_ = is_dropped_ || !counts;
}

Link::Progress Link::read(LinkReader& reader, char* scratch, size_t scratch_bytes, size_t budget) {
    while (broken_ == 0) {
        if (budget == 0)
            return Progress::kMore;
        iovec pieces[2];
        int count = 0;
        size_t direct = 0;
        if (phase_ == Phase::kPayload && target_ != nullptr && head_.type == FrameType::kData) {
            direct = std::min(rest_, budget);
            pieces[count++] = {target_, direct};
        }
        const bool takes_more = direct == 0 || direct == rest_;
        const size_t extra = !takes_more ? 0 : direct >= kBulk || expects_bulk_ ? kBehindBulk : scratch_bytes;
        if (extra > 0)
            pieces[count++] = {scratch, extra};
        const ssize_t done = sockets_.read(fd_, pieces, count);
        if (done < 0) {
            if (done == -EAGAIN)
                return Progress::kDone;
            if (done != -EINTR)
                cut(static_cast<int>(-done));
            continue;
        }
        if (done == 0) {
            cut(ECONNRESET);
            break;
        }
        const auto got = static_cast<size_t>(done);
        bytes_read_ += got;
        const size_t placed = std::min(got, direct);
        if (placed > 0) {
            target_ += placed;
            rest_ -= placed;
            if (rest_ == 0)
                payload_here(reader);
        }
        consume(reader, scratch, got - placed);
        budget -= std::min(budget, got);
        if (got < direct + extra && !hung_up_ && !reads_short_)
            return Progress::kDone;
    }
    return Progress::kDone;
}

void Link::consume(LinkReader& reader, const char* bytes, size_t count) {
    while (count > 0 && broken_ == 0) {
        size_t some = 0;
        if (phase_ == Phase::kHeader) {
            some = std::min(count, sizeof head_ - have_);
            std::memcpy(reinterpret_cast<char*>(&head_) + have_, bytes, some);
            have_ += some;
            if (have_ == sizeof head_)
                header_here(reader);
        } else if (phase_ == Phase::kPayload) {
            some = std::min(count, rest_);
            if (target_ != nullptr) {
                std::memcpy(target_, bytes, some);
                target_ += some;
            }
            rest_ -= some;
            if (rest_ == 0)
                payload_here(reader);
        } else {
            some = std::min(count, sizeof mark_ - have_);
            std::memcpy(reinterpret_cast<char*>(&mark_) + have_, bytes, some);
            have_ += some;
            if (have_ == sizeof mark_) {
                have_ = 0;
                phase_ = Phase::kHeader;
                if (mark_ != kMarkGood && mark_ != kMarkVoid)
                    cut(EPROTO, "a frame does not end like one of ours");
                else
                    reader.data_ended(*this, head_, !is_dropped_ && mark_ == kMarkGood);
            }
        }
        bytes += some;
        count -= some;
    }
}

void Link::header_here(LinkReader& reader) {
    if (const char* fault = fault_of(head_, epoch_)) {
        cut(EPROTO, fault);
        return;
    }
    add(record_.frames_in, 1);
    have_ = 0;
    phase_ = Phase::kPayload;
    rest_ = head_.length;
    is_dropped_ = is_placed_ = false;
    if (head_.type == FrameType::kData) {
        expects_bulk_ = head_.length >= kBulk;
        add(record_.bytes_in, head_.length);
        target_ = reader.data_begins(*this, head_);
        is_placed_ = target_ != nullptr;
        if (broken_ != 0)
            return;
    } else {
        target_ = control_;
    }
    if (rest_ == 0)
        payload_here(reader);
}

void Link::payload_here(LinkReader& reader) {
    phase_ = Phase::kHeader;
    target_ = nullptr;
    if (head_.type != FrameType::kData) {
        reader.control(*this, head_, control_);
    } else if ((head_.flags & kHasMark) != 0) {
        phase_ = Phase::kMark;
    } else {
        reader.data_ended(*this, head_, !is_dropped_);
    }
}

}  // namespace taskd::rail
