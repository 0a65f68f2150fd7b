#include "tools/inspect/report/traffic.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "ir/target/cost.h"

namespace fusor::inspect {
namespace {

// Sums the loads and stores of one phase per loop.
class PhaseTraffic {
 public:
  PhaseTraffic(const codegen::Kernel& kernel, const codegen::Phase& phase)
      : kernel_(kernel) {
    open_ = phase.grid;
    Visit(phase.body);
  }

  std::vector<int64_t> Bytes() const {
    std::vector<int64_t> bytes(kernel_.buffers.size());
    for (const auto& [place, elements] : elements_) {
      const int b = std::get<1>(place);
      const codegen::KernelBuffer& buffer = kernel_.buffers[b];
      if (buffer.local) continue;
      const int64_t moved = std::min(elements, buffer.elements);
      bytes[b] += buffer.packed
                      ? ir::PackedBytes(moved)
                      : ir::TensorType{buffer.dtype, {moved}, {}}.num_bytes();
    }
    return bytes;
  }

 private:
  void Visit(const std::vector<codegen::Stmt>& body) {
    const int loop = loops_++;
    for (const codegen::Stmt& stmt : body) {
      switch (stmt.kind) {
        case codegen::StmtKind::kLoop:
        case codegen::StmtKind::kContract:
          open_.push_back(stmt.axis);
          Visit(stmt.body);
          open_.pop_back();
          break;
        case codegen::StmtKind::kGuard:
          Visit(stmt.body);
          break;
        case codegen::StmtKind::kLoad:
        case codegen::StmtKind::kGather:
          Add(loop, stmt, false, 1);
          break;
        case codegen::StmtKind::kStore:
          Add(loop, stmt, true, 1);
          break;
        case codegen::StmtKind::kStoreTile:
          Add(loop, stmt, true, static_cast<int64_t>(stmt.tile.order.size()));
          break;
        case codegen::StmtKind::kScatterAdd:
          Add(loop, stmt, false, 1);
          Add(loop, stmt, true, 1);
          break;
        default:
          break;
      }
    }
  }

  // Counts accesses in one loop with equal indices once. Each access by an
  // index in a register is of another element.
  void Add(int loop, const codegen::Stmt& stmt, bool store, int64_t elements) {
    if (!stmt.indexed.empty()) {
      for (const int axis : open_) elements *= kernel_.axes[axis].extent;
      elements_[{loop, stmt.buffer, store}] += elements;
      return;
    }
    for (const codegen::Index::Term& term : stmt.index.terms) {
      if (term.coefficient == 0) continue;
      if (std::find(open_.begin(), open_.end(), term.axis) != open_.end()) {
        elements *= kernel_.axes[term.axis].extent;
      }
    }
    const Place place{loop, stmt.buffer, store};
    auto& seen = indices_[place];
    if (std::find(seen.begin(), seen.end(), stmt.index) != seen.end()) return;
    seen.push_back(stmt.index);
    elements_[place] += elements;
  }

  using Place = std::tuple<int, int, bool>;  // loop, buffer, whether stored

  const codegen::Kernel& kernel_;
  std::vector<int> open_;  // axes of the enclosing loops
  int loops_ = 0;
  std::map<Place, std::vector<codegen::Index>> indices_;
  std::map<Place, int64_t> elements_;
};

// Returns the rows, or columns, of an image that windows of `kernel` touch.
int64_t Touched(int64_t extent, int64_t windows, int64_t kernel,
                int64_t stride) {
  return kernel >= stride ? extent : std::min(extent, windows * kernel);
}

}  // namespace

int64_t TrafficBytes(const codegen::Kernel& kernel) {
  int64_t bytes = 0;
  for (const codegen::Phase& phase : kernel.phases) {
    for (const int64_t part : TrafficByBuffer(kernel, phase)) bytes += part;
  }
  return bytes;
}

std::vector<int64_t> TrafficByBuffer(const codegen::Kernel& kernel,
                                     const codegen::Phase& phase) {
  return PhaseTraffic(kernel, phase).Bytes();
}

int64_t TrafficBytes(const codegen::LibraryCall& call) {
  int64_t bytes = 0;
  for (const auto* types : {&call.operands, &call.results}) {
    for (const ir::TensorType& type : *types) bytes += type.num_bytes();
  }
  const bool grad_weight = call.op == ir::OpKind::kConv2dGradWeight;
  // A data gradient is written completely.
  if (call.op != ir::OpKind::kConv2d && !grad_weight) return bytes;
  const ir::TensorType& x = call.operands[0];
  const ir::Shape& windows =
      (grad_weight ? call.operands[1] : call.results[0]).shape;
  const ir::Shape& weight =
      (grad_weight ? call.results[0] : call.operands[1]).shape;
  int64_t touched = x.shape[0] * x.shape[1];
  for (size_t d = 0; d < 2; ++d) {
    touched *= Touched(x.shape[2 + d], windows[2 + d], weight[2 + d],
                       call.attrs.Ints("stride")[d]);
  }
  return bytes - x.num_bytes() +
         ir::TensorType{x.dtype, {touched}, {}}.num_bytes();
}

int64_t TrafficBytes(const codegen::Plan& plan, const codegen::Step& step) {
  switch (step.kind) {
    case codegen::StepKind::kLaunch:
      return TrafficBytes(plan.kernels[step.index].kernel);
    case codegen::StepKind::kLibrary:
      return TrafficBytes(plan.calls[step.index]);
    case codegen::StepKind::kCollective:
      return 0;
  }
  return 0;
}

int64_t TrafficBytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  for (const codegen::Step& step : plan.steps)
    bytes += TrafficBytes(plan, step);
  return bytes;
}

}  // namespace fusor::inspect
