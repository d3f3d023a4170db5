// See work.hpp.
#include "c10d/work.hpp"

#include <ATen/record_function.h>

#include <algorithm>
#include <utility>

#include "c10d/python.hpp"

namespace taskd::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalPeriod{100};

// A future that is completed with tensors on a device has to know the device.
std::vector<c10::Device> devices_of(const Tensors& tensors) {
    std::vector<c10::Device> devices;
    for (const at::Tensor& tensor : tensors) {
        if (!tensor.device().is_cpu() && std::find(devices.begin(), devices.end(), tensor.device()) == devices.end())
            devices.push_back(tensor.device());
    }
    return devices;
}

bool draining() {
    Control& control = Control::instance();
    const Control::Lock lock = control.lock();
    return control.mode(lock) == Mode::kDraining;
}

}  // namespace

bool Outcome::completed() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return completed_;
}

bool Outcome::drained() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return completed_ && ending_ == Ending::kDrained;
}

std::exception_ptr Outcome::error() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return completed_ ? error_ : nullptr;
}

bool Outcome::wait(std::chrono::milliseconds timeout) {
    const bool signals = on_main_thread();
    const auto deadline = timeout > kNoTimeout ? Clock::now() + timeout : Clock::time_point::max();
    std::unique_lock<std::mutex> held(mutex_);
    while (!completed_) {
        if (deadline != Clock::time_point::max() && Clock::now() >= deadline)
            return false;
        const auto tick = signals ? std::min(deadline, Clock::now() + kSignalPeriod) : deadline;
        if (tick == Clock::time_point::max()) {
            bell_.wait(held);
        } else {
            bell_.wait_until(held, tick);
        }
        if (completed_ || !signals || Clock::now() < tick)
            continue;
        held.unlock();
        serve_signals();
        held.lock();
    }
    return true;
}

bool Outcome::complete(Ending ending, const std::exception_ptr& error) noexcept {
    std::exception_ptr ends_with = error;
    if (ending == Ending::kDrained)
        ends_with = backend_error(name() + " belonged to a step that was given up; its tensors hold no result.");
    bool concluding = false;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        ending_ = ending;
        error_ = std::move(ends_with);
        completed_ = !profiled_end_;
        concluding = concluding_ = future_ || profiled_end_ || abandoned_;
    }
    bell_.notify_all();  // not under the lock: a woken thread would only wait for the lock
    return concluding;
}

void Outcome::conclude() noexcept {
    if (profiled_end_) {
        // A thread that sees the operation complete may end the profiler, and destroy what the range writes to.
        std::exchange(profiled_end_, nullptr)();
        {
            const std::lock_guard<std::mutex> held(mutex_);
            completed_ = true;
        }
        bell_.notify_all();
    }
    bool to_complete = false;
    {
        const std::unique_lock<std::mutex> held(mutex_);
        to_complete = claim_future(held);
    }
    if (to_complete)
        complete_future();
    bool orphan = false;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        concluding_ = false;
        orphan = abandoned_;
    }
    if (orphan)
        release_all();
}

bool Outcome::claim_future(const std::unique_lock<std::mutex>&) {
    if (!future_ || claimed_)
        return false;
    claimed_ = true;
    return true;
}

// No lock is held while its callbacks run.
void Outcome::complete_future() noexcept {
    try {
        if (ending_ == Ending::kFailed) {
            future_->setError(error_);
        } else {
            future_->markCompleted(c10::IValue(value_));
        }
    } catch (const std::exception& callback) {
        TORCH_WARN("a callback of ", name(), " failed: ", callback.what());
    }
}

c10::intrusive_ptr<c10::ivalue::Future> Outcome::future() {
    bool to_complete = false;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
        const std::unique_lock<std::mutex> held(mutex_);
        if (!future_)
            future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                               devices_of(value_));
        future = future_;
        to_complete = completed_ && claim_future(held);
    }
    if (to_complete)
        complete_future();
    return future;
}

void Outcome::waited() {
    release();
    bool to_complete = false;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    {
        const std::unique_lock<std::mutex> held(mutex_);
        to_complete = claim_future(held);
        future = future_;
    }
    if (to_complete)
        complete_future();
    else if (future && !future->completed())
        future->wait();  // another thread is completing it
}

void Outcome::abandon() {
    bool mine = false;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        abandoned_ = true;
        mine = completed_ && !concluding_;
    }
    if (mine)
        release_all();
}

void Outcome::release_all() noexcept {
    release();
    Tensors value;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    std::exception_ptr error;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        value.swap(value_);
        future.swap(future_);
        error.swap(error_);
    }
}

GuardWork::GuardWork(int rank, ::c10d::OpType type, const char* title, const Tensors& inputs,
                     std::shared_ptr<Outcome> outcome)
    : Work(rank, type, at::hasCallbacks() ? title : nullptr,
           at::hasCallbacks() ? std::optional<Tensors>(inputs) : std::nullopt),
      outcome_(std::move(outcome)) {
    if (recordFunctionEndCallback_)
        outcome_->set_profiled_end(std::move(recordFunctionEndCallback_));
}

GuardWork::~GuardWork() {
    if (is_ours())
        outcome_->abandon();
    else
        new std::shared_ptr<Outcome>(outcome_);
}

c10::intrusive_ptr<c10::ivalue::Future> GuardWork::getFuture() {
    if (!is_ours())
        throw_inherited(outcome_->name());
    return outcome_->future();
}

bool GuardWork::wait(std::chrono::milliseconds timeout) {
    if (!is_ours())
        throw_inherited(outcome_->name());
    const WithoutGil released;
    const bool backward = in_autograd();
    if (!outcome_->wait(timeout)) {
        std::rethrow_exception(backend_error(outcome_->name() + " did not finish within " +
                                             std::to_string(timeout.count()) +
                                             " ms; wait again or give it more time."));
    }
    outcome_->waited();
    // Only now: before it is complete, an operation may still write to its tensors, and the step's state is about to be
    // restored.
    if (outcome_->drained() || draining()) {
        if (backward)
            return true;
        throw_step_abandoned("the step was given up while " + outcome_->name() + " was under way.");
    }
    const std::exception_ptr error = outcome_->error();
    if (error)
        std::rethrow_exception(error);
    return true;
}

}  // namespace taskd::comm
