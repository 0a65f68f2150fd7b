#include "codegen/kernel/kernel.pb.h"
#include "codegen/kernel/kernel_ir.h"
#include "ir/support/error.h"
#include "ir/tensor_type.h"

namespace fusor::codegen {
namespace {

constexpr int kNumStmtKinds = static_cast<int>(StmtKind::kGuard) + 1;

// Encode indices that may be -1.
uint32_t PlusOne(int index) { return static_cast<uint32_t>(index + 1); }
int MinusOne(uint32_t stored) { return static_cast<int>(stored - 1); }

template <typename Enum>
Enum ReadEnum(uint32_t number, int count, const char* what) {
  FUSOR_CHECK(number < static_cast<uint32_t>(count), kGraph, "{} {}, of {}",
              what, number, count);
  return static_cast<Enum>(number);
}

ir::DType ReadDType(uint32_t number) {
  return ReadEnum<ir::DType>(number, std::size(ir::kAllDTypes), "dtype");
}

void WriteIndex(const Index& index, proto::IndexProto& out) {
  out.set_offset(index.offset);
  for (const Index::Term& term : index.terms) {
    out.add_axes(term.axis);
    out.add_coefficients(term.coefficient);
  }
}

Index ReadIndex(const proto::IndexProto& in) {
  FUSOR_CHECK(in.axes_size() == in.coefficients_size(), kGraph,
              "an index of {} axes and {} coefficients", in.axes_size(),
              in.coefficients_size());
  Index index{in.offset(), {}};
  for (int i = 0; i < in.axes_size(); ++i) {
    index.terms.push_back({in.axes(i), in.coefficients(i)});
  }
  return index;
}

void WriteStmt(const Stmt& stmt, proto::StmtProto& out) {
  out.set_kind(static_cast<uint32_t>(stmt.kind));
  out.set_dst(PlusOne(stmt.dst));
  out.set_op(static_cast<uint32_t>(stmt.op));
  for (int src : stmt.src) out.add_src(PlusOne(src));
  out.set_round(stmt.round);
  out.set_constant(stmt.constant);
  out.set_buffer(PlusOne(stmt.buffer));
  WriteIndex(stmt.index, *out.mutable_index());
  out.set_streamed(stmt.streamed);
  out.set_descending(stmt.descending);
  out.set_site(stmt.site);
  out.set_rank(stmt.rank);
  out.set_axis(PlusOne(stmt.axis));
  for (const Stmt& inner : stmt.body) WriteStmt(inner, *out.add_body());
  const TileStore& tile = stmt.tile;
  out.mutable_tile_sources()->Assign(tile.sources.begin(), tile.sources.end());
  out.mutable_tile_order()->Assign(tile.order.begin(), tile.order.end());
  out.set_tile_run(tile.run);
  out.set_tile_stride(tile.stride);
  for (const IndexedTerm& term : stmt.indexed) {
    proto::StmtProto::IndexedTerm& t = *out.add_indexed();
    t.set_reg(PlusOne(term.reg));
    t.set_stride(term.stride);
    t.set_extent(term.extent);
  }
  for (const Bound& bound : stmt.bounds) {
    proto::StmtProto::Bound& b = *out.add_bounds();
    WriteIndex(bound.index, *b.mutable_index());
    b.set_extent(bound.extent);
  }
  out.set_stride(stmt.stride);
  if (stmt.kind != StmtKind::kDot) return;
  for (const Dot::Factor& factor : stmt.dot.factors) {
    proto::StmtProto::DotFactor& f = *out.add_dot_factors();
    f.set_buffer(PlusOne(factor.buffer));
    f.set_offset(factor.offset);
    f.set_depth_major(factor.depth_major);
  }
  out.set_dot_depth(stmt.dot.depth);
}

Stmt ReadStmt(const proto::StmtProto& in) {
  Stmt stmt{.kind = ReadEnum<StmtKind>(in.kind(), kNumStmtKinds, "statement")};
  stmt.dst = MinusOne(in.dst());
  stmt.op = ReadEnum<ir::ScalarOp>(in.op(), ir::kNumScalarOps, "scalar op");
  FUSOR_CHECK(in.src_size() == static_cast<int>(stmt.src.size()), kGraph,
              "a statement with {} operands", in.src_size());
  for (int i = 0; i < in.src_size(); ++i) stmt.src[i] = MinusOne(in.src(i));
  stmt.round = in.round();
  stmt.constant = in.constant();
  stmt.buffer = MinusOne(in.buffer());
  stmt.index = ReadIndex(in.index());
  stmt.streamed = in.streamed();
  stmt.descending = in.descending();
  stmt.site = in.site();
  stmt.rank = in.rank();
  stmt.axis = MinusOne(in.axis());
  for (const proto::StmtProto& inner : in.body()) {
    stmt.body.push_back(ReadStmt(inner));
  }
  stmt.tile.sources.assign(in.tile_sources().begin(), in.tile_sources().end());
  stmt.tile.order.assign(in.tile_order().begin(), in.tile_order().end());
  stmt.tile.run = in.tile_run();
  stmt.tile.stride = in.tile_stride();
  for (const proto::StmtProto::IndexedTerm& term : in.indexed()) {
    stmt.indexed.push_back(
        {MinusOne(term.reg()), term.stride(), term.extent()});
  }
  for (const proto::StmtProto::Bound& bound : in.bounds()) {
    stmt.bounds.push_back({ReadIndex(bound.index()), bound.extent()});
  }
  const size_t factors = stmt.dot.factors.size();
  FUSOR_CHECK(in.dot_factors_size() == 0 ||
                  in.dot_factors_size() == static_cast<int>(factors),
              kGraph, "a dot with {} factors", in.dot_factors_size());
  for (int i = 0; i < in.dot_factors_size(); ++i) {
    const proto::StmtProto::DotFactor& f = in.dot_factors(i);
    stmt.dot.factors[i] = {MinusOne(f.buffer()), f.offset(), f.depth_major()};
  }
  stmt.stride = in.stride();
  stmt.dot.depth = in.dot_depth();
  return stmt;
}

}  // namespace

void WriteKernel(const Kernel& kernel, proto::KernelProto& out) {
  out.set_name(kernel.name);
  out.set_lanes(kernel.lanes);
  out.set_width(kernel.width);
  out.set_contract(kernel.contract);
  for (const KernelBuffer& buffer : kernel.buffers) {
    proto::KernelProto::Buffer& b = *out.add_buffers();
    b.set_name(buffer.name);
    b.set_dtype(static_cast<uint32_t>(buffer.dtype));
    b.set_elements(buffer.elements);
    b.set_written(buffer.written);
    b.set_scratch(buffer.scratch);
    b.set_packed(buffer.packed);
    b.set_local(buffer.local);
    b.set_shares(PlusOne(buffer.shares));
  }
  for (const Axis& axis : kernel.axes) {
    proto::KernelProto::Axis& a = *out.add_axes();
    a.set_name(axis.name);
    a.set_extent(axis.extent);
    a.set_vector(axis.vector);
    a.set_block(axis.block);
  }
  for (const Register& reg : kernel.registers) {
    proto::KernelProto::Register& r = *out.add_registers();
    r.set_dtype(static_cast<uint32_t>(reg.dtype));
    r.set_vector(reg.vector);
    r.mutable_tile()->Assign(reg.tile.begin(), reg.tile.end());
    r.set_value(reg.value);
    r.set_rows(reg.rows);
    r.set_columns(reg.columns);
  }
  for (const Phase& phase : kernel.phases) {
    proto::KernelProto::Phase& p = *out.add_phases();
    p.mutable_grid()->Assign(phase.grid.begin(), phase.grid.end());
    for (const Stmt& stmt : phase.body) WriteStmt(stmt, *p.add_body());
  }
}

Kernel ReadKernel(const proto::KernelProto& in) {
  Kernel kernel;
  kernel.name = in.name();
  kernel.lanes = in.lanes();
  kernel.width = in.width();
  kernel.contract = in.contract();
  for (const proto::KernelProto::Buffer& b : in.buffers()) {
    FUSOR_CHECK(b.elements() >= 1 && b.elements() <= ir::kMaxElements, kGraph,
                "a kernel buffer of {} elements", b.elements());
    kernel.buffers.push_back({b.name(), ReadDType(b.dtype()), b.elements(),
                              b.written(), b.scratch(), b.packed(), b.local(),
                              MinusOne(b.shares())});
  }
  for (const proto::KernelProto::Axis& a : in.axes()) {
    FUSOR_CHECK(a.extent() >= 1 && a.extent() <= ir::kMaxElements, kGraph,
                "an axis of extent {}", a.extent());
    kernel.axes.push_back({a.name(), a.extent(), a.vector(), a.block()});
  }
  for (const proto::KernelProto::Register& r : in.registers()) {
    for (const int64_t extent : {r.rows(), r.columns()}) {
      FUSOR_CHECK(extent >= 0 && extent <= ir::kMaxElements, kGraph,
                  "a matrix register of extent {}", extent);
    }
    kernel.registers.push_back({ReadDType(r.dtype()),
                                r.vector(),
                                {r.tile().begin(), r.tile().end()},
                                r.value(),
                                r.rows(),
                                r.columns()});
  }
  for (const proto::KernelProto::Phase& p : in.phases()) {
    Phase phase;
    phase.grid.assign(p.grid().begin(), p.grid().end());
    for (const proto::StmtProto& stmt : p.body()) {
      phase.body.push_back(ReadStmt(stmt));
    }
    kernel.phases.push_back(std::move(phase));
  }
  return kernel;
}

}  // namespace fusor::codegen
