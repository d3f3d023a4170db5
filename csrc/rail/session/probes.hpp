// What one path was asked, and what of it has been answered.
//
// Why: probes go out on all paths at the same moments, so that the silence of one can be told from the silence of all.
// Owns the oldest probe that is not answered, the probe that was sent behind the freight of a late path, and the latest
// moment whose bytes have been answered. Failure modes: an answer to a question that nobody has asked is ignored; a
// probe that got lost is covered by every later one that is answered.
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

// So many bytes waited for nothing but the path.
struct Drained {
    size_t bytes;
    int64_t took_ns;
};

class Probes {
  public:
    // The latest moment at which the path was given something that has been answered; 0: none yet.
    int64_t witness_ns() const { return witness_ns_; }

    // When something it was given was answered last.
    int64_t heard_ns() const { return heard_ns_; }

    // The oldest probe that is not answered.
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

    // The probe of this moment goes out behind so many bytes.
    void behind(int64_t now_ns, size_t bytes) {
        behind_ns_ = now_ns;
        behind_bytes_ = bytes;
    }

    // The answer to a probe. Returns what has drained, if the probe was sent behind something.
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
