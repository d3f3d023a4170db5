#include "rail/session/event.hpp"

namespace taskd::rail {

void deliver(const Event& event, int64_t now_ns) {
    switch (event.what) {
        case Event::What::kSent:
            event.party->sent(event.member, event.part);
            break;
        case Event::What::kArrived:
            event.party->arrived(event.member, event.part);
            break;
        case Event::What::kOffered:
            event.party->offered(event.member, event.part);
            break;
        case Event::What::kDiffers:
            event.party->differs(event.member, event.form);
            break;
        case Event::What::kFailed:
            event.party->failed(*event.failure);
            break;
        case Event::What::kWoken:
            event.party->woken(now_ns);
            break;
    }
}

}  // namespace taskd::rail
