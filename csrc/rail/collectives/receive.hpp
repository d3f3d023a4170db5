// Receives one message: from a given member, or from the first member that sends one.
//
// Why ears: the next message of each member has a number of its own, so each one is listened for under its own number.
// The first one that is heard is taken; the others' messages stay for the next operation.
//
// Does not: number messages, or know whose turn it is (messages.hpp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "rail/collectives/operation.hpp"

namespace taskd::rail {

class ReceiveOperation;

class Postbox {
  public:
    virtual ~Postbox() = default;
    // The number of the next message of a member.
    virtual uint64_t next_number(int member, uint32_t tag) const = 0;
    // The message is taken: the next one gets another number.
    virtual void taken(ReceiveOperation& operation, int member) = 0;
};

class ReceiveOperation : public Operation {
  public:
    // `from` -1: any member. `source` (may be null) is set to the sender.
    ReceiveOperation(Circle& circle, Postbox& postbox, uint64_t sequence, const Form& form, void* data, size_t bytes,
                     int from, uint32_t tag, int* source);
    ~ReceiveOperation() override;

    // It is this operation's turn. Before that, it only waits.
    void listen();

    bool takes_any() const { return from_ < 0; }

    uint32_t tag() const { return tag_; }

  protected:
    void begin() override {
        if (may_listen)
            listen();
    }

    void withdraw() override;
    std::string title() const override;
    std::vector<int> awaited() const override;

    bool is_numbered() const override { return false; }

  public:
    bool may_listen = false;  // listen as soon as it begins

  private:
    class Ear;

    void heard(Ear& ear);
    void deaf(Ear& ear, const Failure& failure);
    void received();
    void take(Ear& ear);

    Postbox& postbox_;
    void* const data_;
    const size_t bytes_;
    const int from_;
    const uint32_t tag_;
    int* const source_;
    std::vector<std::unique_ptr<Ear>> ears_;
    size_t deaf_ = 0;  // how many ears are deaf
    int taken_from_ = -1;
};

}  // namespace taskd::rail
