// The memory of one engine for small messages that nobody has asked for yet, shared by its sessions.
//
// Why a file of its own: each session has a pool, and a job may have thousands of sessions. A session begins with a
// small pool. The first such message lets it have the full one, if all sessions together have enough left.
//
// Does not: hold messages (inbox.hpp does), or lock.
#pragma once

#include <cstddef>

#include "rail/io/frame.hpp"

namespace taskd::rail {

constexpr size_t kPoolsTogether = size_t{256} << 20;  // beyond the small pool that each session begins with

class Pools {
  public:
    explicit Pools(size_t bytes = kPoolsTogether) : left_(bytes) {}

    // Returns by how much a session's pool may grow: to the full one, or not at all.
    size_t take() {
        constexpr size_t kGrowth = kPoolBytes - kFirstPoolBytes;
        if (left_ < kGrowth)
            return 0;
        left_ -= kGrowth;
        return kGrowth;
    }

    void give_back(size_t bytes) { left_ += bytes; }

  private:
    size_t left_;
};

}  // namespace taskd::rail
