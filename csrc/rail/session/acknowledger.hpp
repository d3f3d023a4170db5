// Keeps what has arrived from the other side, and decides when to acknowledge it.
//
// Why: every frame that goes out carries an acknowledgement anyway. A frame for it alone is due only if no frame goes
// out for a while, if much has arrived, or if an earlier acknowledgement may be lost. It owns the numbers that have
// arrived, and the acknowledgement that is due. Failure modes: with gaps in what has arrived, a header does not say
// enough, and ranges have to follow. An acknowledgement that went over a failing path is demanded again by the part
// that notices the failure.
//
// Does not: choose the path (Sender does), or know what a frame was about.
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

    // False: this number had arrived before.
    bool add(uint64_t number) { return arrivals_.add(number); }

    // A data frame has ended. If it does not count (`counts` is false), it is dropped, and its sender should learn what
    // has arrived.
    void count_data(const FrameHeader& header, bool counts);
    void count_control();

    // The path on which something arrived last.
    void came_on(size_t path) { last_path_ = path; }

    size_t last_path() const { return last_path_; }

    // ---- when it is acknowledged
    void demand() { is_due_ = true; }

    bool is_due() const { return is_due_; }

    // Whether a time is set by which an acknowledgement will be due.
    bool has_time() const { return by_ns_ != 0; }

    // Sets that time and returns it.
    int64_t wait_from(int64_t now_ns);
    // True: the time has come.
    bool on_time(int64_t now_ns);

    // INT64_MAX: no time is set.
    int64_t next_ns() const { return has_time() ? by_ns_ : INT64_MAX; }

    // ---- acknowledging
    // Writes the acknowledgement into a frame of another kind.
    void stamp(FrameHeader& header) const;
    // A header of this epoch that carries the acknowledgement.
    FrameHeader bare(FrameType type) const;

    // A stamped frame has gone out.
    void stamped() {
        if (arrivals_.above().empty())
            said();
    }

    // Sends a frame for the acknowledgement alone, gaps included.
    void say(Link& link);

  private:
    void said();

    const int64_t epoch_;
    const Inbox& inbox_;  // it says how much of its pool is free again
    Arrivals arrivals_;
    size_t last_path_ = 0;
    bool is_due_ = false;
    int64_t by_ns_ = 0;
    int frames_ = 0;  // arrived since the last acknowledgement
};

}  // namespace taskd::rail
