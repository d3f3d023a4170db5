// The probes of one path: which were sent, and which of them have been answered.
//
// Why: probes go out on all paths at the same moments. So the silence of one path can be told from the silence of all.
// It owns the oldest unanswered probe, the probe that was sent behind the bytes of a late path, and the latest send
// time that has been answered. Failure modes: an answer to a question that nobody asked is ignored. A lost probe is
// covered by every later probe that is answered.
//
// Pure: it is told what happened and when. Does not: send (Path does), or judge (Standing does).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace taskd::rail {

// Something that was sent, and where its bytes end among those of its link.
struct Sent {
    int64_t at_ns;
    uint64_t end;
};

// This many bytes waited for nothing but the path.
struct Drained {
    size_t bytes;
    int64_t took_ns;
};

class Probes {
  public:
    // The latest send time of anything on this path that has been answered; 0: none yet.
    int64_t witness_ns() const { return witness_ns_; }

    // When the last answer to something on this path came.
    int64_t heard_ns() const { return heard_ns_; }

    // The oldest unanswered probe.
    const std::optional<Sent>& unanswered() const { return unanswered_; }

    void connected(int64_t now_ns) {
        unanswered_.reset();
        behind_ns_ = 0;
        heard_ns_ = now_ns;
    }

    void sent(int64_t now_ns, uint64_t end) {
        if (!unanswered_)
            unanswered_ = Sent{now_ns, end};
    }

    // The probe that is sent at this moment goes out behind this many bytes.
    void behind(int64_t now_ns, size_t bytes) {
        behind_ns_ = now_ns;
        behind_bytes_ = bytes;
    }

    // Takes the answer to a probe. Returns what has drained, if the probe was sent behind something.
    std::optional<Drained> answered_probe(int64_t asked_ns, int64_t now_ns) {
        if (!unanswered_ || asked_ns >= unanswered_->at_ns)
            unanswered_.reset();
        if (asked_ns != behind_ns_)
            return std::nullopt;
        return Drained{behind_bytes_, now_ns - asked_ns};
    }

    void answered(int64_t sent_ns, int64_t now_ns) {
        witness_ns_ = std::max(witness_ns_, sent_ns);
        heard_ns_ = now_ns;
    }

  private:
    int64_t witness_ns_ = 0;
    int64_t heard_ns_ = 0;
    std::optional<Sent> unanswered_;
    int64_t behind_ns_ = 0;
    size_t behind_bytes_ = 0;
};

}  // namespace taskd::rail
