#include "codegen/plan/memory_planner.h"

#include <algorithm>
#include <numeric>

#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

// Bytes with one live range, at a fixed offset in their block.
struct Piece {
  int64_t offset;  // in the block; once placed, in the arena
  int64_t bytes;   // padded
  int first;
  int last;

  int64_t end() const { return offset + bytes; }
};

// The unit of placement: the storage that a chain of in-place items shares, or
// a group of these storages.
struct Block {
  std::vector<Piece> pieces;
  int64_t bytes = 0;
  int first = 0;
  int last = 0;
  int64_t area = 0;  // bytes x steps, summed over the pieces
};

struct Problem {
  std::vector<Block> blocks;
  std::vector<int> block_of;       // item -> block
  std::vector<int64_t> offset_in;  // item -> offset in its block
  size_t num_pieces = 0;
  int64_t lower_bound = 0;
};

struct Placement {
  std::vector<int64_t> offsets;  // of blocks
  int64_t peak = 0;
};

// Returns whether less memory is not worth the time to search for it.
bool IsNearLowerBound(const Problem& problem, int64_t peak) {
  return peak - problem.lower_bound <= problem.lower_bound / 1000;
}

void Validate(const MemoryRequest& request) {
  const auto n = static_cast<int>(request.items.size());
  for (int i = 0; i < n; ++i) {
    const MemoryItem& item = request.items[i];
    FUSOR_ASSERT(item.bytes > 0 && item.first >= 0 && item.first <= item.last,
                 "memory item {}: {} bytes, steps {} to {}", i, item.bytes,
                 item.first, item.last);
    for (int donor : item.in_place) {
      FUSOR_ASSERT(donor >= 0 && donor < n && donor != i,
                   "memory item {}: in place of {}, of {} items", i, donor, n);
    }
  }
  std::vector<bool> grouped(n, false);
  for (const std::vector<int>& group : request.groups) {
    for (int i : group) {
      FUSOR_ASSERT(i >= 0 && i < n && !grouped[i],
                   "memory item {} of {} is in two groups or none", i, n);
      grouped[i] = true;
    }
  }
}

// Returns for each item the first item of its in-place chain.
std::vector<int> ShareStorage(const MemoryRequest& request) {
  const size_t n = request.items.size();
  std::vector<bool> grouped(n, false);
  for (const std::vector<int>& group : request.groups) {
    for (int i : group) grouped[i] = true;
  }
  std::vector<int> storage(n);
  std::iota(storage.begin(), storage.end(), 0);
  std::vector<bool> taken(n, false);
  // Visits items in the order of their first steps, so that a donor's storage
  // is final when another item reuses it.
  std::vector<int> order = storage;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return request.items[a].first < request.items[b].first;
  });
  for (int i : order) {
    const MemoryItem& item = request.items[i];
    for (int donor : item.in_place) {
      const MemoryItem& other = request.items[donor];
      const int root = storage[donor];
      // The storage of a donor that starts at the same step may not be final.
      if (taken[donor] || other.last != item.first ||
          other.first == item.first ||
          PadToAlignment(other.bytes) != PadToAlignment(item.bytes) ||
          (grouped[root] && grouped[i])) {
        continue;
      }
      taken[donor] = true;
      storage[i] = root;
      if (grouped[i]) grouped[root] = true;
      break;
    }
  }
  return storage;
}

void AddPiece(Block& block, const Piece& piece) {
  block.first =
      block.pieces.empty() ? piece.first : std::min(block.first, piece.first);
  block.last =
      block.pieces.empty() ? piece.last : std::max(block.last, piece.last);
  block.bytes = std::max(block.bytes, piece.end());
  block.area += piece.bytes * (piece.last - piece.first + 1);
  block.pieces.push_back(piece);
}

int64_t LowerBound(const std::vector<Block>& blocks) {
  int steps = 0;
  for (const Block& block : blocks) steps = std::max(steps, block.last + 1);
  std::vector<int64_t> change(steps + 1, 0);
  for (const Block& block : blocks) {
    for (const Piece& piece : block.pieces) {
      change[piece.first] += piece.bytes;
      change[piece.last + 1] -= piece.bytes;
    }
  }
  int64_t live = 0;
  int64_t most = 0;
  for (int64_t bytes : change) most = std::max(most, live += bytes);
  return most;
}

