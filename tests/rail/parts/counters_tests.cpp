// Counters as a transport writes them and as another process reads them.
#include "rail/counters.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <stdexcept>
#include <thread>

#include "check.hpp"

namespace taskd::rail::test {
namespace {

std::map<std::string, CounterView> by_rail(const CountersReader& reader) {
    std::map<std::string, CounterView> found;
    for (CounterView& view : reader.read())
        CHECK(found.emplace(view.rail, view).second);
    return found;
}

std::string why_refused(int fd) {
    try {
        CountersReader reader(fd);
    } catch (const std::invalid_argument& refused) {
        return refused.what();
    }
    return "";
}

void what_is_written_is_read() {
    Counters counters;
    CounterRecord& record = counters.open("a", 3, "node-b", 7, 1000);
    counters.open("b", 3, "node-b", 7, 1000);
    add(record.bytes_out, 10);
    add(record.bytes_out, 5);
    add(record.hedged, 2);
    record.round_trip_ns = 42;
    set_state(record, RailState::kUp, 2000);
    add(record.bytes_in, 100);
    set_error(record, ECONNRESET, 3000);
    const CountersReader reader(counters.fd());
    const auto found = by_rail(reader);
    CHECK(found.size() == 2);
    const CounterView& a = found.at("a");
    CHECK(a.used && a.peer == 3 && a.node == "node-b" && a.epoch == 7 && a.bytes_out == 15 && a.bytes_in == 100);
    CHECK(a.hedged == 2 && a.round_trip_ns == 42 && a.state == RailState::kUp && a.since_ns == 2000);
    CHECK(a.bytes_before == 15 && a.last_error == ECONNRESET && a.last_error_ns == 3000 && a.downs == 0);
    CHECK(found.at("b").state == RailState::kProbing && found.at("b").bytes_out == 0);
    add(counters.header().strangers, 1);
    CHECK(reader.totals().strangers == 1 && reader.totals().pid == getpid());
}

void time_moves_with_the_state_only() {
    Counters counters;
    CounterRecord& record = counters.open("a", 0, "n", 1, 10);
    set_state(record, RailState::kUp, 20);
    set_state(record, RailState::kUp, 30);
    CHECK(record.since_ns == 20);
    set_state(record, RailState::kDown, 40);
    set_state(record, RailState::kDown, 50);
    CHECK(record.since_ns == 40 && record.downs == 1);
}

void a_pair_goes_on_in_the_next_epoch() {
    Counters counters;
    CounterRecord& first = counters.open("a", 1, "n", 1, 10);
    add(first.bytes_out, 7);
    CounterRecord& second = counters.open("a", 1, "n", 2, 20);
    CHECK(&first == &second && second.bytes_out == 7 && second.epoch == 2);
    counters.close(first, 1);  // a late call by the session of the previous epoch
    CHECK(second.used == 1);
    counters.close(second, 2);
    CHECK(second.used == 0);
    CHECK(&counters.open("a", 1, "other", 2, 30) != &second);  // the rank has moved to another node
}

void records_are_taken_over_and_run_out() {
    Counters counters(2);
    CounterRecord& first = counters.open("a", 1, "n", 1, 10);
    CounterRecord& second = counters.open("a", 2, "n", 1, 20);
    add(first.bytes_out, 7);
    CounterRecord& unseen = counters.open("a", 3, "n", 1, 30);
    add(unseen.bytes_out, 1);
    const CountersReader reader(counters.fd());
    CHECK(reader.read().size() == 2 && reader.totals().unrecorded == 1);
    counters.close(second, 1);
    counters.close(first, 1);
    const uint32_t turn = reader.read()[0].turn;
    CounterRecord& third = counters.open("a", 3, "n", 1, 40);
    CHECK(&third == &first && third.bytes_out == 0);  // the record that has been quiet for longest
    const CounterView view = reader.read()[0];
    CHECK(view.peer == 3 && view.bytes_out == 0 && view.turn != turn);
}

void texts_are_cut_to_their_bounds() {
    Counters counters;
    const std::string rail(100, 'r');
    const std::string node(100, 'n');
    CounterRecord& record = counters.open(rail, 1, node, 1, 10);
    CHECK(&counters.open(rail, 1, node, 2, 20) == &record);
    const CounterView view = CountersReader(counters.fd()).read().at(0);
    CHECK(view.rail == rail.substr(0, kRailNameBytes) && view.node == node.substr(0, kNodeNameBytes));
}

void what_is_no_file_of_counters_is_refused() {
    CHECK(why_refused(-1).find("is not open") != std::string::npos);
    const int null = open("/dev/null", O_RDWR);
    CHECK(why_refused(null).find("no memory file") != std::string::npos);
    close(null);
    const auto file = [](off_t bytes, bool sealed) {
        const int fd = memfd_create("test", MFD_ALLOW_SEALING);
        CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
        CHECK(!sealed || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
        const std::string why = why_refused(fd);
        close(fd);
        return why;
    };
    CHECK(file(320, false).find("not sealed") != std::string::npos);
    CHECK(file(0, true).find("0 bytes") != std::string::npos);
    CHECK(file(321, true).find("321 bytes") != std::string::npos);
    CHECK(file(off_t{1} << 40, true).find("no number of records") != std::string::npos);
    CHECK(file(320, true).find("first bytes") != std::string::npos);
    Counters counters(1);
    counters.header().version = kCountersVersion + 1;
    CHECK(why_refused(counters.fd()).find("install the same taskd") != std::string::npos);
}

void lies_in_the_file_are_survived() {
    Counters counters(4);
    counters.open("a", 1, "n", 1, 10);
    const CountersReader reader(counters.fd());
    counters.header().end = 1U << 31;
    CHECK(reader.read().size() == 4);
    CounterRecord& record = counters.open("a", 1, "n", 1, 10);
    record.state = 77;
    for (auto& word : record.node)
        word = ~uint64_t{0};
    const CounterView view = reader.read().at(0);
    CHECK(view.state == RailState::kProbing && view.node == std::string(kNodeNameBytes, '\xff'));
    record.turn = 5;  // its writer died while it renamed this record
    CHECK(reader.read().size() == 3);
}

void figures_outlive_their_process() {
    int channel[2];
    CHECK(pipe(channel) == 0);
    const pid_t child = fork();
    if (child == 0) {
        Counters counters(8);
        CounterRecord& record = counters.open("a", 5, "n", 1, 10);
        add(record.bytes_in, 12);
        const int fd = counters.fd();
        CHECK(write(channel[1], &fd, sizeof fd) == sizeof fd);
        pause();
    }
    int theirs = -1;
    CHECK(read(channel[0], &theirs, sizeof theirs) == sizeof theirs);
    const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(theirs);
    const int fd = open(path.c_str(), O_RDONLY);
    CHECK(fd >= 0);
    const CountersReader reader(fd);
    close(fd);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, nullptr, 0) == child);
    CHECK(reader.read().at(0).bytes_in == 12 && reader.totals().pid == child);
    close(channel[0]);
    close(channel[1]);
}

void a_forked_child_closes_nothing_of_its_parent() {
    Counters counters(8);
    CounterRecord& record = counters.open("a", 5, "n", 1, 10);
    const pid_t child = fork();
    if (child == 0) {
        counters.close(record, 1);
        _exit(0);
    }
    CHECK(waitpid(child, nullptr, 0) == child && record.used == 1);
}

void only_what_is_used_costs_memory() {
    const auto resident_kb = [] {
        std::FILE* const status = std::fopen("/proc/self/statm", "r");
        long size = 0;
        long resident = 0;
        CHECK(status != nullptr && std::fscanf(status, "%ld %ld", &size, &resident) == 2);
        std::fclose(status);
        return resident * 4;
    };
    const long before = resident_kb();
    Counters counters;
    for (int peer = 0; peer < 8; ++peer)
        counters.open("a", peer, "n", 1, 10);
    CHECK(resident_kb() - before < 1024);
}

// One thread renames records as fast as it can. Another thread must never see figures under a wrong name.
void a_reader_never_mixes_two_pairs() {
    Counters counters(1);
    std::atomic<bool> over{false};
    std::thread writer([&] {
        for (int peer = 0; peer < 20000; ++peer) {
            const std::string name = std::to_string(peer % 10);
            CounterRecord& record = counters.open(name, peer, std::string(40, name[0]), peer, peer);
            add(record.bytes_out, static_cast<uint64_t>(peer) + 1);
            counters.close(record, peer);
        }
        over = true;
    });
    const CountersReader reader(counters.fd());
    uint64_t seen = 0;
    do {
        for (const CounterView& view : reader.read()) {
            CHECK(view.rail == std::to_string(view.peer % 10));
            CHECK(view.node == std::string(40, view.rail[0]));
            CHECK(view.bytes_out == 0 || view.bytes_out == static_cast<uint64_t>(view.peer) + 1);
            ++seen;
        }
    } while (!over || seen == 0);
    writer.join();
}

}  // namespace

std::vector<Test> counter_tests() {
    return {{"what is written is read", what_is_written_is_read},
            {"time moves with the state only", time_moves_with_the_state_only},
            {"a pair goes on in the next epoch", a_pair_goes_on_in_the_next_epoch},
            {"records are taken over and run out", records_are_taken_over_and_run_out},
            {"texts are cut to their bounds", texts_are_cut_to_their_bounds},
            {"what is no file of counters is refused", what_is_no_file_of_counters_is_refused},
            {"lies in the file are survived", lies_in_the_file_are_survived},
            {"figures outlive their process", figures_outlive_their_process},
            {"a forked child closes nothing of its parent", a_forked_child_closes_nothing_of_its_parent},
            {"only what is used costs memory", only_what_is_used_costs_memory},
            {"a reader never mixes two pairs", a_reader_never_mixes_two_pairs}};
}

}  // namespace taskd::rail::test
