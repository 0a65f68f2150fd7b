// Chooses, for each matmul and 1x1 convolution, between the library and a
// generated kernel (contraction.h), which also computes
//
//   prologue   elementwise nodes that compute a factor, e.g. a normalisation
//              with ReLU, or a cast. Other readers of the factor compute it,
//              too, so all of them must be such kernels
//   epilogue   elementwise nodes that read the result, e.g. a bias, a residual
//              sum, a ReLU, or the cast of a gradient
//
// Estimates both: the library's time, and that of its neighbours' kernels for
// the bytes that they move, against the generated kernel's arithmetic. Values
// that general fusion would pass on inside a kernel save nothing: an epilogue
// takes no node whose result another fusible node reads at once.
//
// On a GPU, the layout pass chooses the generated kernels
// (kGeneratedAlgorithm). This pass only decides what they are fused with. If it
// chose one for a library fusion, the kernel computes all of that fusion, and
// may have a prologue.

#include <algorithm>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/integer_math.h"
#include "ir/support/str.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "passes/fusion/contraction.h"
#include "passes/fusion/outline.h"
#include "passes/passes.h"
#include "passes/simplify/dead_code.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

using NodeSet = std::unordered_set<const Node*>;

constexpr char kFuseContractionPass[] = "fuse_contraction";
// Maximum number of nodes of a prologue or an epilogue.
constexpr size_t kMaxJoined = 32;
// Values of at most this share of a factor's elements, e.g. the scales of
// channels, are computed once, not in the kernel.
constexpr int64_t kLoadedShare = 16;
// Slowdown of the interpreter, which runs what the library lacks.
constexpr int64_t kReferenceSlowness = 100;
// With vectors of 512 bits, the kernels are as fast as the library's, but what
// they save is not measurable in training steps.
constexpr int64_t kVectorBytes = 32;
// Arithmetic of the generated kernels relative to the library's, measured by
// tests/benchmarks/contractions (tests/results/contractions.md).
constexpr double kMatmulSpeed = 0.75;  // varies the most, with other load
constexpr double kForwardSpeed = 0.98;
constexpr double kDataSpeed = 0.90;
constexpr double kWeightSpeed = 1.10;
constexpr double kLargeWeightSpeed = 0.95;
constexpr int64_t kLargeWeightBytes = int64_t{1} << 22;
// Cycles of a prologue per vector instruction, including what loads and stores
// of packed rows delay.
constexpr int64_t kPrologueCycles = 1;
// FMAs per cycle of a CPU's peak rate.
constexpr int64_t kFmasPerCycle = 2;

bool IsElementwise(const Node& node) {
  return node.op().fusion == ir::FusionKind::kElementwise;
}

// Returns true for nodes that a kernel can compute per element of a factor.
bool MayJoin(const Node* node) {
  return node != nullptr && IsFusible(*node) &&
         node->op().fusion != ir::FusionKind::kReduce &&
         node->op().fusion != ir::FusionKind::kIndexed &&
         // Random numbers are drawn once, not by every reader.
         (node->op().fusion != ir::FusionKind::kSource ||
          node->num_inputs() == 0);
}

bool IsProduct(const Node& node) {
  return node.kind() == OpKind::kMatmul || ir::IsPlainConvolution(node);
}

double Speed(const Node& node) {
  if (node.kind() == OpKind::kMatmul) return kMatmulSpeed;
  if (node.kind() == OpKind::kConv2dGradInput) return kDataSpeed;
  if (node.kind() != OpKind::kConv2dGradWeight) return kForwardSpeed;
  return node.output()->type().num_bytes() < kLargeWeightBytes
             ? kWeightSpeed
             : kLargeWeightSpeed;
}

// Returns whether the layout pass chose a generated kernel for tensor cores.
bool IsChosen(const Node& node) {
  return ir::FitsTensorCores(node) &&
         ir::LibraryOp(node).attrs().String("algorithm") ==
             ir::kGeneratedAlgorithm;
}

