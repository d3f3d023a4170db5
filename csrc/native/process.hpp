// How a process stands, read from /proc, and two prctl() calls.
//
// Why: every notice of a death (a pidfd, SIGCHLD, a closed socket) waits until the kernel has torn the memory down,
// 0.1 ms for each MB. /proc/PID/stat says that the process is exiting, and with what code, before that. It is
// polled, because no event exists for it; the death watch decides when it is worth polling.
//
// Does not: wait for children or take their exit status away from whoever waits for them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace taskd::native {

struct ProcessStat {
    char state = '?';
    uint64_t flags = 0;
    int64_t threads = 0;
    uint64_t start_time = 0;    // clock ticks after boot
    uint64_t memory_bytes = 0;  // of addresses; 0 once the memory has been let go, before it is torn down
    int wait_status = 0;        // as from waitpid(); means something only while exiting
};

// Nothing if there is no such process or /proc cannot be read.
std::optional<ProcessStat> read_process_stat(pid_t pid);

// From the text of /proc/PID/stat. The command in it may hold anything, spaces and parentheses included.
std::optional<ProcessStat> parse_process_stat(const std::string& text);

// What this look at an ending process proves of its code. One that is not 0 is known as soon as it is there. A 0 may
// also mean that the code is not there yet: before Linux 6.15 it comes after the exiting flag, and a thread that is
// preempted in between stays there for as long as others compute. It comes before the memory is let go, though, on
// every kernel; so a 0 counts from then on, which is long before a large process is a zombie.
std::optional<int> proven_exit_code(const ProcessStat& stat);

enum class ExitStage { kAlive, kExiting, kGone };

struct ExitState {
    ExitStage stage = ExitStage::kGone;
    std::optional<int> exit_code;  // exit code, or minus the signal; only while exiting, and once it is proven
};

// kGone also if the pid now belongs to a process with another start time. A process that exec()ed is alive. A process
// whose first thread alone ended looks as if it were exiting, so this confirms other evidence and is none by itself.
// One that dumps core counts as exiting, although nothing else tells of it before the dump is written.
ExitState exit_state(pid_t pid, uint64_t start_time);

// Looks again and again until the exit code is proven, the process is gone or `timeout_ns` is over; returns the last
// look.
ExitState confirm_exit(pid_t pid, uint64_t start_time, int64_t timeout_ns);

// Orphans of this process's descendants become its children. Throws std::system_error.
void set_child_subreaper();

// `signal` (0 for none) comes when the *thread* that forked this process ends. Throws std::system_error.
void set_parent_death_signal(int signal);

}  // namespace taskd::native
