// See store.hpp.
#include "c10d/store.hpp"

#include <poll.h>
#include <pybind11/chrono.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "c10d/handing_over.hpp"
#include "c10d/python.hpp"

namespace taskd::comm {

namespace {

// taskd.core.limits.MAX_MESSAGE_BYTES, which bounds what the agent passes on.
constexpr size_t kFrameBytes = size_t{8} << 20;
// An answer's framing is a little longer than that of the message that it came in.
constexpr size_t kReplyBytes = 2 * kFrameBytes;
// How often the main thread looks for signals while it waits: one may have come just before the wait began. And how
// often a thread that hands an operation over looks whether its step is given up.
constexpr int kSliceMs = 100;
constexpr uint8_t kOk = 0;
constexpr uint8_t kTimedOut = 1;

template <typename Number>
void put(std::string& out, Number value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Number>
Number take(const std::string& from, size_t& at) {
    Number value{};
    TORCH_CHECK_WITH(DistStoreError, at + sizeof value <= from.size(), "the agent's store answered with too few bytes");
    std::memcpy(&value, from.data() + at, sizeof value);
    at += sizeof value;
    return value;
}

std::string_view view_of(const std::vector<uint8_t>& bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

AgentStore::AgentStore(std::string name, std::chrono::milliseconds timeout)
    : Store(timeout), name_(std::move(name)), line_(nullptr) {
    auto first = std::make_unique<Line>();
    connect(*first);
    line_ = first.release();
}

AgentStore::~AgentStore() {
    Line* const last = line_;
    hang_up(*last);
    if (!last->birthplace.is_elsewhere())
        delete last;
}

// A forked child cannot use its parent's line: another thread may have held its lock, for as long as a wait takes.
AgentStore::Line& AgentStore::line() {
    Line* const found = line_;
    if (!found->birthplace.is_elsewhere())
        return *found;
    auto own = std::make_unique<Line>();
    Line* present = found;
    if (!line_.compare_exchange_strong(present, own.get()))
        return *present;  // another thread of this process was quicker
    hang_up(*found);
    return *own.release();
}

// The number is forgotten first: a child that is forked in between must not close what gets that number later. A child
// may also have closed all that it inherited, and then the number is something else's.
void AgentStore::hang_up(Line& line) {
    const int socket = std::exchange(line.socket, -1);
    struct stat found{};
    if (socket >= 0 && ::fstat(socket, &found) == 0 && found.st_dev == line.device && found.st_ino == line.inode)
        ::close(socket);
}

void AgentStore::connect(Line& line) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    TORCH_CHECK_WITH(DistStoreError, name_.size() <= sizeof address.sun_path,
                     "the name of the agent's store is too long");
    std::memcpy(address.sun_path, name_.data(), name_.size());
    const int descriptor = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    TORCH_CHECK_WITH(DistStoreError, descriptor >= 0, "no socket for the agent's store: ", std::strerror(errno));
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size());
    ucred peer{};
    socklen_t peer_size = sizeof peer;
    struct stat made{};
    if (::fstat(descriptor, &made) != 0 ||
        ::connect(descriptor, reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
        ::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) != 0) {
        const int error = errno;
        ::close(descriptor);
        TORCH_CHECK_WITH(DistStoreError, false,
                         "this node's agent cannot be reached for the store: ", std::strerror(error));
    }
    if (peer.uid != ::geteuid()) {
        ::close(descriptor);
        TORCH_CHECK_WITH(DistStoreError, false, "another user listens where this node's agent should serve the store");
    }
    line.device = made.st_dev;
    line.inode = made.st_ino;
    line.socket = descriptor;
}

void AgentStore::send_all(int socket, const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
        const ssize_t n = ::send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        TORCH_CHECK_WITH(DistStoreError, n > 0, "the agent's store has hung up: ", std::strerror(errno));
        sent += static_cast<size_t>(n);
    }
}

void AgentStore::wait_for_bytes(int socket) {
    pollfd ready{socket, POLLIN, 0};
    const bool serves = on_main_thread();
    const bool may_be_given_up = HandingOver::on_this_thread();
    while (::poll(&ready, 1, serves || may_be_given_up ? kSliceMs : -1) <= 0) {
        if (serves)
            serve_signals();
        TORCH_CHECK_WITH(DistStoreError, !HandingOver::given_up(),
                         "the step is given up for which a group waited in the store");
    }
}

void AgentStore::receive_all(int socket, char* into, size_t size) {
    size_t got = 0;
    while (got < size) {
        wait_for_bytes(socket);
        const ssize_t n = ::recv(socket, into + got, size - got, 0);
        if (n < 0 && errno == EINTR)
            continue;
        TORCH_CHECK_WITH(DistStoreError, n > 0, "the agent's store has hung up");
        got += static_cast<size_t>(n);
    }
}

std::string AgentStore::exchange(const std::string& frame) {
    const WithoutGil released;
    const auto self = std::this_thread::get_id();
    Line& mine = line();
    TORCH_CHECK_WITH(
        DistStoreError, mine.busy.load() != self,
        "this store already waits in the code that a signal handler interrupted; use a clone() in handlers");
    const std::lock_guard<std::mutex> lock(mine.mutex);
    mine.busy = self;
    std::string answer;
    try {
        if (mine.socket < 0)
            connect(mine);
        send_all(mine.socket, frame);
        uint32_t size = 0;
        receive_all(mine.socket, reinterpret_cast<char*>(&size), sizeof size);
        TORCH_CHECK_WITH(DistStoreError, size <= kReplyBytes, "the agent's store announced ", size, " bytes");
        answer.resize(size);
        receive_all(mine.socket, answer.data(), size);
    } catch (...) {
        hang_up(mine);  // or the next caller would get the rest of this answer
        mine.busy = std::thread::id{};
        throw;
    }
    mine.busy = std::thread::id{};
    return answer;
}

AgentStore::Reply AgentStore::ask(Operation operation, int64_t amount, const Items& items) {
    return ask(operation, amount, items, timeout_);
}

AgentStore::Reply AgentStore::ask(Operation operation, int64_t amount, const Items& items,
                                  std::chrono::milliseconds timeout) {
    std::string body;
    put(body, static_cast<uint8_t>(operation));
    put(body, static_cast<int64_t>(timeout.count()));
    put(body, amount);
    put(body, static_cast<uint32_t>(items.size()));
    for (const auto& item : items) {
        put(body, static_cast<uint32_t>(item.size()));
        body.append(item);
    }
    TORCH_CHECK_WITH(DistStoreError, body.size() <= kFrameBytes, "the job's store: an operation has ", body.size(),
                     " bytes, ", kFrameBytes, " at most: ask for less at once");
    std::string frame;
    put(frame, static_cast<uint32_t>(body.size()));
    frame += body;
    const std::string answer = exchange(frame);
    size_t at = 0;
    const auto status = take<uint8_t>(answer, at);
    Reply reply;
    reply.amount = take<int64_t>(answer, at);
    const auto count = take<uint32_t>(answer, at);
    for (uint32_t i = 0; i < count; ++i) {
        const auto length = take<uint32_t>(answer, at);
        TORCH_CHECK_WITH(DistStoreError, length <= answer.size() - at, "the agent's store answered with too few bytes");
        const auto* first = reinterpret_cast<const uint8_t*>(answer.data()) + at;
        reply.values.emplace_back(first, first + length);
        at += length;
    }
    if (status == kOk)
        return reply;
    const std::string reason(reply.values.empty() ? std::string_view("no reason given") : view_of(reply.values[0]));
    TORCH_CHECK_WITH(DistStoreError, status != kTimedOut, reason);
    TORCH_CHECK_WITH(DistStoreError, false, "the job's store: ", reason);
}

c10::intrusive_ptr<c10d::Store> AgentStore::clone() {
    return c10::make_intrusive<AgentStore>(name_, timeout_);
}

void AgentStore::set(const std::string& key, const std::vector<uint8_t>& value) {
    ask(Operation::kSet, 0, {key, view_of(value)});
}

std::vector<uint8_t> AgentStore::compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                            const std::vector<uint8_t>& wanted) {
    auto reply = ask(Operation::kCompareSet, 0, {key, view_of(current), view_of(wanted)});
    TORCH_CHECK_WITH(DistStoreError, reply.values.size() == 1, "the job's store answered compareSet without a value");
    return std::move(reply.values[0]);
}

