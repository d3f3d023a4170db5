#include "rail/collectives/text.hpp"

#include <cstdio>

#include "rail/reduce/reduce.hpp"

namespace taskd::rail {

const char* name_of(Kind kind) noexcept {
    static const char* const kNames[] = {"nothing", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                         "gather",  "scatter",    "all_to_all",     "barrier",    "message"};
    const auto index = static_cast<size_t>(kind);
    return index < sizeof kNames / sizeof *kNames ? kNames[index] : "an unknown operation";
}

std::string text_of(const Form& form) {
    const auto kind = static_cast<Kind>(form.kind);
    std::string text = name_of(kind);
    const bool reduces = kind == Kind::kAllReduce || kind == Kind::kReduceScatter || kind == Kind::kReduce;
    if (reduces)
        text += std::string(" (") + name_of(static_cast<Reduction>(form.reduction)) + ")";
    if (kind == Kind::kAllToAll)
        text += std::string(" of ") + name_of(static_cast<Dtype>(form.dtype));
    else if (kind != Kind::kBarrier)
        text += " of " + std::to_string(form.count) + " " + name_of(static_cast<Dtype>(form.dtype));
    if (form.root >= 0)
        text += (kind == Kind::kBroadcast || kind == Kind::kScatter ? " from root " : " to root ") +
                std::to_string(form.root);
    return text;
}

std::string list_of(const std::vector<std::string>& words) {
    std::string text;
    for (size_t index = 0; index < words.size(); ++index)
        text += (index == 0 ? "" : index + 1 == words.size() ? " and " : ", ") + words[index];
    return text;
}

std::string duration_of(int64_t duration_ns) {
    char text[32];
    if (duration_ns < 1000000000)
        std::snprintf(text, sizeof text, "%.4g ms", static_cast<double>(duration_ns) / 1e6);
    else
        std::snprintf(text, sizeof text, "%.4g s", static_cast<double>(duration_ns) / 1e9);
    return text;
}

}  // namespace taskd::rail
