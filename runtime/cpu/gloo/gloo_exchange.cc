#include "runtime/cpu/gloo/gloo_exchange.h"

#include <gloo/transport/unbound_buffer.h>
#include <gloo/types.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/cpu/gloo/reduce_kernels.h"

namespace fusor::cpu {
namespace {

using runtime::Collective;

// Returns the elements per message when `elements` are exchanged with one rank:
// a quarter, within bounds, so that summation overlaps with communication.
int64_t MessageElements(int64_t elements, int64_t element_bytes) {
  constexpr int64_t kLeast = 64 << 10;
  constexpr int64_t kMost = 2 << 20;
  constexpr int64_t kAligned = 64;  // elements
  const int64_t bytes = std::clamp(elements * element_bytes / 4, kLeast, kMost);
  return bytes / element_bytes / kAligned * kAligned;
}

// Calls `call(first, count)` for each message.
template <typename Call>
void ForMessages(int64_t elements, int64_t element_bytes, Call call) {
  const int64_t most = MessageElements(elements, element_bytes);
  for (int64_t first = 0; first < elements; first += most) {
    call(first, std::min(most, elements - first));
  }
}

// Returns whether tensors are sent and received in place. Several small ones
// are packed instead, to save messages.
bool AreLarge(const Collective& c) {
  constexpr int64_t kLeastBytes = 64 << 10;
  return c.num_tensors == 1 ||
         c.elements * ir::DTypeSize(c.dtype) >= kLeastBytes * c.num_tensors;
}

}  // namespace

// Memory that a collective uses while it runs.
class GlooExchange::Scratch {
 public:
  Scratch(GlooExchange& owner, size_t bytes)
      : owner_(owner), memory_(owner.Take(bytes)) {}
  ~Scratch() { owner_.Give(std::move(memory_)); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* data() { return memory_.data(); }

 private:
  GlooExchange& owner_;
  std::vector<char> memory_;
};

// The messages of one kind, which share a slot, between this rank and the
// others. Messages between two ranks arrive in the order in which they are
// sent.
class GlooExchange::Messages {
 public:
  Messages(GlooExchange& owner, uint8_t prefix)
      : owner_(owner), slot_(gloo::Slot::build(prefix, 0)) {}

  // Adds memory to receive messages into and returns its number.
  size_t AddMemory(void* to, int64_t bytes) {
    received_.push_back({Buffer(to, bytes)});
    return received_.size() - 1;
  }
  void Receive(size_t memory, int64_t offset, int64_t bytes, int from) {
    Received& into = received_[memory];
    into.buffer->recv(from, slot_, static_cast<size_t>(offset),
                      static_cast<size_t>(bytes));
    ++into.messages;
  }
  // Waits until all messages into this memory have arrived.
  void Await(size_t memory) {
    Received& into = received_[memory];
    for (; into.messages > 0; --into.messages) {
      into.buffer->waitRecv(owner_.timeout_);
    }
  }

  void Send(const void* from, int64_t bytes, int to) {
    sent_.push_back(Buffer(const_cast<void*>(from), bytes));
    sent_.back()->send(to, slot_);
  }
  void AwaitSent() {
    for (const auto& buffer : sent_) buffer->waitSend(owner_.timeout_);
    sent_.clear();
  }

  // Calls `call(rank)` for the other ranks, from the next one on.
  template <typename Call>
  void ForOthers(Call call) const {
    const int ranks = owner_.world_size();
    for (int i = 1; i < ranks; ++i) call((owner_.rank() + i) % ranks);
  }

 private:
  using UnboundBuffer = gloo::transport::UnboundBuffer;
  struct Received {
    std::unique_ptr<UnboundBuffer> buffer;
    int messages = 0;  // still to arrive
  };

  std::unique_ptr<UnboundBuffer> Buffer(void* data, int64_t bytes) const {
    return owner_.context_->createUnboundBuffer(data,
                                                static_cast<size_t>(bytes));
  }

  GlooExchange& owner_;
  const gloo::Slot slot_;
  std::vector<Received> received_;
  std::vector<std::unique_ptr<UnboundBuffer>> sent_;
};

// The other ranks' elements of this rank's shards. They are received into
// scratch memory, by message and then by rank, from the next rank on.
class GlooExchange::Contributions {
 public:
  // Posts the receives, and sends the other ranks theirs.
  Contributions(GlooExchange& owner, ir::DType dtype, Tensors tensors)
      : owner_(owner),
        dtype_(dtype),
        size_(ir::DTypeSize(dtype)),
        tensors_(tensors),
        messages_(owner, gloo::kReduceSlotPrefix),
        scratch_(owner, Bytes()) {
    Receive();
    for (const Tensor& t : tensors_) {
      messages_.ForOthers([&](int other) {
        const auto* source = static_cast<const char*>(t.source);
        ForMessages(t.PartElements(other), size_, [&](int64_t at, int64_t n) {
          messages_.Send(source + (other * t.part + at) * size_, n * size_,
                         other);
        });
      });
    }
  }

