// One c10d operation as a lane runs it: which tensors it reads, which it writes, and how to start it on an inner group.
//
// Why: the twenty or so operations of c10d differ only in a plan. Everything else is the same for all and stands here
// once: launching, learning of the end without blocking, committing, draining and completing. An operation is launched
// on private copies, or on the caller's own tensors if the inner group is exact.
//
// Does not: decide when any of this happens (lane.hpp) or know c10d's options (collectives.cpp makes the plans).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "c10d/buffers.hpp"
#include "c10d/inner.hpp"
#include "c10d/lane.hpp"
#include "c10d/record.hpp"
#include "c10d/work.hpp"

namespace taskd::comm {

using Issue =
    std::function<c10::intrusive_ptr<::c10d::Work>(::c10d::Backend& backend, Tensors& reads, Tensors& writes)>;

struct Plan {
    ::c10d::OpType type = ::c10d::OpType::UNKNOWN;
    const char* title = "";  // for a profiler
    std::chrono::milliseconds timeout = kUnsetTimeout;
    Tensors reads;           // handed to the inner operation as they are
    Tensors writes;          // the inner operation gets private twins of these, unless its group is exact
    Tensors value;           // the caller's result, in the work and its future
    bool copy_in = false;    // the twins start with the contents of `writes`
    bool copy_out = true;    // a success is copied back
    bool keep = false;       // when given up, `writes` keep their contents instead of being zeroed
    bool gathers = false;    // its results are what its ranks have read, one after another
    bool blocks = false;     // the inner work has no future: wait on a thread of its own
    bool abortable = false;  // the inner work can be aborted
    bool bundle = false;     // it only ends a bundle of operations, each of which has a plan of its own
    int peer = -1;           // of a point-to-point operation
    int tag = 0;
    Issue issue;

    static constexpr std::chrono::milliseconds kUnsetTimeout{-1};
};

// Returns the name of this type. The string lives as long as the process.
const std::string& kind_of(::c10d::OpType type);
// Returns the bytes of the tensors that it writes, or of those that it reads if it writes none.
uint64_t bytes_of(const Plan& plan);

class Operation : public Task, public Outcome, public std::enable_shared_from_this<Operation> {
  public:
    Operation(Plan plan, std::shared_ptr<Seat> seat, std::chrono::milliseconds default_timeout,
              std::shared_ptr<Buffers> buffers);

    // Returns the Work for the caller. To be called once.
    c10::intrusive_ptr<GuardWork> make_work(int rank);

    void launch(Inner& inner, const std::shared_ptr<Flight>& flight) override;
    void commit() override;
    void drain() noexcept override;
    std::shared_ptr<void> abandon() noexcept override;
    void settle(Ending ending, std::exception_ptr error) noexcept override;
    std::exception_ptr error(const std::string& text) const override;

    // Sets this rank's recorded result. Tensors without one (all, if `entry` is null) become what they would be if all
    // ranks had what this one has: those of an in-place operation stay as they are. Where that is not known, they are
    // zeroed.
    void replay(const RecordEntry* entry);
    // Returns the entry to look for in a record. Its tensors have no bytes.
    RecordEntry form() const;
    // Writes the result into the record of this process's set-up, if there is one.
    void record() const;

    bool quick() const override { return !Recorder::instance().active(); }

    std::string name() const override { return kind_ + " in group " + seat_->group; }

    const std::string& kind() const override { return kind_; }

    uint16_t kind_number() const override { return static_cast<uint16_t>(plan_.type); }

    std::chrono::milliseconds timeout() const override { return timeout_; }

    const Plan& plan() const { return plan_; }

    uint64_t bytes() const override { return bytes_of(plan_); }

  private:
    struct Remains {
        c10::intrusive_ptr<::c10d::Work> work;
        Tensors reads;
        Tensors twins;
    };

    void release() noexcept override;
    void await(const std::shared_ptr<Flight>& flight);
    const Tensors& results() const;
    void suppose(const at::Tensor& result) const;

    Plan plan_;
    const std::string& kind_;
    const uint64_t turn_;  // the order in which operations were called in this process
    const std::shared_ptr<Seat> seat_;
    const std::chrono::milliseconds timeout_;
    const std::shared_ptr<Buffers> buffers_;
    bool exact_ = false;  // whether the inner group of its last launch is exact
    c10::intrusive_ptr<::c10d::Work> inner_work_;
    Tensors twins_;
};

}  // namespace taskd::comm