Problem MakeProblem(const MemoryRequest& request) {
  const size_t n = request.items.size();
  const std::vector<int> storage = ShareStorage(request);
  // A storage is live from the start to the end of its chain, without gaps.
  std::vector<Piece> pieces(n);
  for (size_t i = 0; i < n; ++i) {
    const MemoryItem& item = request.items[i];
    Piece& piece = pieces[storage[i]];
    if (piece.bytes == 0) {
      piece = {0, PadToAlignment(item.bytes), item.first, item.last};
    }
    piece.first = std::min(piece.first, item.first);
    piece.last = std::max(piece.last, item.last);
  }
  Problem problem;
  std::vector<int> block_of(n, -1);  // storage -> block
  std::vector<int64_t> offset_in(n, 0);
  for (const std::vector<int>& group : request.groups) {
    if (group.empty()) continue;
    Block block;
    for (int i : group) {
      const int root = storage[i];
      block_of[root] = static_cast<int>(problem.blocks.size());
      offset_in[root] = block.bytes;
      pieces[root].offset = block.bytes;
      AddPiece(block, pieces[root]);
    }
    problem.blocks.push_back(std::move(block));
  }
  for (size_t i = 0; i < n; ++i) {
    const int root = storage[i];
    if (block_of[root] < 0) {
      block_of[root] = static_cast<int>(problem.blocks.size());
      problem.blocks.emplace_back();
      AddPiece(problem.blocks.back(), pieces[root]);
    }
    problem.block_of.push_back(block_of[root]);
    problem.offset_in.push_back(offset_in[root]);
  }
  for (const Block& block : problem.blocks) {
    problem.num_pieces += block.pieces.size();
  }
  problem.lower_bound = LowerBound(problem.blocks);
  return problem;
}

enum class Fit : uint8_t { kFirst, kBest };

// The arena during placement. Keeps placed pieces sorted by offset.
class ArenaPlacement {
 public:
  explicit ArenaPlacement(size_t pieces) : meeting_(pieces) {
    placed_.reserve(pieces);
    lives_.reserve(pieces);
  }

