// Tests of the page itself: sequence locks, orders, and content that a stranger wrote.
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <stdexcept>
#include <thread>

#include "check.hpp"

namespace taskd::native::test {
namespace {

// Derives every field from one number, so that a copy made of two stores is noticed.
void store_derived(RankSlot& slot, uint64_t number) {
    const auto low = static_cast<uint32_t>(number);
    store_progress(slot, low, static_cast<int64_t>(number), static_cast<uint16_t>(number), low ^ 0xa5a5, number * 3);
}

bool is_derived(const Beat& beat) {
    const auto number = static_cast<uint64_t>(beat.step);
    const auto low = static_cast<uint32_t>(number);
    return beat.epoch == low && beat.phase == static_cast<uint16_t>(number) && beat.group == (low ^ 0xa5a5) &&
           beat.sequence == number * 3;
}

// Takes about a microsecond. Another processor can do much in this time.
void dawdle() {
    for (int turn = 0; turn < 20; ++turn)
        pause_processor();
}

// Waits until enough was done, however busy the machine is.
template <class Enough>
void wait_for(Enough enough) {
    const int64_t end_ns = now_ns() + patience_ns();
    while (!enough() && now_ns() < end_ns)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(enough());
}

// A slot fits one cache line, so torn copies are normally rare. Here writers and readers pause between the fields.
void test_slow_hands() {
    std::atomic<uint32_t> lock{0};
    std::atomic<uint64_t> fields[32] = {};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> writes{0};
    std::atomic<uint64_t> reads{0};
    std::vector<std::thread> threads;
    for (uint64_t writer = 1; writer <= 3; ++writer) {
        threads.emplace_back([&, writer] {
            for (uint64_t round = 0; !stop; ++round) {
                const uint64_t value = round * 4 + writer;
                const bool is_written = write_slot(lock, [&] {
                    for (size_t index = 0; index < 32; ++index) {
                        put(fields[index], value);
                        dawdle();
                    }
                });
                if (is_written)
                    writes.fetch_add(1);
                std::this_thread::sleep_for(std::chrono::microseconds(200));  // leaves readers a gap
            }
        });
    }
    for (size_t reader = 0; reader < 2; ++reader) {
        threads.emplace_back([&] {
            while (!stop) {
                uint64_t copy[32];
                const bool is_read = read_slot(lock, [&] {
                    for (size_t index = 0; index < 32; ++index) {
                        copy[index] = get(fields[index]);
                        dawdle();
                    }
                });
                if (!is_read)
                    continue;
                for (const uint64_t value : copy)
                    CHECK(value == copy[0]);
                reads.fetch_add(1);
            }
        });
    }
    wait_for([&] { return writes > 500 && reads > 500; });
    stop = true;
    for (auto& thread : threads)
        thread.join();
}

void test_no_torn_reads() {
    const auto mapping = Mapping::create(0, 0);
    PageLayout& page = mapping->page();
    store_derived(page.rank, 0);
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> numbers{1};
    std::atomic<uint64_t> reads{0};
    std::vector<std::thread> threads;
    for (int writer = 0; writer < 3; ++writer) {
        threads.emplace_back([&, writer] {
            while (!stop) {
                const uint64_t number = numbers.fetch_add(1) * 0x9e3779b97f4a7c15;
                store_derived(page.rank, number);
                enter_group(page.groups[7], static_cast<uint32_t>(number), 1, number, 1, number * 5);
                // Only one writer gives orders, because a node has one agent.
                if (writer == 0)
                    give_order(page.order, static_cast<uint32_t>(number), ~static_cast<uint32_t>(number));
                stamp_beat(page.rank, number);
            }
        });
    }
    for (int reader = 0; reader < 2; ++reader) {
        threads.emplace_back([&] {
            while (!stop) {
                Beat beat;
                if (read_beat(page.rank, beat)) {
                    CHECK(is_derived(beat));
                    reads.fetch_add(1);
                }
                GroupBeat group;
                if (read_group(page.groups[7], group)) {
                    CHECK(group.group == static_cast<uint32_t>(group.sequence) && group.bytes == group.sequence * 5);
                }
                Order order;
                if (read_order(page.order, order) && order.sequence != 0)
                    CHECK(order.epoch == ~order.kind);
            }
        });
    }
    wait_for([&] { return numbers > 20'000 && reads > 5'000; });
    stop = true;
    for (auto& thread : threads)
        thread.join();
}

void test_writer_that_died_in_the_middle() {
    const auto mapping = Mapping::create(0, 0);
    PageLayout& page = mapping->page();
    store_derived(page.rank, 5);
    enter_group(page.groups[0], 1, 1, 1, 1, 0);
    page.rank.lock.fetch_add(1);
    page.groups[0].lock.fetch_add(1);
    page.order.lock.fetch_add(1);
    Beat beat;
    GroupBeat group;
    Order order;
    stamp_beat(page.rank, 3);
    CHECK(!read_beat(page.rank, beat) && beat.beat_count == 3 && beat.step == 0);
    CHECK(!read_group(page.groups[0], group) && !read_order(page.order, order));
    CHECK(!store_phase(page.rank, 1));
    // The next agent takes the order line over.
    CHECK(give_order(page.order, 4, 9) == 1);
    CHECK(read_order(page.order, order) && order.kind == 4 && order.epoch == 9);
    CHECK(give_order(page.order, 5, 9) == 2 && read_order(page.order, order) && order.kind == 5);
    CHECK(get(page.order.bell) == 2);
}

void test_orders_wake_their_waiters() {
    const auto asked = Mapping::create(0, 0);
    const std::shared_ptr<Mapping> answers[] = {Mapping::create(0, 0), Mapping::create(0, 0)};
    constexpr uint32_t kLastKind = 2;
    const auto next = [](const OrderLine& line, uint32_t after) {
        Order order;
        CHECK(wait_order(line, after, now_ns() + patience_ns(), order) == WaitEnd::kOrder);
        CHECK(order.sequence == after + 1);
        return order;
    };
    std::vector<std::thread> waiters;
    for (const auto& answer : answers) {
        waiters.emplace_back([&] {
            for (Order order; order.kind != kLastKind;) {
                order = next(asked->page().order, order.sequence);
                give_order(answer->page().order, 0, 0);
            }
        });
    }
    // Each order comes at about the moment when the waiters go to sleep. A wake-up could get lost at this moment.
    const int64_t end_ns = now_ns() + kNanosecondsPerSecond;
    uint32_t number = 0;
    for (bool is_last = false; !is_last; ++number) {
        is_last = number == 5000 || now_ns() > end_ns;
        CHECK(give_order(asked->page().order, is_last ? kLastKind : 1, 0) == number + 1);
        for (const auto& answer : answers)
            next(answer->page().order, number);
    }
    for (auto& waiter : waiters)
        waiter.join();
    Order order;
    CHECK(wait_order(asked->page().order, number, now_ns() + kNanosecondsPerMillisecond, order) == WaitEnd::kTimeout);
}

// A memory file as a stranger might send it.
int strange_file(off_t bytes, int seals, const void* content, size_t content_bytes) {
    const int fd = memfd_create("strange", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, bytes) == 0);
    CHECK(pwrite(fd, content, content_bytes, 0) == static_cast<ssize_t>(content_bytes));
    CHECK(seals == 0 || fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

void test_strange_files_are_refused() {
    constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
    const auto good = Mapping::create(1, 1);
    char content[kPageBytes];
    std::memcpy(content, &good->page(), sizeof content);
    const auto refuses = [](int fd) {
        const bool is_refused = throws<std::invalid_argument>([fd] { Mapping::attach(fd); });
        close(fd);
        return is_refused;
    };
    CHECK(!refuses(strange_file(kPageBytes, kSeals, content, sizeof content)));
    CHECK(refuses(-1) && refuses(open("/dev/null", O_RDWR)) && refuses(open("/proc/self/exe", O_RDONLY)));
    CHECK(refuses(strange_file(kPageBytes, 0, content, sizeof content)));
    CHECK(refuses(strange_file(kPageBytes, F_SEAL_GROW, content, sizeof content)));
    CHECK(refuses(strange_file(kPageBytes - 1, kSeals, content, 64)));
    CHECK(refuses(strange_file(2 * kPageBytes, kSeals, content, sizeof content)));
    CHECK(refuses(strange_file(kPageBytes, kSeals | F_SEAL_WRITE, content, sizeof content)));
    CHECK(refuses(strange_file(kPageBytes, kSeals, "", 0)));
    const std::string own = "/proc/self/fd/" + std::to_string(good->fd());
    CHECK(refuses(open(own.c_str(), O_RDONLY)));
    for (const size_t offset : {offsetof(IdentityLine, magic), offsetof(IdentityLine, version)}) {
        char changed[kPageBytes];
        std::memcpy(changed, content, sizeof changed);
        changed[offset] = static_cast<char>(changed[offset] ^ 0x40);
        CHECK(refuses(strange_file(kPageBytes, kSeals, changed, sizeof changed)));
    }
    for (const size_t offset : {offsetof(IdentityLine, pid), offsetof(IdentityLine, rank)}) {
        char changed[kPageBytes];
        std::memcpy(changed, content, sizeof changed);
        std::memset(changed + offset, 0xff, 4);
        CHECK(refuses(strange_file(kPageBytes, kSeals, changed, sizeof changed)));
    }
}

void test_any_content_is_survived() {
    std::mt19937_64 random(11);
    for (int round = 0; round < 40; ++round) {
        const auto mapping = Mapping::create(1, 1);
        auto* bytes = reinterpret_cast<unsigned char*>(&mapping->page());
        for (size_t offset = kLineBytes; offset < kPageBytes; offset += sizeof(uint64_t)) {
            const uint64_t word = random();
            std::memcpy(bytes + offset, &word, sizeof word);
        }
        PageLayout& page = mapping->page();
        Beat beat;
        GroupBeat group;
        Order order;
        read_beat(page.rank, beat);
        for (const GroupSlot& slot : page.groups)
            read_group(slot, group);
        read_order(page.order, order);
        wait_order(page.order, order.sequence, now_ns() + 100'000, order);
        give_order(page.order, 1, 1);
        CHECK(read_order(page.order, order) && order.kind == 1);
        DeathWatch watch;
        watch.add(mapping, 1);
        watch.remove(1);
    }
}

}  // namespace

std::vector<Test> page_tests() {
    return {
        {"slow hands", test_slow_hands},
        {"no torn reads", test_no_torn_reads},
        {"writer that died in the middle", test_writer_that_died_in_the_middle},
        {"orders wake their waiters", test_orders_wake_their_waiters},
        {"strange files are refused", test_strange_files_are_refused},
        {"any content is survived", test_any_content_is_survived},
    };
}

}  // namespace taskd::native::test
