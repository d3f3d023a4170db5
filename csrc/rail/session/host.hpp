// The host of a session, as the session sees it; and the same host for the session's parts, which do not know the
// session.
//
// Why: the engine has the lock, the clock, the descriptors and the timers; a session only says what it needs. Failure
// modes: every call may throw when memory or descriptors run out. Then the caller's epoch is over.
//
// Does not: do anything on its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "rail/session/event.hpp"
#include "rail/session/pools.hpp"

namespace taskd::rail {

class Link;
class Session;

class SessionHost {
  public:
    virtual ~SessionHost() = default;

    // What all sessions of this host share.
    Pools& pools() { return pools_; }

    virtual int64_t now_ns() const = 0;
    virtual void post(Event event) = 0;
    // The engine calls pump() before it releases the lock.
    virtual void dirty(Session& session) = 0;
    // The engine calls on_time() no later than this.
    virtual void wake_by(int64_t time_ns) = 0;
    virtual void watch(Session& session, Link& link) = 0;
    virtual void unwatch(Link& link) = 0;
    virtual void dial(Session& session, size_t path) = 0;
    // The session is connected now, or has failed.
    virtual void changed(Session& session) = 0;

  private:
    Pools pools_;
};

// The host of one session, for all of its parts.
class BoundHost {
  public:
    BoundHost(SessionHost& host, Session& session) : host_(host), session_(session) {}

    Pools& pools() const { return host_.pools(); }

    int64_t now_ns() const { return host_.now_ns(); }

    void post(Event event) const { host_.post(std::move(event)); }

    void dirty() const { host_.dirty(session_); }

    void wake_by(int64_t time_ns) const { host_.wake_by(time_ns); }

    void watch(Link& link) const { host_.watch(session_, link); }

    void unwatch(Link& link) const { host_.unwatch(link); }

    void dial(size_t path) const { host_.dial(session_, path); }

    void changed() const { host_.changed(session_); }

  private:
    SessionHost& host_;
    Session& session_;
};

}  // namespace taskd::rail
