// What a forked child must not take over from the process that it was forked from.
//
// Why: a child has all of its parent's memory, but only the thread that forked. A lock that another thread held stays
// locked for ever, and work that another thread had begun never ends. So whatever exists once per process is made anew
// in each child, at its old address, before anything else of the child runs. Whatever belongs to a group of the parent
// knows that it was inherited, and leaves itself alone.
//
// What a child makes anew is not destroyed before: it may hold what the parent's threads use. The memory is left.
//
// Does not: take descriptors or mappings away from children (native/fork_guard.hpp does).
#pragma once

#include <cstdint>
#include <functional>
#include <new>
#include <tuple>

namespace taskd::comm {

// Returns the number of forks between the process that loaded this code and this one.
uint64_t forks() noexcept;

// Calls `renew` in every child, on the thread that forked. It must not throw.
void in_children(std::function<void()> renew);

// Returns an object that exists once per process and is never destroyed. `references` live as long, and go to its
// constructor. To be called once, while the code is loaded: a child cannot finish what another thread had begun.
template <typename Object, typename... References>
Object& one_per_process(References&... references) {
    void* const place = ::operator new(sizeof(Object), std::align_val_t(alignof(Object)));
    const auto make = [place, pointers = std::make_tuple(&references...)] {
        std::apply([place](auto*... each) { new (place) Object(*each...); }, pointers);
    };
    make();
    in_children(make);
    return *static_cast<Object*>(place);
}

// The process in which something was made.
class Birthplace {
  public:
    // Whether it was made in a process from which this one was forked.
    bool is_elsewhere() const noexcept { return forks_ != forks(); }

  private:
    const uint64_t forks_ = forks();
};

}  // namespace taskd::comm