std::vector<uint8_t> AgentStore::get(const std::string& key) {
    return std::move(multiGet({key})[0]);
}

int64_t AgentStore::add(const std::string& key, int64_t value) {
    return ask(Operation::kAdd, value, {key}).amount;
}

bool AgentStore::deleteKey(const std::string& key) {
    return ask(Operation::kDelete, 0, {key}).amount != 0;
}

bool AgentStore::check(const std::vector<std::string>& keys) {
    return ask(Operation::kCheck, 0, {keys.begin(), keys.end()}).amount != 0;
}

int64_t AgentStore::getNumKeys() {
    return ask(Operation::kCount, 0, {}).amount;
}

void AgentStore::wait(const std::vector<std::string>& keys) {
    wait(keys, timeout_);
}

void AgentStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
    ask(Operation::kWait, 0, {keys.begin(), keys.end()}, timeout);
}

void AgentStore::append(const std::string& key, const std::vector<uint8_t>& value) {
    ask(Operation::kAppend, 0, {key, view_of(value)});
}

std::vector<std::vector<uint8_t>> AgentStore::multiGet(const std::vector<std::string>& keys) {
    auto reply = ask(Operation::kGet, 0, {keys.begin(), keys.end()});
    TORCH_CHECK_WITH(DistStoreError, reply.values.size() == keys.size(), "the job's store answered for other keys");
    return std::move(reply.values);
}

void AgentStore::multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) {
    TORCH_CHECK_VALUE(keys.size() == values.size(), "multiSet: ", keys.size(), " keys for ", values.size(), " values");
    Items items;
    for (size_t i = 0; i < keys.size(); ++i) {
        items.emplace_back(keys[i]);
        items.emplace_back(view_of(values[i]));
    }
    ask(Operation::kMultiSet, 0, items);
}

std::vector<std::string> AgentStore::listKeys() {
    std::vector<std::string> keys;
    for (const auto& value : ask(Operation::kList, 0, {}).values)
        keys.emplace_back(value.begin(), value.end());
    return keys;
}

void bind_store(pybind11::module_& m) {
    namespace py = pybind11;
    py::class_<AgentStore, c10d::Store, c10::intrusive_ptr<AgentStore>>(m, "AgentStore")
        .def(py::init([](const py::bytes& name, std::chrono::milliseconds timeout) {
                 return c10::make_intrusive<AgentStore>(std::string(name), timeout);
             }),
             py::arg("name"), py::arg("timeout") = c10d::Store::kDefaultTimeout);
}

}  // namespace taskd::comm
