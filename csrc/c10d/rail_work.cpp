// See rail_work.hpp.
#include "c10d/rail_work.hpp"

#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>

#include "c10d/ending.hpp"
#include "c10d/pool.hpp"
#include "c10d/python.hpp"

namespace taskd::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalPeriod{100};

// Runs a job on a thread that may take the interpreter. If the system has no thread left, this thread runs it.
void hand_over(std::function<void()> job) noexcept {
    try {
        Pool::instance().run(job);
    } catch (const std::exception&) {
        job();
    }
}

}  // namespace

RailRun::RailRun(std::weak_ptr<rail::Group> group, std::shared_ptr<RailSeat> seat, const char* title, Tensors value)
    : group_(std::move(group)), seat_(std::move(seat)), title_(title), value_(std::move(value)) {
    ++seat_->under_way;
}

RailRun::~RailRun() {
    if (!ended_)
        leave();  // it could not be started
}

void RailRun::leave() noexcept {
    if (--seat_->under_way > 0 || !seat_->awaited)
        return;
    const std::lock_guard<std::mutex> held(seat_->mutex);
    seat_->bell.notify_all();
}

void RailRun::start(rail::Group& group, const Start& part) {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        ++open_;
    }
    const uint64_t handle =
        part(group, [self = shared_from_this()](const rail::Failure* failure) { self->part_ended(failure); });
    remember(handle, group);
}

void RailRun::remember(uint64_t handle, rail::Group& group) {
    std::string reason;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        if (!aborted_) {
            handles_.push_back(handle);
            return;
        }
        reason = abort_reason_;
    }
    group.cancel(handle, reason);
}

// The transport's own messages say which operation of which group it was.
std::exception_ptr RailRun::error_of(const rail::Failure& failure) const {
    const bool aborted = failure.code == rail::Failure::Code::kAborted;
    return backend_error((aborted ? name() + " was aborted: " : "") + failure.text + ".");
}

void RailRun::part_ended(const rail::Failure* failure) noexcept {
    std::exception_ptr error = failure == nullptr ? nullptr : error_of(*failure);
    std::unique_lock<std::mutex> held(mutex_);
    if (error && !error_)
        error_ = std::move(error);
    if (--open_ > 0)
        return;
    const bool copies = !copies_.empty() && !error_;
    if (!copies && !future_ && !profiled_end_ && !abandoned_) {
        finish(std::move(held));
        return;
    }
    held.unlock();
    hand_over([self = shared_from_this()] { self->settle(); });
}

// Does what the engine's thread must not do itself.
void RailRun::settle() noexcept {
    const Stretch stretch;
    if (!stretch) {
        new std::shared_ptr<RailRun>(shared_from_this());  // the process ends: nobody waits, and nothing may be freed
        return;
    }
    conclude(
        [this] {
            for (const auto& [from, to] : copies_)
                copy_contents(from, to);
        },
        nullptr);
}

void RailRun::conclude(const std::function<void()>& apply, std::exception_ptr error) {
    {
        // With this lock, an abort has either returned before this point or returns after the last byte is written.
        const std::lock_guard<std::mutex> open(seat_->mutex);
        {
            const std::lock_guard<std::mutex> held(mutex_);
            if ((aborted_ || seat_->closed) && !error_ && !error)
                error = backend_error(name() + " was aborted: " + (aborted_ ? abort_reason_ : seat_->reason));
            if (!error_)
                error_ = std::move(error);
            error = error_;
        }
        if (!error && apply) {
            try {
                const at::AutoDispatchBelowADInplaceOrView below;
                apply();
            } catch (...) {
                error = std::current_exception();
                const std::lock_guard<std::mutex> held(mutex_);
                error_ = error;
            }
        }
    }
    // A thread that sees the operation complete may end the profiler, and destroy what the range writes to.
    if (profiled_end_)
        std::exchange(profiled_end_, nullptr)();
    c10::intrusive_ptr<c10::ivalue::Future> future;
    for (;;) {
        std::unique_lock<std::mutex> held(mutex_);
        // future() may be called while the callbacks of the first one run. It then returns that same one.
        if (!future_ || future) {
            finish(std::move(held));
            break;
        }
        future = future_;
        held.unlock();
        try {
            if (error) {
                future->setError(error);
            } else {
                future->markCompleted(c10::IValue(value_));
            }
        } catch (const std::exception& callback) {
            TORCH_WARN("a callback of ", name(), " failed: ", callback.what());
        }
    }
    release();
}

void RailRun::finish(std::unique_lock<std::mutex> held) noexcept {
    ended_ = true;
    const std::vector<Ended> listeners = std::move(listeners_);
    listeners_.clear();
    const std::exception_ptr error = error_;
    bell_.notify_all();
    held.unlock();
    leave();
    for (const Ended& listener : listeners)
        listener(error);
}