  // Calls `added(sums, elements)` for each piece once it is summed.
  template <typename Added>
  void AddUp(Added added) {
    std::vector<const void*> parts(static_cast<size_t>(owner_.world_size()));
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const Piece& piece = pieces_[i];
      messages_.Await(i);
      parts[static_cast<size_t>(owner_.rank())] = piece.own;
      const char* next = piece.received;
      messages_.ForOthers([&](int other) {
        parts[static_cast<size_t>(other)] = next;
        next += piece.elements * size_;
      });
      SumInOrder(dtype_, piece.sums, parts, piece.elements);
      added(piece.sums, piece.elements);
    }
  }

  void AwaitSent() { messages_.AwaitSent(); }

 private:
  struct Piece {
    const char* own;
    char* sums;
    char* received;
    int64_t elements;
  };

  size_t Bytes() const {
    int64_t elements = 0;
    for (const Tensor& t : tensors_) elements += t.PartElements(owner_.rank());
    return static_cast<size_t>(elements * size_ * (owner_.world_size() - 1));
  }

  void Receive() {
    char* next = scratch_.data();
    for (const Tensor& t : tensors_) {
      const char* own =
          static_cast<const char*>(t.source) + owner_.rank() * t.part * size_;
      ForMessages(
          t.PartElements(owner_.rank()), size_, [&](int64_t at, int64_t n) {
            const int64_t bytes = n * size_;
            pieces_.push_back({own + at * size_,
                               static_cast<char*>(t.target) + at * size_, next,
                               n});
            const int64_t all = bytes * (owner_.world_size() - 1);
            const size_t memory = messages_.AddMemory(next, all);
            int64_t offset = 0;
            messages_.ForOthers([&](int other) {
              messages_.Receive(memory, offset, bytes, other);
              offset += bytes;
            });
            next += all;
          });
    }
  }

  GlooExchange& owner_;
  const ir::DType dtype_;
  const int64_t size_;  // bytes per element
  const Tensors tensors_;
  Messages messages_;
  Scratch scratch_;
  std::vector<Piece> pieces_;  // piece i is received into memory i
};

GlooExchange::GlooExchange(std::shared_ptr<GlooContext> context,
                           std::chrono::milliseconds timeout)
    : context_(std::move(context)), timeout_(timeout) {}

std::vector<char> GlooExchange::Take(size_t bytes) {
  std::vector<char> memory;
  {
    const std::lock_guard lock(mutex_);
    const auto largest =
        std::max_element(free_.begin(), free_.end(),
                         [](auto& a, auto& b) { return a.size() < b.size(); });
    if (largest != free_.end()) {
      memory = std::move(*largest);
      free_.erase(largest);
    }
  }
  // Gloo rejects empty memory.
  const size_t needed = std::max<size_t>(bytes, 1);
  if (memory.size() < needed) memory = std::vector<char>(needed);
  return memory;
}

void GlooExchange::Give(std::vector<char> memory) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(memory));
}

// Each rank sums its shard and sends pieces to all others as they are done. The
// received sums overwrite the elements that were sent for them.
void GlooExchange::AllReduce(const Collective& c, const Posted& posted) {
  const int64_t size = ir::DTypeSize(c.dtype);
  auto* data = static_cast<char*>(c.data);
  const Tensor whole = InPlace(c);
  Contributions contributions(*this, c.dtype, {&whole, 1});
  Messages sums(*this, gloo::kAllreduceSlotPrefix);
  const size_t memory = sums.AddMemory(data, c.elements * size);
  sums.ForOthers([&](int other) {
    const int64_t begin = other * whole.part;
    ForMessages(whole.PartElements(other), size, [&](int64_t at, int64_t n) {
      sums.Receive(memory, (begin + at) * size, n * size, other);
    });
  });
  contributions.AddUp([&](const char* added, int64_t n) {
    sums.ForOthers([&](int other) { sums.Send(added, n * size, other); });
  });
  posted();
  sums.Await(memory);
  contributions.AwaitSent();
  sums.AwaitSent();
}

// Returns `c.data` as a tensor whose sum is stored in place of this rank's
// shard.
GlooExchange::Tensor GlooExchange::InPlace(const Collective& c) const {
  const int64_t part = (c.elements + world_size() - 1) / world_size();
  const int64_t begin = std::min(c.elements, rank() * part);
  return {.source = c.data,
          .target = static_cast<char*>(c.data) + begin * ir::DTypeSize(c.dtype),
          .elements = c.elements,
          .part = part};
}

