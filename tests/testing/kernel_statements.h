#pragma once

// Short constructors of kernel IR statements, for handwritten kernels.

#include <initializer_list>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::test {

using codegen::Index;
using codegen::Stmt;
using codegen::StmtKind;

inline Stmt Loop(int axis, std::vector<Stmt> body) {
  return {.kind = StmtKind::kLoop, .axis = axis, .body = std::move(body)};
}

inline Stmt Constant(int dst, double value) {
  return {.kind = StmtKind::kConstant, .dst = dst, .constant = value};
}

inline Stmt Load(int dst, int buffer, Index index) {
  return {.kind = StmtKind::kLoad,
          .dst = dst,
          .buffer = buffer,
          .index = std::move(index)};
}

inline Stmt Store(int buffer, Index index, int src) {
  return {.kind = StmtKind::kStore,
          .src = {src, -1, -1},
          .buffer = buffer,
          .index = std::move(index)};
}

inline Stmt IndexValue(int dst, Index index) {
  return {.kind = StmtKind::kIndexValue, .dst = dst, .index = std::move(index)};
}

inline Stmt Random(int dst, int key, int step, int64_t site, int64_t rank,
                   Index index) {
  return {.kind = StmtKind::kRandom,
          .dst = dst,
          .src = {key, step, -1},
          .index = std::move(index),
          .site = site,
          .rank = rank};
}

inline Stmt Compute(ir::ScalarOp op, int dst, std::initializer_list<int> src,
                    bool round = false) {
  Stmt stmt{.kind = StmtKind::kCompute, .dst = dst, .op = op, .round = round};
  int i = 0;
  for (int reg : src) stmt.src[i++] = reg;
  return stmt;
}

inline Stmt Init(ir::ScalarOp op, int dst) {
  return {.kind = StmtKind::kInit, .dst = dst, .op = op};
}

inline Stmt Accumulate(ir::ScalarOp op, int dst, int src) {
  return {.kind = StmtKind::kAccumulate,
          .dst = dst,
          .op = op,
          .src = {src, -1, -1}};
}

inline Stmt ReduceLanes(ir::ScalarOp op, int dst, int src) {
  return {.kind = StmtKind::kReduceLanes,
          .dst = dst,
          .op = op,
          .src = {src, -1, -1}};
}

inline Stmt ReduceBlock(ir::ScalarOp op, int dst, int src) {
  return {.kind = StmtKind::kReduceBlock,
          .dst = dst,
          .op = op,
          .src = {src, -1, -1}};
}

}  // namespace fusor::test
