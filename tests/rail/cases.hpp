// One operation on all ranks of a group, with its inputs, its outputs, and the expected outputs.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "rail/collectives/group.hpp"
#include "reference.hpp"
#include "world.hpp"

namespace taskd::rail::test {

class Case {
  public:
    // Draws an operation at random. Its messages have at most about `most_bytes`.
    Case(std::mt19937& random, int size, size_t most_bytes);
    virtual ~Case() = default;
    Case(const Case&) = delete;
    Case& operator=(const Case&) = delete;

    // Starts the operation on one rank.
    void start(Group& group, Done done);
    void check() const;
    void tell() const;  // prints which case this is, for a case that fails

  private:
    size_t rank(int member) const { return static_cast<size_t>(member); }

    void prepare_reduction(std::mt19937& random);
    void prepare_exchange(std::mt19937& random);
    void prepare_all_to_all(std::mt19937& random);

    const int size_;
    Kind kind_ = Kind::kNone;
    Dtype dtype_ = Dtype::kByte;
    Reduction reduction_ = Reduction::kSum;
    size_t count_ = 0;
    size_t bytes_ = 0;
    int root_ = 0;
    bool in_place_ = false;
    std::vector<std::vector<Bytes>> inputs_;   // by rank, then by receiver
    std::vector<std::vector<Bytes>> outputs_;  // by rank, then by sender
    std::vector<std::vector<Bytes>> wanted_;
};

}  // namespace taskd::rail::test
