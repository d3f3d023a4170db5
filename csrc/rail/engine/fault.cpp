// The barrier for unexpected exceptions: within a call of the engine, or on its thread.
//
// Why: memory runs out, a descriptor cannot be watched, or a system call fails in a new way. An exception leaves a
// session half changed, and nobody can tell which part of it is still true. So its epoch ends as if it had been
// aborted: its groups fail and say what happened, its connections are closed, its peers are told, and its operations'
// memory is not touched any more. The process, the engine and the next epoch go on.
//
// How: attempt() only notes the epoch and the text, because it may run deep within something. The epoch ends in
// settle(), before any other work and before the lock is released. Each step of that end is done even if another one
// fails. What is thrown within it belongs to an epoch that is over already, so this comes to an end.
//
// Trouble is not a fault: with it a call refuses its caller.
//
// Does not: promise that an operation is told if no memory at all is left to tell it.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include "rail/engine/core.hpp"

namespace taskd::rail {

void EngineCore::call(int64_t epoch, const std::function<void()>& work) {
    std::exception_ptr trouble;
    std::string why;
    lock();
    const bool is_done = attempt(epoch, [&] {
        try {
            work();
        } catch (const Trouble&) {
            trouble = std::current_exception();
        }
    });
    if (!is_done && faulty_ > over_)
        attempt(epoch, [&] { why = sentence_of_fault(faulty_); });
    unlock();
    if (trouble)
        std::rethrow_exception(trouble);
    if (!is_done)
        throw Trouble(why.empty() ? "This epoch is over in this process: join the next one." : why);
}

void EngineCore::blame(int64_t epoch) noexcept {
    try {
        throw;
    } catch (const std::bad_alloc&) {
        note(epoch, "no memory is left");
    } catch (const std::exception& error) {
        note(epoch, error.what());
    } catch (...) {
        note(epoch, "something was thrown that says nothing of itself");
    }
}

void EngineCore::note(int64_t epoch, const char* what) noexcept {
    if (epoch == kNoEpoch) {
        std::snprintf(stray_.data(), stray_.size(), "%s", what);
        return;
    }
    if (epoch == kEveryEpoch) {
        epoch = sessions_.empty() ? kNoEpoch : sessions_.rbegin()->first.first;
        for (const Seat* seat : seats_)
            epoch = std::max(epoch, seat->epoch());
    }
    // An epoch that is over is being ended already. Of several faults the first one counts.
    if (epoch <= over_)
        return;
    if (faulty_ <= over_)
        std::snprintf(fault_.data(), fault_.size(), "%s", what);
    faulty_ = std::max(faulty_, epoch);
}

// A part of a message, here and at the peers, who read it after this process's name.
std::string EngineCore::fault() const {
    return std::string("its rail engine gave the epoch up because of an error (") + fault_.data() + ")";
}

std::string EngineCore::sentence_of_fault(int64_t epoch) const {
    return "Epoch " + std::to_string(epoch) + " is over in this process: " + fault() + ". Join the next one.";
}

void EngineCore::end_faulty() noexcept {
    if (faulty_ <= over_)
        return;
    const int64_t epoch = over_ = faulty_;
    std::string reason;
    attempt(epoch, [&] { reason = fault(); });
    give_up(epoch, reason, Failure::Code::kLost);
    end_epoch(epoch, reason);
}

void EngineCore::check_open(int64_t epoch) const {
    if (is_closed())
        throw Trouble("The rail engine of this process has been closed: it can join no group any more.");
    if (epoch > over_)
        return;
    if (epoch <= faulty_)
        throw Trouble(sentence_of_fault(epoch));
    throw Trouble("Epoch " + std::to_string(epoch) + " has been aborted: join the next one.");
}

}  // namespace taskd::rail
