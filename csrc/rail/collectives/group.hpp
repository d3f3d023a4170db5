// One process group: the operations that its members run together, with the same numbers on all members.
//
// Why: this is everything that a caller needs, in plain memory and element types. So the c10d backend above is only a
// translation, and the collectives below know nothing about torch.
//
// Promises: every element is reduced in the order of ranks 0..n-1, wherever it lies in the buffer, and rounded as
// reduce/reduce.hpp says. Chunks, rails and faults cannot change a bit. AVG is the sum divided by n at the end. `done`
// is called exactly once, without the lock, when the operation's memory is not read or written any more. Collectives
// are numbered in the order of the calls; point-to-point messages are numbered by member, direction and tag.
//
// Does not: wait for anything, copy anything but small messages, or decide about rails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rail/form.hpp"
#include "rail/transport.hpp"

namespace taskd::rail {

// Null: it succeeded.
using Done = std::function<void(const Failure* failure)>;

// A number of bytes, and the type of their elements. The type is not used to compute, but ranks that name different
// types are told so.
struct Extent {
    Extent(size_t bytes, Dtype dtype = Dtype::kByte) : bytes(bytes), dtype(dtype) {}

    size_t bytes;
    Dtype dtype;
};

// From this tag on, a tag serves for one message at most between two members in each direction. Nothing is remembered
// of it, so a group may use such tags without end.
constexpr uint32_t kTagsUsedOnce = uint32_t{1} << 31;

// Memory of the caller.
struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
};

// The lock that guards the transport, and how to release it (which runs the jobs of after_unlock()).
class Gate {
  public:
    virtual ~Gate() = default;
    virtual void lock() = 0;
    virtual void unlock() = 0;

    // Runs the order with the lock held, and releases the lock. A thread that has the lock now may run the order first,
    // at the end of a step.
    virtual void urge(const std::function<void()>& order) {
        lock();
        order();
        unlock();
    }
};

class Group {
  public:
    // `me` of `size` members. The transport and the gate must outlive the group.
    Group(Transport& transport, Gate& gate, std::string identity, int me, int size);
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int me() const { return me_; }

    int size() const { return size_; }

    const std::string& identity() const { return identity_; }

    // `timeout_ns` of each operation: 0 means none. An impossible request (a reduction that does not exist, a root
    // outside of the group) is reported to `done` like any other failure. Each call returns a handle for cancel().
    uint64_t all_reduce(void* data, size_t count, Dtype dtype, Reduction reduction, int64_t timeout_ns, Done done);
    // `inputs[r]` goes to member r; all have `count` elements.
    uint64_t reduce_scatter(std::vector<const void*> inputs, void* output, size_t count, Dtype dtype,
                            Reduction reduction, int64_t timeout_ns, Done done);
    // `outputs[r]` comes from member r; all have this extent.
    uint64_t all_gather(const void* input, std::vector<void*> outputs, Extent extent, int64_t timeout_ns, Done done);
    uint64_t broadcast(void* data, Extent extent, int root, int64_t timeout_ns, Done done);
    // Only the root's memory is written to.
    uint64_t reduce(const void* input, void* output, size_t count, Dtype dtype, Reduction reduction, int root,
                    int64_t timeout_ns, Done done);
    // `outputs` is empty except on the root.
    uint64_t gather(const void* input, std::vector<void*> outputs, Extent extent, int root, int64_t timeout_ns,
                    Done done);
    uint64_t scatter(std::vector<const void*> inputs, void* output, Extent extent, int root, int64_t timeout_ns,
                     Done done);
    // Sizes may differ by pair, but the size that one member sends must be the size that the other one receives.
    uint64_t all_to_all(std::vector<Piece> inputs, std::vector<Piece> outputs, int64_t timeout_ns, Done done,
                        Dtype dtype = Dtype::kByte);
    uint64_t barrier(int64_t timeout_ns, Done done);
    uint64_t send(const void* data, Extent extent, int to, uint32_t tag, int64_t timeout_ns, Done done);
    // `from` -1: from any member; `source` (may be null) is set to the sender before `done` is called.
    uint64_t receive(void* data, Extent extent, int from, uint32_t tag, int64_t timeout_ns, int* source, Done done);

    // Ends one operation on this rank with kAborted. Afterwards none of its memory is touched. An unknown handle is
    // fine.
    void cancel(uint64_t handle, const std::string& reason);
    // Ends all operations, and every later one, in the same way. Returns when their memory is not touched any more.
    void abort(const std::string& reason);
    size_t unfinished();

  private:
    struct State;

    const std::string identity_;
    const int me_;
    const int size_;
    const std::unique_ptr<State> state_;
};

}  // namespace taskd::rail
