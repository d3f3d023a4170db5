// What has come from the other side, and when that is said.
//
// Why: every frame that goes out says it anyway, so a word of its own is due only where none goes out for a while, or
// where much has come, or where an earlier word may be lost. Owns the numbers that have arrived, and the
// acknowledgement that is due. Failure modes: with gaps in what has come, no header says enough, and ranges have to
// follow; a word that went over a path which fails is demanded again by whoever notices.
//
// Does not: choose the path (Session does), or know what a frame was about.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rail/io/frame.hpp"
#include "rail/io/link.hpp"
#include "rail/session/inbox.hpp"

namespace taskd::rail {

class Acknowledger {
  public:
    Acknowledger(int64_t epoch, const Inbox& inbox) : epoch_(epoch), inbox_(inbox) {}

    // ---- what has come
    bool has(uint64_t number) const { return arrivals_.has(number); }

    // False: it had been here before.
    bool add(uint64_t number) { return arrivals_.add(number); }

    // A frame of data has ended; not one that `counts`: it is dropped, and its sender should know what is here.
    void count_data(const FrameHeader& header, bool counts);
    void count_control();

    // On which path something came last.
    void came_on(size_t path) { last_path_ = path; }

    size_t last_path() const { return last_path_; }

    // ---- when it is said
    void demand() { is_due_ = true; }

    bool is_due() const { return is_due_; }

    // There is a time by which it will be due.
    bool has_time() const { return by_ns_ != 0; }

    // Sets that time, and returns it.
    int64_t wait_from(int64_t now_ns);
    // True: the time has come.
    bool on_time(int64_t now_ns);

    // INT64_MAX: there is none.
    int64_t next_ns() const { return has_time() ? by_ns_ : INT64_MAX; }

    // ---- saying it
    // In a frame of another kind.
    void stamp(FrameHeader& header) const;
    // A header of this epoch that says it.
    FrameHeader bare(FrameType type) const;

    // A stamped frame goes out.
    void stamped() {
        if (arrivals_.above().empty())
            said();
    }

    // In a frame of its own, gaps included.
    void say(Link& link);

  private:
    void said();

    const int64_t epoch_;
    const Inbox& inbox_;  // which says what of its pool is free again
    Arrivals arrivals_;
    size_t last_path_ = 0;
    bool is_due_ = false;
    int64_t by_ns_ = 0;
    int frames_ = 0;  // that came since it was said last
};

}  // namespace taskd::rail
