#include "cases.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "../patience.hpp"
#include "parts/check.hpp"
#include "rail/collectives/text.hpp"
#include "rail/reduce/reduce.hpp"

namespace taskd::rail::test {
namespace {

const int64_t kPatienceNs = std::chrono::nanoseconds(taskd::test::patience()).count();

Bytes noise(std::mt19937& random, size_t bytes) {
    return elements(random, Dtype::kByte, bytes);
}

// Draws a size: mostly a small one, or one near a limit of eager messages and chunks, or any other.
size_t draw_bytes(std::mt19937& random, size_t most) {
    constexpr size_t kBorders[] = {0, 1, 64, 4096, 65536, 131072, 262144, 1 << 20};
    size_t bytes = 0;
    switch (random() % 4) {
        case 0:
            bytes = random() % 300;
            break;
        case 1:
            bytes = kBorders[random() % std::size(kBorders)] + random() % 33;
            break;
        case 2:
            bytes = random() % 70000;
            break;
        default:
            bytes = random() % (most + 1);
    }
    return std::min(bytes, most);
}

std::vector<void*> places(std::vector<Bytes>& buffers) {
    std::vector<void*> found;
    for (Bytes& buffer : buffers)
        found.push_back(buffer.data());
    return found;
}

std::vector<const void*> places(const std::vector<Bytes>& buffers) {
    std::vector<const void*> found;
    for (const Bytes& buffer : buffers)
        found.push_back(buffer.data());
    return found;
}

std::vector<Piece> pieces(std::vector<Bytes>& buffers) {
    std::vector<Piece> found;
    for (Bytes& buffer : buffers)
        found.push_back({buffer.data(), buffer.size()});
    return found;
}

}  // namespace

Case::Case(std::mt19937& random, int size, size_t most_bytes) : size_(size) {
    constexpr Kind kKinds[] = {Kind::kAllReduce, Kind::kAllReduce, Kind::kReduceScatter, Kind::kAllGather,
                               Kind::kBroadcast, Kind::kReduce,    Kind::kGather,        Kind::kScatter,
                               Kind::kAllToAll,  Kind::kBarrier};
    kind_ = kKinds[random() % std::size(kKinds)];
    root_ = static_cast<int>(random() % static_cast<unsigned>(size));
    in_place_ = random() % 2 == 0;
    inputs_.resize(rank(size));
    outputs_.resize(rank(size));
    do {
        dtype_ = kReducible[random() % std::size(kReducible)];
        reduction_ = kReductions[random() % std::size(kReductions)];
    } while (!can_reduce(dtype_, reduction_));
    const bool is_wide = kind_ != Kind::kAllReduce && kind_ != Kind::kReduce && kind_ != Kind::kBroadcast;
    count_ = draw_bytes(random, most_bytes / (is_wide ? rank(size) : 1)) / size_of(dtype_);
    bytes_ = count_ * size_of(dtype_);
    if (kind_ == Kind::kAllReduce || kind_ == Kind::kReduceScatter || kind_ == Kind::kReduce)
        prepare_reduction(random);
    else if (kind_ == Kind::kAllToAll)
        prepare_all_to_all(random);
    else
        prepare_exchange(random);
}

void Case::prepare_reduction(std::mt19937& random) {
    const size_t parts = kind_ == Kind::kReduceScatter ? rank(size_) : 1;
    std::vector<Bytes> results;
    for (auto& inputs : inputs_)
        for (size_t part = 0; part < parts; ++part)
            inputs.push_back(elements(random, dtype_, count_));
    for (size_t part = 0; part < parts; ++part) {
        std::vector<Bytes> given;
        for (const auto& inputs : inputs_)
            given.push_back(inputs[part]);
        results.push_back(size_ == 1 ? given[0] : reference(dtype_, reduction_, given));
    }
    for (int member = 0; member < size_; ++member) {
        outputs_[rank(member)].push_back(Bytes(bytes_, 'x'));
        const bool gets = kind_ != Kind::kReduce || member == root_;
        wanted_.push_back({gets ? results[parts == 1 ? 0 : rank(member)] : outputs_[rank(member)][0]});
    }
}

void Case::prepare_all_to_all(std::mt19937& random) {
    const bool is_even = random() % 2 == 0;
    for (int from = 0; from < size_; ++from)
        for (int to = 0; to < size_; ++to)
            inputs_[rank(from)].push_back(noise(random, is_even ? bytes_ : draw_bytes(random, bytes_ + 1)));
    wanted_.resize(rank(size_));
    for (int to = 0; to < size_; ++to)
        for (int from = 0; from < size_; ++from) {
            wanted_[rank(to)].push_back(inputs_[rank(from)][rank(to)]);
            outputs_[rank(to)].push_back(Bytes(inputs_[rank(from)][rank(to)].size(), 'x'));
        }
}

void Case::prepare_exchange(std::mt19937& random) {
    wanted_.resize(rank(size_));
    for (int member = 0; member < size_; ++member) {
        const bool is_root = member == root_;
        const size_t given = kind_ == Kind::kScatter ? (is_root ? rank(size_) : 0) : kind_ == Kind::kBarrier ? 0 : 1;
        const size_t taken = kind_ == Kind::kAllGather || (kind_ == Kind::kGather && is_root)  ? rank(size_)
                             : kind_ == Kind::kBarrier || (kind_ == Kind::kGather && !is_root) ? 0
                                                                                               : 1;
        for (size_t part = 0; part < given; ++part)
            inputs_[rank(member)].push_back(noise(random, bytes_));
        outputs_[rank(member)].assign(taken, Bytes(bytes_, 'x'));
    }
    for (int member = 0; member < size_; ++member)
        for (size_t part = 0; part < outputs_[rank(member)].size(); ++part)
            wanted_[rank(member)].push_back(kind_ == Kind::kScatter     ? inputs_[rank(root_)][rank(member)]
                                            : kind_ == Kind::kBroadcast ? inputs_[rank(root_)][0]
                                                                        : inputs_[part][0]);
}

void Case::start(Group& group, Done done) {
    std::vector<Bytes>& in = inputs_[rank(group.me())];
    std::vector<Bytes>& out = outputs_[rank(group.me())];
    const bool is_root = group.me() == root_;
    switch (kind_) {
        case Kind::kAllReduce:
            out[0] = in[0];
            group.all_reduce(out[0].data(), count_, dtype_, reduction_, kPatienceNs, std::move(done));
            break;
        case Kind::kReduceScatter:
            group.reduce_scatter(places(std::as_const(in)), out[0].data(), count_, dtype_, reduction_, kPatienceNs,
                                 std::move(done));
            break;
        case Kind::kReduce:
            if (in_place_ && is_root)
                out[0] = in[0];
            group.reduce(in_place_ && is_root ? out[0].data() : in[0].data(), out[0].data(), count_, dtype_, reduction_,
                         root_, kPatienceNs, std::move(done));
            break;
        case Kind::kAllGather:
            group.all_gather(in[0].data(), places(out), bytes_, kPatienceNs, std::move(done));
            break;
        case Kind::kBroadcast:
            out[0] = is_root ? in[0] : out[0];
            group.broadcast(out[0].data(), bytes_, root_, kPatienceNs, std::move(done));
            break;
        case Kind::kGather:
            group.gather(in[0].data(), places(out), bytes_, root_, kPatienceNs, std::move(done));
            break;
        case Kind::kScatter:
            group.scatter(places(std::as_const(in)), out[0].data(), bytes_, root_, kPatienceNs, std::move(done));
            break;
        case Kind::kAllToAll:
            group.all_to_all(pieces(in), pieces(out), kPatienceNs, std::move(done));
            break;
        default:
            group.barrier(kPatienceNs, std::move(done));
    }
}

void Case::tell() const {
    std::fprintf(stderr, "%s of %zu %s, %s, root %d, %d ranks%s\n", name_of(kind_), count_, name_of(dtype_),
                 name_of(reduction_), root_, size_, in_place_ ? ", in place" : "");
}

void Case::check() const {
    if (outputs_ != wanted_)
        tell();
    CHECK(outputs_ == wanted_);
}

}  // namespace taskd::rail::test
