#include "codegen/cuda/cuda_printer.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "codegen/cuda/cuda_expressions.h"
#include "codegen/cuda/prefetch.h"
#include "codegen/cuda/thread_layout.h"
#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::codegen {
namespace {

using ir::DType;

// Increment when the same kernel IR gives different text after the prelude.
constexpr int kRevision = 9;

class PhasePrinter {
 public:
  PhasePrinter(const Kernel& kernel, const Phase& phase,
               std::string_view index_type, MatrixUnit unit)
      : kernel_(kernel),
        phase_(phase),
        int_(index_type),
        width_(kernel.lanes_per_thread()),
        x_(ThreadsAlong(kernel, phase)),
        y_(static_cast<int>(NumRows(kernel, phase))),
        block_axis_(BlockAxis(kernel, phase)),
        memory_(MemoryOf(kernel, phase)),
        matrices_(kernel, phase, x_ * y_, unit) {
    const auto use = [&](int buffer) {
      if (kernel.buffers[buffer].local) local_.insert(buffer);
    };
    VisitStatements(phase.body, [&](const Stmt& stmt) {
      if (stmt.buffer >= 0) use(stmt.buffer);
      if (stmt.kind != StmtKind::kDot) return;
      for (const Dot::Factor& factor : stmt.dot.factors) use(factor.buffer);
    });
  }

