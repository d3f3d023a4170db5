#include "native/process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include <cstdlib>
#include <cstring>

#include "native/system.hpp"

namespace taskd::native {
namespace {

constexpr uint64_t kFlagExiting = 0x4;  // PF_EXITING in the kernel's task flags

// Returns the text of /proc/PID/NAME, or nothing if there is no such process (any more).
std::optional<std::string> read_proc(pid_t pid, const char* name) {
    const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        // Running out of descriptors is our trouble and says nothing about the process.
        if (errno != ENOENT && errno != ESRCH)
            throw_errno(errno, "cannot open " + path);
        return std::nullopt;
    }
    constexpr size_t kMostBytes = 32 * 1024;  // "status" names every group that its user is in
    std::string text(kMostBytes, '\0');
    ssize_t length = 0;
    do {
        length = read(fd, text.data(), text.size());
    } while (length < 0 && errno == EINTR);
    close(fd);
    if (length <= 0)
        return std::nullopt;
    text.resize(static_cast<size_t>(length));
    return text;
}

bool is_zombie(const ProcessStat& stat) {
    return stat.state == 'Z' || stat.state == 'X' || stat.state == 'x';
}

bool is_ending(const ProcessStat& stat) {
    return (stat.flags & kFlagExiting) != 0 || is_zombie(stat);
}

// Whether the kernel is writing the process's memory to a core file. That can take minutes. Meanwhile no thread of the
// process runs, but its robust futexes are not let go and PF_EXITING is not set.
bool is_dumping_core(pid_t pid) {
    const std::optional<std::string> status = read_proc(pid, "status");
    return status && status->find("\nCoreDumping:\t1\n") != std::string::npos;
}

ExitState state_of(pid_t pid, const std::optional<ProcessStat>& stat, uint64_t start_time) {
    if (!stat || stat->start_time != start_time)
        return {ExitStage::kGone, std::nullopt};
    if (is_ending(*stat))
        return {ExitStage::kExiting, proven_exit_code(*stat)};
    if (!is_dumping_core(pid))
        return {ExitStage::kAlive, std::nullopt};
    // The code is set together with the dumping mark, so the earlier look may lack it. Older kernels give it only once
    // the process is exiting.
    const std::optional<ProcessStat> now = read_process_stat(pid);
    return {ExitStage::kExiting, now ? proven_exit_code(*now) : std::nullopt};
}

}  // namespace

std::optional<int> proven_exit_code(const ProcessStat& stat) {
    const int signal = stat.wait_status & 0x7f;
    if (signal != 0)
        return -signal;
    if (stat.wait_status != 0)
        return (stat.wait_status >> 8) & 0xff;
    if (is_zombie(stat) || (is_ending(stat) && stat.memory_bytes == 0))
        return 0;
    return std::nullopt;
}

std::optional<ProcessStat> parse_process_stat(const std::string& text) {
    const size_t close = text.rfind(')');
    if (close == std::string::npos)
        return std::nullopt;
    const std::string rest = text.substr(close + 1);  // starts with field 3
    const char* cursor = rest.c_str();
    ProcessStat stat;
    int field = 3;
    while (*cursor != '\0') {
        cursor += strspn(cursor, " \n");
        const size_t width = strcspn(cursor, " \n");
        if (width == 0)
            break;
        switch (field) {
            case 3:
                stat.state = *cursor;
                break;
            case 9:
                stat.flags = strtoull(cursor, nullptr, 10);
                break;
            case 20:
                stat.threads = strtoll(cursor, nullptr, 10);
                break;
            case 22:
                stat.start_time = strtoull(cursor, nullptr, 10);
                break;
            case 23:
                stat.memory_bytes = strtoull(cursor, nullptr, 10);
                break;
            case 52:
                stat.wait_status = static_cast<int>(strtol(cursor, nullptr, 10));
                break;
            default:
                break;
        }
        cursor += width;
        ++field;
    }
    constexpr int kFieldsNeeded = 52;
    return field > kFieldsNeeded ? std::optional<ProcessStat>(stat) : std::nullopt;
}

std::optional<ProcessStat> read_process_stat(pid_t pid) {
    if (pid <= 0)
        return std::nullopt;
    const std::optional<std::string> text = read_proc(pid, "stat");
    return text ? parse_process_stat(*text) : std::nullopt;
}

ExitState exit_state(pid_t pid, uint64_t start_time) {
    return state_of(pid, read_process_stat(pid), start_time);
}

ExitState confirm_exit(pid_t pid, uint64_t start_time, int64_t timeout_ns) {
    constexpr timespec kPeriod{0, 200'000};
    const int64_t deadline_ns = now_ns() + timeout_ns;
    // The pidfd ends the last pause early. Without one, poll() ignores -1 and the pause is a plain one.
    const int process = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    ExitState state;
    for (;;) {
        state = exit_state(pid, start_time);
        if (state.stage == ExitStage::kGone || state.exit_code || now_ns() >= deadline_ns)
            break;
        pollfd wait{process, POLLIN, 0};
        ppoll(&wait, 1, &kPeriod, nullptr);
    }
    if (process >= 0)
        close(process);
    return state;
}

void set_child_subreaper() {
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0)
        throw_errno(errno, "cannot become a child subreaper");
}

void set_parent_death_signal(int signal) {
    if (prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0) != 0)
        throw_errno(errno, "cannot set the parent-death signal");
}

}  // namespace taskd::native
