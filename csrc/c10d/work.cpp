// See work.hpp.
#include "work.hpp"

#include <algorithm>

#include "python.hpp"

namespace taskd::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalPeriod{100};

bool draining() {
    Control& control = Control::instance();
    const Control::Lock lock = control.lock();
    return control.mode(lock) == Mode::kDraining;
}

}  // namespace

GuardWork::GuardWork(int rank, ::c10d::OpType type, const char* title, std::string name, Tensors value,
                     const Tensors& inputs)
    : Work(rank, type, title, inputs),
      name_(std::move(name)),
      value_(std::move(value)),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

bool GuardWork::isCompleted() {
    const std::lock_guard<std::mutex> held(mutex_);
    return completed_;
}

bool GuardWork::isSuccess() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return completed_ && !exception_;
}

std::exception_ptr GuardWork::exception() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return exception_;
}

int GuardWork::sourceRank() const {
    return source_rank_;
}

Tensors GuardWork::result() {
    return value_;
}

void GuardWork::synchronize() {
    wait(kNoTimeout);
}

c10::intrusive_ptr<c10::ivalue::Future> GuardWork::getFuture() {
    return future_;
}

uint64_t GuardWork::getSequencenumber() const {
    return sequence_;
}

bool GuardWork::wait_completed(std::chrono::milliseconds timeout) {
    const bool signals = on_main_thread();
    const auto deadline = timeout > kNoTimeout ? Clock::now() + timeout : Clock::time_point::max();
    std::unique_lock<std::mutex> held(mutex_);
    while (!completed_) {
        if (Clock::now() >= deadline)
            return false;
        const auto tick = signals ? std::min(deadline, Clock::now() + kSignalPeriod) : deadline;
        if (tick == Clock::time_point::max()) {
            cv_.wait(held);
        } else {
            cv_.wait_until(held, tick);
        }
        if (completed_ || !signals)
            continue;
        held.unlock();
        serve_signals();
        held.lock();
    }
    return true;
}

bool GuardWork::wait(std::chrono::milliseconds timeout) {
    const WithoutGil released;
    const bool backward = in_autograd();
    if (!wait_completed(timeout)) {
        std::rethrow_exception(backend_error(name_ + " did not finish within " + std::to_string(timeout.count()) +
                                             " ms; wait again or give it more time."));
    }
    // Only now: an operation that is not complete may still write to its tensors, and the step's state is about to be
    // restored.
    if (drained_ || draining()) {
        if (backward)
            return true;
        throw_step_abandoned("the step was given up while " + name_ + " was under way.");
    }
    const std::exception_ptr error = exception();
    if (error)
        std::rethrow_exception(error);
    return true;
}

void GuardWork::complete(Ending ending, const std::exception_ptr& error) noexcept {
    std::exception_ptr ends_with = error;
    if (ending == Ending::kDrained) {
        drained_ = true;
        ends_with = backend_error(name_ + " belonged to a step that was given up; its tensors hold no result.");
    }
    try {
        if (ending == Ending::kFailed) {
            future_->setError(error);
        } else {
            future_->markCompleted(c10::IValue(value_));
        }
    } catch (const std::exception& callback) {
        TORCH_WARN("a callback of ", name_, " failed: ", callback.what());
    }
    finish(ends_with);
}

}  // namespace taskd::comm
