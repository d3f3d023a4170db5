// Tests the parts of the guard that need no storm: its record and its rhythm. See guard_check.hpp.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "guard_check.hpp"
#include "c10d/record.hpp"
#include "c10d/rhythm.hpp"

using namespace taskd::comm;

void record_and_replay() {
    std::FILE* const file = std::tmpfile();
    Recorder::instance().start(fileno(file));
    std::vector<std::thread> writers;
    for (int i = 0; i < 3; ++i) {
        writers.emplace_back([i] {
            for (int j = 0; j < 200; ++j) {
                RecordEntry entry;
                entry.kind = i == 2 ? "recv" : "allreduce";
                entry.group = std::to_string(i) + "@0-1";
                entry.tag = j % 2;
                entry.tensors.push_back({"Float", {j}, true, std::string(static_cast<size_t>(j), 'x')});
                Recorder::instance().append(entry);
            }
        });
    }
    for (std::thread& thread : writers)
        thread.join();
    Recorder::instance().stop();
    const std::string whole = read_file(fileno(file));
    std::fclose(file);
    Replay& replay = Replay::instance();
    for (size_t cut = whole.size(); cut > 0; cut -= std::min<size_t>(cut, 997)) {
        try {
            replay.load(whole.substr(0, cut));  // a torn entry ends the record; no whole entry is lost
        } catch (const std::invalid_argument&) {
            CHECK(cut < 16);
        }
    }
    replay.load(whole);
    CHECK(replay.left() == 600);
    RecordEntry entry;
    for (int j = 0; j < 200; ++j)
        CHECK(replay.take("1@0-1", entry) && entry.tensors[0].shape[0] == j);
    CHECK(!replay.take("1@0-1", entry) && replay.take("2@0-1/recv/-1/1", entry) && entry.tensors[0].shape[0] == 1);
}

void record_without_an_end() {
    std::FILE* const file = std::tmpfile();
    Recorder::instance().start(fileno(file));
    const RecordEntry entry{.kind = "allreduce", .group = "0@0-1"};
    for (uint64_t i = 0; i < kMostEntries; ++i)
        Recorder::instance().append(entry);
    CHECK(Recorder::instance().active() && read_file(fileno(file)).size() > kMostEntries);
    Recorder::instance().append(entry);
    const std::string rest = read_file(fileno(file));
    std::fclose(file);
    CHECK(!Recorder::instance().active() && rest.size() < 100);
    bool refused = false;
    try {
        Replay::instance().load(rest);
    } catch (const std::invalid_argument&) {
        refused = true;
    }
    CHECK(refused);
}

void rhythm_is_learned() {
    using std::chrono::seconds;
    Rhythm rhythm;
    CHECK(rhythm.limit(3) == Rhythm::kUnknown);
    for (uint32_t i = 0; i < Rhythm::kWarmUp; ++i)
        rhythm.took(3, seconds(100));  // the first times, before a job is warm, do not count
    CHECK(rhythm.limit(3) == Rhythm::kUnknown);
    rhythm.took(3, seconds(2));
    CHECK(rhythm.limit(3) == seconds(20));
    for (int i = 0; i < 10000; ++i)
        rhythm.took(3, std::chrono::milliseconds(1));
    CHECK(rhythm.limit(3) == Rhythm::kLeast);
    rhythm.took(3, seconds(7));
    CHECK(rhythm.limit(3) == seconds(70) && rhythm.limit(4) == Rhythm::kUnknown);
    for (uint16_t kind = 0; kind < 1000; ++kind) {
        for (uint32_t i = 0; i <= Rhythm::kWarmUp; ++i)
            rhythm.took(kind, Rhythm::kUnknown);
        CHECK(rhythm.limit(kind) == Rhythm::kUnknown);  // the time is too long to multiply, or there are too many kinds
    }
}
