#include "rail/session/farewell.hpp"

#include <algorithm>
#include <cerrno>

namespace taskd::rail {
namespace {

void stage(Link& link, FrameHeader bye, const std::string& reason, uint64_t manner) {
    bye.offset = manner;
    bye.length = static_cast<uint32_t>(std::min(reason.size(), kLongestControl));
    link.stage(bye, reason.substr(0, bye.length));
}

}  // namespace

void Farewell::say(Paths& paths, Acknowledger& acknowledger) {
    for (Path& path : paths) {
        if (!is_open(path))
            continue;
        said_ |= bit(path);
        // If there are gaps in what has arrived, a header alone would say too little.
        acknowledger.say(*path.link());
        stage(*path.link(), acknowledger.bare(FrameType::kBye), own_, kInGoodOrder);
    }
}

void Farewell::say_at_once(Paths& paths, const Acknowledger& acknowledger, const std::string& reason) const {
    for (Path& path : paths) {
        if (!is_open(path) || path.link()->staged() > 0)
            continue;
        stage(*path.link(), acknowledger.bare(FrameType::kBye), reason, kAtOnce);
        path.link()->write(kLongestControl * 2);
    }
}

Lifecycle::Parting Farewell::hear(Path& path, const FrameHeader& bye, const char* payload,
                                  const Acknowledger& acknowledger) {
    reason_ = bye.length > 0 ? std::string(payload, bye.length) : "without a reason";
    const bool is_in_good_order = bye.offset == kInGoodOrder;
    if (is_in_good_order) {
        // The other side waits for this answer. If the answer does not fit now, the end of the connection says the
        // same.
        stage(*path.link(), acknowledger.bare(FrameType::kBye), "farewell", kAnswer);
        path.link()->write(kLongestControl * 2);
    }
    path.link()->cut(ECONNRESET);
    return is_in_good_order ? Lifecycle::Parting::kInGoodOrder : Lifecycle::Parting::kAtOnce;
}

}  // namespace taskd::rail
