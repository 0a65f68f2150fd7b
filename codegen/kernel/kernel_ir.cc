#include "codegen/kernel/kernel_ir.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/integer_math.h"
#include "ir/support/str.h"
#include "ir/target/cost.h"

namespace fusor::codegen {
namespace {

std::string_view KindName(StmtKind kind) {
  switch (kind) {
    case StmtKind::kLoop:
      return "loop";
    case StmtKind::kConstant:
      return "constant";
    case StmtKind::kLoad:
      return "load";
    case StmtKind::kStore:
      return "store";
    case StmtKind::kIndexValue:
      return "index";
    case StmtKind::kRandom:
      return "random";
    case StmtKind::kCompute:
      return "compute";
    case StmtKind::kInit:
      return "init";
    case StmtKind::kAccumulate:
      return "accumulate";
    case StmtKind::kReduceLanes:
      return "reduce_lanes";
    case StmtKind::kStoreTile:
      return "store_tile";
    case StmtKind::kGather:
      return "gather";
    case StmtKind::kScatterAdd:
      return "scatter_add";
    case StmtKind::kReduceBlock:
      return "reduce_block";
    case StmtKind::kContract:
      return "contract";
    case StmtKind::kDot:
      return "dot";
    case StmtKind::kStoreMatrix:
      return "store_matrix";
    case StmtKind::kBarrier:
      return "barrier";
    case StmtKind::kGuard:
      return "guard";
  }
  FUSOR_ASSERT(false, "statement kind {}", static_cast<int>(kind));
}

std::string PrintIndex(const Index& index) {
  std::string out = std::to_string(index.offset);
  for (const Index::Term& term : index.terms) {
    out += fmt::format(" + {}*a{}", term.coefficient, term.axis);
  }
  return out;
}

std::string PrintSources(const Stmt& stmt, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) {
    out += fmt::format("{}r{}", i == 0 ? "" : ", ", stmt.src[i]);
  }
  return out;
}

std::string PrintTile(const Stmt& stmt) {
  const auto number = [](int i) { return std::to_string(i); };
  const TileStore& tile = stmt.tile;
  return fmt::format(
      "store_tile b{}[{}] runs of {} at {}, {}, order {}", stmt.buffer,
      PrintIndex(stmt.index), tile.run, tile.stride,
      Join(tile.sources, " ", [](int r) { return fmt::format("r{}", r); }),
      Join(tile.order, " ", number));
}

std::string PrintTileAxes(const Register& reg) {
  if (reg.tile.empty()) return "";
  return fmt::format(" tile=({})", Join(reg.tile, ", ", [](int a) {
                       return fmt::format("a{}", a);
                     }));
}

std::string PrintIndexed(const Stmt& stmt) {
  std::string out = fmt::format("b{}[{}", stmt.buffer, PrintIndex(stmt.index));
  for (const IndexedTerm& term : stmt.indexed) {
    out += fmt::format(" + {}*r{}<{}", term.stride, term.reg, term.extent);
  }
  return out + "]";
}

std::string PrintGuard(const Stmt& stmt) {
  const std::string bounds = Join(stmt.bounds, ", ", [](const Bound& bound) {
    return fmt::format("{} < {}", PrintIndex(bound.index), bound.extent);
  });
  return fmt::format("guard {}{}:", bounds,
                     stmt.dst < 0 ? "" : fmt::format(": r{}", stmt.src[0]));
}

std::string PrintDot(const Dot& dot) {
  std::string out = "dot";
  for (const Dot::Factor& factor : dot.factors) {
    out += fmt::format(" b{}[{}]{},", factor.buffer, factor.offset,
                       factor.depth_major ? " depth-major" : "");
  }
  return out + fmt::format(" depth {}", dot.depth);
}

// Returns the text after "dst = "; for loops and stores, the whole line.
std::string PrintRight(const Stmt& stmt) {
  switch (stmt.kind) {
    case StmtKind::kLoop:
      return fmt::format("loop a{}{}:", stmt.axis,
                         stmt.descending ? " descending" : "");
    case StmtKind::kConstant:
      // Hexadecimal: exact, and distinguishes -0.0 from 0.0.
      return fmt::format("constant {:a}", stmt.constant);
    case StmtKind::kLoad:
      return fmt::format("load b{}[{}]{}", stmt.buffer, PrintIndex(stmt.index),
                         stmt.streamed ? " streamed" : "");
    case StmtKind::kStore:
      return fmt::format("store b{}[{}], r{}{}", stmt.buffer,
                         PrintIndex(stmt.index), stmt.src[0],
                         stmt.streamed ? " streamed" : "");
    case StmtKind::kIndexValue:
      return fmt::format("index {}", PrintIndex(stmt.index));
    case StmtKind::kRandom:
      return fmt::format("random key=r{} step=r{} site={} rank={} [{}]",
                         stmt.src[0], stmt.src[1], stmt.site, stmt.rank,
                         PrintIndex(stmt.index));
    case StmtKind::kCompute:
      return fmt::format("{} {}", ir::ScalarOpName(stmt.op),
                         PrintSources(stmt, ir::ScalarArity(stmt.op)));
    case StmtKind::kInit:
      return fmt::format("init {}", ir::ScalarOpName(stmt.op));
    case StmtKind::kAccumulate:
    case StmtKind::kReduceLanes:
    case StmtKind::kReduceBlock:
      return fmt::format("{} {} r{}", KindName(stmt.kind),
                         ir::ScalarOpName(stmt.op), stmt.src[0]);
    case StmtKind::kStoreTile:
      return PrintTile(stmt);
    case StmtKind::kGather:
      return "gather " + PrintIndexed(stmt);
    case StmtKind::kScatterAdd:
      return fmt::format("scatter_add {}, r{}", PrintIndexed(stmt),
                         stmt.src[0]);
    case StmtKind::kContract:
      return fmt::format("contract a{}: r{} * r{}", stmt.axis, stmt.src[0],
                         stmt.src[1]);
    case StmtKind::kDot:
      return PrintDot(stmt.dot);
    case StmtKind::kStoreMatrix:
      return fmt::format("store_matrix b{}[{}] stride {}, r{}", stmt.buffer,
                         PrintIndex(stmt.index), stmt.stride, stmt.src[0]);
    case StmtKind::kBarrier:
      return "barrier";
    case StmtKind::kGuard:
      return PrintGuard(stmt);
  }
  FUSOR_ASSERT(false, "statement kind {}", static_cast<int>(stmt.kind));
}

// Returns "  // %VALUE" after a statement that sets a register of that value.
std::string PrintValue(const Stmt& stmt, const Kernel& kernel) {
  const bool known = stmt.dst >= 0 && !kernel.registers[stmt.dst].value.empty();
  return known ? "  // %" + kernel.registers[stmt.dst].value : "";
}

void PrintBody(const Kernel& kernel, const std::vector<Stmt>& body, int depth,
               bool identity, std::string& out) {
  for (const Stmt& stmt : body) {
    out.append(static_cast<size_t>(2 * depth), ' ');
    out += Print(stmt);
    if (!identity) out += PrintValue(stmt, kernel);
    out += '\n';
    PrintBody(kernel, stmt.body, depth + 1, identity, out);
  }
}

std::string PrintHeader(const Kernel& kernel, bool identity) {
  std::string out = fmt::format(
      "kernel{} lanes={}{} contract={}\n", identity ? "" : " " + kernel.name,
      kernel.lanes, kernel.width == 0 ? "" : fmt::format("/{}", kernel.width),
      kernel.contract ? "on" : "off");
  for (size_t i = 0; i < kernel.buffers.size(); ++i) {
    const KernelBuffer& buffer = kernel.buffers[i];
    out += fmt::format(
        "  b{} {}[{}]{}{}{}{}{}{}\n", i, ir::DTypeName(buffer.dtype),
        buffer.elements, buffer.packed ? " packed" : "",
        buffer.written ? " written" : "", buffer.scratch ? " scratch" : "",
        buffer.local ? " local" : "",
        buffer.shares < 0 ? "" : fmt::format(" shares b{}", buffer.shares),
        identity ? "" : " " + buffer.name);
  }
  for (size_t i = 0; i < kernel.axes.size(); ++i) {
    const Axis& axis = kernel.axes[i];
    out += fmt::format("  a{} {}{}{}{}\n", i, axis.extent,
                       axis.vector ? " vector" : "", axis.block ? " block" : "",
                       identity ? "" : " " + axis.name);
  }
  for (size_t i = 0; i < kernel.registers.size(); ++i) {
    const Register& reg = kernel.registers[i];
    out += fmt::format(
        "  r{} {}{}{}{}\n", i, ir::DTypeName(reg.dtype),
        reg.vector ? " vector" : "", PrintTileAxes(reg),
        reg.rows == 0 ? ""
                      : fmt::format(" matrix {}x{}", reg.rows, reg.columns));
  }
  return out;
}

}  // namespace

