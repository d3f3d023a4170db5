#include "rail/collectives/receive.hpp"

#include <utility>

#include "rail/collectives/text.hpp"

namespace taskd::rail {

// An ear stands for the operation where the transport needs a number.
class ReceiveOperation::Ear : public Party {
  public:
    Ear(ReceiveOperation& owner, int member, uint64_t sequence) : member(member), owner_(owner), sequence_(sequence) {}

    void sent(int, uint32_t) override {}

    void arrived(int, uint32_t) override { owner_.received(); }

    void beginning(int, uint32_t) override {}

    void offered(int, uint32_t) override { owner_.heard(*this); }

    void differs(int from, const Form& theirs) override { owner_.differs(from, theirs); }

    void failed(const Failure& failure) override { owner_.deaf(*this, failure); }

    void woken(int64_t) override {}

    uint64_t sequence() const override { return sequence_; }

    const Form& form() const override { return owner_.form(); }

    const int member;
    bool is_deaf = false;

  private:
    ReceiveOperation& owner_;
    const uint64_t sequence_;
};

ReceiveOperation::ReceiveOperation(Circle& circle, Postbox& postbox, uint64_t sequence, const Form& form, void* data,
                                   size_t bytes, int from, uint32_t tag, int* source)
    : Operation(circle, sequence, form),
      postbox_(postbox),
      data_(data),
      bytes_(bytes),
      from_(from),
      tag_(tag),
      source_(source) {
    expect(1);
}

ReceiveOperation::~ReceiveOperation() = default;

void ReceiveOperation::listen() {
    for (int member = 0; member < circle_.size; ++member)
        if (member != circle_.me && (from_ < 0 || from_ == member))
            ears_.push_back(std::make_unique<Ear>(*this, member, postbox_.next_number(member, tag_)));
    if (from_ >= 0)
        return take(*ears_.front());
    for (size_t index = 0; index < ears_.size() && taken_from_ < 0 && !is_over(); ++index)
        circle_.transport.watch(*ears_[index], ears_[index]->member, 0);
}

void ReceiveOperation::heard(Ear& ear) {
    if (taken_from_ >= 0 || is_over())
        return;
    for (const auto& other : ears_)
        if (other.get() != &ear)
            circle_.transport.forget(*other);
    take(ear);
}

// A member has left, and nothing can come from it any more. The others may still send.
void ReceiveOperation::deaf(Ear& ear, const Failure& failure) {
    deaf_ += ear.is_deaf ? 0 : 1;
    ear.is_deaf = true;
    if (taken_from_ == ear.member || deaf_ == ears_.size())
        fail(failure);
}

void ReceiveOperation::take(Ear& ear) {
    taken_from_ = ear.member;
    postbox_.taken(*this, ear.member);
    if (!is_over())
        circle_.transport.receive(ear, ear.member, 0, data_, bytes_);
}

void ReceiveOperation::received() {
    if (is_over())
        return;
    if (source_ != nullptr)
        *source_ = taken_from_;
    one_ended();
    run();
}

// The ears themselves stay, because the transport may be within a call to one of them.
void ReceiveOperation::withdraw() {
    for (const auto& ear : ears_)
        circle_.transport.forget(*ear);
    Operation::withdraw();
}

std::string ReceiveOperation::title() const {
    return text_of(form()) + " from " + (from_ < 0 ? std::string("anybody") : circle_.transport.name_of(from_)) +
           " with tag " + std::to_string(tag_) + " in group " + circle_.identity;
}

std::vector<int> ReceiveOperation::awaited() const {
    if (taken_from_ >= 0)
        return {taken_from_};
    std::vector<int> members;
    for (int member = 0; member < circle_.size; ++member)
        if (member != circle_.me && (from_ < 0 || from_ == member))
            members.push_back(member);
    return members;
}

}  // namespace taskd::rail
