// See guard.hpp.
#include "c10d/guard.hpp"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "c10d/python.hpp"

namespace taskd::comm {

namespace {

using Clock = std::chrono::steady_clock;

// An orderly end waits this long until the inner group has ended. Otherwise a process that exits next would exit in the
// middle of that.
constexpr std::chrono::milliseconds kTeardownWait{2000};
constexpr std::chrono::milliseconds kSignalPeriod{100};

struct Living {
    std::mutex mutex;
    std::vector<c10::weak_intrusive_ptr<Guard>> guards;
};

Living& living = one_per_process<Living>();

void check_inner(const Guard::BackendPointer& inner) {
    if (dynamic_cast<const Guard*>(inner.get()) != nullptr)
        throw std::invalid_argument("the inner group is a guard itself; one guard is enough, give it the plain group.");
}

// A Work for an inner operation that blocks and has no work object. The operation runs in wait().
class BlockingWork : public ::c10d::Work {
  public:
    explicit BlockingWork(std::function<void()> body) : body_(std::move(body)) {}

    bool wait(std::chrono::milliseconds) override {
        body_();
        return true;
    }

  private:
    std::function<void()> body_;
};

}  // namespace

std::string identity_of(const std::vector<int64_t>& members, int64_t ordinal) {
    std::string text = std::to_string(ordinal) + "@";
    for (size_t first = 0; first < members.size();) {
        size_t last = first;
        while (last + 1 < members.size() && members[last + 1] == members[last] + 1)
            ++last;
        if (first > 0)
            text += ",";
        text += std::to_string(members[first]);
        if (last > first)
            text += "-" + std::to_string(members[last]);
        first = last + 1;
    }
    return text;
}

Guard::Guard(int rank, int size, std::vector<int64_t> members, int64_t ordinal, Milliseconds timeout, Kind kind)
    : Backend(rank, size),
      control_(Control::instance()),
      members_(std::move(members)),
      ordinal_(ordinal),
      kind_(std::move(kind)),
      options_(c10::make_intrusive<Options>(kind_.name, timeout)),
      buffers_(std::make_shared<Buffers>()),
      seat_(std::make_shared<Seat>()),
      progress_(std::make_shared<GroupProgress>(identity_of(members_, ordinal_))),
      message_progress_(std::make_shared<GroupProgress>(identity_of(members_, ordinal_) + " messages",
                                                        GroupProgress::Leaves::kCount)),
      collectives_(std::make_shared<Lane>(control_, Pool::instance(), seat_, 1, progress_)),
      messages_(std::make_shared<Lane>(control_, Pool::instance(), seat_, std::numeric_limits<size_t>::max(),
                                       message_progress_)),
      timeout_(timeout) {
    if (members_.size() != static_cast<size_t>(size)) {
        throw std::invalid_argument("a group of " + std::to_string(size) + " ranks was given " +
                                    std::to_string(members_.size()) + " member ranks; give one for each.");
    }
    seat_->group = identity_of(members_, ordinal_);
}

c10::intrusive_ptr<Guard> Guard::make(int rank, int size, BackendPointer inner, std::vector<int64_t> members,
                                      int64_t ordinal, Milliseconds timeout, const std::vector<int>& sockets,
                                      Kind kind) {
    check_inner(inner);
    auto guard = c10::make_intrusive<Guard>(rank, size, std::move(members), ordinal, timeout, std::move(kind));
    std::shared_ptr<Inner> made = InnerBackend::make(std::move(inner), sockets);
    {
        const Control::Lock lock = guard->control_.lock();
        guard->seat_->inner = std::move(made);
        guard->seat_->number = 1;
    }
    const std::lock_guard<std::mutex> held(living.mutex);
    living.guards.emplace_back(guard);
    return guard;
}

std::vector<c10::intrusive_ptr<Guard>> Guard::live() {
    std::vector<c10::intrusive_ptr<Guard>> alive;
    const std::lock_guard<std::mutex> held(living.mutex);
    auto& all = living.guards;
    all.erase(std::remove_if(all.begin(), all.end(), [](const auto& guard) { return guard.expired(); }), all.end());
    for (const auto& weak : all) {
        if (auto guard = weak.lock())
            alive.push_back(std::move(guard));
    }
    return alive;
}

bool Guard::quiesce(Milliseconds timeout) {
    const auto deadline = Clock::now() + timeout;
    for (const auto& guard : live()) {
        Control::Lock lock = guard->control_.lock();
        if (!guard->collectives_->wait_idle(lock, deadline) || !guard->messages_->wait_idle(lock, deadline))
            return false;
    }
    return true;
}

void Guard::forget() noexcept {
    const std::lock_guard<std::mutex> held(living.mutex);
    auto& all = living.guards;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [this](const auto& guard) { return guard._unsafe_get_target() == this; }),
              all.end());
}

