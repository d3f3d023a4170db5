// The engine's lock: how it is handed over, and what is done before it is let go.
//
// Why orders: an operation is given up by a thread that has to wait for the lock, is woken when it is let go, and only
// then can wake those who wait for the operation; on a busy machine each of these takes as long as the scheduler likes.
// So the thread that gives up says what is to be done before it waits, and whoever has the lock does that at the end of
// the step that is under way, and lets those go on who wait for it before any other work.
//
// Does not: know what an order is.
#include <algorithm>
#include <chrono>

#include "rail/engine/core.hpp"

namespace taskd::rail {

void EngineCore::lock() {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    gate_.lock();
    mutex_.lock();
    gate_.unlock();
    waiting_.fetch_sub(1, std::memory_order_relaxed);
}

void EngineCore::unlock() {
    if (!std::exchange(has_obeyed_, false) || faulty_ > over_)
        settle();
    if (!in_thread_ && has_work())
        wake();
    in_thread_ = false;
    std::vector<std::function<void()>> jobs;
    jobs.swap(jobs_);
    mutex_.unlock();
    for (const auto& job : jobs) {
        try {
            job();
        } catch (...) {
            lock();
            blame(kEveryEpoch);  // nobody knows whose it was
            unlock();
        }
    }
}

void EngineCore::wait_for_change(int64_t until_ns) {
    const uint64_t before = change_;
    settle();
    if (has_work())
        wake();
    if (!jobs_.empty()) {
        unlock();
        lock();
        return;
    }
    if (change_ != before)
        return;  // nobody will tell of it again
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    changes_.wait_for(held, std::chrono::nanoseconds(std::max<int64_t>(until_ns - now_ns(), 0)));
    held.release();
}

// Lets those go first who wait.
void EngineCore::breathe() {
    settle();
    if (waiting_.load(std::memory_order_relaxed) == 0 && jobs_.empty() && !has_obeyed_)
        return;
    unlock();
    lock();
    in_thread_ = true;
}

void EngineCore::dirty(Session& session) {
    if (std::find(dirty_.begin(), dirty_.end(), &session) == dirty_.end())
        dirty_.push_back(&session);
}

// Whatever happens: an order is given by those who must not fail, so its place is the caller's own memory.
void EngineCore::urge(const std::function<void()>& order) {
    Order mine{order, nullptr};
    {
        const std::lock_guard<std::mutex> held(order_mutex_);
        Order** place = &orders_;
        while (*place != nullptr)
            place = &(*place)->next;
        *place = &mine;
        is_asked_.store(true, std::memory_order_release);
    }
    lock();
    attempt(kEveryEpoch, [this] { obey(); });
    unlock();
}

// Nothing is half done, and the callers stay until it is done.
void EngineCore::obey() {
    if (!is_asked_.load(std::memory_order_acquire))
        return;
    Order* order = nullptr;
    {
        const std::lock_guard<std::mutex> held(order_mutex_);
        order = std::exchange(orders_, nullptr);
        is_asked_.store(false, std::memory_order_relaxed);
    }
    for (; order != nullptr; order = order->next)
        attempt(kEveryEpoch, order->work);
    deliver_events();
    has_obeyed_ = true;
}

void EngineCore::deliver_events() {
    while (!events_.empty())
        deliver_next();
}

void EngineCore::deliver_next() {
    const Event event = std::move(events_.front());
    events_.pop_front();
    deliver(event, event.what == Event::What::kWoken ? now_ns() : 0);
}

// One piece of the work that there is; false: there is none, or others come first.
bool EngineCore::settle_one() {
    obey();
    // The engine's thread goes on with the rest when those who wait have been told.
    if (has_obeyed_ && in_thread_)
        return false;
    if (!events_.empty()) {
        deliver_next();
    } else if (!failed_.empty()) {
        Session* const session = failed_.back();
        failed_.pop_back();
        for (Seat* seat : seats_) {
            if (seat->has(*session))
                seat->lost(*session);
        }
    } else if (!dirty_.empty()) {
        Session* const session = dirty_.back();
        dirty_.pop_back();
        attempt(session->pair().epoch, [&] {
            const bool more = session->pump();
            if (session->reap())
                return;
            if (more && std::find(unfinished_.begin(), unfinished_.end(), session) == unfinished_.end())
                unfinished_.push_back(session);
        });
    } else {
        return false;
    }
    return true;
}

void EngineCore::settle() noexcept {
    bool goes_on = true;
    do {
        end_faulty();
        attempt(kEveryEpoch, [&] { goes_on = settle_one(); });
    } while (goes_on || faulty_ > over_);
    if (draining_)
        changes_.notify_all();
}

}  // namespace taskd::rail
