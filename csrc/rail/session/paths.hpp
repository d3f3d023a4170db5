// All paths to one process, and what only their comparison shows.
//
// Why: what one path does means something only beside the others: a rail is silent if another one is not, it is slow
// beside the fastest, and with a single connection there is nothing to compare. Owns the paths. Failure modes: a
// connection that is broken counts until it is taken away, so that two looks at one moment agree.
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
    // Before any of them is used.
    void add(Path path) { paths_.push_back(std::move(path)); }

    size_t size() const { return paths_.size(); }

    Path& operator[](size_t index) { return paths_[index]; }

    auto begin() { return paths_.begin(); }

    auto begin() const { return paths_.begin(); }

    auto end() { return paths_.end(); }

    auto end() const { return paths_.end(); }

    // How many have a connection.
    size_t connected() const;

    // There are connections to compare with each other.
    bool can_compare() const { return connected() > 1; }

    Yardstick yardstick(int64_t now_ns) const;
    // Until the next call.
    const std::vector<PathView>& views();
    // The latest moment at which any other path was given something that has been answered; 0: never.
    int64_t witness_beside(const Path& path) const;
    bool has_up_beside(const Path& path) const;
    // The counters tell others how this rail stands: suspect only if another path is heard, else it is the process that
    // says nothing.
    void show(Path& path, int64_t now_ns) const;
    // Says something on every path.
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
