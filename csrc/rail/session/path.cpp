#include "rail/session/path.hpp"

#include <algorithm>
#include <cerrno>

namespace taskd::rail {
namespace {

constexpr int64_t kLateNs = 2 * kMillisecondNs;

}  // namespace

Path::Path(SocketLayer& sockets, PathRails rails, CounterRecord& record, const Redial& redial)
    : rails(std::move(rails)), record(record), redial(redial), sockets_(sockets) {}

// ---- its connection

void Path::attach(std::unique_ptr<Link> link, int64_t now, bool is_dialler) {
    redial.connected();
    pace_ = Pace();
    standing.connected();
    probes.connected(now);
    glance_.read = 0;
    connection_ = sockets_.connection_of(link->fd(), is_dialler);
    orders.there = true;  // until the other end says otherwise; it does so when there is another path
    link_ = std::move(link);
}

uint64_t Path::detach() {
    link_.reset();
    pace_ = Pace();
    standing.lost();
    const uint64_t connection = connection_;
    connection_ = 0;
    return connection;
}

bool Path::hear_lost(size_t rail_there, uint64_t connection) {
    if (!link_ || connection_ == 0 || connection_ != connection || rails.there != rail_there)
        return false;
    link_->cut(ENETDOWN);
    return true;
}

// ---- what it carries

void Path::carry(Numbered& frame, const Yardstick& by) {
    if (frame.weight == 0)
        frame.weight = frame.header.length + sizeof frame.header;
    if (carries(frame))
        pace_.forgotten(frame.weight);
    frame.carriers |= uint32_t{1} << rails.index;
    const int64_t delay = pace_.delay_ns(frame.weight, by);
    frame.expected_ns = by.now_ns + delay;
    frame.late_ns = by.now_ns + 2 * delay + kLateNs;
    ++frame.sends;
    frame.mark = pace_.sent(frame.weight, by.now_ns);
    link_->stage(frame.header, frame.payload(), frame.message);
    frame.end = link_->end();
    budget -= std::min(budget, frame.weight);
}

bool Path::acknowledged(const Numbered& frame, int64_t now) {
    if (frame.sends != 1) {
        // It is unknown which path brought it.
        pace_.forgotten(frame.weight);
        link_->let_go_frame(frame.header.number);
        return false;
    }
    pace_.acknowledged(frame.weight, frame.mark, now);
    record.round_trip_ns.store(pace_.round_trip_ns(), std::memory_order_release);
    record.rate.store(static_cast<uint64_t>(pace_.rate()), std::memory_order_release);
    return true;
}

uint64_t Path::brought() const {
    const auto waiting = static_cast<uint64_t>(std::max(queued(), 0L));
    return link_->bytes_written() - std::min(waiting, link_->bytes_written());
}

bool Path::holds(uint64_t end) const {
    return brought() < end && is_awaited();
}

// ---- what it answers

void Path::probe(FrameHeader ping, int64_t now) {
    ping.offset = static_cast<uint64_t>(now);
    ping.part = orders.here ? kWanted : kUnwanted;
    link_->stage(ping, std::string());
    standing.probed(now);
    probes.sent(now, link_->end());
}

void Path::pong(int64_t asked_ns, int64_t now) {
    const auto drained = probes.answered_probe(asked_ns, now);
    pace_.answered(now - asked_ns, now);
    if (drained)
        pace_.drained(drained->bytes, drained->took_ns, now);
}

void Path::answered(int64_t sent_ns, int64_t now) {
    probes.answered(sent_ns, now);
    standing.answered(sent_ns);
}

void Path::be_late(int64_t now) {
    standing.overtaken(now);
    probes.behind(now, static_cast<size_t>(std::max(queued(), 0L)) + link_->staged());
}

bool Path::judge(int64_t now, int64_t witness_ns) {
    const uint64_t brought = this->brought();
    const bool is_empty = brought == link_->bytes_written();
    const bool is_moving = brought != glance_.brought;
    // Bytes that come in prove nothing about the outgoing direction, as long as something there could move.
    if (is_empty ? link_->bytes_read() != glance_.read : is_moving)
        standing.progressed(now);
    else if (is_moving || !holds(link_->end()))
        standing.carried(now);
    glance_ = {link_->bytes_read(), brought};
    if (!standing.judge(now, witness_ns))
        return false;
    link_->cut(ETIMEDOUT);
    return true;
}

}  // namespace taskd::rail
