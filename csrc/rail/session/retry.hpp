// The limits of TASKD_RETRY, in the form that a session uses.
//
// Why a header of its own: the code that makes an engine names them, and must not include the sessions for that.
//
// Does not: count anything.
#pragma once

#include <chrono>
#include <cstdint>

namespace taskd::rail {

// How long an operation survives the loss of all rails to a member (HCCL_OP_RETRY_PARAMS has the same three words).
struct Retry {
    bool enabled = true;
    int count = 3;
    std::chrono::milliseconds hold{5000};
    std::chrono::milliseconds interval{1000};
};

inline int64_t nanoseconds(std::chrono::milliseconds duration) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
}

}  // namespace taskd::rail
