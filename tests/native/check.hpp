// Helpers of the native tests: a check that says where it failed, and workers that are real processes.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "native/beat.hpp"
#include "native/death_watch.hpp"
#include "native/fork_guard.hpp"
#include "native/mapping.hpp"
#include "native/process.hpp"
#include "../patience.hpp"

// Calls _exit, because a check may fail in a forked child. The child's parent waits for the status.
#define CHECK(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
            std::fflush(stderr);                                                         \
            _exit(1);                                                                    \
        }                                                                                \
    } while (false)

namespace taskd::native::test {

inline int64_t patience_ns() {
    return std::chrono::nanoseconds(taskd::test::patience()).count();
}

struct Test {
    const char* name;
    void (*run)();
};

std::vector<Test> page_tests();
std::vector<Test> life_tests();

template <class Error, class Action>
bool throws(Action action) {
    try {
        action();
    } catch (const Error&) {
        return true;
    }
    return false;
}

// A separate process that has made a page. It beats in the page if it is asked to.
struct Worker {
    pid_t pid = -1;
    std::shared_ptr<Mapping> mapping;
    int control = -1;  // when this is closed, the worker leaves in order
};

inline Worker start_worker(bool beats) {
    int to[2];
    int from[2];
    CHECK(pipe2(to, O_CLOEXEC) == 0 && pipe2(from, O_CLOEXEC) == 0);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(to[0], 0);
        dup2(from[1], 1);
        execl("/proc/self/exe", "worker", beats ? "beat" : "quiet", nullptr);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    int page_fd = -1;
    CHECK(read(from[0], &page_fd, sizeof page_fd) == sizeof page_fd);
    close(from[0]);
    const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(page_fd);
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    Worker worker{pid, Mapping::attach(fd), to[1]};
    close(fd);
    return worker;
}

// The code of a worker process. It leaves when standard input ends.
inline int be_worker(const std::string& how) {
    const auto mapping = Mapping::create(1, 1);
    std::unique_ptr<BeatThread> beat;
    if (how == "beat")
        beat = std::make_unique<BeatThread>(mapping, 5 * kNanosecondsPerMillisecond);
    const int fd = mapping->fd();
    if (write(1, &fd, sizeof fd) != sizeof fd)
        return 2;
    char byte = 0;
    while (read(0, &byte, 1) > 0) {
        // Any byte means: start to beat now.
        beat = std::make_unique<BeatThread>(mapping, 5 * kNanosecondsPerMillisecond);
    }
    if (beat)
        beat->stop();
    return 0;
}

inline int reap(pid_t pid) {
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

// Returns the next reports, or none if nothing comes in time.
inline std::vector<Death> next_deaths(DeathWatch& watch, int timeout_ms = 20'000) {
    pollfd wait{watch.fd(), POLLIN, 0};
    poll(&wait, 1, timeout_ms);
    return watch.take();
}

}  // namespace taskd::native::test
