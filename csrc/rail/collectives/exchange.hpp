// Operations that move bytes and reduce nothing: all-gather, gather, scatter, all-to-all, broadcast, barrier, and
// messages from one rank to another.
//
// Why one class: they differ only in which memory goes where. The only exception is the large broadcast: every other
// rank gets a slice from the root and passes it on piece by piece, so that the root sends each byte once.
//
// Does not: choose the numbers of messages (messages.hpp), or receive from any member (receive.hpp).
#pragma once

#include <vector>

#include "rail/collectives/operation.hpp"

namespace taskd::rail {

struct ExchangePlan {
    struct Transfer {
        int member;
        const void* memory;
        size_t bytes;
    };

    std::vector<Transfer> outgoing;
    std::vector<Transfer> incoming;
    // A large broadcast of this memory.
    void* relayed = nullptr;
    size_t relayed_bytes = 0;
    int root = -1;
};

ExchangePlan plan_broadcast(int me, int size, void* data, size_t bytes, int root);

class ExchangeOperation : public Operation {
  public:
    ExchangeOperation(Circle& circle, uint64_t sequence, const Form& form, ExchangePlan plan);

  protected:
    void begin() override;
    void advance() override;
    void on_arrived(int member, Phase phase, uint32_t index) override;

    ExchangePlan plan_;

  private:
    void begin_relay();
    void open_relay(Lane& lane, int owner, bool may_go);

    int place_of(int owner) const { return owner < plan_.root ? owner : owner - 1; }

    std::vector<bool> here_;  // pieces that came from the root
    uint32_t passed_ = 0;     // of these, how many may be passed on, in order
};

// A message with a number of its own, which both sides can compute: unlike collectives, messages have no common order.
class MessageOperation : public ExchangeOperation {
  public:
    MessageOperation(Circle& circle, uint64_t sequence, const Form& form, ExchangePlan plan, std::string title);

  protected:
    std::string title() const override { return title_; }

    bool is_numbered() const override { return false; }

  private:
    const std::string title_;
};

}  // namespace taskd::rail