void RailRun::await(rail::Group& group, const std::vector<Start>& operations) {
    struct Latch {
        std::mutex mutex;
        std::condition_variable bell;
        size_t open = 0;
        std::exception_ptr error;
    };

    const auto latch = std::make_shared<Latch>();
    latch->open = operations.size();
    for (const Start& operation : operations) {
        remember(operation(group,
                           [this, latch](const rail::Failure* failure) {
                               const std::lock_guard<std::mutex> held(latch->mutex);
                               if (failure != nullptr && !latch->error)
                                   latch->error = error_of(*failure);
                               --latch->open;
                               latch->bell.notify_all();
                           }),
                 group);
    }
    std::unique_lock<std::mutex> held(latch->mutex);
    latch->bell.wait(held, [&] { return latch->open == 0; });
    if (latch->error)
        std::rethrow_exception(latch->error);
}

void RailRun::when_done(Ended ended) {
    std::exception_ptr error;
    {
        const std::lock_guard<std::mutex> held(mutex_);
        if (!ended_) {
            listeners_.push_back(std::move(ended));
            return;
        }
        error = error_;
    }
    ended(error);
}

bool RailRun::wait_until(Clock::time_point deadline) {
    std::unique_lock<std::mutex> held(mutex_);
    if (deadline == Clock::time_point::max()) {
        bell_.wait(held, [this] { return ended_; });
        return true;
    }
    return bell_.wait_until(held, deadline, [this] { return ended_; });
}

void RailRun::abort(const std::string& reason) {
    std::vector<uint64_t> handles;
    {
        const std::lock_guard<std::mutex> open(seat_->mutex);
        const std::lock_guard<std::mutex> held(mutex_);
        if (ended_)
            return;
        aborted_ = true;
        abort_reason_ = reason;
        handles = handles_;
    }
    const std::shared_ptr<rail::Group> group = group_.lock();
    if (!group)
        return;  // the group ended everything when it was destroyed
    for (const uint64_t handle : handles)
        group->cancel(handle, reason);
}

void RailRun::abandon() {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        abandoned_ = true;
        if (!ended_)
            return;
    }
    release();
}

void RailRun::release() {
    Tensors value;
    Tensors kept;
    std::vector<std::pair<at::Tensor, at::Tensor>> copies;
    c10::intrusive_ptr<c10::ivalue::Future> future;
    const std::lock_guard<std::mutex> held(mutex_);
    if (!ended_)
        return;
    kept.swap(kept_);
    copies.swap(copies_);
    if (!abandoned_)
        return;
    value.swap(value_);
    future.swap(future_);
}

bool RailRun::ended() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return ended_;
}

std::exception_ptr RailRun::error() const {
    const std::lock_guard<std::mutex> held(mutex_);
    return ended_ ? error_ : nullptr;
}

c10::intrusive_ptr<c10::ivalue::Future> RailRun::future() {
    const std::lock_guard<std::mutex> held(mutex_);
    if (future_)
        return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    if (!ended_)
        return future_;
    if (error_) {
        future_->setError(error_);
    } else {
        future_->markCompleted(c10::IValue(value_));
    }
    return future_;
}

RailWork::RailWork(int rank, ::c10d::OpType type, const char* title, const Tensors& inputs,
                   std::shared_ptr<RailRun> run, uint64_t sequence)
    : ExactWork(rank, type, title, inputs), run_(std::move(run)), sequence_(sequence) {
    if (recordFunctionEndCallback_)
        run_->set_profiled_end(std::exchange(recordFunctionEndCallback_, nullptr));
}

RailWork::~RailWork() {
    if (is_ours())
        run_->abandon();
    else
        new std::shared_ptr<RailRun>(run_);
}

c10::intrusive_ptr<c10::ivalue::Future> RailWork::getFuture() {
    if (!is_ours())
        throw_inherited(run_->name());
    return run_->future();
}

bool RailWork::wait(std::chrono::milliseconds timeout) {
    if (!is_ours())
        throw_inherited(run_->name());
    const WithoutGil released;
    const bool signals = on_main_thread();
    const auto deadline = timeout > kNoTimeout ? Clock::now() + timeout : Clock::time_point::max();
    for (;;) {
        const auto tick = signals ? std::min(deadline, Clock::now() + kSignalPeriod) : deadline;
        if (run_->wait_until(tick))
            break;
        if (Clock::now() >= deadline) {
            std::rethrow_exception(backend_error(run_->name() + " did not finish within " +
                                                 std::to_string(timeout.count()) +
                                                 " ms; wait again or give it more time."));
        }
        if (signals)
            serve_signals();
    }
    run_->release();
    if (const std::exception_ptr error = run_->error())
        std::rethrow_exception(error);
    return true;
}

void RailWork::abort() {
    if (!is_ours())
        return;
    const WithoutGil released;
    run_->abort("the caller wanted it");
}

}  // namespace taskd::comm
