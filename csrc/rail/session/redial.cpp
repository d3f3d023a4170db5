#include "rail/session/redial.hpp"

#include <algorithm>

#include "rail/transport.hpp"

namespace taskd::rail {
namespace {

constexpr int64_t kFirstPauseNs = 10 * kMillisecondNs;
constexpr int64_t kLongestPauseNs = 500 * kMillisecondNs;  // so a rail that is back is used within a second

}  // namespace

Redial::Redial(bool dials, const Retry& retry, int64_t now_ns)
    : dials_(dials),
      longest_pause_ns_(std::min(nanoseconds(retry.interval), kLongestPauseNs)),
      due_ns_(dials ? now_ns : INT64_MAX) {}

void Redial::connected() {
    due_ns_ = INT64_MAX;
    pause_ns_ = 0;
    refusals_ = 0;
}

bool Redial::again(int64_t now_ns) {
    if (!dials_)
        return false;
    due_ns_ = is_usable_ ? now_ns + pause_ns_ : INT64_MAX;
    pause_ns_ = std::min(std::max(2 * pause_ns_, kFirstPauseNs), longest_pause_ns_);
    return is_usable_;
}

void Redial::stop() {
    dials_ = false;
    due_ns_ = INT64_MAX;
}

}  // namespace taskd::rail