// Does not wait: the interpreter may be in the middle of anything. Operations under way keep what they need.
Guard::~Guard() {
    if (birthplace_.is_elsewhere()) {
        // The parent's threads may have been in the middle of anything, too.
        new auto(std::make_tuple(collectives_, messages_, coalescing_));
        return;
    }
    std::shared_ptr<Inner> inner;
    {
        const Control::Lock lock = control_.lock();
        closed_ = true;
        if (collectives_->idle(lock) && messages_->idle(lock))
            inner = unseat(lock);
    }
}

std::shared_ptr<Inner> Guard::unseat(const Control::Lock& lock) {
    std::shared_ptr<Inner> old = std::move(seat_->inner);
    seat_->inner = nullptr;
    collectives_->changed(lock);
    messages_->changed(lock);
    return old;
}

Guard::Milliseconds Guard::timeout() {
    const Control::Lock lock = control_.lock();
    return timeout_;
}

uint64_t Guard::sequence() {
    const Control::Lock lock = control_.lock();
    return kind_.stream_ordered ? queued_.sequence.load() : collectives_->sequence(lock);
}

uint64_t Guard::getSequenceNumberForGroup() {
    const Control::Lock lock = control_.lock();
    const uint64_t since = kind_.stream_ordered ? queued_.sequence.load() : collectives_->sequence(lock);
    return (static_cast<uint64_t>(rebuilt_) << 32) + since;
}

bool Guard::joined() {
    const Control::Lock lock = control_.lock();
    return seat_->inner != nullptr;
}

bool Guard::idle() {
    const Control::Lock lock = control_.lock();
    return collectives_->idle(lock) && messages_->idle(lock);
}

void Guard::setTimeout(Milliseconds timeout) {
    check_ours("setTimeout");
    std::shared_ptr<Inner> inner;
    {
        const Control::Lock lock = control_.lock();
        timeout_ = timeout;
        inner = seat_->inner;
    }
    options_->timeout = timeout;
    if (inner)
        static_cast<InnerBackend&>(*inner).backend()->setTimeout(timeout);
}

void Guard::reconfigure(int64_t epoch, BackendPointer inner, const std::vector<int>& sockets) {
    const WithoutGil released;
    check_ours("reconfigure");
    check_inner(inner);
    // A group that was made anew in its place, as HCCL does it, is under this guard already.
    const bool stays = kind_.stream_ordered && inner && inner == this->inner();
    if (inner && !stays && kind_.stream_ordered) {
        resemble(*inner);  // a hook and a look into the group come before its first operation
        take_over(*inner);
    }
    std::shared_ptr<Inner> next = stays ? nullptr : InnerBackend::make(std::move(inner), sockets);
    std::shared_ptr<Inner> old;
    {
        const Control::Lock lock = control_.lock();
        if (closed_)
            throw std::invalid_argument("group " + identity() + " was destroyed and cannot be reconfigured.");
        const bool running =
            control_.mode(lock) == Mode::kNormal && !(collectives_->idle(lock) && messages_->idle(lock));
        if (running || collectives_->under_way(lock) || messages_->under_way(lock)) {
            throw std::invalid_argument("group " + identity() +
                                        " has operations under way; drain before it is reconfigured.");
        }
        control_.raise_epoch(epoch, lock);
        rebuilt_ = epoch;
        queued_.sequence = queued_messages_.sequence = 0;
        coalescing_ = nullptr;
        if (stays)
            return;
        old = unseat(lock);
        seat_->inner = std::move(next);
        ++seat_->number;
        collectives_->restart_sequence(lock);
        messages_->restart_sequence(lock);
    }
    if (!old)
        return;
    // Operations that hang in the old group then end by themselves. A thread of the pool runs its destructor.
    Pool::instance().run(
        [old = std::move(old)] { static_cast<InnerBackend&>(*old).break_off("a new inner group took its place."); });
}

void Guard::abort() {
    if (birthplace_.is_elsewhere())
        return;
    const WithoutGil released;
    forget();
    progress_->close();
    message_progress_->close();
    std::shared_ptr<Inner> old;
    {
        const Control::Lock lock = control_.lock();
        closed_ = true;
        seat_->aborted = true;
        old = unseat(lock);
    }
    if (!old)
        return;
    auto& ending = static_cast<InnerBackend&>(*old);
    ending.break_off("the group was aborted.");
    if (kind_.stream_ordered)
        ending.backend()->abort();
}

// Waits for queued operations, at most the group's timeout, and lets Ctrl-C through.
bool Guard::finish_queued(Control::Lock& lock) {
    const auto deadline = Clock::now() + timeout_;
    while (!collectives_->idle(lock) || !messages_->idle(lock)) {
        const auto now = Clock::now();
        if (now >= deadline)
            return false;
        Lane& busy = collectives_->idle(lock) ? *messages_ : *collectives_;
        busy.wait_idle(lock, std::min(deadline, now + kSignalPeriod));
        lock.unlock();
        if (on_main_thread())
            serve_signals();
        lock.lock();
    }
    return true;
}