// Returns whether vectors of the type's fastest dimension are channels, and
// full.
bool HasVectorsOfChannels(const ir::TensorType& type) {
  const ir::PhysicalAxis fastest = PhysicalAxes(type).back();
  return fastest.dim == 1 &&
         fastest.extent * ir::DTypeSize(ir::DType::kF32) % kVectorBytes == 0;
}

// Returns why the speeds above were not measured for such a node; empty if they
// were.
std::string NotMeasured(const Node& node) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value()) return "";
  const bool full =
      HasVectorsOfChannels(conv->x) && HasVectorsOfChannels(conv->y);
  return full ? "" : "its channels do not fill vectors";
}

// Nanoseconds of the multiply-accumulates at the target's peak.
int64_t ArithmeticNs(const Node& node, const ir::Target& target) {
  return static_cast<int64_t>(2.0 * static_cast<double>(ir::NodeMacs(node)) /
                              std::max(target.peak_gflops_f32, 1.0));
}

// A contraction and the nodes to fuse with it.
struct Region {
  Node* node = nullptr;
  Contraction contraction;
  // Nodes that compute factor i, and the value itself; null: it is loaded.
  NodeSet prologue[2];
  std::unordered_map<const Value*, ir::IndexMap> maps;  // of their values
  const Value* computed[2] = {};
  // For a library fusion, all of its nodes except the convolution.
  NodeSet epilogue;
  bool of_library_fusion = false;
  std::string rejected;  // why a factor has no prologue; may be empty
  int64_t library_ns = 0;
  int64_t plain_ns = 0;  // of the generated kernel without a prologue
  int64_t generated_ns = 0;
  int64_t epilogue_ns = 0;  // of the kernel that computes the epilogue
  int64_t saved_ns = 0;     // of the neighbours' kernels
  bool accepted = false;

  int64_t GainNs() const { return library_ns + saved_ns - generated_ns; }
};

class ContractionFusion {
 public:
  ContractionFusion(Graph& graph, PassContext& context)
      : graph_(graph), context_(context), target_(context.target().target()) {}

  bool Run() {
    bool changed = EraseDeadNodes(graph_);  // dead readers prevent fusion
    if (std::none_of(graph_.nodes().begin(), graph_.nodes().end(),
                     [&](const auto& node) { return IsConsidered(*node); })) {
      return changed;
    }
    changed |= DuplicateFreeNodes(graph_);
    changed |= InlineLibraryFusions();
    for (const auto& node : graph_.nodes()) {
      if (IsConsidered(*node)) Find(*node);
    }
    for (Region& region : regions_) {
      by_node_.emplace(region.node, &region);
      Estimate(region);
    }
    while (BanPrologues()) {
    }
    for (Region& region : regions_) {
      region.accepted = region.GainNs() > 0 || MustCompute(region) ||
                        region.of_library_fusion;
    }
    std::vector<OutlineRequest> requests;
    for (Region& region : regions_) {
      if (region.accepted &&
          !context_.ConsumeFuel(kFuseContractionPass, *region.node->output())) {
        region.accepted = false;
        region.generated_ns = 0;
        region.rejected = "out of fuel";
      }
      Record(region);
      if (region.accepted) requests.push_back(Request(region));
    }
    for (const OutlineRequest& request : requests) {
      Outline(graph_, {&request, 1});
    }
    return changed || !requests.empty();
  }

 private:
  bool IsConsidered(const Node& node) const {
    return target_.simt ? IsChosen(node) : IsProduct(node);
  }