  std::string Print(const std::string& entry) {
    // One block of tensor-core kernels multiplies while another one loads.
    Line("extern \"C\" __global__ void __launch_bounds__({}{}) {}({}) {{",
         x_ * y_, local_.empty() ? "" : ", 2", entry, Parameters());
    depth_ = 1;
    PrintThread();
    PrintRegisters();
    OpenGrid();
    Body(phase_.body);
    depth_ = 0;
    Line("}}");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void Line(fmt::format_string<Args...> format, Args&&... args) {
    out_.append(static_cast<size_t>(2 * depth_), ' ');
    fmt::format_to(std::back_inserter(out_), format,
                   std::forward<Args>(args)...);
    out_ += '\n';
  }

  // --- Function prologue -----------------------------------------------------

  std::string Parameters() const {
    std::string out;
    for (size_t i = 0; i < kernel_.buffers.size(); ++i) {
      const KernelBuffer& buffer = kernel_.buffers[i];
      out += fmt::format("{}{}{}::Memory*{}", i == 0 ? "" : ", ",
                         buffer.written ? "" : "const ", CudaTag(buffer.dtype),
                         buffer.local ? "" : fmt::format(" b{}", i));
    }
    return out;
  }

  void PrintThread() {
    Line(
        "[[maybe_unused]] const int x = threadIdx.x % {}, y = threadIdx.x / "
        "{};",
        x_, x_);
    if (memory_.bytes == 0) return;
    if (memory_.is_dynamic()) {
      Line("FUSOR_DYNAMIC_SHARED(shared, {});", memory_.bytes);
    } else {
      Line("__shared__ __align__({}) unsigned char shared[{}];",
           kSharedAlignment, memory_.bytes);
    }
    Line("FUSOR_ON_SHARED(shared, {});", memory_.bytes);
    for (const int b : local_) {
      const std::string_view tag = CudaTag(kernel_.buffers[b].dtype);
      Line("{}::Memory* const b{} = ({}::Memory*)(shared + {});", tag, b, tag,
           memory_.buffers[b]);
    }
    bool lanes = false;
    VisitStatements(phase_.body, [&](const Stmt& stmt) {
      lanes |= stmt.kind == StmtKind::kReduceLanes;
    });
    if (!lanes) return;
    Line("const u32 warp = {};", CudaWarpMask(x_ * y_));
  }

  void PrintRegisters() {
    std::set<int> set;
    std::set<int> read;
    VisitStatements(phase_.body, [&](const Stmt& stmt) {
      if (stmt.dst >= 0) set.insert(stmt.dst);
      read.insert(stmt.src.begin(), stmt.src.end());
      for (const IndexedTerm& term : stmt.indexed) read.insert(term.reg);
    });
    VisitStatements(phase_.body, [&](const Stmt& stmt) {
      const bool copies =
          stmt.kind == StmtKind::kGuard ||
          (stmt.kind == StmtKind::kStore && kernel_.buffers[stmt.buffer].local);
      if (copies) read.erase(stmt.src[0]);  // perhaps without the register
    });
    for (int reg : set) {
      const Register& info = kernel_.registers[reg];
      const std::string_view type = CudaType(ArithOf(info.dtype));
      const char* unused = read.contains(reg) ? "" : "[[maybe_unused]] ";
      if (info.rows > 0) {
        Line("{}", matrices_.Declaration(reg));
      } else if (info.vector) {
        Line("{}{} r{}[{}];", unused, type, reg, width_);
      } else {
        Line("{}{} r{};", unused, type, reg);
      }
    }
    Line("[[maybe_unused]] {} task = blockIdx.x;", int_);
  }

  // Computes the grid axes' indices from the task; the last axis is fastest.
  void OpenGrid() {
    for (size_t i = phase_.grid.size(); i-- > 0;) {
      const int id = phase_.grid[i];
      const Axis& axis = kernel_.axes[id];
      if (axis.block) {
        Line("const {} a{} = y;", int_, id);
      } else if (axis.vector) {
        const int64_t groups = Groups(axis);
        OpenVectorAxis(id,
                       fmt::format("task % {} * {} + x * {}", groups,
                                   kernel_.lanes, width_),
                       axis.extent % kernel_.lanes != 0);
        Line("task /= {};", groups);
      } else {
        Line("const {} a{} = task % {};", int_, id, axis.extent);
        Line("task /= {};", axis.extent);
      }
    }
  }

  int64_t Groups(const Axis& axis) const {
    return (axis.extent + kernel_.lanes - 1) / kernel_.lanes;
  }

  // Declares the index of this thread's first lane.
  void OpenVectorAxis(int id, const std::string& first, bool masked) {
    Line("const {} a{} = {};", int_, id, first);
    vector_axis_ = id;
    const int64_t extent = kernel_.axes[id].extent;
    masked_ = masked;
    partly_ = masked && extent % width_ != 0;
    // This thread's active lanes: none if <= 0, all if >= width.
    if (masked_) Line("const {} active{} = {} - a{};", int_, id, extent, id);
  }

  // --- Statements ------------------------------------------------------------

  void Body(const std::vector<Stmt>& body) {
    for (size_t i = 0; i < body.size(); ++i) {
      const bool copies =
          i + 1 < body.size() && !masked_ &&
          IsAsyncCopy(kernel_, phase_, body[i], body[i + 1], vector_axis_);
      if (copies) {
        PrintAsyncCopy(body[i], body[i + 1]);
        ++i;
      } else {
        Print(body[i]);
      }
    }
    CloseLanes();
  }

  void Print(const Stmt& stmt) {
    switch (stmt.kind) {
      case StmtKind::kLoop:
        return PrintLoop(stmt);
      case StmtKind::kLoad:
        return PrintLoad(stmt);
      case StmtKind::kStore:
        return PrintStore(stmt);
      case StmtKind::kGather:
        return PrintGather(stmt);
      case StmtKind::kScatterAdd:
        return PrintScatterAdd(stmt);
      case StmtKind::kReduceLanes:
      case StmtKind::kReduceBlock:
        return PrintReduction(stmt);
      case StmtKind::kStoreTile:
        FUSOR_ASSERT(false, "kernel {}: blocked layouts on a GPU",
                     kernel_.name);
      case StmtKind::kContract:
        FUSOR_ASSERT(false, "kernel {}: a contraction on a GPU", kernel_.name);
      case StmtKind::kConstant:
        return Set(stmt, CudaConstant(Info(stmt.dst).dtype, stmt.constant));
      case StmtKind::kDot:
        CloseLanes();
        all_read_ = false;
        return Line("{}", matrices_.Dot(stmt));
      case StmtKind::kStoreMatrix:
        CloseLanes();
        return Line("{}", matrices_.Store(stmt, Place(stmt)));
      case StmtKind::kBarrier:
        CloseLanes();
        all_read_ = true;
        if (copies_) Line("WaitForCopies();");
        if (const std::string text = matrices_.BeforeBarrier(); !text.empty()) {
          Line("{}", text);
        }
        return Line("__syncthreads();");
      case StmtKind::kGuard:
        return PrintGuard(stmt);
      case StmtKind::kInit:
        if (Info(stmt.dst).rows > 0) return Line("ZeroMatrix(r{});", stmt.dst);
        return Set(stmt, CudaConstant(Info(stmt.dst).dtype,
                                      ir::ReductionIdentity(stmt.op)));
      case StmtKind::kIndexValue:
        return Set(stmt, CudaConvert({LaneIndex(stmt, "(i64)"), Arith::kI64},
                                     Info(stmt.dst).dtype));
      case StmtKind::kRandom:
        return PrintRandom(stmt);
      case StmtKind::kCompute: {
        std::vector<CudaExpression> operands;
        for (int i = 0; i < ir::ScalarArity(stmt.op); ++i) {
          operands.push_back(Get(stmt.src[i]));
        }
        return Set(stmt, CudaScalar(stmt.op, operands, Info(stmt.dst).dtype,
                                    kernel_.contract));
      }
      case StmtKind::kAccumulate:
        return PrintAccumulate(stmt);
    }
  }

  // Threads without active lanes skip loops, if the others do not wait for them
  // there: the compiler does not overlap loads that are behind branches.
  void PrintLoop(const Stmt& stmt) {
    CloseLanes();
    const bool skips = masked_ && !partly_ && !HasBarrier(stmt);
    if (skips) {
      Line("if (active{} > 0) {{", vector_axis_);
      ++depth_;
      masked_ = false;
    }
    kernel_.axes[stmt.axis].vector ? PrintVectorLoop(stmt)
                                   : PrintSerialLoop(stmt);
    if (skips) {
      masked_ = true;
      --depth_;
      Line("}}");
    }
    all_read_ = false;
  }

  void PrintGuard(const Stmt& stmt) {
    CloseLanes();
    std::vector<Bound> whole = stmt.bounds;
    std::erase_if(whole, [&](const Bound& bound) {
      return !KeepsThreadsWhole(kernel_, bound, vector_axis_);
    });
    const bool outer_masked = masked_;
    const bool outer_partly = partly_;
    const bool vector = stmt.dst >= 0 && Info(stmt.dst).vector;
    if (vector) Line("Zero(r{});", stmt.dst);
    if (stmt.dst >= 0 && !vector) Line("r{} = 0;", stmt.dst);
    Line("{}{{",
         whole.empty() ? "" : fmt::format("if ({}) ", CudaHolds(whole)));
    ++depth_;
    for (const Bound& bound : stmt.bounds) {
      if (KeepsThreadsWhole(kernel_, bound, vector_axis_)) continue;
      Line("const {} active{} = {} - ({});", int_, vector_axis_, bound.extent,
           CudaIndex(bound.index));
      masked_ = partly_ = true;
    }
    Body(stmt.body);
    if (stmt.dst >= 0) {
      const std::string inside = Get(stmt.src[0]).text;
      Set(stmt, vector && partly_
                    ? fmt::format("l < active{} ? {} : 0", vector_axis_, inside)
                    : inside);
      CloseLanes();
    }
    masked_ = outer_masked;
    partly_ = outer_partly;
    --depth_;
    Line("}}");
    all_read_ = false;
  }

  bool HasBarrier(const Stmt& loop) const {
    bool found = false;
    VisitStatements(loop.body, [&](const Stmt& stmt) {
      found |= stmt.kind == StmtKind::kReduceLanes ||
               stmt.kind == StmtKind::kReduceBlock ||
               stmt.kind == StmtKind::kBarrier ||
               (stmt.kind == StmtKind::kStore && !Storing(stmt).empty());
    });
    return found;
  }

  void PrintSerialLoop(const Stmt& stmt) {
    const int turns = Overlaps(stmt) ? kUnroll : matrices_.Unroll(stmt);
    if (turns > 0) Line("#pragma unroll {}", turns);
    const Prefetch prefetch = PrefetchOf(kernel_, stmt, vector_axis_);
    if (!prefetch.loads.empty()) return PrintPrefetching(stmt, prefetch);
    OpenLoop(stmt, "a", 1, 0, kernel_.axes[stmt.axis].extent);
    LoopBody(stmt.body);
  }

  // Prints a loop over groups of lanes, and separately the group in which not
  // all lanes are active.
  void PrintVectorLoop(const Stmt& stmt) {
    const int64_t extent = kernel_.axes[stmt.axis].extent;
    const int64_t full = extent / kernel_.lanes * kernel_.lanes;
    if (stmt.descending) PrintGroups(stmt, full, extent, true);
    PrintGroups(stmt, 0, full, false);
    if (!stmt.descending) PrintGroups(stmt, full, extent, true);
  }

  void PrintGroups(const Stmt& stmt, int64_t begin, int64_t end, bool masked) {
    if (begin == end) return;
    if (!masked && Overlaps(stmt)) Line("#pragma unroll {}", kUnroll);
    OpenLoop(stmt, "g", kernel_.lanes, begin, end);
    OpenVectorAxis(stmt.axis, fmt::format("g{} + x * {}", stmt.axis, width_),
                   masked);
    LoopBody(stmt.body);
    vector_axis_ = -1;
    masked_ = partly_ = false;
  }

  // Opens a loop over every step-th index in [begin, end).
  void OpenLoop(const Stmt& loop, const char* prefix, int64_t step,
                int64_t begin, int64_t end) {
    const std::string index = fmt::format("{}{}", prefix, loop.axis);
    const std::string next =
        step == 1 ? fmt::format("{}{}", loop.descending ? "--" : "++", index)
                  : fmt::format("{} {}= {}", index, loop.descending ? '-' : '+',
                                step);
    if (loop.descending) {
      Line("for ({} {} = {}; {} >= {}; {}) {{", int_, index,
           begin + (end - begin - 1) / step * step, index, begin, next);
    } else {
      Line("for ({} {} = {}; {} < {}; {}) {{", int_, index, begin, index, end,
           next);
    }
    ++depth_;
  }

  void LoopBody(const std::vector<Stmt>& body) {
    all_read_ = false;
    Body(body);
    --depth_;
    Line("}}");
  }

  void OpenTurns(int axis, int turns) {
    Line("#pragma unroll");
    Line("for (int u = 0; u < {}; ++u) {{", turns);
    ++depth_;
    Line("const {} a{} = g{} + u;", int_, axis, axis);
  }

  void PrintPrefetching(const Stmt& loop, const Prefetch& prefetch) {
    const auto& [loads, turns] = prefetch;
    OpenLoop(loop, "g", turns, 0, kernel_.axes[loop.axis].extent);
    all_read_ = false;
    for (const Stmt* load : loads) {
      const Register& info = Info(load->dst);
      Line("{} ahead{}[{}]{};", CudaType(ArithOf(info.dtype)), load->dst, turns,
           info.vector ? fmt::format("[{}]", width_) : "");
    }
    OpenTurns(loop.axis, turns);
    for (const Stmt* load : loads) {
      LoadInto(*load, fmt::format("ahead{}[u]", load->dst));
    }
    --depth_;
    Line("}}");
    OpenTurns(loop.axis, turns);
    const Stmt* scattered = ScatteredLoad(kernel_, loop);
    for (const Stmt& stmt : loop.body) {
      if (&stmt == scattered) continue;
      if (stmt.kind == StmtKind::kScatterAdd && scattered != nullptr) {
        CloseLanes();
        Line("if ({}) {{", CudaInside(kernel_, stmt));
        ++depth_;
        Print(*scattered);
        Print(stmt);
        --depth_;
        Line("}}");
      } else if (std::find(loads.begin(), loads.end(), &stmt) == loads.end()) {
        Print(stmt);
      } else if (Info(stmt.dst).vector) {
        OpenLanes();
        Line("r{}[l] = ahead{}[u][l];", stmt.dst, stmt.dst);
      } else {
        CloseLanes();
        Line("r{} = ahead{}[u];", stmt.dst, stmt.dst);
      }
    }
    CloseLanes();
    for (int braces = 0; braces < 2; ++braces) {
      --depth_;
      Line("}}");
    }
  }

  // --- Registers -------------------------------------------------------------

  const Register& Info(int reg) const { return kernel_.registers[reg]; }

  CudaExpression Get(int reg) const { return CudaRegister(kernel_, reg); }

  std::string Rounded(const Stmt& stmt, std::string text) const {
    if (!stmt.round) return text;
    const std::string_view tag = CudaTag(Info(stmt.dst).dtype);
    return fmt::format("{}::From({}::To({}))", tag, tag, text);
  }

  // Assigns to the register, in each lane if it is a vector.
  void Set(const Stmt& stmt, std::string text) {
    Info(stmt.dst).vector ? OpenLanes() : CloseLanes();
    Line("{} = {};", Get(stmt.dst).text, Rounded(stmt, std::move(text)));
  }

  // Opens a loop over lanes, which consecutive statements on lanes share.
  void OpenLanes() {
    if (in_lanes_) return;
    Line("#pragma unroll");
    Line("for (int l = 0; l < {}; ++l) {{", width_);
    ++depth_;
    in_lanes_ = true;
  }

  void CloseLanes() {
    if (!in_lanes_) return;
    --depth_;
    Line("}}");
    in_lanes_ = false;
  }

  void PrintAccumulate(const Stmt& stmt) {
    const CudaExpression operands[] = {Get(stmt.dst), Get(stmt.src[0])};
    std::string text = Rounded(
        stmt,
        CudaScalar(stmt.op, operands, Info(stmt.dst).dtype, kernel_.contract));
    const bool vector = Info(stmt.dst).vector;
    vector ? OpenLanes() : CloseLanes();
    const std::string guard =
        vector && masked_ ? fmt::format("if (l < active{}) ", vector_axis_)
                          : "";
    Line("{}{} = {};", guard, operands[0].text, text);
  }

  void PrintRandom(const Stmt& stmt) {
    const auto integer = [&](int reg, const char* type) {
      return fmt::format("({}){}", type, Get(reg).text);
    };
    const std::string uniform = fmt::format(
        "Uniform({}, {}, {}u, {}u, {})", integer(stmt.src[0], "u64"),
        integer(stmt.src[1], "u32"), static_cast<uint32_t>(stmt.site),
        static_cast<uint32_t>(stmt.rank), LaneIndex(stmt, "(u64)(i64)"));
    Set(stmt, CudaConvert({uniform, Arith::kF32}, Info(stmt.dst).dtype));
  }

  void PrintReduction(const Stmt& stmt) {
    CloseLanes();
    const Register& from = Info(stmt.src[0]);
    const std::string type(CudaType(ArithOf(from.dtype)));
    const std::string_view op = CudaReduction(stmt.op);
    const std::string shared =
        memory_.reductions == 0
            ? fmt::format("({}*)shared", type)
            : fmt::format("({}*)(shared + {})", type, memory_.reductions);
    if (stmt.kind == StmtKind::kReduceLanes) {
      const CudaExpression sum{
          fmt::format("ReduceLanes<{}, {}>(r{}, {}, x, y, warp)", op, x_,
                      stmt.src[0], shared),
          ArithOf(from.dtype)};
      Line("r{} = {};", stmt.dst,
           Rounded(stmt, CudaConvert(sum, Info(stmt.dst).dtype)));
    } else if (from.vector) {
      Line("ReduceBlock<{}, {}, {}>(r{}, r{}, {}, x, y);", op, x_, y_, stmt.dst,
           stmt.src[0], shared);
    } else {
      Line("r{} = ReduceBlock<{}, {}, {}>(r{}, {}, x, y);", stmt.dst, op, x_,
           y_, stmt.src[0], shared);
    }
    // These reductions contain a barrier after all earlier loads.
    all_read_ = stmt.kind == StmtKind::kReduceBlock || x_ > kWarp;
  }

  // --- Memory ----------------------------------------------------------------

  int64_t LaneStride(const Index& index) const {
    return vector_axis_ < 0 ? 0 : CoefficientOf(index, vector_axis_);
  }

  // Returns the value of the index; for lane l if it differs between lanes.
  std::string LaneIndex(const Stmt& stmt, std::string_view cast) const {
    std::string text = fmt::format("{}({})", cast, CudaIndex(stmt.index));
    const int64_t stride = LaneStride(stmt.index);
    if (stride == 0 || !Info(stmt.dst).vector) return text;
    return fmt::format("{} + l * {}", text, stride);
  }

  std::string Place(const Stmt& stmt) const {
    if (matrices_.IsFactor(stmt.buffer)) {
      return fmt::format("b{} + {}", stmt.buffer, SwizzledIndex(stmt.index));
    }
    std::string index = CudaIndex(stmt.index);
    for (const IndexedTerm& term : stmt.indexed) {
      index +=
          fmt::format(" + ({}){} * {}", int_, Get(term.reg).text, term.stride);
    }
    return fmt::format("b{} + ({})", stmt.buffer, index);
  }
  std::string BytePlace(const Stmt& stmt) const {
    return fmt::format("b{} + (({}) >> 3)", stmt.buffer, CudaIndex(stmt.index));
  }

  void PrintLoad(const Stmt& stmt) {
    CloseLanes();
    all_read_ = false;
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    const Register& info = Info(stmt.dst);
    if (ArithOf(info.dtype) == ArithOf(buffer.dtype)) {
      return LoadInto(stmt, fmt::format("r{}", stmt.dst));
    }
    // Load in the arithmetic type of the buffer's dtype, then convert.
    Line("{{");
    ++depth_;
    Line("{} loaded{};", CudaType(ArithOf(buffer.dtype)),
         info.vector ? fmt::format("[{}]", width_) : "");
    LoadInto(stmt, "loaded");
    Set(stmt, CudaConvert(
                  {info.vector ? "loaded[l]" : "loaded", ArithOf(buffer.dtype)},
                  info.dtype));
    CloseLanes();
    --depth_;
    Line("}}");
  }

  void LoadInto(const Stmt& stmt, const std::string& to) {
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    const std::string_view tag = CudaTag(buffer.dtype);
    const int64_t stride = LaneStride(stmt.index);
    if (buffer.packed) {
      Guarded(fmt::format("LoadBits{}({}, {});", stmt.streamed ? "<true>" : "",
                          to, BytePlace(stmt)),
              fmt::format("Zero({});", to));
    } else if (stride == 1) {
      Guarded(fmt::format("Load<{}, {}{}>({}, {});", tag,
                          AlignedElements(kernel_, stmt, vector_axis_),
                          stmt.streamed ? ", true" : "", to, Place(stmt)),
              partly_ ? fmt::format("LoadSome<{}>({}, {}, ({})1, active{});",
                                    tag, to, Place(stmt), int_, vector_axis_)
                      : fmt::format("Zero({});", to));
    } else if (stride != 0) {
      Line("LoadSome<{}>({}, {}, ({}){}, {});", tag, to, Place(stmt), int_,
           stride, Active());
    } else if (Info(stmt.dst).vector) {
      const std::string one =
          fmt::format("{}::From(Get({}))", tag, Place(stmt));
      Line("{}[0] = {};", to, one);
      Line("for (int l = 1; l < {}; ++l) {}[l] = {}[0];", width_, to, to);
    } else {
      Line("{} = {}::From(Get({}));", to, tag, Place(stmt));
    }
  }

  void PrintAsyncCopy(const Stmt& from, const Stmt& store) {
    CloseLanes();
    const Stmt& load = CopiedLoad(from);
    const std::string there =
        from.bounds.empty() ? "" : ", " + CudaHolds(from.bounds);
    const auto word = static_cast<int>(
        kCopiedBytes / DTypeSize(kernel_.buffers[load.buffer].dtype));
    for (int at = 0; at < width_; at += word) {
      Line("CopyAsync({} + {}, {} + {}{});", Place(store), at, Place(load), at,
           there);
    }
    copies_ = true;
    all_read_ = false;
  }

  // Loads consecutive lanes at once if they have one index in a register.
  void PrintGather(const Stmt& stmt) {
    CloseLanes();
    all_read_ = false;
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    const Register& info = Info(stmt.dst);
    const std::string outside =
        CudaConstant(info.dtype, ir::IsFloat(buffer.dtype)
                                     ? std::numeric_limits<double>::quiet_NaN()
                                     : 0);
    const int64_t stride = LaneStride(stmt.index);
    if (info.vector && stride == 1 && !HasVectorIndex(kernel_, stmt) &&
        ArithOf(info.dtype) == ArithOf(buffer.dtype)) {
      const std::string to = fmt::format("r{}", stmt.dst);
      Line("if ({}) {{", CudaInside(kernel_, stmt));
      ++depth_;
      LoadInto(stmt, to);
      --depth_;
      Line("}} else {{");
      Line("  for (int l = 0; l < {}; ++l) {}[l] = {};", width_, to, outside);
      Line("}}");
      return;
    }
    std::string place = Place(stmt);
    std::string inside = CudaInside(kernel_, stmt);
    if (info.vector) {
      if (stride != 0) place += fmt::format(" + l * {}", stride);
      if (masked_) inside += fmt::format(" && l < active{}", vector_axis_);
    }
    const CudaExpression loaded{
        fmt::format("{}::From(Get({}))", CudaTag(buffer.dtype), place),
        ArithOf(buffer.dtype)};
    Set(stmt, fmt::format("{} ? {} : {}", inside,
                          CudaConvert(loaded, info.dtype), outside));
    CloseLanes();
  }

  void PrintScatterAdd(const Stmt& stmt) {
    CloseLanes();
    all_read_ = false;
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    const std::string_view tag = CudaTag(buffer.dtype);
    std::string place = Place(stmt);
    std::string inside = CudaInside(kernel_, stmt);
    const int64_t stride = LaneStride(stmt.index);
    if (stride != 0) {
      OpenLanes();
      place += fmt::format(" + l * {}", stride);
      if (masked_) inside += fmt::format(" && l < active{}", vector_axis_);
    } else if (const std::string storing = Storing(stmt); !storing.empty()) {
      inside += " && " + storing;
    }
    const CudaExpression operands[] = {
        {fmt::format("{}::From(Get({}))", tag, place), ArithOf(buffer.dtype)},
        Get(stmt.src[0])};
    Line("if ({}) Put({}, {}::To({}));", inside, place, tag,
         CudaScalar(ir::ScalarOp::kAdd, operands, buffer.dtype,
                    kernel_.contract));
    CloseLanes();
  }

  // Returns the active lanes of this thread; may exceed the width.
  std::string Active() const {
    return masked_ ? fmt::format("active{}", vector_axis_)
                   : fmt::format("({}){}", int_, width_);
  }

  // Prints `all` for threads whose lanes are all active, `some` for the others.
  void Guarded(const std::string& all, const std::string& some) {
    if (!masked_) return Line("{}", all);
    Line("if (active{} >= {}) {}", vector_axis_, width_, all);
    if (!some.empty()) Line("else {}", some);
  }

  // Returns the condition under which a thread stores; empty if all do.
  std::string Storing(const Stmt& stmt) const {
    std::string out;
    if (x_ > 1 && LaneStride(stmt.index) == 0) out = "x == 0";
    if (y_ > 1 && CoefficientOf(stmt.index, block_axis_) == 0) {
      out += out.empty() ? "y == 0" : " && y == 0";
    }
    return out;
  }

  void PrintStore(const Stmt& stmt) {
    CloseLanes();
    const std::string storing = Storing(stmt);
    if (!storing.empty()) {
      if (!all_read_) Line("__syncthreads();");
      all_read_ = true;
      Line("if ({}) {{", storing);
      ++depth_;
    }
    PrintStoreAll(stmt);
    if (!storing.empty()) {
      --depth_;
      Line("}}");
    }
  }

  void PrintStoreAll(const Stmt& stmt) {
    const KernelBuffer& buffer = kernel_.buffers[stmt.buffer];
    const std::string_view tag = CudaTag(buffer.dtype);
    const int64_t stride = LaneStride(stmt.index);
    const Register& info = Info(stmt.src[0]);
    if (stride == 0) {
      Line("Put({}, {}::To({}::As(r{})));", Place(stmt), tag, tag, stmt.src[0]);
      return;
    }
    std::string from = fmt::format("r{}", stmt.src[0]);
    if (!info.vector) {  // copies it in a scope, as it can be stored twice
      Line("{{");
      ++depth_;
      Line("{} all{}[{}];", CudaType(ArithOf(info.dtype)), stmt.src[0], width_);
      Line("for (int l = 0; l < {}; ++l) all{}[l] = r{};", width_, stmt.src[0],
           stmt.src[0]);
      from = fmt::format("all{}", stmt.src[0]);
    }
    if (buffer.packed) {
      Guarded(fmt::format("StoreBits{}({}, {});", stmt.streamed ? "<true>" : "",
                          BytePlace(stmt), from),
              "");
    } else if (stride == 1) {
      Guarded(fmt::format("Store<{}, {}>({}, {});", tag,
                          AlignedElements(kernel_, stmt, vector_axis_),
                          Place(stmt), from),
              partly_ ? fmt::format("StoreSome<{}>({}, {}, ({})1, active{});",
                                    tag, Place(stmt), from, int_, vector_axis_)
                      : "");
    } else {
      Line("StoreSome<{}>({}, {}, ({}){}, {});", tag, Place(stmt), from, int_,
           stride, Active());
    }
    if (!info.vector) {
      --depth_;
      Line("}}");
    }
  }

  const Kernel& kernel_;
  const Phase& phase_;
  const std::string_view int_;  // type of indices
  const int width_;
  const int x_, y_;  // threads
  const int block_axis_;
  const BlockMemory memory_;
  MatrixPrinter matrices_;
  std::set<int> local_;  // local buffers of the phase
  bool copies_ = false;  // there was an asynchronous copy
  std::string out_;
  int depth_ = 0;
  int vector_axis_ = -1;
  bool masked_ = false;    // some threads have inactive lanes
  bool partly_ = false;    // some thread has both active and inactive lanes
  bool in_lanes_ = false;  // in a loop over lanes
  bool all_read_ = false;  // there was a barrier since the last load
};

}  // namespace

std::string CudaTextRevision() {
  return fmt::format("r{} {:016x}", kRevision, HashBytes(CudaPrelude()));
}

std::string PrintCuda(const Kernel& kernel, MatrixUnit unit) {
  std::string out = fmt::format("// {}\n", KernelStamp(kernel));
  out += CudaPrelude();
  const std::string_view index_type = CudaIndexType(kernel);
  const std::vector<CudaLaunch> launches = CudaLaunches(kernel);
  for (size_t p = 0; p < kernel.phases.size(); ++p) {
    out += "\n" + PhasePrinter(kernel, kernel.phases[p], index_type, unit)
                      .Print(launches[p].entry);
  }
  return out;
}

}  // namespace fusor::codegen
