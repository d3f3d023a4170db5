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
    uint64_t start_time = 0;  // clock ticks after boot
    int wait_status = 0;      // as from waitpid(); means something only while exiting
};

// Nothing if there is no such process or /proc cannot be read.
std::optional<ProcessStat> read_process_stat(pid_t pid);

// From the text of /proc/PID/stat. The command in it may hold anything, spaces and parentheses included.
std::optional<ProcessStat> parse_process_stat(const std::string& text);

enum class ExitStage { kAlive, kExiting, kGone };

struct ExitState {
    ExitStage stage = ExitStage::kGone;
    std::optional<int> exit_code;  // exit code, or minus the signal; only while exiting
};

// kGone also if the pid now belongs to a process with another start time. A process that exec()ed is alive. A process
// whose first thread alone ended looks as if it were exiting, so this confirms other evidence and is none by itself.
// One that dumps core counts as exiting, although nothing else tells of it before the dump is written.
ExitState exit_state(pid_t pid, uint64_t start_time);

// Looks again and again until the process is no longer alive or `timeout_ns` is over; returns the last look.
ExitState confirm_exit(pid_t pid, uint64_t start_time, int64_t timeout_ns);

// Orphans of this process's descendants become its children. Throws std::system_error.
void set_child_subreaper();

// `signal` (0 for none) comes when the *thread* that forked this process ends. Throws std::system_error.
void set_parent_death_signal(int signal);

}  // namespace taskd::native
