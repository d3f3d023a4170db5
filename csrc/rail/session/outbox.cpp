#include "rail/session/outbox.hpp"

#include <algorithm>
#include <cstring>

namespace taskd::rail {

bool Outbox::add(const MessageKey& key, const Party& party, int member, const void* data, size_t bytes, bool announce,
                 const Form** differs) {
    auto message = std::make_shared<Outgoing>();
    message->key = key;
    message->form = party.form();
    message->member = member;
    message->bytes = message->unacknowledged = bytes;
    message->is_small = bytes <= kEagerBytes;
    if (message->is_small) {
        if (bytes > 0) {
            message->copy.reset(new char[bytes]);
            std::memcpy(message->copy.get(), data, bytes);
        }
        message->data = message->copy.get();
        if (pool_used_ + bytes <= kFirstPoolBytes + freed_) {
            credits_.erase(key);  // its receiver has room for more than comes
            pool_used_ += bytes;
            small_.push_back(std::move(message));
            return true;
        }
        // The pool is full, as far as this side knows.
        announce = true;
    } else {
        message->party = const_cast<Party*>(&party);
        message->data = static_cast<const char*>(data);
    }
    const bool copied = message->is_small;
    if (const auto found = credits_.find(key); found != credits_.end()) {
        if (message->form.fits(found->second))
            credits_.erase(found);
        else
            *differs = &found->second;  // it stays, because the caller will look at it next
        if (copied)
            pool_used_ += bytes;
        else
            large_[key] = message;
        message->is_flowing = true;
        (copied ? small_ : flowing_).push_back(std::move(message));
        return copied;
    }
    // A credit for a large message may have come and been dropped.
    if (announce || has_dropped_credits_)
        add_control(FrameType::kOffer, key, message->form, bytes, has_dropped_credits_ && !copied ? kAsksAgain : 0);
    large_[key] = std::move(message);
    return copied;
}

void Outbox::add_control(FrameType type, const MessageKey& key, const Form& form, size_t bytes, uint64_t offset) {
    FrameHeader header{};
    header.type = type;
    header.epoch = epoch_;
    header.group = key.group;
    header.sequence = key.sequence;
    header.part = key.part;
    header.offset = offset;
    header.bytes = bytes;
    header.form = form;
    controls_.push_back(header);
}

const Outgoing* Outbox::waiting(const MessageKey& key) const {
    const auto found = large_.find(key);
    return found == large_.end() ? nullptr : found->second.get();
}

bool Outbox::awaits(uint64_t group, uint64_t sequence, const Party& party) const {
    for (auto place = large_.lower_bound({group, sequence, 0});
         place != large_.end() && place->first.group == group && place->first.sequence == sequence; ++place) {
        if (place->second->party == &party)
            return true;
    }
    return false;
}

void Outbox::credit(const MessageKey& key, const Form& form) {
    const auto found = large_.find(key);
    if (found == large_.end()) {
        if (credits_.size() >= kCreditsKept) {
            credits_.erase(credits_.begin());
            has_dropped_credits_ = true;
        }
        credits_[key] = form;
        return;
    }
    const auto message = found->second;
    if (message->is_small) {
        // It goes straight to its place. It is counted only so that both sides count the same.
        pool_used_ += message->bytes;
        small_.push_back(message);
        large_.erase(found);
    } else if (!message->is_flowing) {
        message->is_flowing = true;
        flowing_.push_back(message);
    }
}

// Gives back the caller's memory of a large message.
void Outbox::give_back(const std::shared_ptr<Outgoing>& message) {
    message->data = nullptr;
    // If nothing else holds the message, no link does.
    if (message.use_count() > 1)
        borrowers_.let_go(*message);
}

bool Outbox::take_back(const MessageKey& key) {
    const auto found = large_.find(key);
    if (found == large_.end() || found->second->is_small)
        return false;
    const auto message = found->second;
    message->is_taken_back = true;
    message->party = nullptr;
    large_.erase(found);
    give_back(message);
    return true;
}

void Outbox::take_back_all(uint64_t group, uint64_t sequence, const Party& party) {
    auto place = large_.lower_bound({group, sequence, 0});
    while (place != large_.end() && place->first.group == group && place->first.sequence == sequence) {
        const auto message = (place++)->second;
        if (message->party == &party)
            take_back(message->key);
    }
}

void Outbox::skip_taken(std::deque<std::shared_ptr<Outgoing>>& queue) {
    while (!queue.empty() && queue.front()->is_taken_back)
        queue.pop_front();
}

bool Outbox::skip_done(std::deque<uint64_t>& queue) {
    while (!queue.empty()) {
        const uint64_t number = queue.front();
        if (!frames_.empty() && number >= frames_.front().header.number &&
            !frames_[number - frames_.front().header.number].is_acknowledged)
            return true;
        queue.pop_front();
    }
    return false;
}

bool Outbox::has_small() {
    return !controls_.empty() || !small_.empty() || skip_done(small_again_);
}

bool Outbox::has_large() {
    skip_taken(flowing_);
    return !flowing_.empty() || skip_done(large_again_);
}

size_t Outbox::small_bytes() const {
    const bool is_data = small_again_.empty() && controls_.empty() && !small_.empty();
    return sizeof(FrameHeader) + (is_data ? small_.front()->bytes : 0);
}

Numbered* Outbox::pop_again(std::deque<uint64_t>& queue) {
    if (!skip_done(queue))
        return nullptr;
    Numbered& frame = frames_[queue.front() - frames_.front().header.number];
    queue.pop_front();
    frame.is_queued = false;
    if (frame.header.type == FrameType::kData && frame.message->is_taken_back) {
        frame.header.type = FrameType::kVoid;
        frame.header.length = 0;
        frame.header.flags = 0;
    }
    return &frame;
}

Numbered& Outbox::number(FrameType type, const MessageKey& key, const Form& form) {
    frames_.emplace_back();
    Numbered& frame = frames_.back();
    frame.header = FrameHeader{};
    frame.header.type = type;
    frame.header.epoch = epoch_;
    frame.header.number = next_number_++;
    frame.header.group = key.group;
    frame.header.sequence = key.sequence;
    frame.header.part = key.part;
    frame.header.form = form;
    return frame;
}

Numbered& Outbox::next_small() {
    if (Numbered* const again = pop_again(small_again_))
        return *again;
    if (!controls_.empty()) {
        const FrameHeader header = controls_.front();
        controls_.pop_front();
        Numbered& frame = number(header.type, key_of(header), header.form);
        frame.header.offset = header.offset;
        frame.header.bytes = header.bytes;
        return frame;
    }
    const auto message = small_.front();
    small_.pop_front();
    Numbered& frame = number(FrameType::kData, message->key, message->form);
    frame.header.bytes = message->bytes;
    frame.header.length = static_cast<uint32_t>(message->bytes);
    message->carved = message->bytes;
    frame.message = message;
    return frame;
}

Numbered& Outbox::next_large(size_t piece) {
    if (Numbered* const again = pop_again(large_again_))
        return *again;
    const auto message = flowing_.front();
    Numbered& frame = number(FrameType::kData, message->key, message->form);
    size_t length = std::min(piece, message->bytes - message->carved);
    // A short remainder would cost a frame of its own.
    if (message->bytes - message->carved - length < kEagerBytes / 4 &&
        message->bytes - message->carved <= kLongestPiece)
        length = message->bytes - message->carved;
    frame.header.bytes = message->bytes;
    frame.header.offset = message->carved;
    frame.header.length = static_cast<uint32_t>(length);
    frame.header.flags = kHasMark;
    frame.message = message;
    message->carved += length;
    if (message->carved == message->bytes)
        flowing_.pop_front();
    return frame;
}

void Outbox::acknowledge(uint64_t first, uint64_t last, const std::function<void(Numbered&)>& done,
                         const std::function<void(Outgoing&)>& complete) {
    if (frames_.empty())
        return;
    const uint64_t base = frames_.front().header.number;
    for (uint64_t number = std::max(first, base); number <= last && number - base < frames_.size(); ++number) {
        Numbered& frame = frames_[number - base];
        if (frame.is_acknowledged || frame.sends == 0)
            continue;
        frame.is_acknowledged = true;
        done(frame);
        const auto message = std::move(frame.message);
        frame.message = nullptr;
        // Nothing counts any more for a message that was taken back.
        if (!message || message->is_taken_back)
            continue;
        message->unacknowledged -= std::min<size_t>(frame.header.length, message->unacknowledged);
        if (!message->is_small && message->unacknowledged == 0) {
            large_.erase(message->key);
            give_back(message);
            complete(*message);
        }
    }
    while (!frames_.empty() && frames_.front().is_acknowledged)
        frames_.pop_front();
}

void Outbox::send_again(Numbered& frame) {
    if (frame.is_acknowledged || frame.is_queued)
        return;
    frame.is_queued = true;
    (frame.is_small() ? small_again_ : large_again_).push_back(frame.header.number);
}

}  // namespace taskd::rail
