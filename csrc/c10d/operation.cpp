// See operation.hpp.
#include "c10d/operation.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "c10d/ending.hpp"
#include "c10d/python.hpp"
#include "c10d/torch_versions.hpp"

namespace taskd::comm {

namespace {

uint64_t next_turn() noexcept {
    static std::atomic<uint64_t> turns{0};
    return ++turns;
}

// Waits for work that was queued on a device: it must be done before another thread touches these tensors. A CPU needs
// no wait.
void wait_for_devices(const Tensors& tensors) {
    for (const at::Tensor& tensor : tensors) {
        if (tensor.device().is_cpu())
            continue;
        c10::impl::VirtualGuardImpl(tensor.device().type()).getStream(tensor.device()).synchronize();
    }
}

}  // namespace

const std::string& kind_of(::c10d::OpType type) {
    constexpr size_t kKnown = static_cast<size_t>(kLastType) + 1;
    static const std::array<std::string, kKnown + 1>* const kinds = [] {
        auto* const names = new std::array<std::string, kKnown + 1>;
        for (size_t i = 0; i <= kKnown; ++i) {
            std::string& name = (*names)[i];
            name = ::c10d::opTypeToString(i < kKnown ? static_cast<::c10d::OpType>(i) : ::c10d::OpType::UNKNOWN);
            std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
        }
        return names;
    }();
    return (*kinds)[std::min(static_cast<size_t>(type), kKnown)];
}

uint64_t bytes_of(const Plan& plan) {
    uint64_t total = 0;
    for (const at::Tensor& tensor : plan.writes.empty() ? plan.reads : plan.writes) {
        if (tensor.layout() == at::kStrided)
            total += tensor.nbytes();
    }
    return total;
}

Operation::Operation(Plan plan, std::shared_ptr<Seat> seat, std::chrono::milliseconds default_timeout,
                     std::shared_ptr<Buffers> buffers)
    : Outcome(std::move(plan.value)),
      plan_(std::move(plan)),
      kind_(kind_of(plan_.type)),
      turn_(next_turn()),
      seat_(std::move(seat)),
      timeout_(plan_.timeout == Plan::kUnsetTimeout ? default_timeout : plan_.timeout),
      buffers_(std::move(buffers)) {
    wait_for_devices(plan_.reads);
    wait_for_devices(plan_.writes);
    // From here on, threads without an interpreter hold these. So they get tensors that Python has never seen.
    for (at::Tensor& tensor : plan_.reads)
        tensor = alias_of(tensor);
    for (at::Tensor& tensor : plan_.writes)
        tensor = alias_of(tensor);
}

c10::intrusive_ptr<GuardWork> Operation::make_work(int rank) {
    return c10::make_intrusive<GuardWork>(rank, plan_.type, plan_.title,
                                          plan_.reads.empty() ? plan_.writes : plan_.reads, shared_from_this());
}

void Operation::launch(Inner& inner, const std::shared_ptr<Flight>& flight) {
    const at::AutoDispatchBelowADInplaceOrView below;
    // This may be a caller's thread. Its profiler and its inference mode must not affect the inner operation.
    const at::RecordFunctionGuard unseen(false);
    std::optional<c10::InferenceMode> ordinary;
    if (c10::InferenceMode::is_enabled())
        ordinary.emplace(false);
    auto& target = static_cast<InnerBackend&>(inner);
    exact_ = target.exact() != nullptr;
    twins_.clear();
    for (const at::Tensor& tensor : plan_.writes)
        twins_.push_back(exact_ ? tensor : buffers_->twin(tensor, plan_.copy_in));
    Tensors reads = plan_.reads;
    Tensors twins = twins_;
    try {
        inner_work_ = plan_.issue(*target.backend(), reads, twins);
    } catch (const c10::DistError&) {
        flight->finish(std::current_exception());
        return;
    } catch (const c10::Error&) {
        throw;  // torch checks arguments with these
    } catch (const std::invalid_argument&) {
        throw;
    } catch (...) {
        flight->finish(std::current_exception());  // gloo's own errors: a connection is gone already
        return;
    }
    await(flight);
}

// Makes the flight finish when the inner work does.
void Operation::await(const std::shared_ptr<Flight>& flight) {
    if (!inner_work_) {
        flight->finish(nullptr);
        return;
    }
    if (auto* const work = dynamic_cast<ExactWork*>(inner_work_.get())) {
        work->when_done([flight](std::exception_ptr error) { flight->finish(std::move(error)); });
        return;
    }
    if (!plan_.blocks) {
        inner_work_->getFuture()->addCallback(
            [flight](c10::ivalue::Future& future) {
                flight->finish(future.hasError() ? future.exception_ptr() : nullptr);
            },
            /*uses_future=*/false);
        return;
    }
    Pool::instance().run([flight, work = inner_work_] {
        std::exception_ptr error;
        try {
            work->wait(kNoTimeout);
        } catch (...) {
            error = std::current_exception();
        }
        flight->finish(error);
    });
}

void Operation::commit() {
    const at::AutoDispatchBelowADInplaceOrView below;
    if (plan_.copy_out && !exact_) {
        for (size_t i = 0; i < twins_.size(); ++i)
            copy_contents(twins_[i], plan_.writes[i]);
        wait_for_devices(plan_.writes);
    }
    if (plan_.peer >= 0 || plan_.type == ::c10d::OpType::RECVANYSOURCE) {
        if (plan_.type != ::c10d::OpType::SEND)
            source_rank = inner_work_->sourceRank();
    }
    record();
}

const Tensors& Operation::results() const {
    static const Tensors none;
    return plan_.type == ::c10d::OpType::SEND ? none : value_;
}

RecordEntry Operation::form() const {
    RecordEntry entry;
    entry.kind = kind_;
    entry.group = seat_->group;
    entry.peer = plan_.peer;
    entry.tag = plan_.tag;
    for (const at::Tensor& tensor : results()) {
        entry.tensors.push_back({c10::toString(tensor.scalar_type()), tensor.sizes().vec(), false, ""});
    }
    return entry;
}

void Operation::record() const {
    if (!Recorder::instance().active())
        return;
    RecordEntry entry = form();
    entry.source = source_rank;
    entry.turn = turn_;
    for (size_t i = 0; i < entry.tensors.size(); ++i) {
        const at::Tensor& tensor = results()[i];
        if (tensor.layout() != at::kStrided || !Recorder::instance().wants(tensor.nbytes()))
            continue;
        const at::Tensor flat = tensor.detach().to(at::kCPU).contiguous();
        entry.tensors[i].has_bytes = true;
        entry.tensors[i].bytes.assign(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
    Recorder::instance().append(entry);
}

void Operation::replay(const RecordEntry* entry) {
    const at::AutoDispatchBelowADInplaceOrView below;
    for (size_t i = 0; i < results().size(); ++i) {
        const at::Tensor& tensor = results()[i];
        if (entry == nullptr || !entry->tensors[i].has_bytes) {
            suppose(tensor);
            continue;
        }
        const RecordedTensor& recorded = entry->tensors[i];
        if (recorded.bytes.size() != tensor.nbytes())
            throw std::invalid_argument("a recorded tensor has a wrong length");
        const at::Tensor flat = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).requires_grad(false));
        std::copy(recorded.bytes.begin(), recorded.bytes.end(), static_cast<char*>(flat.mutable_data_ptr()));
        copy_contents(flat, tensor);
    }
    if (entry != nullptr)
        source_rank = entry->source;
}

// Sets a result to what it would be if all ranks had what this one has.
void Operation::suppose(const at::Tensor& result) const {
    if (plan_.keep)
        return;
    fill_zero(result);
    if (!plan_.gathers || plan_.reads.size() != 1)
        return;
    const at::Tensor own = plan_.reads[0].detach();
    if (own.numel() == 0 || result.numel() % own.numel() != 0 || !result.is_contiguous())
        return;
    const at::Tensor rows = result.view({-1, own.numel()});
    for (int64_t row = 0; row < rows.size(0); ++row)
        copy_contents(own.reshape({-1}), rows[row]);
}

void Operation::drain() noexcept {
    const at::AutoDispatchBelowADInplaceOrView below;
    try {
        for (const at::Tensor& tensor : plan_.writes) {
            if (plan_.keep) {
                make_finite(tensor);
            } else {
                fill_zero(tensor);
            }
        }
        wait_for_devices(plan_.writes);
    } catch (const std::exception& error) {
        TORCH_WARN(kind_, " of a step given up keeps its tensors as they are: ", error.what());
    }
}

std::shared_ptr<void> Operation::abandon() noexcept {
    if (auto* const work = dynamic_cast<ExactWork*>(inner_work_.get())) {
        work->abort();  // afterwards it touches nothing of ours
        return nullptr;
    }
    auto remains = std::make_shared<Remains>();
    remains->work = std::move(inner_work_);
    remains->reads = plan_.reads;
    remains->twins = std::move(twins_);
    if (plan_.abortable && remains->work) {
        try {
            remains->work->abort();
        } catch (const std::exception& error) {
            TORCH_WARN(kind_, " cannot be aborted and ends with its group: ", error.what());
        }
    }
    return remains;
}

void Operation::settle(Ending ending, std::exception_ptr error) noexcept {
    if (!complete(ending, error))
        return;
    const auto rest = [self = shared_from_this()] {
        const Stretch stretch;
        if (stretch) {
            self->conclude();
        } else {
            // The process ends and nobody waits any more. Letting go of what the interpreter knows would end this
            // thread on the spot.
            new std::shared_ptr<Operation>(self);
        }
    };
    try {
        Pool::instance().run(rest);
    } catch (const std::exception&) {
        rest();  // no thread left in the system
    }
}

void Operation::release() noexcept {
    Plan plan;
    Tensors twins;
    c10::intrusive_ptr<::c10d::Work> inner_work;
    const std::lock_guard<std::mutex> held(mutex_);
    plan.reads.swap(plan_.reads);
    plan.writes.swap(plan_.writes);
    plan.issue.swap(plan_.issue);
    twins.swap(twins_);
    inner_work.swap(inner_work_);
}

std::exception_ptr Operation::error(const std::string& text) const {
    return backend_error(text);
}

}  // namespace taskd::comm
