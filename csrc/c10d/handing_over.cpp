// See handing_over.hpp.
#include "c10d/handing_over.hpp"

#include <utility>

namespace taskd::comm {

namespace {

thread_local HandingOver* current = nullptr;

}  // namespace

HandingOver::HandingOver(std::atomic<int>* count, Control& control, const Control::Turn& born)
    : count_(count), control_(control), drains_(born.drains), outer_(current) {
    if (count_ == nullptr)
        return;
    ++*count_;
    current = this;
}

HandingOver::~HandingOver() {
    end();
}

void HandingOver::end() {
    if (std::atomic<int>* const count = std::exchange(count_, nullptr)) {
        --*count;
        current = outer_;
    }
}

bool HandingOver::on_this_thread() {
    return current != nullptr;
}

bool HandingOver::given_up() {
    if (current == nullptr)
        return false;
    const Control::Lock lock = current->control_.lock();
    return current->control_.turn(lock).drains > current->drains_;
}

}  // namespace taskd::comm
