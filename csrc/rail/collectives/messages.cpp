#include "rail/collectives/messages.hpp"

#include <algorithm>
#include <string>

#include "rail/collectives/text.hpp"
#include "rail/reduce/reduce.hpp"

namespace taskd::rail {
namespace {

constexpr uint64_t kMessage = 1ULL << 63;  // collectives count from 0 and never come here
constexpr int kNobody = -1;

// Well mixed, so that any two messages under way have different numbers: there is no room for all four words.
uint64_t number_of(int from, int to, uint32_t tag, uint32_t index) {
    uint64_t mixed = 0;
    for (const uint64_t word : {static_cast<uint64_t>(from), static_cast<uint64_t>(to), static_cast<uint64_t>(tag),
                                static_cast<uint64_t>(index)}) {
        mixed += word + 0x9e3779b97f4a7c15;
        mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9;
        mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
        mixed ^= mixed >> 31;
    }
    return mixed | kMessage;
}

Form form_of(Extent extent) {
    Form form;
    form.kind = static_cast<uint8_t>(Kind::kPointToPoint);
    form.dtype = static_cast<uint8_t>(extent.dtype);
    form.count = extent.bytes / size_of(extent.dtype);
    return form;
}

}  // namespace

std::shared_ptr<Operation> Messages::send(const void* data, Extent extent, int to, uint32_t tag) {
    ExchangePlan plan;
    plan.outgoing.push_back({to, data, extent.bytes});
    const Form form = form_of(extent);
    const uint32_t index = tag >= kTagsUsedOnce ? 0 : sent_[{to, tag}]++;
    std::string title = text_of(form) + " to " + circle_.transport.name_of(to) + " with tag " + std::to_string(tag) +
                        " in group " + circle_.identity;
    return std::make_shared<MessageOperation>(circle_, number_of(circle_.me, to, tag, index), form, std::move(plan),
                                              std::move(title));
}

std::shared_ptr<Operation> Messages::receive(void* data, Extent extent, int from, uint32_t tag, int* source) {
    const uint64_t own_number = number_of(circle_.me, kNobody, tag, receives_++);
    auto operation = std::make_shared<ReceiveOperation>(circle_, *this, own_number, form_of(extent), data, extent.bytes,
                                                        from, tag, source);
    const auto line = lines_.find(tag);
    operation->may_listen = line == lines_.end();
    if (line != lines_.end())
        line->second.push_back(operation.get());
    else if (from < 0)
        lines_[tag].push_back(operation.get());
    return operation;
}

uint64_t Messages::next_number(int member, uint32_t tag) const {
    const auto found = received_.find({member, tag});
    return number_of(member, circle_.me, tag, found == received_.end() ? 0 : found->second);
}

void Messages::taken(ReceiveOperation& operation, int member) {
    if (operation.tag() < kTagsUsedOnce)
        ++received_[{member, operation.tag()}];
    if (operation.takes_any())
        ended(operation);
}

std::string Messages::why_not(const Counts& counts, int member, uint32_t tag) const {
    if (tag >= kTagsUsedOnce || counts.size() < most_counts_)
        return "";
    for (int each = member < 0 ? 0 : member; each <= (member < 0 ? circle_.size - 1 : member); ++each)
        if (counts.count({each, tag}) != 0)
            return "";
    return "group " + circle_.identity + " has had messages under " + std::to_string(counts.size()) +
           " tags and remembers no more: use these tags again, or make a new group";
}

void Messages::ended(const Operation& operation) {
    for (auto& [tag, line] : lines_) {
        const auto found = std::find(line.begin(), line.end(), &operation);
        if (found == line.end())
            continue;
        const bool was_first = found == line.begin();
        line.erase(found);
        if (was_first)
            go_on(tag);
        return;
    }
}

// Lets all receives listen up to the next one that takes from any member, and that one too.
void Messages::go_on(uint32_t tag) {
    while (true) {
        const auto found = lines_.find(tag);
        if (found == lines_.end())
            return;
        if (found->second.empty()) {
            lines_.erase(found);
            return;
        }
        ReceiveOperation* const next = found->second.front();
        if (next->takes_any())
            return next->listen();
        found->second.pop_front();
        next->listen();
    }
}

}  // namespace taskd::rail