void Guard::shutdown() {
    if (birthplace_.is_elsewhere())
        return;
    const WithoutGil released;
    forget();
    std::shared_ptr<Inner> old;
    bool orderly = false;
    {
        Control::Lock lock = control_.lock();
        if (closed_)
            return;
        closed_ = true;
        orderly = finish_queued(lock);
        seat_->aborted = !orderly;
        old = unseat(lock);
    }
    progress_->close();
    message_progress_->close();
    if (!old)
        return;
    if (kind_.stream_ordered)
        static_cast<InnerBackend&>(*old).backend()->shutdown();
    if (!orderly)
        static_cast<InnerBackend&>(*old).break_off("the group was destroyed.");
    const size_t others = inner_groups_alive() - 1;
    old.reset();
    if (orderly)
        wait_for_teardown(others, kTeardownWait);
}

void Guard::check_ours(const std::string& called) const {
    if (birthplace_.is_elsewhere())
        throw_inherited(called + " was called on group " + identity() + ", which");
}

Guard::WorkPointer Guard::collective(Plan plan) {
    check_ours(kind_of(plan.type));
    return kind_.stream_ordered ? queue(std::move(plan), queued_) : submit(std::move(plan), collectives_);
}

Guard::WorkPointer Guard::point_to_point(Plan plan) {
    check_ours(kind_of(plan.type));
    return kind_.stream_ordered ? queue(std::move(plan), queued_messages_) : submit(std::move(plan), messages_);
}

Guard::WorkPointer Guard::submit(Plan plan, const std::shared_ptr<Lane>& lane) {
    auto operation = std::make_shared<Operation>(std::move(plan), seat_, timeout(), buffers_);
    c10::intrusive_ptr<GuardWork> work = operation->make_work(rank_);
    Control::Lock lock = control_.lock();
    const Mode mode = control_.mode(lock);
    if (!closed_ && mode != Mode::kDraining && mode != Mode::kSandbox) {
        lane->submit(operation, lock);
        return work;
    }
    const bool closed = closed_;
    lock.unlock();
    end_apart(*operation, mode, closed);
    return work;
}

// Ends an operation that no inner group will see: the group is gone, this is a sandbox, or the step is given up.
void Guard::end_apart(Operation& operation, Mode mode, bool closed) const {
    if (closed)
        throw_usage_error(operation.kind() + " was called on group " + identity() + ", which was destroyed.");
    if (mode == Mode::kSandbox) {
        play_back(operation);
        operation.settle(Ending::kDone, nullptr);
        return;
    }
    // A backward pass must not be unwound in the middle. It runs to its end on numbers that nobody will use.
    if (!in_autograd())
        throw_step_abandoned("the step was given up before " + operation.kind() + " began.");
    operation.drain();
    operation.settle(Ending::kDrained, nullptr);
}

void Guard::play_back(Operation& operation) const {
    const bool rehearsing = control_.rehearsing(control_.lock());
    if (rehearsing) {
        operation.replay(nullptr);
        return;
    }
    const RecordEntry wanted = operation.form();
    RecordEntry found;
    if (!Replay::instance().take(wanted.key(), found)) {
        throw_usage_error("this set-up calls " + wanted.describe() +
                          ", but the recorded one had ended there; make both communicate alike before the first step.");
    }
    const auto same = [](const RecordedTensor& one, const RecordedTensor& other) { return one.same_form(other); };
    if (wanted.kind != found.kind ||
        !std::equal(wanted.tensors.begin(), wanted.tensors.end(), found.tensors.begin(), found.tensors.end(), same)) {
        throw_usage_error("this set-up calls " + wanted.describe() + " where the recorded one called " +
                          found.describe() + "; make the code before the first step do the same in every process.");
    }
    operation.replay(&found);
}

void Guard::monitoredBarrier(const ::c10d::BarrierOptions& options, bool wait_all_ranks) {
    Plan plan;
    plan.type = ::c10d::OpType::BARRIER;
    plan.title = "gloo:monitored_barrier";
    plan.timeout = options.timeout;
    plan.blocks = true;
    plan.issue = [options, wait_all_ranks](::c10d::Backend& backend, Tensors&, Tensors&) -> WorkPointer {
        auto held = c10::intrusive_ptr<::c10d::Backend>::unsafe_reclaim_from_nonowning(&backend);
        return c10::make_intrusive<BlockingWork>(
            [held, options, wait_all_ranks] { held->monitoredBarrier(options, wait_all_ranks); });
    };
    collective(std::move(plan))->wait(kNoTimeout);
}

}  // namespace taskd::comm
