// Staging memory: contributions of other ranks wait there until all have come. It is kept from operation to operation.
//
// Why: fresh memory costs a page fault for every 4 KiB, which is more expensive than the reduction that reads it.
//
// Does not: lock (the engine's lock is held), or keep more than kKeptBytes.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace taskd::rail {

class Staging {
  public:
    struct Free {
        void operator()(char* memory) const { std::free(memory); }
    };

    struct Block {
        std::unique_ptr<char, Free> memory;
        size_t bytes = 0;
    };

    // Returns a block of at least this many bytes, aligned to cache lines.
    Block take(size_t bytes) {
        size_t best = blocks_.size();
        for (size_t index = 0; index < blocks_.size(); ++index)
            if (blocks_[index].bytes >= bytes && (best == blocks_.size() || blocks_[index].bytes < blocks_[best].bytes))
                best = index;
        if (best < blocks_.size()) {
            std::swap(blocks_[best], blocks_.back());
            Block found = std::move(blocks_.back());
            blocks_.pop_back();
            kept_ -= found.bytes;
            return found;
        }
        Block fresh;
        fresh.bytes = (bytes + kPage - 1) / kPage * kPage;
        fresh.memory.reset(static_cast<char*>(std::aligned_alloc(kPage, fresh.bytes)));
        if (!fresh.memory)
            throw std::bad_alloc();
        return fresh;
    }

    void give(Block block) {
        if (!block.memory || block.bytes > kKeptBytes)
            return;
        // The oldest blocks go first: sizes that are not needed any more would otherwise stay for ever.
        while (kept_ + block.bytes > kKeptBytes) {
            kept_ -= blocks_.front().bytes;
            blocks_.erase(blocks_.begin());
        }
        kept_ += block.bytes;
        blocks_.push_back(std::move(block));
    }

  private:
    static constexpr size_t kPage = 4096;
    static constexpr size_t kKeptBytes = 32 << 20;
    std::vector<Block> blocks_;
    size_t kept_ = 0;
};

}  // namespace taskd::rail