  // Inlines the library fusions for which kernels were chosen.
  bool InlineLibraryFusions() {
    if (context_.options().eager_rounding) return false;
    std::vector<Node*> fusions;
    for (const auto& node : graph_.nodes()) {
      const bool fusion = ir::IsLibraryFusion(*node);
      if (fusion && IsConsidered(*node)) fusions.push_back(node.get());
    }
    if (fusions.empty()) return false;
    std::vector<std::vector<Node*>> inlined;
    for (Node* fusion : fusions) inlined.push_back(Inline(graph_, fusion));
    EraseDeadNodes(graph_);  // results that nothing reads
    NodeSet live;
    for (const auto& node : graph_.nodes()) live.insert(node.get());
    for (std::vector<Node*>& nodes : inlined) {
      std::erase_if(nodes, [&](Node* node) { return !live.contains(node); });
      const auto conv = std::find_if(
          nodes.begin(), nodes.end(),
          [](const Node* node) { return ir::IsPlainConvolution(*node); });
      if (conv == nodes.end()) continue;
      NodeSet& others = fused_[*conv];
      nodes.erase(conv);
      others.insert(nodes.begin(), nodes.end());
      fixed_.insert(nodes.begin(), nodes.end());
    }
    owned_ = fixed_;
    return true;
  }

  void Find(Node& node) {
    Region region{.node = &node};
    auto contraction = ContractionOf(node, &region.rejected);
    if (context_.options().eager_rounding) {
      region.rejected = "with eager rounding, fusion must not change sums";
    } else if (std::string reason = target_.simt ? "" : NotMeasured(node);
               contraction.has_value() && !reason.empty()) {
      region.rejected = std::move(reason);
    } else if (contraction.has_value()) {
      region.contraction = *std::move(contraction);
      contractions_.insert(&node);
      if (const auto fused = fused_.find(&node); fused != fused_.end()) {
        region.of_library_fusion = true;
        region.epilogue = fused->second;
      } else {
        AddEpilogue(region);
      }
      SetArithmetic(region);
      regions_.push_back(std::move(region));
      return;
    }
    Record(region);
  }

  // --- Decision -------------------------------------------------------------

  // Estimates the library's call, and the generated kernel without a prologue.
  void SetArithmetic(Region& region) {
    const Node& node = *region.node;
    if (target_.simt) {
      region.plain_ns = std::max(ir::DirectNs(node, target_),
                                 ir::KernelNs(ir::NodeBytes(node), target_));
      region.library_ns = region.plain_ns;  // it is generated in any case
      return;
    }
    const auto candidates = context_.target().Candidates(node);
    const int64_t arithmetic = ArithmeticNs(node, target_);
    const int64_t memory = ir::KernelNs(ir::NodeBytes(node), target_);
    region.library_ns = candidates.empty()
                            ? arithmetic * kReferenceSlowness
                            : std::max(candidates[0].modelled_ns, memory);
    region.plain_ns = std::max(
        static_cast<int64_t>(static_cast<double>(arithmetic) / Speed(node)),
        memory);
    const Contraction& contraction = region.contraction;
    if (!contraction.contiguous) {  // the factor is stored once more
      const ir::TensorType& factor =
          node.input(contraction.column_factor)->type();
      region.plain_ns += ir::KernelNs(2 * factor.num_bytes(), target_);
    }
  }

  // Sets the region's prologues and its estimates. Prefers both prologues, then
  // the first.
  void Estimate(Region& region) {
    std::string rejected;
    for (const unsigned factors : {0b11U, 0b01U, 0b10U, 0b00U}) {
      region.saved_ns = region.epilogue_ns;
      region.rejected = rejected;
      region.maps.clear();
      int64_t prologue_ns = 0;
      for (int i = 0; i < 2; ++i) {
        region.prologue[i].clear();
        region.computed[i] = nullptr;
        if ((factors >> i & 1) != 0) AddPrologue(region, i, &prologue_ns);
      }
      // On a GPU, some warps compute while others multiply or wait for memory.
      region.generated_ns = target_.simt
                                ? std::max(region.plain_ns, prologue_ns)
                                : region.plain_ns + prologue_ns;
      if (!HasOtherIndices(region)) return;
      rejected = "a value is read at different indices";
    }
  }

  // Returns true for values that all readers must compute, or none: a kernel of
  // its own is otherwise still needed.
  static bool IsShared(const Value* computed) {
    return computed != nullptr && !IsFree(*computed->producer());
  }
  static bool MustCompute(const Region& region) {
    return IsShared(region.computed[0]) || IsShared(region.computed[1]);
  }

