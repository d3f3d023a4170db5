// What the transport has to tell an operation. It is noted when it happens, and delivered when nothing is half done.
//
// Does not: decide when that is (the engine does), or keep the operation alive (forget() takes its events back).
#pragma once

#include <cstdint>
#include <memory>

#include "rail/transport.hpp"

namespace taskd::rail {

struct Event {
    enum class What { kSent, kArrived, kOffered, kDiffers, kFailed, kWoken };
    What what;
    Party* party;
    int member = 0;
    uint32_t part = 0;
    Form form{};
    std::shared_ptr<const Failure> failure{};
};

// Calls the one method of the operation that this event is about. `now_ns` is used for kWoken only.
void deliver(const Event& event, int64_t now_ns);

}  // namespace taskd::rail
