#include "native/fork_guard.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <mutex>
#include <stdexcept>

#include "native/page.hpp"

namespace taskd::native {
namespace {

std::atomic<uint64_t> g_generation{0};
// By descriptor number: which file was registered (see token_of), or 0.
std::atomic<uint64_t> g_files[kGuardedDescriptors];
std::atomic<int> g_files_end{0};
std::atomic<void*> g_mappings[kGuardedMappings];

// Device and inode in one word that is never 0. Sockets and memory files each have their own inode.
uint64_t token_of(int fd) noexcept {
    struct stat status{};
    if (fstat(fd, &status) != 0)
        return 0;
    return ((static_cast<uint64_t>(status.st_dev) << 40) ^ static_cast<uint64_t>(status.st_ino)) << 1 | 1;
}

void hide_mappings_in_child() noexcept {
    for (auto& entry : g_mappings) {
        void* mapping = entry.load(std::memory_order_relaxed);
        if (mapping == nullptr)
            continue;
        void* hidden =
            mmap(mapping, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        // Without the private page, a store must fault and not reach the parent's page.
        if (hidden == MAP_FAILED)
            munmap(mapping, kPageBytes);
    }
}

void replace_descriptors_in_child() noexcept {
    const int end = g_files_end.load(std::memory_order_relaxed);
    const int nothing = end == 0 ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < end; ++fd) {
        const uint64_t token = g_files[fd].exchange(0, std::memory_order_relaxed);
        if (token == 0 || token != token_of(fd))
            continue;
        if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0)
            close(fd);
    }
    if (nothing >= 0)
        close(nothing);
}

void in_child() noexcept {
    const int error = errno;
    g_generation.fetch_add(1, std::memory_order_relaxed);
    hide_mappings_in_child();
    replace_descriptors_in_child();
    errno = error;
}

void install_handler() {
    static std::once_flag once;
    std::call_once(once, [] {
        const int error = pthread_atfork(nullptr, nullptr, [] { in_child(); });
        if (error != 0)
            throw_errno(error, "cannot install the fork handler");
    });
}

}  // namespace

void close_on_fork(int fd) {
    install_handler();
    if (fd < 0 || fd >= kGuardedDescriptors) {
        throw std::invalid_argument("Descriptor " + std::to_string(fd) + " cannot be guarded: only 0 to " +
                                    std::to_string(kGuardedDescriptors - 1) + " can.");
    }
    const uint64_t token = token_of(fd);
    if (token == 0) {
        throw std::invalid_argument("Descriptor " + std::to_string(fd) +
                                    " is not open: register it before closing it.");
    }
    g_files[fd].store(token, std::memory_order_relaxed);
    int end = g_files_end.load(std::memory_order_relaxed);
    while (end <= fd && !g_files_end.compare_exchange_weak(end, fd + 1, std::memory_order_relaxed)) {
    }
}

void keep_on_fork(int fd) {
    if (fd >= 0 && fd < kGuardedDescriptors)
        g_files[fd].store(0, std::memory_order_relaxed);
}

void hide_on_fork(void* mapping) {
    install_handler();
    for (auto& entry : g_mappings) {
        void* expected = nullptr;
        if (entry.compare_exchange_strong(expected, mapping, std::memory_order_relaxed))
            return;
    }
    throw std::runtime_error("This process has " + std::to_string(kGuardedMappings) +
                             " beat pages already: let go of those that are no longer needed.");
}

void show_on_fork(void* mapping) noexcept {
    for (auto& entry : g_mappings) {
        void* expected = mapping;
        if (entry.compare_exchange_strong(expected, nullptr, std::memory_order_relaxed))
            return;
    }
}

uint64_t fork_generation() noexcept {
    return g_generation.load(std::memory_order_relaxed);
}

}  // namespace taskd::native
