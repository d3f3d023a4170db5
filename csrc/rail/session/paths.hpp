// All paths to one process, and what only a comparison of them shows.
//
// Why: the behaviour of one path means something only beside the others. A rail is silent if another one is not, and
// slow compared with the fastest. With a single connection there is nothing to compare. It owns the paths. Failure
// modes: a broken connection counts until it is taken away, so that two looks at the same moment agree.
//
// Does not: decide what a path carries (Scheduler), or take one down (SilenceWatch does).
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "rail/session/borrowers.hpp"
#include "rail/session/path.hpp"
#include "rail/session/scheduler.hpp"

namespace taskd::rail {

class Paths : public Borrowers {
  public:
    // Must be called before any path is used.
    void add(Path path) { paths_.push_back(std::move(path)); }

    size_t size() const { return paths_.size(); }

    Path& operator[](size_t index) { return paths_[index]; }

    auto begin() { return paths_.begin(); }

    auto begin() const { return paths_.begin(); }

    auto end() { return paths_.end(); }

    auto end() const { return paths_.end(); }

    // How many paths have a connection.
    size_t connected() const;

    // Whether there are several connections, so that they can be compared.
    bool can_compare() const { return connected() > 1; }

    Yardstick yardstick(int64_t now_ns) const;
    // The result is valid until the next call.
    const std::vector<PathView>& views();
    // The latest send time of anything on any other path that has been answered; 0: never.
    int64_t witness_beside(const Path& path) const;
    bool has_up_beside(const Path& path) const;
    // Writes the state of this rail into the counters. It is shown as suspect only if another path is heard; otherwise
    // it is the process that is silent.
    void show(Path& path, int64_t now_ns) const;
    // Sends this frame on every path.
    void tell(const FrameHeader& news);
    void cut(int error);

    // ---- Borrowers
    void let_go(const Outgoing& message) override;
    void let_go(const MessageKey& key) override;
    bool is_written(const MessageKey& key) const override;

  private:
    std::vector<Path> paths_;
    std::vector<PathView> views_;
};

}  // namespace taskd::rail