  // Bans prologues that some reader cannot compute, or that are not worth while
  // for all readers together. Returns true if it banned any.
  bool BanPrologues() {
    const size_t before = banned_.size();
    for (Region& region : regions_) {
      for (int i = 0; i < 2; ++i) {
        const Value* value = region.computed[i];
        if (!IsShared(value)) continue;
        const std::vector<Region*> readers = Readers(*value);
        const int64_t with = Gain(readers);
        banned_.insert(value);
        for (Region* reader : readers) Estimate(*reader);
        if (readers.size() == value->uses().size() && with > Gain(readers)) {
          banned_.erase(value);
          for (Region* reader : readers) Estimate(*reader);
        }
      }
    }
    return banned_.size() > before;
  }

  // Returns the regions that compute the value, once per use.
  std::vector<Region*> Readers(const Value& value) const {
    std::vector<Region*> readers;
    for (const ir::Use& use : value.uses()) {
      Region* region = by_node_.at(use.node);
      if (region->computed[use.operand] == &value) readers.push_back(region);
    }
    return readers;
  }

  // Returns what the regions save. Without a prologue that they must compute,
  // the library's call is the alternative.
  static int64_t Gain(std::span<Region* const> regions) {
    int64_t gain = 0;
    for (const Region* region : regions) {
      gain += MustCompute(*region) ? region->GainNs()
                                   : std::max<int64_t>(0, region->GainNs());
    }
    return gain;
  }

  // --- Prologue -------------------------------------------------------------

  // Returns whether a kernel for tensor cores can load the value, read with
  // that map beside a tensor of type `whole`: all images' pixels are one axis,
  // so it reads all of them in the same order, or none. A matmul has no pixels.
  static bool KeepsPixelsTogether(const Region& region, const Value& value,
                                  const ir::IndexMap& map,
                                  const ir::TensorType& whole) {
    const ir::TensorType& type = value.type();
    if (type.shape == whole.shape && type.layout == whole.layout) return true;
    if (region.node->kind() == OpKind::kMatmul) return true;
    const ir::IndexMap& image = region.contraction.factors[0];
    const ir::Shape& extents = region.contraction.domain.extents;
    return std::ranges::none_of(map, [&](const ir::DimMap& dim) {
      return dim.dim >= 0 && extents[dim.dim] > 1 &&
             (dim.dim == image[0].dim || dim.dim == image[2].dim ||
              dim.dim == image[3].dim);
    });
  }

  // The same for what the epilogue reads, and for the free nodes that compute
  // it.
  static bool EpilogueKeepsPixels(const Region& region, const Value& value,
                                  const ir::IndexMap& map) {
    const Node* producer = value.producer();
    if (producer == nullptr || !IsFree(*producer)) {
      return KeepsPixelsTogether(region, value, map,
                                 region.node->output()->type());
    }
    for (size_t i = 0; i < producer->num_inputs(); ++i) {
      const auto operand = OperandMap(*producer, i, map);
      if (!operand.has_value() ||
          !EpilogueKeepsPixels(region, *producer->input(i), *operand)) {
        return false;
      }
    }
    return true;
  }

  // The nodes that compute a factor, and what they load.
  struct Producers {
    const Region& region;
    const ir::TensorType& factor;
    std::unordered_map<const Value*, ir::IndexMap>& maps;  // of the region
    NodeSet nodes{};
    std::unordered_set<const Value*> loaded{};
  };

