// The sums of counters; tally.hpp says what and why.
#include "rail/tally.hpp"

#include <algorithm>
#include <array>

namespace taskd::rail {
namespace {

// As many as one process can have. A process that makes more names than that is broken, and its further names are
// ignored.
constexpr size_t kSumsMax = kCounterRecords;

int badness(RailState state) {
    constexpr std::array<int, 4> kBadness = {0, 1, 3, 2};  // UP, SUSPECT, DOWN, PROBING
    return kBadness[static_cast<size_t>(state)];
}

// A counter that has become smaller comes from a broken writer: it adds nothing.
uint64_t growth(uint64_t now, uint64_t before) {
    return now > before ? now - before : 0;
}

}  // namespace

int64_t Tally::add(int fd) {
    auto reader = std::make_unique<CountersReader>(fd);
    Source& source = sources_[++last_number_];
    source.reader = std::move(reader);
    return last_number_;
}

void Tally::remove(int64_t number) {
    const auto found = sources_.find(number);
    if (found == sources_.end())
        return;
    take(found->second);  // its last word
    sources_.erase(found);
}

std::vector<RailSum> Tally::read() {
    for (auto& [names, sum] : sums_) {
        sum.state = RailState::kUp;
        sum.since_ns = sum.round_trip_ns = 0;
        sum.pairs = sum.pairs_up = sum.pairs_moved = sum.pairs_starved = 0;
    }
    for (auto& [number, source] : sources_)
        take(source);
    std::vector<RailSum> sums;
    sums.reserve(sums_.size());
    for (const auto& [names, sum] : sums_)
        sums.push_back(sum);
    return sums;
}

void Tally::take(Source& source) {
    std::vector<CounterView> views = source.reader->read();
    std::map<std::pair<int32_t, std::string>, uint64_t> between;  // bytes over all rails, by peer
    for (const CounterView& view : views)
        between[{view.peer, view.node}] += view.bytes_out + view.bytes_in;
    for (CounterView& view : views) {
        CounterView& before = source.last[view.slot];
        if (before.turn != view.turn)
            before = CounterView();  // the record is of another pair, or this is the first look
        const uint64_t others = between[{view.peer, view.node}] - view.bytes_out - view.bytes_in;
        const bool starved = is_starved(source, view, others);
        const auto known = sums_.find({view.rail, view.node});
        if (known != sums_.end()) {
            count(known->second, view, before, starved);
        } else if (sums_.size() < kSumsMax) {
            RailSum& sum = sums_[{view.rail, view.node}];
            sum.rail = view.rail;
            sum.node = view.node;
            count(sum, view, before, starved);
        }
        before = std::move(view);
    }
}

// Whether this rail is starved. Two ranks that exchange little data starve no rail, and a rail that is not connected is
// not starved.
bool Tally::is_starved(Source& source, const CounterView& view, uint64_t others) const {
    Debt& debt = source.debts[view.slot];
    const bool is_due_anew = debt.turn != view.turn || debt.proofs != view.proofs;
    if (is_due_anew || others < debt.others)
        debt = {view.turn, view.proofs, others};
    return view.used && view.state == RailState::kUp && view.bytes_out + view.bytes_in <= view.bytes_before &&
           others - debt.others >= starved_bytes_;
}

void Tally::count(RailSum& sum, const CounterView& view, const CounterView& before, bool is_starved) {
    sum.bytes_out += growth(view.bytes_out, before.bytes_out);
    sum.bytes_in += growth(view.bytes_in, before.bytes_in);
    sum.downs += growth(view.downs, before.downs);
    sum.hedged += growth(view.hedged, before.hedged);
    sum.retransmitted += growth(view.retransmitted, before.retransmitted);
    sum.duplicates += growth(view.duplicates, before.duplicates);
    if (view.last_error != 0 && view.last_error_ns >= sum.last_error_ns) {
        sum.last_error = view.last_error;
        sum.last_error_ns = view.last_error_ns;
    }
    if (!view.used || !(view.expected || view.was_up))
        return;
    const int worse = sum.pairs == 0 ? 1 : badness(view.state) - badness(sum.state);
    if (worse > 0) {
        sum.state = view.state;
        sum.since_ns = view.since_ns;
    } else if (worse == 0) {
        sum.since_ns = std::max(sum.since_ns, view.since_ns);
    }
    sum.pairs += 1;
    sum.pairs_up += view.state == RailState::kUp ? 1 : 0;
    sum.pairs_moved += view.bytes_out + view.bytes_in > view.bytes_before ? 1 : 0;
    sum.pairs_starved += is_starved ? 1 : 0;
    sum.round_trip_ns = std::max(sum.round_trip_ns, view.round_trip_ns);
}

CounterTotals Tally::totals() const {
    CounterTotals all;
    for (const auto& [number, source] : sources_) {
        const CounterTotals one = source.reader->totals();
        all.unrecorded += one.unrecorded;
        all.strangers += one.strangers;
        all.garbage += one.garbage;
        all.stale += one.stale;
    }
    return all;
}

}  // namespace taskd::rail
