// A beat page as a process holds it: a sealed memory file, mapped, and the identity read from it once.
//
// Why: the worker creates the file and passes its descriptor to the agent. So there is no file name that could be left
// behind, and the page lives as long as either of the two. The seals make sure that nobody can shrink it under a reader
// (a bus error otherwise). An attached page comes from another process and is not trusted. Size and seals are checked
// before it is mapped. Identity is copied once, so that it cannot change later.
//
// Does not: beat (beat.hpp) or watch (death_watch.hpp).
#pragma once

#include <cstdint>
#include <memory>

#include "native/page.hpp"

namespace taskd::native {

struct Identity {
    int32_t pid = 0;
    int32_t rank = 0;
    uint64_t incarnation = 0;
    uint64_t start_time = 0;
};

class Mapping {
  public:
    // Makes a new page of this process. Throws std::invalid_argument (negative rank) or std::system_error.
    static std::shared_ptr<Mapping> create(int32_t rank, uint64_t incarnation);

    // Attaches another process's page. Any descriptor of it will do; it is duplicated. Throws std::invalid_argument
    // with one sentence if this is not a page that can be used safely.
    static std::shared_ptr<Mapping> attach(int fd);

    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();

    PageLayout& page() const noexcept { return *page_; }

    int fd() const noexcept { return fd_; }

    const Identity& identity() const noexcept { return identity_; }

    // Whether this process made the page. False in a forked child, whose copy is a private page of zeroes.
    bool is_ours() const noexcept;

  private:
    explicit Mapping(int fd);

    void map();

    int fd_;
    PageLayout* page_ = nullptr;
    Identity identity_;
    bool created_ = false;
    uint64_t generation_;
};

}  // namespace taskd::native
