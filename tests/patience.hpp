// How long a test waits for an event. tests/patience.py sets the time and explains why it is so long.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>

namespace taskd::test {

inline std::chrono::seconds patience() {
    const char* text = std::getenv("TEST_PATIENCE_S");
    const double seconds = text == nullptr ? 0 : std::atof(text);
    return std::chrono::seconds(seconds > 0 ? static_cast<int64_t>(seconds) : 300);
}

}  // namespace taskd::test
