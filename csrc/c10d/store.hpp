// A c10d store whose values outlive every worker. Each operation is one request to the node's agent, which passes it on
// to the manager.
//
// Why: torch's own store lives in one process and dies with it. After the loss of that process, groups could not be
// made anew. Here a worker only holds a UNIX socket to its agent. One connection serves one operation at a time, as
// with torch's TCPStore. A thread that must not wait behind another thread's wait uses a clone(). The main thread
// serves Python's signals while it waits. A forked child makes its own connection.
//
// Does not: keep any value, retry, or know what keys mean. The agent deals with an absent manager. Queues (queuePush
// and its kin) do not exist here.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <sys/types.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "c10d/forks.hpp"

namespace taskd::comm {

class AgentStore : public c10d::Store {
  public:
    // `name` is the abstract name of the agent's store socket, with its leading zero byte. Throws DistStoreError when
    // nobody listens there or the listener belongs to another user. `timeout` limits every operation; a wait with a
    // timeout of zero looks once.
    AgentStore(std::string name, std::chrono::milliseconds timeout);
    ~AgentStore() override;
    AgentStore(const AgentStore&) = delete;
    AgentStore& operator=(const AgentStore&) = delete;

    c10::intrusive_ptr<c10d::Store> clone() override;
    void set(const std::string& key, const std::vector<uint8_t>& value) override;
    std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& current,
                                    const std::vector<uint8_t>& wanted) override;
    std::vector<uint8_t> get(const std::string& key) override;
    int64_t add(const std::string& key, int64_t value) override;
    bool deleteKey(const std::string& key) override;
    bool check(const std::vector<std::string>& keys) override;
    int64_t getNumKeys() override;
    void wait(const std::vector<std::string>& keys) override;
    void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
    void append(const std::string& key, const std::vector<uint8_t>& value) override;
    std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
    void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
    std::vector<std::string> listKeys() override;

    bool hasExtendedApi() const override { return true; }

  private:
    // The numbers are part of the protocol; taskd/wire/store_frame.py has the other half.
    enum class Operation : uint8_t {
        kSet = 0,
        kGet = 1,
        kAdd = 2,
        kCheck = 3,
        kWait = 4,
        kDelete = 5,
        kCount = 6,
        kCompareSet = 7,
        kAppend = 8,
        kMultiSet = 9,
        kList = 10,
    };

    struct Reply {
        int64_t amount = 0;
        std::vector<std::vector<uint8_t>> values;
    };

    using Items = std::vector<std::string_view>;

    // The connection of one process, and who uses it.
    struct Line {
        std::mutex mutex;
        std::atomic<std::thread::id> busy{};  // holder of the mutex: a signal handler must not wait for its own thread
        int socket = -1;
        dev_t device = 0;  // with the inode: what tells the socket from others that get its number
        ino_t inode = 0;
        const Birthplace birthplace;
    };

    Line& line();
    void connect(Line& line);
    static void hang_up(Line& line);
    Reply ask(Operation operation, int64_t amount, const Items& items);
    Reply ask(Operation operation, int64_t amount, const Items& items, std::chrono::milliseconds timeout);
    std::string exchange(const std::string& frame);
    static void send_all(int socket, const std::string& bytes);
    static void receive_all(int socket, char* into, size_t size);
    static void wait_for_bytes(int socket);

    const std::string name_;
    std::atomic<Line*> line_;
};

void bind_store(pybind11::module_& m);

}  // namespace taskd::comm