void GlooExchange::ReduceScatter(const Collective& c, const Posted& posted) {
  const Tensors tensors(c.tensors, static_cast<size_t>(c.num_tensors));
  if (tensors.empty()) {
    const Tensor whole = InPlace(c);
    return Reduce(c.dtype, {&whole, 1}, posted);
  }
  if (!AreLarge(c)) return ReducePacked(c, posted);
  Reduce(c.dtype, tensors, posted);
  for (const Tensor& t : tensors) {
    const int64_t own = t.PartElements(rank());
    ClearEnd(c, t, static_cast<char*>(t.target), own);
  }
}

void GlooExchange::Reduce(ir::DType dtype, Tensors tensors,
                          const Posted& posted) {
  Contributions contributions(*this, dtype, tensors);
  posted();
  contributions.AddUp([](const char*, int64_t) {});
  contributions.AwaitSent();
}

void GlooExchange::AllGather(const Collective& c, const Posted& posted) {
  if (!AreLarge(c)) return GatherPacked(c, posted);
  Gather(ir::DTypeSize(c.dtype),
         {c.tensors, static_cast<size_t>(c.num_tensors)}, posted);
}

void GlooExchange::Gather(int64_t element_bytes, Tensors tensors,
                          const Posted& posted) {
  Messages messages(*this, gloo::kAllgatherSlotPrefix);
  for (const Tensor& t : tensors) {
    const int64_t part = t.part * element_bytes;
    const size_t memory = messages.AddMemory(t.target, part * world_size());
    messages.ForOthers([&](int other) {
      ForMessages(part, 1, [&](int64_t at, int64_t n) {
        messages.Receive(memory, other * part + at, n, other);
      });
    });
  }
  for (const Tensor& t : tensors) {
    messages.ForOthers([&](int other) {
      ForMessages(t.part * element_bytes, 1, [&](int64_t at, int64_t n) {
        messages.Send(static_cast<const char*>(t.source) + at, n, other);
      });
    });
  }
  posted();
  for (const Tensor& t : tensors) {
    const int64_t part = t.part * element_bytes;
    char* own = static_cast<char*>(t.target) + rank() * part;
    if (own != t.source) {
      std::memcpy(own, t.source, static_cast<size_t>(part));
    }
  }
  for (size_t memory = 0; memory < tensors.size(); ++memory) {
    messages.Await(memory);
  }
  messages.AwaitSent();
}

// Packs tensors rank by rank, so that each pair of ranks exchanges one piece.
void GlooExchange::ReducePacked(const Collective& c, const Posted& posted) {
  const int64_t size = ir::DTypeSize(c.dtype);
  const Tensors tensors(c.tensors, static_cast<size_t>(c.num_tensors));
  Scratch packed(*this, static_cast<size_t>(c.elements * size));
  char* next = packed.data();
  for (int r = 0; r < world_size(); ++r) {
    for (const Tensor& t : tensors) {
      const int64_t there = t.PartElements(r);
      const auto* source = static_cast<const char*>(t.source);
      std::memcpy(next, source + std::min(r * t.part, t.elements) * size,
                  static_cast<size_t>(there * size));
      ClearEnd(c, t, next, there);
      next += t.part * size;
    }
  }
  const Tensor all = InPlace(
      {.data = packed.data(), .elements = c.elements, .dtype = c.dtype});
  Reduce(c.dtype, {&all, 1}, posted);
  const char* sums = static_cast<const char*>(all.target);
  for (const Tensor& t : tensors) {
    std::memcpy(t.target, sums, static_cast<size_t>(t.part * size));
    sums += t.part * size;
  }
}

void GlooExchange::GatherPacked(const Collective& c, const Posted& posted) {
  const int64_t size = ir::DTypeSize(c.dtype);
  const Tensors tensors(c.tensors, static_cast<size_t>(c.num_tensors));
  const int64_t part = c.elements / world_size();
  Scratch packed(*this, static_cast<size_t>(c.elements * size));
  char* const own = packed.data() + rank() * part * size;
  char* next = own;
  for (const Tensor& t : tensors) {
    std::memcpy(next, t.source, static_cast<size_t>(t.part * size));
    next += t.part * size;
  }
  const Tensor all{
      .source = own, .target = packed.data(), .elements = part, .part = part};
  Gather(size, {&all, 1}, posted);
  const char* gathered = packed.data();
  for (int r = 0; r < world_size(); ++r) {
    for (const Tensor& t : tensors) {
      const int64_t bytes = t.part * size;
      std::memcpy(static_cast<char*>(t.target) + r * bytes, gathered,
                  static_cast<size_t>(bytes));
      gathered += bytes;
    }
  }
}

// Zeroes a shard beyond its first `there` elements.
void GlooExchange::ClearEnd(const Collective& c, const Tensor& t, char* part,
                            int64_t there) {
  const int64_t size = ir::DTypeSize(c.dtype);
  std::memset(part + there * size, 0,
              static_cast<size_t>((t.part - there) * size));
}

}  // namespace fusor::cpu
