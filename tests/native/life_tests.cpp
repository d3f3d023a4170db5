// Tests of lives and deaths: the beat thread, the death watch, forks and process states.
#include <random>
#include <stdexcept>
#include <thread>

#include "check.hpp"

namespace taskd::native::test {
namespace {

void test_beat_runs_and_stops() {
    const auto mapping = Mapping::create(2, 3);
    CHECK(life_of(mapping->page().life) == Life::kNew);
    CHECK(throws<std::invalid_argument>([&] { BeatThread beat(mapping, 0); }));
    const auto attached = Mapping::attach(mapping->fd());
    CHECK(attached->identity().rank == 2 && attached->identity().incarnation == 3);
    CHECK(throws<std::runtime_error>([&] { BeatThread beat(attached, 1); }));
    BeatThread beat(mapping, kNanosecondsPerMillisecond);
    CHECK(throws<std::runtime_error>([&] { BeatThread second(mapping, 1); }));
    Beat seen;
    const int64_t end_ns = now_ns() + 20 * kNanosecondsPerSecond;
    while (seen.beat_count < 10 && now_ns() < end_ns) {
        read_beat(attached->page().rank, seen);
        sched_yield();
    }
    CHECK(seen.beat_count >= 10 && life_of(attached->page().life) == Life::kBeating);
    beat.stop();
    CHECK(!beat.is_running() && life_of(attached->page().life) == Life::kLeft);
    beat.stop();
}

void test_death_and_departure_are_reported() {
    Worker killed = start_worker(true);
    Worker leaving = start_worker(true);
    Worker quiet = start_worker(false);
    DeathWatch watch;
    DeathWatch second;
    watch.add(killed.mapping, 1);
    second.add(killed.mapping, 1);
    watch.add(leaving.mapping, 2);
    watch.add(quiet.mapping, 3);
    CHECK(throws<std::invalid_argument>([&] { watch.add(killed.mapping, 1); }));
    CHECK(next_deaths(watch, 20).empty());

    kill(killed.pid, SIGKILL);
    for (DeathWatch* each : {&watch, &second}) {
        const auto deaths = next_deaths(*each);
        CHECK(deaths.size() == 1 && deaths[0].key == 1 && deaths[0].life == Life::kDead);
    }
    const ExitState state = confirm_exit(killed.pid, killed.mapping->identity().start_time, 10 * kNanosecondsPerSecond);
    CHECK(state.stage == ExitStage::kExiting && state.exit_code == -SIGKILL);
    reap(killed.pid);
    CHECK(exit_state(killed.pid, killed.mapping->identity().start_time).stage == ExitStage::kGone);

    close(leaving.control);
    const auto departures = next_deaths(watch);
    CHECK(departures.size() == 1 && departures[0].key == 2 && departures[0].life == Life::kLeft);
    CHECK(reap(leaving.pid) == 0);

    // The watch waits for a page without a beat. The beat may start while the page is watched.
    CHECK(write(quiet.control, "b", 1) == 1);
    while (life_of(quiet.mapping->page().life) == Life::kNew)
        sched_yield();
    kill(quiet.pid, SIGKILL);
    const auto late = next_deaths(watch);
    CHECK(late.size() == 1 && late[0].key == 3 && late[0].life == Life::kDead);
    reap(quiet.pid);
    close(quiet.control);
    close(killed.control);

    // An agent that comes later sees the same.
    DeathWatch later;
    later.add(killed.mapping, 10);
    CHECK(next_deaths(later)[0].life == Life::kDead);
    later.add(leaving.mapping, 11);
    CHECK(next_deaths(later)[0].life == Life::kLeft);
}

void test_kill_at_any_moment() {
    std::minstd_rand random(7);
    for (int round = 0; round < 25; ++round) {
        Worker worker = start_worker(false);
        DeathWatch watch;
        watch.add(worker.mapping, round);
        CHECK(write(worker.control, "b", 1) == 1);
        const int64_t end_ns = now_ns() + static_cast<int64_t>(random() % 400'000);
        while (now_ns() < end_ns)
            sched_yield();
        kill(worker.pid, SIGKILL);
        reap(worker.pid);
        const Life life = life_of(worker.mapping->page().life);
        CHECK(life == Life::kNew || life == Life::kDead);
        if (life == Life::kDead) {
            CHECK(next_deaths(watch).size() == 1);
        } else {
            watch.remove(round);
            CHECK(watch.take().empty());
        }
        close(worker.control);
    }
}

void test_watches_come_and_go() {
    const auto mapping = Mapping::create(0, 0);
    const auto ended = Mapping::create(0, 0);
    BeatThread beat(mapping, kNanosecondsPerMillisecond);
    BeatThread(ended, kNanosecondsPerMillisecond).stop();
    DeathWatch watch;
    std::vector<std::thread> threads;
    for (int64_t thread = 0; thread < 3; ++thread) {
        threads.emplace_back([&, thread] {
            for (int64_t round = 0; round < 60; ++round) {
                const int64_t key = thread * 1000 + round;
                watch.add(round % 2 == 0 ? mapping : ended, key);
                if (round % 3 == 0)
                    watch.take();
                watch.remove(key);
            }
        });
    }
    for (auto& thread : threads)
        thread.join();
    CHECK(throws<std::invalid_argument>([&] { watch.remove(1); }));
    for (int64_t key = 0; key < 64; ++key)
        watch.add(mapping, key);
    const int64_t begin_ns = now_ns();
    watch.close();
    CHECK(now_ns() - begin_ns < 10 * kNanosecondsPerSecond);
    CHECK(watch.fd() == -1 && watch.take().empty());
    CHECK(throws<std::runtime_error>([&] { watch.add(mapping, 1); }));
    beat.stop();
}

void test_fork_leaves_page_and_descriptors_behind() {
    const auto mapping = Mapping::create(4, 1);
    store_step(mapping->page().rank, 77, 0);
    BeatThread beat(mapping, kNanosecondsPerMillisecond);
    DeathWatch watch;
    watch.add(mapping, 1);
    int guarded[2];
    int kept[2];
    CHECK(pipe2(guarded, O_CLOEXEC) == 0 && pipe2(kept, O_CLOEXEC) == 0);
    close_on_fork(guarded[1]);
    close_on_fork(kept[1]);
    keep_on_fork(kept[1]);
    // A guarded number that means another file by now must not be touched.
    const int reused = open("/dev/null", O_RDWR | O_CLOEXEC);
    close_on_fork(reused);
    CHECK(dup3(kept[1], reused, O_CLOEXEC) == reused);
    CHECK(throws<std::invalid_argument>([] { close_on_fork(-1); }));
    CHECK(throws<std::invalid_argument>([] { close_on_fork(60'000); }));

    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK(!beat.is_running() && !mapping->is_ours() && watch.fd() == -1);
        CHECK(throws<std::runtime_error>([&] { watch.take(); }));
        CHECK(throws<std::runtime_error>([&] { BeatThread again(mapping, 1); }));
        beat.stop();
        store_step(mapping->page().rank, 1, 0);
        put(mapping->page().life.life, kLifeClosed);
        CHECK(write(guarded[1], "x", 1) == 1 && fcntl(mapping->fd(), F_GET_SEALS) < 0);
        CHECK(write(kept[1], "y", 1) == 1 && write(reused, "z", 1) == 1);
        _exit(0);
    }
    CHECK(reap(pid) == 0);
    Beat seen;
    CHECK(read_beat(mapping->page().rank, seen) && seen.step == 77 && life_of(mapping->page().life) == Life::kBeating);
    close(guarded[1]);
    char bytes[4] = {};
    CHECK(read(guarded[0], bytes, sizeof bytes) == 0);
    CHECK(read(kept[0], bytes, sizeof bytes) == 2 && bytes[0] == 'y' && bytes[1] == 'z');
    for (int fd : {guarded[0], kept[0], kept[1], reused})
        close(fd);
    watch.close();
    beat.stop();
}

void test_process_stat_is_parsed_from_anything() {
    const auto self = read_process_stat(getpid());
    CHECK(self && self->state == 'R' && self->threads >= 1 && self->start_time > 0);
    std::string text = "5 (a) Z (b) 9) Z 1 2 3 4 5 1028";
    for (int field = 10; field <= 51; ++field)
        text += " " + std::to_string(field * 100);
    text += " 1792\n";
    const auto strange = parse_process_stat(text);
    CHECK(strange && strange->state == 'Z' && strange->flags == 1028 && strange->threads == 2000);
    CHECK(strange->start_time == 2200 && strange->wait_status == 7 << 8);
    for (size_t length = 0; length < text.size() - 6; ++length)
        CHECK(!parse_process_stat(text.substr(0, length)));
    std::minstd_rand random(3);
    for (int round = 0; round < 2000; ++round) {
        std::string noise(random() % 300, ' ');
        for (char& letter : noise)
            letter = static_cast<char>(random());
        parse_process_stat(noise);
    }
    CHECK(!read_process_stat(0) && !read_process_stat(-1));
}

// Returns the text of /proc/PID/stat for a process with these values.
std::string stat_text(char state, uint64_t flags, uint64_t memory_bytes, int wait_status) {
    std::string text = std::string("5 (python) ") + state;
    for (int field = 4; field <= 52; ++field) {
        const uint64_t value = field == 9 ? flags : field == 23 ? memory_bytes : 1;
        text += " " + std::to_string(field == 52 ? static_cast<uint64_t>(wait_status) : value);
    }
    return text + "\n";
}

std::optional<int> code_of(char state, uint64_t flags, uint64_t memory_bytes, int wait_status) {
    const auto stat = parse_process_stat(stat_text(state, flags, memory_bytes, wait_status));
    CHECK(stat && stat->memory_bytes == memory_bytes);
    return proven_exit_code(*stat);
}

void test_an_exit_code_of_0_is_believed_only_when_it_is_proven() {
    constexpr uint64_t kExiting = 0x400004;
    constexpr uint64_t kMemory = 4ull << 30;
    // It is exiting. It was preempted before its code was written, and nobody knows for how long.
    CHECK(!code_of('R', kExiting, kMemory, 0));
    CHECK(!code_of('D', kExiting, kMemory, 0));
    // The code is there. It is believed at once, however much memory is still to be freed.
    CHECK(code_of('R', kExiting, kMemory, 7 << 8) == 7);
    CHECK(code_of('R', kExiting, kMemory, SIGKILL) == -SIGKILL);
    CHECK(code_of('R', kExiting, kMemory, SIGABRT | 0x80) == -SIGABRT);
    // A real 0: the memory has been freed, or the process is a zombie.
    CHECK(code_of('R', kExiting, 0, 0) == 0);
    CHECK(code_of('Z', kExiting, 0, 0) == 0);
    CHECK(code_of('Z', kExiting, 0, 3 << 8) == 3);
    CHECK(code_of('X', kExiting, 0, 0) == 0);
    // A kernel thread has no memory and is not ending.
    CHECK(!code_of('S', 0x200000, 0, 0));
}

}  // namespace

std::vector<Test> life_tests() {
    return {
        {"beat runs and stops", test_beat_runs_and_stops},
        {"death and departure are reported", test_death_and_departure_are_reported},
        {"kill at any moment", test_kill_at_any_moment},
        {"watches come and go", test_watches_come_and_go},
        {"fork leaves page and descriptors behind", test_fork_leaves_page_and_descriptors_behind},
        {"an exit code of 0 is believed only when it is proven",
         test_an_exit_code_of_0_is_believed_only_when_it_is_proven},
        {"process stat is parsed from anything", test_process_stat_is_parsed_from_anything},
    };
}

}  // namespace taskd::native::test