  // Adds the nodes that compute the value, which is read with that map. Returns
  // why the value must be loaded instead; empty if the nodes can join.
  std::string Collect(const Value& value, const ir::IndexMap& map,
                      Producers& producers) const {
    const NodeSet& epilogue = producers.region.epilogue;
    const Node* node = value.producer();
    // Another kernel stores what its epilogue computes.
    const bool joins = MayJoin(node) && !owned_.contains(node);
    const bool small = value.type().num_elements() <
                       producers.factor.num_elements() / kLoadedShare;
    if (!joins || (small && !IsFree(*node))) {
      if (target_.simt && !KeepsPixelsTogether(producers.region, value, map,
                                               producers.factor)) {
        return "%" + value.name() + " differs between images or pixels";
      }
      producers.loaded.insert(&value);
      return "";
    }
    const auto [known, added] = producers.maps.emplace(&value, map);
    if (known->second != map ||
        std::any_of(
            value.uses().begin(), value.uses().end(),
            [&](const ir::Use& use) { return epilogue.contains(use.node); })) {
      return "%" + value.name() + " is read at different indices";
    }
    if (!added) return "";
    producers.nodes.insert(node);
    if (producers.nodes.size() > kMaxJoined) return "too many nodes";
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      const auto operand = OperandMap(*node, i, map);
      if (!operand.has_value()) {
        return "%" + value.name() + " has no common loop nest";
      }
      std::string reason = Collect(*node->input(i), *operand, producers);
      if (!reason.empty()) return reason;
    }
    return "";
  }

  bool AllReadersAreContractions(const Value& value) const {
    return !graph_.IsOutput(&value) &&
           std::all_of(value.uses().begin(), value.uses().end(),
                       [&](const ir::Use& use) {
                         return contractions_.contains(use.node) &&
                                use.operand < 2;
                       });
  }

  // Returns true if a value of the prologues is read at other indices, too,
  // e.g. by the other factor.
  static bool HasOtherIndices(const Region& region) {
    const auto differs = [&](const Value* value, const ir::IndexMap& map) {
      const auto known = region.maps.find(value);
      return known != region.maps.end() && known->second != map;
    };
    const Node& node = *region.node;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      const bool bias = i == 2;
      if (differs(node.input(i), bias ? region.contraction.bias
                                      : region.contraction.factors[i])) {
        return true;
      }
    }
    return std::any_of(
        region.maps.begin(), region.maps.end(), [&](const auto& read) {
          const Node& producer = *read.first->producer();
          for (size_t i = 0; i < producer.num_inputs(); ++i) {
            const auto operand = OperandMap(producer, i, read.second);
            if (operand.has_value() && differs(producer.input(i), *operand)) {
              return true;
            }
          }
          return false;
        });
  }

  // Returns the tiles of a kernel for tensor cores along a factor.
  int64_t NumTiles(const Contraction& contraction, int factor) const {
    const int64_t extent = contraction.FreeExtent(factor);
    return CeilDiv(extent, factor == contraction.column_factor
                               ? ir::TensorCoreTileColumns(extent, target_)
                               : ir::TensorCoreTileRows(extent));
  }

  void AddPrologue(Region& region, int factor, int64_t* prologue_ns) {
    const Value& value = *region.node->input(factor);
    if (!MayJoin(value.producer()) || owned_.contains(value.producer())) {
      return;
    }
    const int64_t bytes = value.type().num_bytes();
    auto maps = region.maps;
    Producers producers{region, value.type(), maps};
    std::string reason;
    if (banned_.contains(&value)) {
      reason = "%" + value.name() + " is cheaper to load";
    } else if (!AllReadersAreContractions(value)) {
      reason = "%" + value.name() + " has other readers";
    } else if (!target_.simt && factor == region.contraction.column_factor &&
               bytes > target_.l2_bytes) {
      reason = "%" + value.name() + " would be stored to be packed";
    } else {
      reason = Collect(value, region.contraction.factors[factor], producers);
    }
    if (!reason.empty()) {
      region.rejected = reason;
      return;
    }
    region.maps = maps;
    const NodeSet& nodes = producers.nodes;
    region.prologue[factor] = nodes;
    region.computed[factor] = &value;
    // The kernel that this saves writes the value and reads the others. This
    // kernel then reads the others instead of the value.
    int64_t read = 0;
    for (const Value* input : producers.loaded) {
      read += ir::KernelBytes(input->type());
    }
    const auto readers = static_cast<int64_t>(value.uses().size());
    region.saved_ns +=
        (ir::KernelNs(bytes + read, target_)) / readers +
        (ir::KernelNs(bytes, target_) - ir::KernelNs(read, target_));
    const auto operations =
        2 + std::count_if(nodes.begin(), nodes.end(), [](const Node* node) {
          return IsElementwise(*node);
        });
    // On a GPU, each tile along the other factor computes it again.
    const int64_t times =
        target_.simt ? NumTiles(region.contraction, 1 - factor) : 1;
    const int64_t fmas = target_.simt ? 1 : kFmasPerCycle;
    *prologue_ns += static_cast<int64_t>(
        2 * fmas * kPrologueCycles *
        static_cast<double>(value.type().num_elements() * operations * times) /
        std::max(target_.peak_gflops_f32, 1.0));
  }

  // --- Epilogue -------------------------------------------------------------

  // Adds the elementwise nodes that depend on the result alone, besides values
  // that exist before it, and removes those whose results general fusion would
  // pass on inside a kernel.
  void AddEpilogue(Region& region) {
    const ir::TensorType& type = region.node->output()->type();
    const auto& all = graph_.nodes();
    // By position: nodes that depend on the result, and those of them that wait
    // for a node that cannot join.
    std::vector<bool> after(all.size(), false);
    std::vector<bool> beyond(all.size(), false);
    after[region.node->position()] = true;
    const auto in = [](const std::vector<bool>& set, const Value* value) {
      return value->producer() != nullptr && set[value->producer()->position()];
    };
    const ir::IndexMap& map =
        region.contraction.domain.maps.at(region.node->output());
    for (size_t p = region.node->position() + 1; p < all.size(); ++p) {
      const Node& reader = *all[p];
      bool joins = IsElementwise(reader) && !owned_.contains(&reader) &&
                   region.epilogue.size() < kMaxJoined &&
                   reader.output()->type().shape == type.shape &&
                   reader.output()->type().layout == type.layout;
      for (const Value* input : reader.inputs()) {
        if (!in(after, input)) {
          joins = joins &&
                  (!target_.simt || EpilogueKeepsPixels(region, *input, map));
          continue;
        }
        after[p] = true;
        if (in(beyond, input)) beyond[p] = true;
        joins &= input->producer() == region.node ||
                 region.epilogue.contains(input->producer());
      }
      if (!after[p]) continue;
      if (!IsFusible(reader) || fixed_.contains(&reader)) beyond[p] = true;
      if (joins) region.epilogue.insert(&reader);
    }
    Prune(region, after, beyond);
    owned_.insert(region.epilogue.begin(), region.epilogue.end());
    if (region.epilogue.empty()) return;
    const Value& result = *region.node->output();
    const int64_t bytes = ir::KernelBytes(result.type());
    const bool stored = IsReadOutside(result, region.epilogue);
    region.epilogue_ns = ir::KernelNs((stored ? 1 : 2) * bytes, target_);
  }

  bool IsReadOutside(const Value& value, const NodeSet& nodes) const {
    return graph_.IsOutput(&value) ||
           std::any_of(
               value.uses().begin(), value.uses().end(),
               [&](const ir::Use& use) { return !nodes.contains(use.node); });
  }

  // Removes nodes whose results fusible nodes outside read at once, i.e.
  // without waiting for a node of `beyond`, and nodes that read removed ones.
  void Prune(Region& region, const std::vector<bool>& after,
             const std::vector<bool>& beyond) const {
    NodeSet& nodes = region.epilogue;
    const auto is_removed = [&](const Value* input) {
      const Node* producer = input->producer();
      return producer != nullptr && producer != region.node &&
             after[producer->position()] && !nodes.contains(producer);
    };
    const auto passed_on = [&](const ir::Use& use) {
      return !nodes.contains(use.node) && IsFusible(*use.node) &&
             !fixed_.contains(use.node) && !beyond[use.node->position()];
    };
    size_t before = 0;
    do {
      before = nodes.size();
      std::erase_if(nodes, [&](const Node* node) {
        const auto& inputs = node->inputs();
        const auto& uses = node->output()->uses();
        return std::any_of(inputs.begin(), inputs.end(), is_removed) ||
               std::any_of(uses.begin(), uses.end(), passed_on);
      });
    } while (nodes.size() < before);
  }

  // --- Result ---------------------------------------------------------------

  OutlineRequest Request(const Region& region) const {
    OutlineRequest request{.location = region.node->location()};
    NodeSet members = region.epilogue;
    members.insert(region.node);
    for (const NodeSet& nodes : region.prologue) {
      members.insert(nodes.begin(), nodes.end());
    }
    AddFreeOperands(region, members);
    for (const auto& node : graph_.nodes()) {
      if (!members.contains(node.get())) continue;
      request.members.push_back(node.get());
      if (node.get() != region.node && !region.epilogue.contains(node.get())) {
        continue;
      }
      if (IsReadOutside(*node->output(), members)) {
        request.results.push_back(node->output());
      }
    }
    return request;
  }

  // Adds broadcasts and constants that the epilogue reads.
  void AddFreeOperands(const Region& region, NodeSet& members) const {
    std::vector<const Node*> open(region.epilogue.begin(),
                                  region.epilogue.end());
    while (!open.empty()) {
      const Node* node = open.back();
      open.pop_back();
      for (const Value* input : node->inputs()) {
        const Node* producer = input->producer();
        if (producer != nullptr && IsFree(*producer) &&
            !owned_.contains(producer) && members.insert(producer).second) {
          open.push_back(producer);
        }
      }
    }
  }

  void Record(const Region& region) {
    std::vector<std::string> parts;
    if (!region.prologue[0].empty() || !region.prologue[1].empty()) {
      parts.emplace_back("producers");
    }
    if (!region.epilogue.empty()) parts.emplace_back("consumers");
    std::string reason =
        parts.empty()
            ? "one kernel"
            : "one kernel with " +
                  Join(parts, ", ", [](const auto& part) { return part; });
    if (!region.accepted) {
      reason = region.generated_ns == 0 ? region.rejected
               : target_.simt           ? "it is fused with nothing"
                              : "the library is estimated to be faster";
      if (region.generated_ns > 0 && !region.rejected.empty()) {
        reason += "; " + region.rejected;
      }
    } else {
      auto& counters = context_.counters();
      ++counters["contractions"];
      counters["contraction_prologues"] +=
          (region.computed[0] != nullptr ? 1 : 0) +
          (region.computed[1] != nullptr ? 1 : 0);
      counters["contraction_epilogues"] += region.epilogue.empty() ? 0 : 1;
    }
    context_.Record({.pass = kFuseContractionPass,
                     .subject = region.node->output()->name(),
                     .accepted = region.accepted,
                     .reason = std::move(reason),
                     .saved_ns = region.generated_ns > 0 ? region.GainNs() : 0,
                     .modelled_ns = region.generated_ns,
                     .location = region.node->location()});
  }

  Graph& graph_;
  PassContext& context_;
  const ir::Target& target_;
  std::vector<Region> regions_;
  std::unordered_map<const Node*, Region*> by_node_;
  NodeSet contractions_;
  NodeSet owned_;                                   // nodes of all epilogues
  std::unordered_map<const Node*, NodeSet> fused_;  // of library fusions
  NodeSet fixed_;                                   // all nodes of these
  std::unordered_set<const Value*> banned_;  // prologues that are not shared
};

}  // namespace

bool FuseContraction(Graph& graph, PassContext& context) {
  const ir::Target& target = context.target().target();
  const bool considers =
      target.simt
          ? std::ranges::any_of(
                graph.nodes(), [](const auto& node) { return IsChosen(*node); })
          : target.vector_bytes == kVectorBytes;
  return considers && ContractionFusion(graph, context).Run();
}

}  // namespace fusor::passes
