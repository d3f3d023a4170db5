// The engine's lock: how it is handed over, and what is done before it is released.
//
// Why orders: a thread that gives up an operation has to wait for the lock. It is woken when the lock is released, and
// only then can it wake the threads that wait for the operation. On a busy machine each of these steps takes as long as
// the scheduler likes. So that thread first says what has to be done, and then waits. The thread that has the lock does
// it at the end of the current step, and lets the waiting threads go on before any other work.
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
            blame(kEveryEpoch);  // it is unknown which epoch the job belongs to
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
        return;  // there will be no second notification
    std::unique_lock<std::mutex> held(mutex_, std::adopt_lock);
    changes_.wait_for(held, std::chrono::nanoseconds(std::max<int64_t>(until_ns - now_ns(), 0)));
    held.release();
}

// Lets waiting threads go first.
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

// An order is given by callers that must not fail. So its entry lies in the caller's own memory, and this works
// whatever happens.
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

// Called when nothing is half done. The callers wait until their orders are done.
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

// Does one piece of the work that there is. False: there is none, or others come first.
bool EngineCore::settle_one() {
    obey();
    // The engine's thread goes on with the rest after those who wait have been told.
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