Arith ArithOf(ir::DType dtype) {
  switch (dtype) {
    case ir::DType::kF64:
      return Arith::kF64;
    case ir::DType::kF32:
    case ir::DType::kF16:
    case ir::DType::kBF16:
      return Arith::kF32;
    case ir::DType::kI32:
    case ir::DType::kU8:
      return Arith::kI32;
    case ir::DType::kI64:
      return Arith::kI64;
    case ir::DType::kBool:
      return Arith::kBool;
  }
  FUSOR_ASSERT(false, "dtype {}", static_cast<int>(dtype));
}

bool IsFloat(Arith arith) {
  return arith == Arith::kF32 || arith == Arith::kF64;
}

int64_t KernelBuffer::num_bytes() const {
  return packed ? ir::PackedBytes(elements) : elements * ir::DTypeSize(dtype);
}

bool Names(const Index& index, int axis) {
  return std::any_of(index.terms.begin(), index.terms.end(),
                     [&](const Index::Term& term) {
                       return term.axis == axis && term.coefficient != 0;
                     });
}

bool Iterates(const Stmt& stmt) {
  return stmt.kind == StmtKind::kLoop || stmt.kind == StmtKind::kContract;
}

bool HasIndependentIterations(const Stmt& loop) {
  bool independent = true;
  VisitStatements(loop.body, [&](const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kAccumulate:
      case StmtKind::kReduceBlock:
      case StmtKind::kStoreTile:
      case StmtKind::kScatterAdd:
      case StmtKind::kContract:
      case StmtKind::kDot:
      case StmtKind::kStoreMatrix:
        independent = false;
        break;
      case StmtKind::kStore:
        independent &= Names(stmt.index, loop.axis);
        break;
      default:
        break;
    }
  });
  return independent;
}

