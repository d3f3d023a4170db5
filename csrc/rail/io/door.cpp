#include "rail/io/door.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rail/io/key.hpp"
#include "rail/transport.hpp"

namespace taskd::rail {
namespace {

constexpr size_t kMostStrangers = 64;
constexpr size_t kRandomBytes = 32;
constexpr int64_t kConnectNs = 250 * kMillisecondNs;  // only the kernels take part; they repeat a lost SYN after 1 s
constexpr int64_t kChallengeNs = 1000 * kMillisecondNs;
constexpr int64_t kWelcomeNs = 3000 * kMillisecondNs;  // then the other side is dialled again, in case it never answers
constexpr int64_t kProveNs = 5000 * kMillisecondNs;
constexpr int64_t kHeldNs = 600'000 * kMillisecondNs;  // its dialler gives up much sooner

}  // namespace

Door::Door(DoorKeeper& keeper, SocketLayer& sockets, std::string key, std::string me)
    : keeper_(keeper), sockets_(sockets), key_(std::move(key)), me_(std::move(me)) {}

Door::~Door() {
    while (!greetings_.empty())
        sockets_.close(hand_over(greetings_.begin()->first));
}

template <class Work>
void Door::over(uint64_t number, const Work& work) noexcept {
    try {
        work();
    } catch (...) {
        int64_t epoch = kNoEpoch;
        if (const auto found = greetings_.find(number); found != greetings_.end()) {
            const Stage stage = found->second.stage;
            if (stage != Stage::kHello && stage != Stage::kProof)
                epoch = found->second.hello.epoch;
            sockets_.close(hand_over(number));
        }
        keeper_.blame(epoch);
    }
}

uint64_t Door::open(Greeting greeting, int64_t within_ns) {
    const uint64_t number = ++last_;
    const int fd = greeting.fd;
    greeting.until_ns = keeper_.now_ns() + within_ns;
    try {
        greetings_.emplace(number, std::move(greeting));
    } catch (...) {
        sockets_.close(fd);  // nothing else knows the descriptor
        throw;
    }
    strangers_ += is_stranger(greetings_[number]) ? 1 : 0;
    keeper_.wake_by(greetings_[number].until_ns);
    keeper_.watch(fd, number);
    return number;
}

void Door::came(int fd) {
    make_room();
    Greeting greeting;
    greeting.fd = fd;
    over(last_ + 1, [&] { ready(open(std::move(greeting), kProveNs)); });
}

bool Door::is_stranger(const Greeting& greeting) {
    return greeting.stage == Stage::kHello || greeting.stage == Stage::kProof;
}

void Door::make_room() {
    if (strangers_ < most_strangers_)
        return;
    most_strangers_ = kMostStrangers + keeper_.expected();
    if (strangers_ < most_strangers_)
        return;
    const auto oldest =
        std::find_if(greetings_.begin(), greetings_.end(), [](const auto& item) { return is_stranger(item.second); });
    sockets_.close(hand_over(oldest->first));
}

void Door::dial(const Hello& hello, const SocketAddress& local, const SocketAddress& remote) {
    Greeting greeting;
    greeting.stage = Stage::kConnecting;
    greeting.hello = hello;
    greeting.said = make_hello(hello, random_bytes(kRandomBytes));
    greeting.fd = sockets_.dial(local, remote);
    if (greeting.fd < 0) {
        keeper_.dial_failed(hello, -greeting.fd, words_of(-greeting.fd));
        return;
    }
    open(std::move(greeting), kConnectNs);
}

int Door::hand_over(uint64_t number) {
    const auto found = greetings_.find(number);
    const int fd = found->second.fd;
    strangers_ -= is_stranger(found->second) ? 1 : 0;
    greetings_.erase(found);
    keeper_.unwatch(fd, number);
    return fd;
}

void Door::end(uint64_t number, int error, const std::string& trouble) {
    const Greeting greeting = greetings_[number];
    sockets_.close(hand_over(number));
    if (greeting.stage <= Stage::kWelcome)
        keeper_.dial_failed(greeting.hello, error, trouble);
}

bool Door::say(Greeting& greeting, const std::string& text) {
    const iovec piece{const_cast<char*>(text.data()), text.size()};
    // A new connection has room for so few bytes; if not, something is wrong with it.
    return sockets_.write(greeting.fd, &piece, 1) == static_cast<ssize_t>(text.size());
}

size_t Door::wanted(const Greeting& greeting) const {
    switch (greeting.stage) {
        case Stage::kHello:
            return kHelloBytes;
        case Stage::kChallenge:
            return kChallengeBytes;
        case Stage::kProof:
            return kProofBytes;
        case Stage::kWelcome:
            return kWelcomeBytes;
        default:
            return 0;
    }
}

void Door::ready(uint64_t number) {
    over(number, [&] { go_on(number); });
}

void Door::go_on(uint64_t number) {
    auto found = greetings_.find(number);
    if (found == greetings_.end())
        return;
    if (found->second.stage == Stage::kConnecting) {
        if (const int error = sockets_.error_of(found->second.fd); error != 0) {
            end(number, error, std::strerror(error));
            return;
        }
        if (!say(found->second, found->second.said))
            return;  // not connected yet: the system will report again
        found->second.stage = Stage::kChallenge;
        found->second.until_ns = keeper_.now_ns() + kChallengeNs;
    }
    // Never reads a byte more than the handshake needs: what follows belongs to the link.
    while ((found = greetings_.find(number)) != greetings_.end() && take(number, found->second)) {
    }
}

// True: a whole handshake message has come and led to the next step.
bool Door::take(uint64_t number, Greeting& greeting) {
    char bytes[128];
    const size_t rest = wanted(greeting) - greeting.in.size();
    // A held connection says nothing; the only thing to notice is that it closes.
    const iovec piece{bytes, greeting.stage == Stage::kHeld ? 1 : rest};
    const ssize_t got = sockets_.read(greeting.fd, &piece, 1);
    if (got == -EAGAIN || got == -EINTR)
        return got == -EINTR;
    if (got <= 0 || greeting.stage == Stage::kHeld) {
        const int error = got < 0 ? static_cast<int>(-got) : ECONNRESET;
        end(number, error, std::strerror(error));
        return false;
    }
    greeting.in.append(bytes, static_cast<size_t>(got));
    if (greeting.in.size() < wanted(greeting))
        return true;
    return advance(number, greeting);
}

bool Door::advance(uint64_t number, Greeting& greeting) {
    const std::string word = std::move(greeting.in);
    greeting.in.clear();
    if (greeting.stage == Stage::kHello) {
        if (!read_hello(word, me_, &greeting.hello)) {
            keeper_.count(DoorKeeper::Stranger::kGarbage);
            end(number, EPROTO, "no greeting of ours");
            return false;
        }
        greeting.said = word;
        greeting.challenge = make_challenge(key_, word, me_, random_bytes(kRandomBytes));
        greeting.stage = Stage::kProof;
        if (say(greeting, greeting.challenge))
            return true;
        end(number, EPIPE, "it does not listen");
        return false;
    }
    if (greeting.stage == Stage::kProof) {
        if (!check_proof(key_, greeting.said, greeting.challenge, word)) {
            keeper_.count(DoorKeeper::Stranger::kNoKey);
            end(number, EACCES, "it does not know the job's key");
            return false;
        }
        greeting.stage = Stage::kHeld;
        --strangers_;
        greeting.until_ns = keeper_.now_ns() + kHeldNs;
        return answer_proved(number, greeting);
    }
    greeting.in = word;
    return advance_dialled(number, greeting);
}

bool Door::advance_dialled(uint64_t number, Greeting& greeting) {
    const std::string word = std::move(greeting.in);
    greeting.in.clear();
    if (greeting.stage == Stage::kChallenge) {
        if (!check_challenge(key_, greeting.said, word)) {
            keeper_.count(DoorKeeper::Stranger::kNoKey);
            end(number, EACCES, "it does not know this job's key, or another process has its port now");
            return false;
        }
        greeting.stage = Stage::kWelcome;
        greeting.until_ns = keeper_.now_ns() + kWelcomeNs;
        if (say(greeting, make_proof(key_, greeting.said, word)))
            return true;
        end(number, EPIPE, "it does not listen");
        return false;
    }
    Answer answer = Answer::kUnknown;
    if (!read_welcome(word, &answer)) {
        end(number, EPROTO, "no greeting of ours");
    } else if (answer == Answer::kWelcome) {
        const Hello hello = greeting.hello;
        keeper_.dialled(hello, hand_over(number));
    } else if (answer == Answer::kStale) {
        end(number, ESTALE, "it has ended this epoch");
    } else {
        end(number, ENXIO, "it knows no such rail");
    }
    return false;
}

// False: nothing more has to be read for the handshake.
bool Door::answer_proved(uint64_t number, Greeting& greeting) {
    const Answer* const answer = keeper_.judge(greeting.hello);
    if (answer == nullptr)
        return true;
    const Hello hello = greeting.hello;
    if (*answer == Answer::kStale)
        keeper_.count(DoorKeeper::Stranger::kStale);
    if (!say(greeting, make_welcome(*answer)) || *answer != Answer::kWelcome)
        end(number, ESTALE, "");
    else
        keeper_.welcomed(hello, hand_over(number));
    return false;
}

void Door::judge_again() {
    std::vector<uint64_t> held;
    for (const auto& [number, greeting] : greetings_) {
        if (greeting.stage == Stage::kHeld)
            held.push_back(number);
    }
    for (const uint64_t number : held) {
        if (const auto found = greetings_.find(number); found != greetings_.end())
            over(number, [&] { answer_proved(number, found->second); });
    }
}

void Door::drop(int64_t epoch) {
    judge_again();
    for (auto place = greetings_.begin(); place != greetings_.end();) {
        const uint64_t number = place->first;
        const bool is_old = place->second.stage <= Stage::kWelcome && place->second.hello.epoch <= epoch;
        ++place;
        if (is_old)
            sockets_.close(hand_over(number));
    }
}

void Door::on_time(int64_t now_ns) {
    std::vector<uint64_t> late;
    for (const auto& [number, greeting] : greetings_) {
        if (greeting.until_ns <= now_ns)
            late.push_back(number);
    }
    for (const uint64_t number : late)
        over(number, [&] { end(number, ETIMEDOUT, "no answer"); });
}

int64_t Door::next_ns() const {
    int64_t next = INT64_MAX;
    for (const auto& [number, greeting] : greetings_)
        next = std::min(next, greeting.until_ns);
    return next;
}

}  // namespace taskd::rail
