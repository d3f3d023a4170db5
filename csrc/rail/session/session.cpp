#include "rail/session/session.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

namespace taskd::rail {
namespace {

// The other side may not have noticed the loss: its cable may be fine, or there is a switch between the two.
FrameHeader news_of_loss(FrameHeader news, const Path& path, uint64_t connection) {
    news.part = static_cast<uint32_t>(path.rails.here);
    news.offset = connection;
    return news;
}

}  // namespace

Session::Session(SessionHost& host, SocketLayer& sockets, Counters& counters, const Retry& retry, Pair pair)
    : host_(host, *this),
      sockets_(sockets),
      counters_(counters),
      pair_(std::move(pair)),
      connections_(host_, paths_),
      traffic_(host_, pair_.epoch, paths_, life_),
      acknowledger_(pair_.epoch, traffic_.inbox()),
      prober_(host_, paths_, acknowledger_),
      sender_(host_, paths_, traffic_.outbox(), acknowledger_, prober_, life_),
      loss_watch_(retry),
      silence_watch_(host_, paths_, traffic_, acknowledger_, prober_, loss_watch_) {
    const int64_t now = host_.now_ns();
    const bool dials = pair_.dials();
    for (const auto& [first, second] : dials ? pair_rails(pair_.me, pair_.peer) : pair_rails(pair_.peer, pair_.me)) {
        PathRails rails{paths_.size(), dials ? first : second, dials ? second : first, ""};
        const EndpointRail& here = pair_.me.rails[rails.here];
        rails.name = here.name;
        CounterRecord& record =
            counters.open(here.name, pair_.peer_rank, pair_.peer.node, pair_.epoch, now, here.is_expected);
        paths_.add(Path(sockets, std::move(rails), record, Redial(dials, retry, now)));
    }
    if (dials)
        host_.wake_by(now);
}

Session::~Session() {
    for (Path& path : paths_) {
        if (path.link())
            host_.unwatch(*path.link());
        path.detach();
        if (!life_.has_parted_well())
            counters_.close(path.record, pair_.epoch);
    }
}

// ---- connections that come and go

void Session::attach(size_t index, int fd) {
    Path& path = paths_[index];
    // This comes first, because the link owns the descriptor.
    auto link = std::make_unique<Link>(sockets_, fd, pair_.epoch, index, path.record);
    life_.lives();
    if (path.link()) {
        lose(path, ECONNRESET, nullptr);
        if (life_.is_over())
            return;
    }
    path.attach(std::move(link), host_.now_ns(), pair_.dials());
    farewell_.renew(path);
    life_.connected();
    loss_watch_.connected();
    // Each side may know less than the other side has told it.
    acknowledger_.demand();
    paths_.show(path, host_.now_ns());
    host_.watch(*path.link());
    if (paths_.can_compare()) {
        // From now on there is another link to compare the older one with.
        prober_.ask(host_.now_ns());
        host_.wake_by(host_.now_ns() + kSilenceFloorNs);
    }
    host_.dirty();
    host_.changed();
}

void Session::dial_failed(size_t index, int error, const std::string& trouble) {
    Path& path = paths_[index];
    connections_.failed(path, error, trouble);
    if (error == ESTALE) {
        if (life_.has_been_connected() && life_.parting() == Lifecycle::Parting::kNone)
            life_.part(Lifecycle::Parting::kAtOnce);  // its farewell cannot be heard: the connection for it is gone
        fail("it has ended epoch " + std::to_string(pair_.epoch));
        return;
    }
    connections_.dial_again(path, host_.now_ns());
    check_hold(host_.now_ns());
}

void Session::set_interface(size_t rail_here, bool usable, const std::string& reason) {
    connections_.set_interface(rail_here, usable, reason);
}

void Session::set_order(size_t rail_here, bool in_use) {
    for (Path& path : paths_) {
        if (path.rails.here != rail_here || path.orders.here == in_use)
            continue;
        path.orders.here = in_use;
        prove_anew(path.record);
    }
    prober_.ask(host_.now_ns());  // the probe tells the other end, too
}

bool Session::reap() {
    bool any = false;
    for (Path& path : paths_) {
        if (!path.link() || !path.link()->is_broken())
            continue;
        any = true;
        lose(path, path.link()->error(), path.link()->fault());
    }
    return any;
}

void Session::lose(Path& path, int error, const char* fault) {
    const int64_t now = host_.now_ns();
    host_.unwatch(*path.link());
    const uint64_t connection = path.detach();
    path.trouble = fault != nullptr ? fault : std::strerror(error);
    // If the peer has left in good order, that is no reason to call a rail bad.
    const bool has_left = life_.has_parted_well();
    if (!has_left)
        set_error(path.record, error, now);
    sender_.send_again(path);
    // The last acknowledgement that was sent over it may be lost, and the other side may wait for exactly that.
    acknowledger_.demand();
    if (!has_left)
        paths_.show(path, now);
    connections_.dial_again(path, now);
    host_.dirty();
    if (life_.is_over())
        return;
    if (life_.stage() == Life::kParted) {
        fail("it has left: " + farewell_.reason());
        return;
    }
    if (connection != 0)
        paths_.tell(news_of_loss(acknowledger_.bare(FrameType::kLost), path, connection));
    if (paths_.connected() == 0 && loss_watch_.all_lost(now)) {
        check_hold(now);
        host_.wake_by(now + loss_watch_.limit_ns());
    }
}

// ---- times and turns

bool Session::pump() {
    // What a lost link carried is sent before anything new, and so is the news of the loss.
    reap();
    if (life_.is_over())
        return false;
    sender_.begin_turn();
    const bool has_more = sender_.send();
    sender_.acknowledge();
    if (life_.stage() == Life::kLeaving && traffic_.outbox().idle())
        farewell_.say(paths_, acknowledger_);
    return sender_.flush() || has_more;
}

void Session::on_time(int64_t now) {
    if (life_.is_over())
        return;
    if (acknowledger_.on_time(now))
        host_.dirty();
    silence_watch_.look(now);
    if (sender_.is_due(now))
        host_.dirty();
    connections_.dial(now);
    check_hold(now);
}

int64_t Session::next_ns(int64_t now) const {
    if (life_.is_over())
        return INT64_MAX;
    return std::min(
        {acknowledger_.next_ns(), connections_.next_ns(), silence_watch_.next_ns(now), sender_.next_ns(now)});
}

void Session::check_hold(int64_t now) {
    if (life_.is_over())
        return;
    if (!life_.ended().empty() && loss_watch_.is_final(now)) {
        // Nothing more can come, so there is nothing to wait for.
        part(Lifecycle::Parting::kUnsaid);
        fail("it has left: " + life_.ended());
        return;
    }
    const bool is_leaving = life_.stage() == Life::kLeaving;
    const bool is_refused = connections_.is_refused(loss_watch_.refusals_needed(is_leaving));
    switch (loss_watch_.judge(is_refused, is_leaving, now)) {
        case LossWatch::Verdict::kWait:
            break;
        case LossWatch::Verdict::kNoRetry:
            fail("all rails to it are lost and retry is disabled; rails: " + what_was_tried(pair_, life_, paths_));
            break;
        case LossWatch::Verdict::kTooLong:
            fail("no rail came back within " + std::to_string(loss_watch_.lost_for_ns(now) / kMillisecondNs) +
                 " ms; tried: " + what_was_tried(pair_, life_, paths_));
            break;
    }
}

// ---- what comes

char* Session::data_begins(Link& link, const FrameHeader& header) {
    Path& mine = paths_[link.slot()];
    acknowledger_.came_on(link.slot());
    if (acknowledger_.has(header.number)) {
        add(mine.record.duplicates, 1);
        link.redirect(false);
        return nullptr;
    }
    // This is a copy of a frame that another link is reading: the rest of that one must not be written once this one
    // writes.
    for (Path& path : paths_) {
        if (path.link() && path.link() != &link && path.link()->incoming() == header.number) {
            add(mine.record.duplicates, 1);
            path.link()->redirect(false);
        }
    }
    return traffic_.begins(link, header);
}

void Session::data_ended(Link& link, const FrameHeader& header, bool counts) {
    sender_.acknowledged(header, nullptr, 0);
    if (counts && acknowledger_.add(header.number)) {
        traffic_.arrived(link, header);
    } else if (!counts && (header.flags & kHasMark) != 0 && !acknowledger_.has(header.number) &&
               !link.was_redirected()) {
        // Padding of a message that was taken back: its number has come, its bytes will never come.
        acknowledger_.add(header.number);
    }
    acknowledger_.count_data(header, counts);
    if (acknowledger_.is_due())
        host_.dirty();
    else if (!acknowledger_.has_time())
        host_.wake_by(acknowledger_.wait_from(host_.now_ns()));
}

void Session::control(Link& link, const FrameHeader& header, const char* payload) {
    Path& path = paths_[link.slot()];
    acknowledger_.came_on(link.slot());
    Range ranges[kRangesPerAck];
    const size_t count = header.type == FrameType::kAck ? header.length / sizeof(Range) : 0;
    std::memcpy(ranges, payload, count * sizeof(Range));
    sender_.acknowledged(header, ranges, count);
    switch (header.type) {
        case FrameType::kAck:
            return;
        case FrameType::kPing:
            prober_.answer(path, header);
            return;
        case FrameType::kPong:
            prober_.hear(path, header);
            return;
        case FrameType::kLost:
            for (Path& each : paths_)
                each.hear_lost(header.part, header.offset);
            host_.dirty();
            return;
        case FrameType::kBye:
            part(farewell_.hear(path, header, payload, acknowledger_));
            host_.dirty();
            return;
        default:
            break;
    }
    if (!acknowledger_.add(header.number)) {
        add(path.record.duplicates, 1);
        acknowledger_.demand();
        host_.dirty();
        return;
    }
    traffic_.control(link, header);
    acknowledger_.count_control();
    if (!acknowledger_.has_time())
        host_.wake_by(acknowledger_.wait_from(host_.now_ns()));
}

// ---- how it ends

void Session::leave(const std::string& reason) {
    if (life_.is_over())
        return;
    life_.leave();
    farewell_.prepare(reason);
    host_.dirty();
}

void Session::part(Lifecycle::Parting manner) {
    life_.part(manner);
    if (!life_.has_parted_well())
        return;
    for (Path& path : paths_)
        counters_.close(path.record, pair_.epoch);  // before its links go: no rail is down because of this
}

void Session::hear_of_end(const std::string& how) {
    life_.hear_of_end(how);
    check_hold(host_.now_ns());
}

void Session::end(const std::string& reason) {
    // The connections are closed even if saying the last word throws.
    struct Closing {
        ~Closing() { connections.close(); }

        Connections& connections;
    } const closing{connections_};

    life_.end(reason);
    farewell_.say_at_once(paths_, acknowledger_, reason);
}

void Session::fail(const std::string& text) {
    life_.fail(text);
    connections_.stop();
    paths_.cut(ECONNABORTED);
    host_.dirty();
    host_.changed();
}

std::string what_was_tried(const Pair& pair, const Lifecycle& life, const Paths& paths) {
    const std::string nothing = life.has_been_connected() ? "closed"
                                : pair.dials()            ? "no answer"
                                                          : "it has not dialled";
    std::string text;
    for (const Path& path : paths) {
        text += text.empty() ? "" : ", ";
        text += path.rails.name + " (" + pair.peer.rails[path.rails.there].address + ": " +
                (path.trouble.empty() ? nothing : path.trouble) + ")";
    }
    return text;
}

}  // namespace taskd::rail
