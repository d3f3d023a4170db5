// What torch asks of a backend besides operations: whether it can do something, its memory, its errors, its timing, a
// group that is split off. See guard.hpp.
//
// Only the inner group of a stream-ordered guard is asked, since it may be used on any thread. What torch has set once
// is set again in each later inner group, unless the first one has refused it. A guard on the CPU answers as torch's
// default does, or as gloo does.
//
// Does not: shrink or merge groups. A rank that is gone is replaced instead, and the ranks of two jobs that merge have
// no common numbers.
#include <pybind11/stl.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

#include "c10d/guard.hpp"
#include "c10d/python.hpp"

namespace taskd::comm {

namespace py = pybind11;
using ::c10d::Backend;

namespace {

// A hook may be a Python function, which must not be copied without the GIL. So all inner groups share one.
template <typename Hook>
Hook calling(const std::shared_ptr<const Hook>& hook) {
    return [hook](std::shared_ptr<::c10d::WorkInfo> info) { (*hook)(std::move(info)); };
}

}  // namespace

bool Guard::supportsTimeEstimation() const {
    const BackendPointer present = inner();
    return present && present->supportsTimeEstimation();
}

bool Guard::supportsTensorAlloc(c10::DeviceIndex device) {
    const BackendPointer present = inner();
    return present && present->supportsTensorAlloc(device);
}

at::Tensor Guard::allocateTensor(long size, at::TensorOptions options) {
    const BackendPointer present = inner();
    return present ? present->allocateTensor(size, options) : Backend::allocateTensor(size, options);
}

std::shared_ptr<c10::Allocator> Guard::getMemAllocator() {
    const BackendPointer present = inner();
    return present ? present->getMemAllocator() : Backend::getMemAllocator();
}

std::unordered_map<std::string, uint64_t> Guard::getMemoryStats() {
    const BackendPointer present = inner();
    return present ? present->getMemoryStats() : Backend::getMemoryStats();
}

void Guard::suspend() {
    const BackendPointer present = inner();
    present ? present->suspend() : Backend::suspend();
}

void Guard::resume() {
    const BackendPointer present = inner();
    present ? present->resume() : Backend::resume();
}

::c10d::ErrorType Guard::getError() {
    const BackendPointer present = inner();
    return present ? present->getError() : Backend::getError();
}

void Guard::eagerConnectSingleDevice(at::Device device) {
    if (const BackendPointer present = inner())
        present->eagerConnectSingleDevice(device);
}

void Guard::waitForPendingWorks() {
    const BackendPointer present = inner();
    present ? present->waitForPendingWorks() : Backend::waitForPendingWorks();
}

void Guard::registerOnCompletionHook(std::function<void(std::shared_ptr<::c10d::WorkInfo>)>&& hook) {
    if (!kind_.stream_ordered)
        return Backend::registerOnCompletionHook(std::move(hook));
    TORCH_CHECK(!hasHooks(), "group ", identity(), " has an onCompletion hook already.");
    const auto kept = std::make_shared<const Hook>(std::move(hook));
    if (const BackendPointer present = inner())
        present->registerOnCompletionHook(calling(kept));
    {
        const Control::Lock lock = control_.lock();
        wishes_.hook = kept;
    }
    onCompletionHook_ = calling(kept);  // torch's hasHooks() asks no inner group
}

// On the CPU there is nothing to enable, as with gloo: each operation's duration is known.
void Guard::enableCollectivesTiming() {
    if (const BackendPointer present = inner())
        present->enableCollectivesTiming();
    const Control::Lock lock = control_.lock();
    wishes_.timing = true;
}

// Makes an inner group do what torch has asked of the one before it.
void Guard::take_over(Backend& inner) {
    Wishes wishes;
    {
        const Control::Lock lock = control_.lock();
        wishes = wishes_;
    }
    if (wishes.timing)
        inner.enableCollectivesTiming();
    if (wishes.hook)
        inner.registerOnCompletionHook(calling(wishes.hook));
}

// Code that asks the inner group, and its flight recorder, must find what torch has said to the guard.
void Guard::resemble(Backend& inner) const {
    if (inner.getBoundDeviceId() != getBoundDeviceId())
        inner.setBoundDeviceId(getBoundDeviceId());
    if (inner.getGroupUid() != getGroupUid())
        inner.setGroupUid(getGroupUid());
    if (inner.getGroupDesc() != getGroupDesc())
        inner.setGroupDesc(getGroupDesc());
}

// A rank outside of the new group gets null. The group is made as any other, with a meeting of its own.
Guard::BackendPointer Guard::split(const c10::intrusive_ptr<::c10d::Store>& store, const std::vector<int>& ranks,
                                   const c10::intrusive_ptr<Options>& options) {
    check_ours("split");
    const py::gil_scoped_acquire gil;
    const auto self = c10::intrusive_ptr<Guard>::unsafe_reclaim_from_nonowning(this);
    const py::object made = py::module_::import("taskd.comm.guard").attr("split")(self, store, ranks, options);
    return made.is_none() ? BackendPointer() : BackendPointer(made.cast<c10::intrusive_ptr<Guard>>());
}

}  // namespace taskd::comm
