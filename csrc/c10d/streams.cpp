// A guard of a stream-ordered inner group, NCCL's or HCCL's. See guard.hpp.
//
// Why apart from the lanes: for its caller, such an operation is over once it is queued. Its result is there when the
// device comes to it. When it fails, later operations are queued already and have read what it should have written. So
// it cannot be done again alone. Therefore nothing is copied, kept or waited for here. An operation goes to the inner
// group as it is, waits while operations are parked, and belongs to the step that is given up. In the beat page, "left"
// means queued.
//
// An inner group may refuse an operation because a peer is gone. That is not the caller's fault. The failure is
// announced, and the caller waits for a decision, as long as somebody listens and its time limit has not passed.
//
// Does not: end queued operations or notice failures on the device (taskd/comm/nccl.py and hccl.py do).
#include <algorithm>

#include "c10d/guard.hpp"
#include "c10d/python.hpp"
#include "native/system.hpp"

namespace taskd::comm {

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kSignalPeriod{100};
constexpr std::chrono::hours kLongest{24 * 365};

}  // namespace

Guard::BackendPointer Guard::inner() const {
    const Control::Lock lock = control_.lock();
    if (!kind_.stream_ordered || !seat_->inner || birthplace_.is_elsewhere())
        return nullptr;
    return static_cast<InnerBackend&>(*seat_->inner).backend();
}

c10::intrusive_ptr<Guard::Options> Guard::getBackendOptions() {
    const BackendPointer present = inner();
    return present ? present->getBackendOptions() : options_;
}

Guard::WorkPointer Guard::queue(Plan plan, Queue& to) {
    wait_until_running();
    Control::Lock lock = control_.lock();
    const Mode mode = control_.mode(lock);
    const Control::Turn born = control_.turn(lock);
    const int64_t epoch = control_.epoch(lock);
    const std::shared_ptr<Inner> seated = seat_->inner;
    const bool closed = closed_;
    const std::string aborted = control_.aborted(lock) ? control_.abort_reason(lock) : "";
    if (mode == Mode::kNormal && seated)
        resemble(*static_cast<InnerBackend&>(*seated).backend());
    control_.count(lock);
    // Counted under the lock: who sees that a step is given up sees every operation that came before.
    HandingOver handing_over(mode == Mode::kNormal && !closed && seated ? &handing_over_ : nullptr, control_, born);
    lock.unlock();
    if (closed || mode == Mode::kSandbox || mode == Mode::kDraining) {
        const auto operation = std::make_shared<Operation>(std::move(plan), seat_, timeout(), buffers_);
        WorkPointer work = operation->make_work(rank_);
        end_apart(*operation, mode, closed);
        return work;
    }
    if (!aborted.empty())
        std::rethrow_exception(backend_error(kind_of(plan.type) + " in group " + identity() + " failed: " + aborted));
    if (!seated)
        throw_usage_error("group " + identity() +
                          " was never joined; call taskd's rebuild before operations are let go");
    const uint64_t number = ++to.sequence;
    to.progress->entered(static_cast<uint16_t>(plan.type), bytes_of(plan), number, epoch);
    WorkPointer work = issue(plan, *static_cast<InnerBackend&>(*seated).backend(), number, born, handing_over);
    to.progress->left(number);
    return work;
}

// Starts the operation on the inner group. Records its result if this is a set-up that a newcomer will play back.
Guard::WorkPointer Guard::issue(Plan& plan, ::c10d::Backend& inner, uint64_t number, const Control::Turn& born,
                                HandingOver& handing_over) {
    const ::c10d::OpType type = plan.type;
    const bool recorded = Recorder::instance().active() && !plan.bundle;
    WorkPointer work;
    try {
        work = plan.issue(inner, plan.reads, plan.writes);
        handing_over.end();
        // A sent message has no result, and waiting for it may keep its receiver from coming.
        if (recorded && type != ::c10d::OpType::SEND)
            work->wait();
    } catch (const c10::DistError&) {
        handing_over.end();
        return hold(std::move(plan), number, std::current_exception(), born);
    } catch (const c10::Error&) {
        throw;  // torch checks arguments with these
    } catch (const std::invalid_argument&) {
        throw;
    } catch (const std::runtime_error&) {
        handing_over.end();
        return hold(std::move(plan), number, std::current_exception(), born);
    }
    if (recorded) {
        Operation done(std::move(plan), seat_, timeout(), buffers_);
        if (type == ::c10d::OpType::RECV || type == ::c10d::OpType::RECVANYSOURCE)
            done.source_rank = work->sourceRank();
        done.record();
    }
    return work;
}

// Announces the failure, and holds the operation until somebody has decided.
Guard::WorkPointer Guard::hold(Plan plan, uint64_t number, const std::exception_ptr& error, const Control::Turn& born) {
    const WithoutGil released;
    const std::string text = text_of(error);
    const Milliseconds limit = plan.timeout == Plan::kUnsetTimeout ? timeout() : plan.timeout;
    const auto until = Clock::now() + std::min<std::chrono::nanoseconds>(limit, kLongest);
    Control::Lock lock = control_.lock();
    control_.announce({identity(), kind_of(plan.type), number, text, control_.epoch(lock), native::now_ns()}, lock);
    const uint64_t resumes = control_.turn(lock).resumes;
    const auto given_up = [&] { return control_.turn(lock).drains > born.drains; };
    while (control_.attached(lock) && !control_.aborted(lock) && !given_up() &&
           control_.turn(lock).resumes == resumes && Clock::now() < until) {
        control_.wait_for_change(lock, kSignalPeriod);
        lock.unlock();
        if (on_main_thread())
            serve_signals();
        lock.lock();
    }
    const bool abandoned = given_up();
    lock.unlock();
    if (!abandoned)
        std::rethrow_exception(error);
    const auto operation = std::make_shared<Operation>(std::move(plan), seat_, timeout(), buffers_);
    WorkPointer work = operation->make_work(rank_);
    end_apart(*operation, Mode::kDraining, false);
    return work;
}

// Torch asks this before it coalesces operations. A newcomer in its sandbox coalesces none, and none are recorded so.
bool Guard::supportsCoalescing() const {
    const BackendPointer present = inner();
    return present && present->supportsCoalescing();
}

// Operations called until endCoalescing() go to the device as one. Not while a step is given up or in a sandbox, where
// nothing is coalesced. Not in a set-up either, whose operations are recorded one by one.
void Guard::startCoalescing() {
    check_ours("startCoalescing");
    wait_until_running();
    Control::Lock lock = control_.lock();
    if (control_.mode(lock) != Mode::kNormal || !seat_->inner || Recorder::instance().active())
        return;
    coalescing_ = seat_->inner;
    const BackendPointer inner = static_cast<InnerBackend&>(*coalescing_).backend();
    resemble(*inner);
    lock.unlock();
    inner->startCoalescing();
}

Guard::WorkPointer Guard::endCoalescing() {
    check_ours("endCoalescing");
    Control::Lock lock = control_.lock();
    const std::shared_ptr<Inner> began = std::move(coalescing_);
    coalescing_ = nullptr;
    const bool runs = control_.mode(lock) == Mode::kNormal && began == seat_->inner;
    lock.unlock();
    if (!began || !runs)
        return nullptr;
    Plan plan;
    plan.type = ::c10d::OpType::COALESCED;
    plan.bundle = true;
    plan.issue = [](::c10d::Backend& inner, Tensors&, Tensors&) { return inner.endCoalescing(); };
    return queue(std::move(plan), queued_);
}

}  // namespace taskd::comm