int BlockAxis(const Kernel& kernel, const Phase& phase) {
  for (int axis : phase.grid) {
    if (kernel.axes[axis].block) return axis;
  }
  return -1;
}

int64_t NumRows(const Kernel& kernel, const Phase& phase) {
  const int axis = BlockAxis(kernel, phase);
  return axis < 0 ? 1 : kernel.axes[axis].extent;
}

int64_t TileSize(const Kernel& kernel, const Register& reg) {
  int64_t size = 1;
  for (const int axis : reg.tile) size *= kernel.axes[axis].extent;
  return size;
}

int64_t NumTasks(const Kernel& kernel, const Phase& phase) {
  int64_t tasks = 1;
  for (int id : phase.grid) {
    const Axis& axis = kernel.axes[id];
    if (axis.block) continue;
    tasks *= axis.vector ? (axis.extent + kernel.lanes - 1) / kernel.lanes
                         : axis.extent;
  }
  return tasks;
}

int64_t Dot::Factor::at(int64_t i, int64_t k) const {
  const int64_t row = depth_major ? k : i % kTile;
  const int64_t column = depth_major ? i % kTile : k;
  return offset + i / kTile * kTileElements + row * kTile + column;
}

SharedMemory SharedMemoryOf(const Kernel& kernel) {
  const auto num_buffers = static_cast<int>(kernel.buffers.size());
  SharedMemory memory;
  memory.offsets.assign(kernel.buffers.size(), -1);
  for (int b = 0; b < num_buffers; ++b) {
    if (!kernel.buffers[b].local || kernel.buffers[b].shares >= 0) continue;
    int64_t bytes = 0;
    for (int c = 0; c < num_buffers; ++c) {
      if (c != b && kernel.buffers[c].shares != b) continue;
      memory.offsets[c] = memory.bytes;
      bytes = std::max(bytes, kernel.buffers[c].num_bytes());
    }
    memory.bytes += RoundUp(bytes, kSharedAlignment);
  }
  return memory;
}

std::string Print(const Kernel& kernel, bool identity) {
  std::string out = PrintHeader(kernel, identity);
  for (const Phase& phase : kernel.phases) {
    out += fmt::format("  phase grid=({})\n", Join(phase.grid, ", ", [](int a) {
                         return fmt::format("a{}", a);
                       }));
    PrintBody(kernel, phase.body, 2, identity, out);
  }
  return out;
}

std::string Print(const Stmt& stmt) {
  const bool defines = stmt.dst >= 0 && stmt.kind != StmtKind::kLoop;
  return fmt::format("{}{}{}", defines ? fmt::format("r{} = ", stmt.dst) : "",
                     PrintRight(stmt), stmt.round ? " round" : "");
}

std::string KernelStamp(const Kernel& kernel) {
  return fmt::format("fusor kernel {:016x}", HashBytes(Print(kernel, true)));
}

}  // namespace fusor::codegen