  int64_t Place(const Block& block, Fit fit) {
    const int64_t base = block.pieces.size() == 1
                             ? FindForPiece(block.pieces[0], fit)
                             : FindForGroup(block);
    for (Piece piece : block.pieces) {
      piece.offset += base;
      const auto at = std::upper_bound(
          placed_.begin(), placed_.end(), piece,
          [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
      lives_.insert(lives_.begin() + (at - placed_.begin()),
                    {piece.first, piece.last});
      placed_.insert(at, piece);
    }
    return base;
  }

 private:
  struct Life {
    int first;
    int last;
  };

  // Stores in meeting_ the placed pieces whose live ranges overlap that of
  // `piece`, by offset, and returns their number. Branch-free, because the
  // planner spends nearly all its time here.
  size_t CollectMeeting(const Piece& piece) {
    size_t count = 0;
    for (size_t i = 0; i < lives_.size(); ++i) {
      meeting_[count] = static_cast<int>(i);
      count += static_cast<size_t>(lives_[i].first <= piece.last) &
               static_cast<size_t>(piece.first <= lives_[i].last);
    }
    return count;
  }

  // Returns the offset of the lowest (kFirst) or smallest (kBest) gap between
  // pieces that are live at the same time, or the end of all of them if no gap
  // fits.
  int64_t FindForPiece(const Piece& piece, Fit fit) {
    const size_t count = CollectMeeting(piece);
    int64_t free_from = 0;
    int64_t best = -1;
    int64_t best_gap = 0;
    for (size_t k = 0; k < count; ++k) {
      const Piece& other = placed_[meeting_[k]];
      const int64_t gap = other.offset - free_from;
      if (gap >= piece.bytes && (best < 0 || gap < best_gap)) {
        best = free_from;
        best_gap = gap;
        if (fit == Fit::kFirst) return best;
      }
      free_from = std::max(free_from, other.end());
    }
    return best < 0 ? free_from : best;
  }

  // Returns the lowest base at which no piece of the group conflicts with a
  // placed one.
  int64_t FindForGroup(const Block& block) {
    std::vector<std::pair<int64_t, int64_t>> taken;  // open intervals of bases
    for (const Piece& piece : block.pieces) {
      const size_t count = CollectMeeting(piece);
      const size_t begin = taken.size();
      for (size_t k = 0; k < count; ++k) {
        const Piece& other = placed_[meeting_[k]];
        const int64_t low = other.offset - piece.end();
        const int64_t high = other.end() - piece.offset;
        // Intervals of one piece are sorted, so most merge with the previous.
        if (taken.size() > begin && low < taken.back().second) {
          taken.back().second = std::max(taken.back().second, high);
        } else if (high > 0) {
          taken.emplace_back(low, high);
        }
      }
    }
    std::sort(taken.begin(), taken.end());
    int64_t base = 0;
    for (const auto& [low, high] : taken) {
      if (low >= base) break;
      base = std::max(base, high);
    }
    return base;
  }

  std::vector<Piece> placed_;
  std::vector<Life> lives_;  // of placed_
  std::vector<int> meeting_;
};

Placement PlaceInOrder(const Problem& problem, const std::vector<int>& order,
                       Fit fit) {
  ArenaPlacement arena(problem.num_pieces);
  Placement placement;
  placement.offsets.resize(problem.blocks.size());
  for (int i : order) {
    const Block& block = problem.blocks[i];
    placement.offsets[i] = arena.Place(block, fit);
    placement.peak =
        std::max(placement.peak, placement.offsets[i] + block.bytes);
  }
  return placement;
}

struct Heuristic {
  const char* name;
  bool (*before)(const Block& a, const Block& b);
};

constexpr Heuristic kHeuristics[] = {
    {"size",
     [](const Block& a, const Block& b) {
       return a.bytes != b.bytes ? a.bytes > b.bytes : a.area > b.area;
     }},
    {"area",
     [](const Block& a, const Block& b) {
       return a.area != b.area ? a.area > b.area : a.bytes > b.bytes;
     }},
    {"lifetime",
     [](const Block& a, const Block& b) {
       const int la = a.last - a.first;
       const int lb = b.last - b.first;
       return la != lb ? la > lb : a.bytes > b.bytes;
     }},
    {"timeline",
     [](const Block& a, const Block& b) {
       return a.first != b.first ? a.first < b.first : a.bytes > b.bytes;
     }},
    {"reverse timeline",
     [](const Block& a, const Block& b) {
       return a.last != b.last ? a.last > b.last : a.bytes > b.bytes;
     }},
};

// A placement with the order and fit that produced it.
struct Attempt {
  Placement placement;
  std::vector<int> order;
  Fit fit = Fit::kFirst;
  std::string name;
};

// Returns the placements of all heuristics, the best first. If one is near the
// lower bound, returns only that one.
std::vector<Attempt> Race(const Problem& problem) {
  std::vector<Attempt> attempts;
  for (const Heuristic& heuristic : kHeuristics) {
    std::vector<int> order(problem.blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return heuristic.before(problem.blocks[a], problem.blocks[b]);
    });
    for (Fit fit : {Fit::kFirst, Fit::kBest}) {
      attempts.push_back({PlaceInOrder(problem, order, fit), order, fit,
                          fmt::format("{}, {} fit", heuristic.name,
                                      fit == Fit::kFirst ? "first" : "best")});
      if (IsNearLowerBound(problem, attempts.back().placement.peak)) {
        return {std::move(attempts.back())};
      }
    }
  }
  std::stable_sort(attempts.begin(), attempts.end(),
                   [](const Attempt& a, const Attempt& b) {
                     return a.placement.peak < b.placement.peak;
                   });
  return attempts;
}

// Each round moves the block that reaches the peak to an earlier position in
// the order. Keeps the best placement, and continues also from a worse one.
void Improve(const Problem& problem, int64_t rounds, Attempt& best) {
  std::vector<int> order = best.order;
  Placement current = best.placement;
  for (int64_t round = 0; round < rounds; ++round) {
    if (IsNearLowerBound(problem, best.placement.peak)) return;
    // The last block in the order that ends at the peak.
    auto top = std::find_if(order.rbegin(), order.rend(), [&](int i) {
      return current.offsets[i] + problem.blocks[i].bytes == current.peak;
    });
    const auto position = static_cast<int64_t>(order.rend() - top) - 1;
    if (position == 0) return;
    // Alternates between the front and half of its position.
    const int64_t target = round % 2 == 0 ? 0 : position / 2;
    std::rotate(order.begin() + target, order.begin() + position,
                order.begin() + position + 1);
    current = PlaceInOrder(problem, order, best.fit);
    if (current.peak < best.placement.peak) best.placement = current;
  }
}

// Improves the best attempt first, then the others until the work budget is
// used up. Returns the best.
Attempt ImproveBest(const Problem& problem, std::vector<Attempt> attempts) {
  constexpr int64_t kRounds = 200;  // per attempt
  const auto n = static_cast<int64_t>(problem.blocks.size());
  int64_t left = 50'000'000 / std::max<int64_t>(1, n * n);
  Attempt* best = attempts.data();
  for (Attempt& attempt : attempts) {
    const int64_t rounds = std::min(kRounds, left);
    left -= rounds;
    Improve(problem, rounds, attempt);
    if (attempt.placement.peak < best->placement.peak) best = &attempt;
    if (IsNearLowerBound(problem, best->placement.peak)) break;
  }
  return std::move(*best);
}

}  // namespace

MemoryPlan PlanMemory(const MemoryRequest& request) {
  Validate(request);
  MemoryPlan plan;
  if (request.items.empty()) return plan;
  const Problem problem = MakeProblem(request);
  const Attempt best = ImproveBest(problem, Race(problem));
  plan.peak_bytes = best.placement.peak;
  plan.lower_bound_bytes = problem.lower_bound;
  plan.heuristic = best.name;
  for (size_t i = 0; i < request.items.size(); ++i) {
    plan.offsets.push_back(best.placement.offsets[problem.block_of[i]] +
                           problem.offset_in[i]);
  }
  return plan;
}

}  // namespace fusor::codegen
