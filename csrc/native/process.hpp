// The state of a process, read from /proc, and two prctl() calls.
//
// Why: every notice of a death (a pidfd, SIGCHLD, a closed socket) comes only after the kernel has released the memory,
// which takes 0.1 ms for each MB. Before that, /proc/PID/stat says that the process is exiting, and with what code. It
// is polled, because no event exists for it. The death watch decides when it is worth polling.
//
// Does not: wait for children or take their exit status away from the code that waits for them.
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
    uint64_t memory_bytes = 0;  // of addresses; 0 once the process let go of its memory, before the kernel frees it
    int wait_status = 0;        // as from waitpid(); means something only while exiting
};

// Returns nothing if there is no such process or /proc cannot be read.
std::optional<ProcessStat> read_process_stat(pid_t pid);

// Parses the text of /proc/PID/stat. The command in it may hold anything, including spaces and parentheses.
std::optional<ProcessStat> parse_process_stat(const std::string& text);

// Returns the exit code that this look at an ending process proves. A code other than 0 is certain as soon as it is
// there. A 0 may also mean that the code is not there yet. Before Linux 6.15 it comes after the exiting flag, and a
// thread preempted in between stays there for as long as others compute. But on every kernel the code comes before the
// memory is let go. So a 0 counts from then on, which is long before a large process is a zombie.
std::optional<int> proven_exit_code(const ProcessStat& stat);

enum class ExitStage { kAlive, kExiting, kGone };

struct ExitState {
    ExitStage stage = ExitStage::kGone;
    std::optional<int> exit_code;  // exit code, or minus the signal; only while exiting, and once it is proven
};

// Returns kGone also if the pid now belongs to a process with another start time. A process that called exec() is
// alive. A process whose first thread alone ended looks as if it were exiting. So this only confirms other evidence and
// is none by itself. A process that dumps core counts as exiting, although nothing else shows it before the dump is
// written.
ExitState exit_state(pid_t pid, uint64_t start_time);

// Looks again and again until the exit code is proven, the process is gone or `timeout_ns` is over. Returns what the
// last look found.
ExitState confirm_exit(pid_t pid, uint64_t start_time, int64_t timeout_ns);

// Makes orphaned descendants of this process its children. Throws std::system_error.
void set_child_subreaper();

// Lets this process get `signal` (0 for none) when the *thread* that forked it ends. Throws std::system_error.
void set_parent_death_signal(int signal);

}  // namespace taskd::native
