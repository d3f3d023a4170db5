// Tests of the parts of a session that only decide: states, choices, limits. No socket, no clock, no thread.
//
// Does not: test the effects of these decisions (rails.cpp and orders.cpp do, in virtual time).
#include "decisions.hpp"

#include <vector>

#include "rail/session/acknowledger.hpp"
#include "rail/session/lifecycle.hpp"
#include "rail/session/loss_watch.hpp"
#include "rail/session/paths.hpp"
#include "rail/session/probes.hpp"
#include "rail/session/redial.hpp"
#include "rail/session/scheduler.hpp"
#include "rail/session/standing.hpp"
#include "team.hpp"

namespace taskd::rail::test {
namespace {

constexpr int64_t kMs = kMillisecondNs;
constexpr size_t kPiece = 64 << 10;

// Paths as a scheduler sees them, all good and idle.
struct Views {
    explicit Views(size_t count) : paces(count), paths(count) {
        for (size_t index = 0; index < count; ++index) {
            PathView& view = paths[index];
            view.rung = PathView::Rung::kGood;
            view.is_connected = view.is_proved = true;
            view.budget = 1 << 20;
            view.pace = &paces[index];
        }
    }

    std::vector<Pace> paces;
    std::vector<PathView> paths;
    Yardstick by{1000 * kMs, 100e6, 0};
};

// Records that `bytes` took `took_ns` on a path that was kept busy.
void measure(Pace& pace, size_t bytes, int64_t took_ns) {
    pace.drained(bytes, took_ns, 1000 * kMs);
}

}  // namespace

void a_path_is_in_one_state(uint64_t) {
    Standing standing;
    CHECK(standing.state() == PathState::kDown && !standing.is_connected());
    standing.dial_failed();
    standing.answered(1);
    standing.alone();
    CHECK(standing.state() == PathState::kDown);  // none of these calls connects it
    standing.dialling();
    CHECK(standing.state() == PathState::kDialling && !standing.is_connected());
    standing.dial_failed();
    CHECK(standing.state() == PathState::kDown);
    standing.connected();
    standing.dialling();
    standing.dial_failed();
    CHECK(standing.state() == PathState::kUp);  // another dial says nothing about an existing connection
    standing.suspect(10 * kMs);
    CHECK(standing.state() == PathState::kSuspect && standing.since_ns() == 10 * kMs);
    standing.overtaken(11 * kMs);
    CHECK(standing.state() == PathState::kSuspect);
    CHECK(standing.next_ns() == 10 * kMs);
    standing.answered(5 * kMs);
    CHECK(standing.state() == PathState::kUp && standing.next_ns() == INT64_MAX);
    standing.suspect(20 * kMs);
    CHECK(standing.judge(200 * kMs, 190 * kMs) && standing.state() == PathState::kDead);
    CHECK(!standing.judge(300 * kMs, 290 * kMs));  // this is reported only once
    standing.lost();
    CHECK(standing.state() == PathState::kDown && standing.since_ns() == 0);
}

void a_late_path_answers_for_what_it_carried(uint64_t) {
    Standing standing;
    standing.connected();
    standing.overtaken(10 * kMs);
    CHECK(standing.state() == PathState::kLate);
    standing.answered(9 * kMs);
    CHECK(standing.state() == PathState::kLate);  // an answer to earlier bytes says nothing
    standing.answered(10 * kMs);
    CHECK(standing.state() == PathState::kUp);
    standing.overtaken(20 * kMs);
    standing.alone();
    CHECK(standing.state() == PathState::kUp);
}

void the_scheduler_takes_good_paths_first(uint64_t) {
    using Rung = PathView::Rung;
    Scheduler scheduler([](size_t) { return -1L; });
    Views views(3);
    views.paths[0].rung = Rung::kSilent;
    views.paths[1].rung = Rung::kOutOfUse;
    CHECK(scheduler.choose(views.paths, kPiece, true, views.by) == size_t{2});
    // A good path that is full makes a frame wait. It does not make another path good.
    views.paths[2].is_blocked = true;
    CHECK(!scheduler.choose(views.paths, kPiece, true, views.by));
    views.paths[2].is_blocked = false;
    views.paths[2].budget = 0;
    CHECK(!scheduler.choose(views.paths, kPiece, true, views.by));
    views.paths[2].rung = Rung::kNone;
    CHECK(scheduler.choose(views.paths, kPiece, true, views.by) == size_t{1});
    views.paths[1].rung = Rung::kNone;
    CHECK(scheduler.choose(views.paths, kPiece, true, views.by) == size_t{0});
    views.paths[0].rung = Rung::kNone;
    CHECK(!scheduler.choose(views.paths, kPiece, true, views.by));
    // A path that has to prove itself comes first, however slow it was. An acknowledgement proves nothing.
    Views proving(2);
    proving.paths[1].is_proved = false;
    measure(proving.paces[0], 10 << 20, 100 * kMs);
    measure(proving.paces[1], 1 << 20, 100 * kMs);
    CHECK(scheduler.choose(proving.paths, kPiece, true, proving.by) == size_t{1});
    CHECK(scheduler.choose(proving.paths, sizeof(FrameHeader), true, proving.by) == size_t{0});
    proving.paths[1].rung = Rung::kOutOfUse;
    CHECK(scheduler.choose(proving.paths, kPiece, true, proving.by) == size_t{0});
}

void the_scheduler_fills_paths_by_what_they_deliver(uint64_t) {
    int asked = 0;
    long queued = 0;
    Scheduler scheduler([&](size_t) {
        ++asked;
        return queued;
    });
    Views views(2);
    measure(views.paces[0], 10 << 20, 100 * kMs);
    measure(views.paces[1], 1 << 20, 100 * kMs);
    views.by.fastest = views.paces[0].rate();
    size_t given[2] = {0, 0};
    for (int turn = 0; turn < 11; ++turn) {
        const auto chosen = scheduler.choose(views.paths, kShortestPiece, true, views.by);
        CHECK(chosen && asked == 0);
        views.paces[*chosen].sent(kShortestPiece, views.by.now_ns);
        ++given[*chosen];
    }
    CHECK(given[0] == 10 && given[1] == 1);
    // The paths are full. Now only the bytes that the rail itself has not delivered yet count, and the system knows
    // these.
    views.paces[0].sent(views.paces[0].window() + kPiece, views.by.now_ns);
    views.paces[1].sent(views.paces[1].window() + kPiece, views.by.now_ns);
    CHECK(scheduler.choose(views.paths, kShortestPiece, true, views.by) == size_t{0} && asked > 0);
    queued = 64 << 20;
    CHECK(!scheduler.choose(views.paths, kShortestPiece, true, views.by));
    queued = -1;
    CHECK(!scheduler.choose(views.paths, kShortestPiece, true, views.by));
    // A single connection has nothing to share.
    views.paths[1].rung = PathView::Rung::kNone;
    views.paths[1].is_connected = false;
    CHECK(scheduler.choose(views.paths, kShortestPiece, true, views.by) == size_t{0});
}

void small_frames_take_turns(uint64_t) {
    constexpr size_t kBytes = 8 << 10;
    Scheduler scheduler([](size_t) { return -1L; });
    Views views(3);
    measure(views.paces[0], 10 << 20, 100 * kMs);
    measure(views.paces[1], 10 << 20, 100 * kMs);
    measure(views.paces[2], 1 << 20, 100 * kMs);  // much slower, so it never gets a turn
    views.by.fastest = views.paces[0].rate();
    std::vector<int> given(3);
    std::vector<size_t> order;
    for (int turn = 0; turn < 64; ++turn) {
        const auto chosen = scheduler.choose(views.paths, kBytes, false, views.by);
        CHECK(chosen);
        ++given[*chosen];
        if (order.empty() || order.back() != *chosen)
            order.push_back(*chosen);
    }
    CHECK(given[0] == 32 && given[1] == 32 && given[2] == 0);
    CHECK(order.size() == 8);  // each path carries several frames in a row
}

void a_loss_is_one_of_all_connections(uint64_t) {
    LossWatch watch{Retry()};
    watch.connected();
    LossWatch::Sight sight;
    sight.connected = 2;
    sight.awaited = 2;
    sight.has_sent = true;
    const auto looks = [&](int count, int64_t from_ms) {
        auto finding = LossWatch::Finding::kNothing;
        for (int look = 0; look < count; ++look)
            finding = watch.look(sight, (from_ms + 200 * look) * kMs);
        return finding;
    };
    sight.brought = 7;
    CHECK(looks(1, 1000) == LossWatch::Finding::kNothing);  // something moved
    CHECK(looks(4, 1200) == LossWatch::Finding::kNothing);
    CHECK(watch.lost_for_ns(2000 * kMs) == 0);
    CHECK(looks(1, 2000) == LossWatch::Finding::kSilent);
    CHECK(watch.lost_for_ns(2000 * kMs) == 1000 * kMs);     // since the last look at which something moved
    CHECK(looks(9, 2200) == LossWatch::Finding::kNothing);  // this is reported only once
    sight.brought = 8;
    CHECK(looks(1, 4000) == LossWatch::Finding::kNothing && watch.lost_for_ns(4000 * kMs) == 0);
    // One of two connections delivers everything. So the other one's silence is a fault of that connection.
    sight.awaited = 1;
    CHECK(looks(20, 5000) == LossWatch::Finding::kNothing);
    // Nothing was sent, and nothing comes. So nothing is known.
    sight.awaited = 0;
    sight.has_sent = false;
    CHECK(looks(5, 9000) == LossWatch::Finding::kQuiet);
    CHECK(watch.lost_for_ns(10'000 * kMs) == 0);
}

void a_loss_is_borne_within_limits(uint64_t) {
    using Verdict = LossWatch::Verdict;
    const Retry retry;  // 5 s, and 3 times 1 s
    LossWatch watch(retry);
    CHECK(watch.judge(true, true, 1'000'000 * kMs) == Verdict::kWait);
    CHECK(watch.all_lost(1000 * kMs) && !watch.all_lost(1100 * kMs));
    CHECK(watch.judge(false, false, 9000 * kMs) == Verdict::kWait);
    CHECK(watch.judge(false, false, 9001 * kMs) == Verdict::kTooLong);
    CHECK(watch.judge(true, false, 4000 * kMs) == Verdict::kWait);
    CHECK(watch.judge(true, false, 4001 * kMs) == Verdict::kTooLong);  // the other process is gone
    CHECK(watch.judge(true, true, 1001 * kMs) == Verdict::kTooLong);   // this side is leaving and does not need it
    CHECK(watch.next_ns(false, 0) == 1000 * kMs + watch.limit_ns());
    CHECK(watch.refusals_needed(false) == 3 && watch.refusals_needed(true) == 1);
    watch.connected();
    CHECK(watch.lost_for_ns(9000 * kMs) == 0 && watch.next_ns(false, 0) == INT64_MAX);
    Retry never;
    never.enabled = false;
    LossWatch impatient(never);
    impatient.all_lost(1000 * kMs);
    CHECK(impatient.judge(false, false, 1000 * kMs) == Verdict::kNoRetry);
}

void dials_pause_longer_and_longer(uint64_t) {
    Redial redial(true, Retry(), 1000 * kMs);
    CHECK(redial.is_due(1000 * kMs));
    redial.begun();
    CHECK(!redial.is_due(1'000'000 * kMs));
    int64_t now = 1000 * kMs;
    for (const int64_t pause_ms : {0, 10, 20, 40, 80, 160, 320, 500, 500}) {
        redial.failed(true);
        CHECK(redial.again(now) && redial.due_ns() == now + pause_ms * kMs);
        now = redial.due_ns();
    }
    CHECK(redial.refusals() == 9);
    redial.failed(false);
    CHECK(redial.refusals() == 0);
    redial.set_usable(false);
    CHECK(!redial.again(now) && redial.due_ns() == INT64_MAX);
    redial.set_usable(true);
    redial.hurry();
    CHECK(redial.again(now) && redial.due_ns() == now);
    redial.connected();
    CHECK(redial.due_ns() == INT64_MAX && redial.again(now) && redial.due_ns() == now);
    redial.stop();
    CHECK(!redial.again(now) && redial.due_ns() == INT64_MAX);
    Redial accepting(false, Retry(), 1000 * kMs);
    CHECK(!accepting.is_due(2000 * kMs) && !accepting.again(2000 * kMs));
}

void probes_measure_what_was_before_them(uint64_t) {
    Probes probes;
    probes.connected(5 * kMs);
    CHECK(probes.heard_ns() == 5 * kMs && !probes.unanswered());
    probes.sent(10 * kMs, 100);
    probes.sent(20 * kMs, 200);
    CHECK(probes.unanswered()->at_ns == 10 * kMs && probes.unanswered()->end == 100);  // the oldest
    CHECK(!probes.answered_probe(9 * kMs, 21 * kMs) && probes.unanswered());
    probes.behind(20 * kMs, 4096);
    const auto drained = probes.answered_probe(20 * kMs, 25 * kMs);  // the answer also covers a lost probe
    CHECK(drained && drained->bytes == 4096 && drained->took_ns == 5 * kMs && !probes.unanswered());
    probes.answered(20 * kMs, 25 * kMs);
    probes.answered(10 * kMs, 26 * kMs);
    CHECK(probes.witness_ns() == 20 * kMs && probes.heard_ns() == 26 * kMs);
}

void a_life_only_moves_forward(uint64_t) {
    using Parting = Lifecycle::Parting;
    Lifecycle life;
    CHECK(life.stage() == Life::kOpen && !life.lingers());
    life.connected();
    CHECK(life.lingers() && !life.is_over());
    life.part(Parting::kInGoodOrder);
    life.leave();
    CHECK(life.stage() == Life::kParted);
    CHECK(!life.peer_has_left() && !life.heard_farewell());  // what the peer sent is still being received
    life.fail("it has left");
    CHECK(life.is_over() && life.peer_has_left() && life.heard_farewell() && !life.lingers());
    life.end("it is over");
    life.leave();
    CHECK(life.is_over() && life.failure() == "it has left");
    Lifecycle failed;
    failed.leave();
    CHECK(failed.stage() == Life::kLeaving);
    failed.fail("no rail came back");
    CHECK(!failed.heard_farewell());
    failed.part(Parting::kAtOnce);
    failed.fail("it has ended the epoch");
    CHECK(failed.is_over() && failed.heard_farewell() && !failed.peer_has_left());
    CHECK(failed.failure() == "it has ended the epoch");
    Lifecycle silent;
    silent.hear_of_end("its process has ended");
    silent.hear_of_end("somebody else says so, too");
    CHECK(silent.stage() == Life::kOpen && !silent.has_parted_well());  // what it sent may still arrive
    silent.part(Parting::kUnsaid);
    silent.fail(silent.ended());
    CHECK(silent.peer_has_left() && silent.heard_farewell() && silent.failure() == "its process has ended");
}

namespace {

// Sends small messages that nobody asks for, until there is no room. Returns how many bytes there was room for.
size_t filled(Inbox& inbox) {
    const char* fault = nullptr;
    FrameHeader header{};
    header.type = FrameType::kData;
    header.bytes = header.length = kEagerBytes;
    while (inbox.begin(header, &fault) != nullptr)
        header.number = ++header.sequence + 1;
    CHECK(fault != nullptr);
    return header.sequence * kEagerBytes;
}

}  // namespace

void pools_are_bounded_together(uint64_t) {
    Paths paths;
    Pools pools(kPoolBytes);  // one of them may grow
    {
        Inbox first(paths, pools);
        Inbox second(paths, pools);
        CHECK(filled(first) == kPoolBytes && filled(second) == kFirstPoolBytes);
        CHECK(first.grown() == kPoolBytes - kFirstPoolBytes && second.grown() == 0);
    }
    Inbox third(paths, pools);
    CHECK(filled(third) == kPoolBytes);
}

void what_has_come_is_said_in_time(uint64_t) {
    Paths paths;
    Pools pools;
    const Inbox inbox(paths, pools);
    Acknowledger acknowledger(1, inbox);
    FrameHeader header{};
    header.length = 100;
    CHECK(acknowledger.add(1) && acknowledger.add(3) && !acknowledger.add(3));
    acknowledger.count_data(header, true);
    CHECK(!acknowledger.is_due() && !acknowledger.has_time());
    CHECK(acknowledger.wait_from(10 * kMs) == 13 * kMs && acknowledger.next_ns() == 13 * kMs);
    CHECK(!acknowledger.on_time(12 * kMs) && acknowledger.on_time(13 * kMs) && acknowledger.is_due());
    const FrameHeader said = acknowledger.bare(FrameType::kPing);
    CHECK(said.received == 1 && said.epoch == 1);
    acknowledger.stamped();
    CHECK(acknowledger.is_due());  // with a gap, a header alone says too little
    CHECK(acknowledger.add(2));
    acknowledger.stamped();
    CHECK(!acknowledger.is_due() && acknowledger.next_ns() == INT64_MAX);
    for (int frame = 0; frame < 31; ++frame)
        acknowledger.count_control();
    CHECK(!acknowledger.is_due());
    acknowledger.count_control();
    CHECK(acknowledger.is_due());
    acknowledger.stamped();
    header.length = 16 << 10;
    acknowledger.count_data(header, true);
    CHECK(acknowledger.is_due());
}

}  // namespace taskd::rail::test
