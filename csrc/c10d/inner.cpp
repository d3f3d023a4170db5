// See inner.hpp.
#include "c10d/inner.hpp"

#include <condition_variable>
#include <mutex>
#include <set>
#include <stdexcept>

#include "c10d/ending.hpp"

namespace taskd::comm {

namespace {

struct Teardown {
    std::mutex mutex;
    std::condition_variable bell;
    size_t alive = 0;
    std::set<const ::c10d::Backend*> guarded;
};

Teardown& teardown = one_per_process<Teardown>();

void destroy(InnerBackend* inner) {
    // If the process exits in the middle of a group's destructor, what the destructor uses disappears.
    const Stretch stretch;
    if (!stretch)
        return;
    const ::c10d::Backend* const backend = inner->backend().get();
    Teardown& state = teardown;
    {
        const std::lock_guard<std::mutex> held(state.mutex);
        state.guarded.erase(backend);  // before the delete: then another backend may get its address
    }
    delete inner;
    const std::lock_guard<std::mutex> held(state.mutex);
    --state.alive;
    state.bell.notify_all();
}

void let_go(InnerBackend* inner) {
    if (inner->birthplace().is_elsewhere() || stretches_ended())
        return;
    try {
        Pool::instance().run([inner] { destroy(inner); });
    } catch (const std::exception& error) {
        TORCH_WARN("an inner group is left as it is, because no thread could be started: ", error.what());
    }
}

}  // namespace

std::shared_ptr<InnerBackend> InnerBackend::make(c10::intrusive_ptr<::c10d::Backend> backend,
                                                 const std::vector<int>& sockets) {
    if (!backend)
        return nullptr;
    {
        const std::lock_guard<std::mutex> held(teardown.mutex);
        if (!teardown.guarded.insert(backend.get()).second)
            throw std::invalid_argument("this inner group is under a guard already; make another one for this guard.");
    }
    std::shared_ptr<InnerBackend> inner(new InnerBackend(std::move(backend), mark_sockets(sockets)), let_go);
    const std::lock_guard<std::mutex> held(teardown.mutex);
    ++teardown.alive;
    return inner;
}

void InnerBackend::break_off(const std::string& reason) noexcept {
    shut_down(marks_);
    if (!exact_)
        return;
    try {
        exact_->end(reason);
    } catch (const std::exception& error) {
        TORCH_WARN("an inner group cannot be ended: ", error.what());
    }
}

size_t inner_groups_alive() {
    const std::lock_guard<std::mutex> held(teardown.mutex);
    return teardown.alive;
}

bool wait_for_teardown(size_t at_most, std::chrono::milliseconds timeout) {
    Teardown& state = teardown;
    std::unique_lock<std::mutex> held(state.mutex);
    return state.bell.wait_for(held, timeout, [&] { return state.alive <= at_most; });
}

}  // namespace taskd::comm
