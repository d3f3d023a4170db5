// One connection of a session: the frames that are being written to it, and the frame that is being read from it.
//
// Why: this is where bytes meet the memory that they belong to. Large payloads are written from and read into the
// caller's memory, so this is also where that memory is let go of. A frame that has begun to be written is padded with
// zeros and marked void. The rest of a frame that is being read is dropped.
//
// Does not: decide what to send, or what a frame means. It never deletes itself: a broken link says so, and is taken
// away.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "rail/io/frame.hpp"
#include "rail/io/socket.hpp"

namespace taskd::rail {

class Link;
struct Outgoing;
struct CounterRecord;

class LinkReader {
  public:
    virtual ~LinkReader() = default;
    // The bytes of a data frame are about to come. Returns where to put them, or null to drop them.
    virtual char* data_begins(Link& link, const FrameHeader& header) = 0;
    // All bytes have come. `counts` false: they do not count (another link took over, or they are padding).
    virtual void data_ended(Link& link, const FrameHeader& header, bool counts) = 0;
    virtual void control(Link& link, const FrameHeader& header, const char* payload) = 0;
};

class Link {
  public:
    enum class Progress { kDone, kMore, kBlocked };

    Link(SocketLayer& sockets, int fd, int64_t epoch, size_t slot, CounterRecord& record);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

    int fd() const { return fd_; }

    size_t slot() const { return slot_; }

    bool is_broken() const { return broken_ != 0; }

    int error() const { return broken_; }

    const char* fault() const { return fault_; }

    void cut(int error, const char* fault = nullptr);

    // Takes a frame with its payload (null: zeros and a void mark). `owner` names the message for let_go(), and is kept
    // until the frame has left or is let go of.
    void stage(const FrameHeader& header, const char* payload, std::shared_ptr<const Outgoing> owner);
    // The same with a payload of its own.
    void stage(const FrameHeader& header, std::string text);

    size_t staged() const { return staged_bytes_; }

    bool blocked() const { return blocked_; }

    void unblock() { blocked_ = false; }

    // At most about `budget` bytes.
    Progress write(size_t budget);
    // After this, the memory of this message, or of this one frame, is not read any more.
    void let_go(const Outgoing* owner);
    void let_go_frame(uint64_t number);

    // kDone: nothing more has come. `scratch` belongs to nobody between calls.
    Progress read(LinkReader& reader, char* scratch, size_t scratch_bytes, size_t budget);

    void hung_up() { hung_up_ = true; }

    // The number of the frame whose bytes are being read for a receiver; 0: none.
    uint64_t incoming() const {
        return phase_ != Phase::kHeader && head_.type == FrameType::kData && !is_dropped_ ? head_.number : 0;
    }

    // Drops the rest of the frame. `counts`: whether the frame still counts.
    void redirect(bool counts);

    bool was_redirected() const { return is_dropped_; }

    // Whether all bytes of this frame so far went to where the reader said, and the rest will too.
    bool was_placed() const { return is_placed_; }

    // Whether bytes of this message are being written to their place.
    bool writes(const MessageKey& key) const {
        return incoming() != 0 && is_placed_ && broken_ == 0 && key_of(head_) == key;
    }

    uint64_t bytes_read() const { return bytes_read_; }

    uint64_t bytes_written() const { return bytes_written_; }

    // Where the next frame will begin, in bytes since the link began.
    uint64_t end() const { return bytes_written_ + staged_bytes_; }

    bool is_readable = false;  // the system said so, and not everything has been read yet

  private:
    enum class Phase { kHeader, kPayload, kMark };

    struct Staged {
        FrameHeader header;
        const char* payload;
        std::shared_ptr<const Outgoing> owner;
        uint64_t mark;
        std::string text;
        size_t done;

        size_t size() const { return sizeof header + header.length + ((header.flags & kHasMark) != 0 ? 8 : 0); }
    };

    void pad(Staged& frame);
    int gather(void* pieces, size_t budget) const;
    void written(size_t bytes);
    void consume(LinkReader& reader, const char* bytes, size_t count);
    void header_here(LinkReader& reader);
    void payload_here(LinkReader& reader);

    SocketLayer& sockets_;
    const int fd_;
    const int64_t epoch_;
    const size_t slot_;
    const bool reads_short_;
    CounterRecord& record_;
    int broken_ = 0;
    const char* fault_ = nullptr;

    std::deque<Staged> queue_;
    size_t staged_bytes_ = 0;
    bool blocked_ = false;

    Phase phase_ = Phase::kHeader;
    FrameHeader head_{};
    size_t have_ = 0;  // of the header or the mark
    char* target_ = nullptr;
    size_t rest_ = 0;  // of the payload
    bool is_dropped_ = false;
    bool is_placed_ = false;
    bool hung_up_ = false;
    bool expects_bulk_ = false;
    uint64_t mark_ = 0;
    uint64_t bytes_read_ = 0;
    uint64_t bytes_written_ = 0;
    char control_[kLongestControl];
};

}  // namespace taskd::rail
