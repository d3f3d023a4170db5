#include "rail/collectives/operation.hpp"

#include <algorithm>
#include <cassert>

#include "rail/collectives/text.hpp"

namespace taskd::rail {

uint32_t pieces_of(size_t bytes, size_t chunk) {
    if (chunk == 0)
        return 0;
    return bytes == 0 ? 1 : static_cast<uint32_t>((bytes + chunk - 1) / chunk);
}

Operation::Operation(Circle& circle, uint64_t sequence, const Form& form)
    : circle_(circle), sequence_(sequence), form_(form), lanes_(static_cast<size_t>(circle.size) * 4) {}

// ---- lanes

void Operation::open_lane(Lane& lane, void* memory, size_t bytes, size_t chunk, uint32_t window) {
    lane.memory = static_cast<char*>(memory);
    lane.bytes = bytes;
    lane.chunk = chunk;
    lane.count = pieces_of(bytes, chunk);
    lane.window = window;
    unfinished_ += lane.count;
}

void Operation::open_whole(Lane& lane, const void* memory, size_t bytes) {
    // The transport does not write to what it sends.
    open_lane(lane, const_cast<void*>(memory), bytes, std::max<size_t>(bytes, 1), 1);
    set_limit(lane, 1);
}

void Operation::set_limit(Lane& lane, uint32_t limit) {
    lane.limit = std::min(limit, lane.count);
    may_post_ = true;
}

bool Operation::post_one(int member, Phase phase) {
    bool posted = false;
    if (Lane& lane = in(phase, member); lane.next < lane.limit && lane.open < lane.window) {
        const uint32_t index = lane.next++;
        ++lane.open;
        posted = true;
        circle_.transport.receive(*this, member, part_of(phase, index), lane.at(index), lane.bytes_at(index));
    }
    if (over_)
        return false;
    if (Lane& lane = out(phase, member); lane.next < lane.limit && lane.open < lane.window) {
        const uint32_t index = lane.next++;
        ++lane.open;
        posted = true;
        circle_.transport.send(*this, member, part_of(phase, index), lane.at(index), lane.bytes_at(index), announces_);
    }
    return posted && !over_;
}

// Posts one piece of each lane in turn. It begins after this rank, so that not all ranks send to the same one first.
void Operation::post() {
    bool posted = may_post_;
    may_post_ = false;
    while (posted) {
        posted = false;
        for (int step = 1; step <= circle_.size; ++step) {
            const int member = (circle_.me + step) % circle_.size;
            for (const Phase phase : {kResult, kContribution}) {
                posted |= post_one(member, phase);
                if (over_)
                    return;
            }
        }
    }
}

// ---- the loop

void Operation::run() {
    if (busy_) {
        again_ = true;
        return;
    }
    busy_ = true;
    do {
        again_ = false;
        advance();
        if (!over_)
            post();
    } while (again_ && !over_);
    busy_ = false;
    if (!over_ && unfinished_ == 0)
        end(nullptr);
}

void Operation::start(int64_t timeout_ns) {
    started_ns_ = circle_.transport.now_ns();
    deadline_ns_ = timeout_ns > 0 ? started_ns_ + timeout_ns : 0;
    busy_ = true;
    begin();
    busy_ = false;
    if (!over_)
        run();
    if (over_)
        return;
    const int64_t first_ns = started_ns_ + patience_ns_;
    circle_.transport.wake_at(*this, deadline_ns_ == 0 ? first_ns : std::min(first_ns, deadline_ns_));
}

void Operation::sent(int member, uint32_t part) {
    if (over_)
        return;
    const auto phase = static_cast<Phase>(part & 1);
    Lane& lane = out(phase, member);
    assert(lane.open > 0);
    --lane.open;
    --unfinished_;
    may_post_ |= lane.next < lane.limit;
    on_sent(member, phase, part >> 1);
    run();
}

void Operation::arrived(int member, uint32_t part) {
    if (over_)
        return;
    const auto phase = static_cast<Phase>(part & 1);
    Lane& lane = in(phase, member);
    assert(lane.open > 0);
    --lane.open;
    --unfinished_;
    may_post_ |= lane.next < lane.limit;
    on_arrived(member, phase, part >> 1);
    run();
}

void Operation::beginning(int member, uint32_t part) {
    if (!over_)
        on_beginning(member, static_cast<Phase>(part & 1), part >> 1);
}

void Operation::release(int member, Phase phase, uint32_t index) {
    Lane& lane = out(phase, member);
    assert(lane.open > 0 && index < lane.next);
    circle_.transport.release(*this, member, part_of(phase, index));
    --lane.open;
    --unfinished_;
    may_post_ |= lane.next < lane.limit;
}

void Operation::end(const Failure* failure) {
    over_ = true;
    withdraw();
    let_go();
    circle_.ended(*this, failure);
}

void Operation::fail(Failure failure) {
    if (!over_)
        end(&failure);
}

// ---- what goes wrong

std::string Operation::title() const {
    return text_of(form_) + ", #" + std::to_string(sequence_) + " of group " + circle_.identity;
}

// If some members have not contributed, only these are returned: because of them others have no results, and nobody
// takes what this rank gives.
std::vector<int> Operation::awaited() const {
    std::vector<int> members;
    for (const int direction : {1, 0})
        for (const Phase phase : {kContribution, kResult}) {
            for (int member = 0; member < circle_.size; ++member)
                if (!lanes_[index_of(phase, member, direction)].is_done())
                    members.push_back(member);
            if (!members.empty())
                return members;
        }
    return members;
}

void Operation::differs(int member, const Form& theirs) {
    if (over_ || differs_)
        return;
    differs_ = true;
    // A rank that is in this operation, but not in touch with that member, must not wait for this rank in vain.
    for (int other = 0; is_numbered() && other < circle_.size && !over_; ++other)
        if (other != circle_.me)
            circle_.transport.describe(*this, other);
    const std::string who = circle_.transport.name_of(member);
    Failure failure{Failure::Code::kDiffers, ""};
    if (theirs == form_)
        failure.text = who + " uses other sizes in " + title() + ": all ranks must agree on what goes between them";
    else if (is_numbered())
        failure.text = who + " is in " + text_of(theirs) + " as #" + std::to_string(sequence_) + " of group " +
                       circle_.identity + ", this rank in " + text_of(form_) +
                       ": all ranks must call the same operations with the same arguments in the same order";
    else
        failure.text = who + " has a " + text_of(theirs) + " where this rank has the " + title() +
                       ": the receiver must have room for the whole message";
    fail(std::move(failure));
}

void Operation::woken(int64_t now_ns) {
    if (over_)
        return;
    const std::vector<int> members = awaited();
    if (deadline_ns_ != 0 && now_ns >= deadline_ns_) {
        std::vector<std::string> names;
        for (const int member : members)
            names.push_back(circle_.transport.name_of(member));
        return fail({Failure::Code::kTimeout, title() + ": Timed out waiting " +
                                                  std::to_string((deadline_ns_ - started_ns_) / 1000000) + "ms" +
                                                  (names.empty() ? "" : ": no answer from " + list_of(names)) +
                                                  ". See what is going on there; " +
                                                  "where operations may take longer, give the group a longer timeout"});
    }
    if (now_ns >= started_ns_ + patience_ns_) {
        // First the awaited members; later everybody, because the awaited member may have given up because of another
        // one.
        const bool all = patience_ns_ > tuning::kDescribeAfterNs;
        patience_ns_ = std::min(2 * patience_ns_, now_ns - started_ns_ + tuning::kDescribeAtMostNs);
        for (int member = 0; is_numbered() && member < circle_.size && !over_; ++member) {
            const bool is_awaited = std::find(members.begin(), members.end(), member) != members.end();
            if (member != circle_.me && (all || is_awaited))
                circle_.transport.describe(*this, member);
        }
    }
    if (over_)
        return;
    const int64_t next_ns = started_ns_ + patience_ns_;
    circle_.transport.wake_at(*this, deadline_ns_ == 0 ? next_ns : std::min(next_ns, deadline_ns_));
}

}  // namespace taskd::rail
