#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "ir/op.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"

namespace fusor::passes {
namespace {

// Has a library that runs matmuls in any order of their batch dimensions, but
// only if the last dimension is contiguous.
class BatchedTarget final : public ir::TargetQueries {
 public:
  const ir::Target& target() const override { return bare_.target(); }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    if (node.kind() != ir::OpKind::kMatmul) return {};
    ir::LibraryCandidate candidate;
    candidate.implementation = "fast";
    const auto add = [&](const ir::Value* value,
                         std::vector<ir::Layout>& layouts) {
      const ir::TensorType& type = value->type();
      const std::vector<int>& order = type.layout.order;
      const auto last = static_cast<int>(type.rank()) - 1;
      if (!order.empty() && order.back() != last) {
        candidate.implementation = "slow";
      }
      layouts.push_back(type.layout);
    };
    for (const ir::Value* input : node.inputs()) {
      add(input, candidate.operands);
    }
    add(node.output(), candidate.results);
    return {candidate};
  }

 private:
  test::BareTarget bare_;
};

bool Fold(ir::Graph& graph, const ir::TargetQueries& target) {
  PassContext context(target, {});
  return FoldTransposes(graph, context);
}

void ExpectFolded(std::string_view before, std::string_view after) {
  const auto graph = test::ParseOrDie(before);
  EXPECT_TRUE(Fold(*graph, BatchedTarget()));
  test::ExpectSameGraph(after, *graph);
  EXPECT_FALSE(Fold(*graph, BatchedTarget())) << "not a fixed point";
}

void ExpectKept(std::string_view text,
                const ir::TargetQueries& target = BatchedTarget()) {
  const auto graph = test::ParseOrDie(text);
  EXPECT_FALSE(Fold(*graph, target));
  test::ExpectSameGraph(text, *graph);
}

constexpr char kResult[] = R"(graph g {
    %p = data : f32[2,3,5,5]
    %v = data : f32[2,3,5,4]
    %m = matmul(%p, %v) : f32[2,3,5,4]
    %t = transpose(%m) {permutation=[0,2,1,3]} : f32[2,5,3,4]
    %r = reshape(%t) {shape=[10,12]} : f32[10,12]
    return %r as "r"
  })";

TEST(FoldTransposes, TheMatmulBeforeItWritesItsOrder) {
  ExpectFolded(kResult, R"(graph g {
    %p = data : f32[2,3,5,5]
    %v = data : f32[2,3,5,4]
    %m = matmul(%p, %v) : f32[2,3,5,4]{acbd}
    %t = transpose(%m) {permutation=[0,2,1,3]} : f32[2,5,3,4]
    %r = reshape(%t) {shape=[10,12]} : f32[10,12]
    return %r as "r"
  })");
}

TEST(FoldTransposes, TheMatmulsBehindItReadItsOperand) {
  ExpectFolded(R"(graph g {
    %x = data : f32[5,2,3,4]
    %a = data : f32[2,3,4,5]
    %b = data : f32[2,3,7,5]
    %t = transpose(%x) {permutation=[1,2,0,3]} : f32[2,3,5,4]
    %m = matmul(%t, %a) : f32[2,3,5,5]
    %n = matmul(%b, %t) : f32[2,3,7,4]
    return %m as "m", %n as "n"
  })",
               R"(graph g {
    %x = data : f32[5,2,3,4]
    %a = data : f32[2,3,4,5]
    %b = data : f32[2,3,7,5]
    %t = transpose(%x) {permutation=[1,2,0,3]} : f32[2,3,5,4]{cabd}
    %m = matmul(%t, %a) : f32[2,3,5,5]
    %n = matmul(%b, %t) : f32[2,3,7,4]
    return %m as "m", %n as "n"
  })");
}

TEST(FoldTransposes, KeepsWhatTheLibraryRunsSlowlyOrNotAtAll) {
  ExpectKept(kResult, test::BareTarget());
  ExpectKept(R"(graph g {
    %x = data : f32[2,3,4,5]
    %a = data : f32[2,3,4,6]
    %t = transpose(%x) {permutation=[0,1,3,2]} : f32[2,3,5,4]
    %m = matmul(%t, %a) : f32[2,3,5,6]
    return %m as "m"
  })");
}

// The kernels of the additions transpose at no cost.
TEST(FoldTransposes, KeepsWhatKernelsTranspose) {
  ExpectKept(R"(graph g {
    %p = data : f32[2,3,5,5]
    %v = data : f32[2,3,5,4]
    %m = matmul(%p, %v) : f32[2,3,5,4]
    %t = transpose(%m) {permutation=[0,2,1,3]} : f32[2,5,3,4]
    %y = add(%t, %t) : f32[2,5,3,4]
    return %y as "y"
  })");
  ExpectKept(R"(graph g {
    %x = data : f32[5,2,3,4]
    %a = data : f32[2,3,4,5]
    %s = add(%x, %x) : f32[5,2,3,4]
    %t = transpose(%s) {permutation=[1,2,0,3]} : f32[2,3,5,4]
    %m = matmul(%t, %a) : f32[2,3,5,5]
    return %m as "m"
  })");
}

TEST(FoldTransposes, KeepsResultsThatAreReadElsewhere) {
  ExpectKept(R"(graph g {
    %p = data : f32[2,3,5,5]
    %v = data : f32[2,3,5,4]
    %m = matmul(%p, %v) : f32[2,3,5,4]
    %t = transpose(%m) {permutation=[0,2,1,3]} : f32[2,5,3,4]
    %r = reshape(%t) {shape=[10,12]} : f32[10,12]
    return %r as "r", %m as "m"
  })");
  ExpectKept(R"(graph g {
    %p = data : f32[2,3,5,5]
    %v = data : f32[2,3,5,4]
    %m = matmul(%p, %v) : f32[2,3,5,4]
    %t = transpose(%m) {permutation=[0,2,1,3]} : f32[2,5,3,4]
    return %t as "t"
  })");
}

}  // namespace
}  // namespace fusor::passes
