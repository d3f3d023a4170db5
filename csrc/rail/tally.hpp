// The counters of all processes of a node, summed by rail and peer node.
//
// Why: the operator's questions and the manager's decisions are about a rail between two nodes, but a record is about a
// pair of ranks. Summing a few thousand records takes about ten microseconds here, and would take milliseconds in
// Python at each check of the agent. Sums only grow: what a process has counted stays in them when the process is gone.
//
// Does not: keep history, judge states, or trust what it reads.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rail/counters.hpp"

namespace taskd::rail {

// One rail to one peer node. The counts of pairs are the current ones; all other counts only grow.
struct RailSum {
    std::string rail;
    std::string node;
    RailState state = RailState::kUp;  // the worst of the pairs: DOWN, PROBING, SUSPECT, UP
    int64_t since_ns = 0;              // CLOCK_MONOTONIC: when a pair last came into that state
    uint64_t pairs = 0;                // in use by a session now, and expected to reach the peer or has reached it
    uint64_t pairs_up = 0;
    uint64_t pairs_moved = 0;    // that have carried data since they were last connected or ordered
    uint64_t pairs_starved = 0;  // up, but have not, while other rails carried much for the same two ranks
    uint64_t bytes_out = 0;
    uint64_t bytes_in = 0;
    int64_t round_trip_ns = 0;  // the longest of the pairs
    uint64_t downs = 0;
    uint64_t hedged = 0;
    uint64_t retransmitted = 0;
    uint64_t duplicates = 0;
    int32_t last_error = 0;  // the newest
    int64_t last_error_ns = 0;
};

class Tally {
  public:
    // `starved_bytes`: how many bytes other rails carry, in either direction, before a rail that carries nothing is
    // starved.
    explicit Tally(uint64_t starved_bytes) : starved_bytes_(starved_bytes) {}

    // Adds the counters behind this descriptor (duplicated) to the sums. Returns their number for remove(). Throws
    // std::invalid_argument with one sentence if it is not a file of counters.
    int64_t add(int fd);
    // The process of these counters has ended. An unknown number is fine.
    void remove(int64_t number);

    // Returns every rail and peer node that was ever used, in order.
    std::vector<RailSum> read();
    // The totals over all processes that are added now; `pid` is 0.
    CounterTotals totals() const;

  private:
    using Names = std::pair<std::string, std::string>;

    // The proof that a rail still owes: that it carries. Counted from the moment when the proof was seen to be due.
    struct Debt {
        uint32_t turn = 0;
        uint32_t proofs = 0;
        uint64_t others = 0;  // bytes of the other rails between the same two ranks at that moment
    };

    struct Source {
        std::unique_ptr<CountersReader> reader;
        std::map<uint32_t, CounterView> last;  // by slot
        std::map<uint32_t, Debt> debts;        // by slot
    };

    void take(Source& source);
    bool is_starved(Source& source, const CounterView& view, uint64_t others) const;
    static void count(RailSum& sum, const CounterView& view, const CounterView& before, bool is_starved);

    const uint64_t starved_bytes_;
    std::map<int64_t, Source> sources_;
    std::map<Names, RailSum> sums_;
    int64_t last_number_ = 0;
};

}  // namespace taskd::rail
