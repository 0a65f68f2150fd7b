// Autotune results change the layers that they name, and no others.

#include "passes/library/candidate.h"

#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/layout_library.h"
#include "tests/testing/modelled_library.h"

namespace fusor::passes {
namespace {

using ir::DType;

constexpr char kThree[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %a = conv2d(%x, %u) : f32[1,2,4,4] @"a"
    %b = conv2d(%a, %v) {pad=[1,1]} : f32[1,2,4,4] @"b"
    %c = conv2d(%b, %w) : f32[1,3,4,4] @"c"
    return %c as "c"
  })";

constexpr char kA[] =
    "conv2d x=1x2x4x4 w=2x2x1x1 stride=1,1 pad=0,0 dilation=1,1 groups=1";
constexpr char kB[] =
    "conv2d x=1x2x4x4 w=2x2x3x3 stride=1,1 pad=1,1 dilation=1,1 groups=1";

class LibraryChoiceTest : public testing::Test {
 protected:
  std::unique_ptr<ir::Graph> Run(bool (*pass)(ir::Graph&, PassContext&)) {
    auto graph = test::ParseOrDie(kThree);
    PassContext context(target_, options_);
    EXPECT_TRUE(pass(*graph, context));
    return graph;
  }

  const test::LayoutLibrary target_{[](const ir::Node&) {
    return std::vector<test::LayoutLibrary::Candidate>{{"plain", ""},
                                                       {"nhwc", "acdb"}};
  }};
  PassOptions options_;
};

// The choice of another form does not affect a convolution that space_to_depth
// has not replaced. Mixed precision queries the library before space_to_depth
// runs.
TEST_F(LibraryChoiceTest, AnotherFormLeavesTheCandidateToTheTarget) {
  const auto usual = Run(AssignLayout);
  for (const char* form : {kSpaceToDepth, kPadChannels}) {
    options_.choices.candidates[{kB, DType::kF32}] = form;
    EXPECT_TRUE(ir::SameGraph(*usual, *Run(AssignLayout))) << form;
  }
}

TEST_F(LibraryChoiceTest, ACandidateChangesTheLayoutOfItsLayerAlone) {
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %a = conv2d(%x, %u) {algorithm="direct"} : f32[1,2,4,4] @"a"
    %b = conv2d(%a, %v) {algorithm="direct", pad=[1,1]} : f32[1,2,4,4] @"b"
    %c = conv2d(%b, %w) {algorithm="direct"} : f32[1,3,4,4] @"c"
    return %c as "c"
  })",
                        *Run(AssignLayout));
  options_.choices.candidates[{kB, DType::kF32}] = "nhwc";
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %a = conv2d(%x, %u) {algorithm="direct"} : f32[1,2,4,4] @"a"
    %copy = copy(%a) {layout="acdb"} : f32[1,2,4,4]{acdb} @"b"
    %b = conv2d(%copy, %v) {algorithm="direct", pad=[1,1]} : f32[1,2,4,4]{acdb} @"b"
    %copy_1 = copy(%b) {layout=""} : f32[1,2,4,4] @"c"
    %c = conv2d(%copy_1, %w) {algorithm="direct"} : f32[1,3,4,4] @"c"
    return %c as "c"
  })",
                        *Run(AssignLayout));
}

TEST_F(LibraryChoiceTest, APrecisionKeepsItsLayerInF32) {
  options_.precision.dtype = DType::kBF16;
  constexpr char kNarrow[] = R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %cast_3 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1] @"c"
    %cast_2 = cast(%v) {dtype="bf16"} : bf16[2,2,3,3] @"b"
    %cast_1 = cast(%u) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%cast, %cast_1) : bf16[1,2,4,4] @"a"
    %b = conv2d(%a, %cast_2) {pad=[1,1]} : bf16[1,2,4,4] @"b"
    %c = conv2d(%b, %cast_3) {result_dtype="f32"} : f32[1,3,4,4] @"c"
    return %c as "c"
  })";
  test::ExpectSameGraph(kNarrow, *Run(MixedPrecision));
  options_.choices.precisions[{kB, DType::kBF16}] = DType::kF32;
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %cast_3 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1] @"c"
    %cast_1 = cast(%u) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%cast, %cast_1) {result_dtype="f32"} : f32[1,2,4,4] @"a"
    %b = conv2d(%a, %v) {pad=[1,1]} : f32[1,2,4,4] @"b"
    %cast_2 = cast(%b) {dtype="bf16"} : bf16[1,2,4,4] @"b"
    %c = conv2d(%cast_2, %cast_3) {result_dtype="f32"} : f32[1,3,4,4] @"c"
    return %c as "c"
  })",
                        *Run(MixedPrecision));
  // Choices for another dtype or another problem have no effect.
  options_.choices = {};
  options_.choices.precisions[{kB, DType::kF16}] = DType::kF32;
  options_.choices.precisions[{"conv2d x=1", DType::kBF16}] = DType::kF32;
  test::ExpectSameGraph(kNarrow, *Run(MixedPrecision));
}

// Candidates are measured with results in the operands' dtype. One without f32
// results keeps that dtype, although all readers are in f32.
TEST_F(LibraryChoiceTest, ACandidateWithoutWideResultsKeepsTheDType) {
  const test::LayoutLibrary library([](const ir::Node& node) {
    std::vector<test::LayoutLibrary::Candidate> candidates{{"plain", ""}};
    if (node.output()->type().dtype == DType::kBF16) {
      candidates.push_back({"amx", ""});
    }
    return candidates;
  });
  options_.precision.dtype = DType::kBF16;
  options_.choices.precisions[{kB, DType::kBF16}] = DType::kF32;
  options_.choices.candidates[{kA, DType::kBF16}] = "amx";
  auto graph = test::ParseOrDie(kThree);
  PassContext context(library, options_);
  EXPECT_TRUE(MixedPrecision(*graph, context));
  EXPECT_TRUE(AssignLayout(*graph, context));
  test::ExpectSameGraph(R"(graph g {
    %x = data : f32[1,2,4,4]
    %u = weight : f32[2,2,1,1]
    %v = weight : f32[2,2,3,3]
    %w = weight : f32[3,2,1,1]
    %cast_4 = cast(%w) {dtype="bf16"} : bf16[3,2,1,1] @"c"
    %cast_1 = cast(%u) {dtype="bf16"} : bf16[2,2,1,1] @"a"
    %cast = cast(%x) {dtype="bf16"} : bf16[1,2,4,4] @"a"
    %a = conv2d(%cast, %cast_1) {algorithm="direct"} : bf16[1,2,4,4] @"a"
    %cast_2 = cast(%a) {dtype="f32"} : f32[1,2,4,4] @"a"
    %b = conv2d(%cast_2, %v) {algorithm="direct", pad=[1,1]} : f32[1,2,4,4] @"b"
    %cast_3 = cast(%b) {dtype="bf16"} : bf16[1,2,4,4] @"b"
    %c = conv2d(%cast_3, %cast_4) {algorithm="direct", result_dtype="f32"} : f32[1,3,4,4] @"c"
    return %c as "c"
  })",
                        *graph);
}

TEST_F(LibraryChoiceTest, WinogradThatIsNotAllowedGivesWay) {
  const test::ModelledLibrary library(ir::FindTarget("cpu-avx512"));
  const auto graph = test::ParseOrDie(R"(graph g {
    %x = data : f32[1,16,4,4]
    %w = weight : f32[16,16,3,3]
    %y = conv2d(%x, %w) {pad=[1,1]} : f32[1,16,4,4]
    return %y as "y"
  })");
  const ir::Node& conv = *graph->nodes()[0];
  const auto chosen = [&] {
    const PassContext context(library, options_);
    return ChooseCandidate(conv, context)->name;
  };
  options_.choices.candidates[{ir::LibraryProblem(conv), DType::kF32}] =
      "winograd";
  EXPECT_EQ(chosen(), "winograd");
  options_.winograd = false;
  EXPECT_EQ(chosen(), "direct");
}

TEST_F(LibraryChoiceTest, AnUnknownCandidateIsRejected) {
  options_.choices.candidates[{kB, DType::kF32}] = "winograd";
  options_.choices.origin.file = "c.txt";
  try {
    Run(AssignLayout);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_EQ(std::string(error.what()),
              std::string("autotune results c.txt: ") + kB +
                  " in f32: expected plain or nhwc, got winograd");
  }
}

// cuDNN lists up to 80 engines.
TEST_F(LibraryChoiceTest, ALongListOfCandidatesIsShortened) {
  const test::LayoutLibrary library([](const ir::Node&) {
    std::vector<test::LayoutLibrary::Candidate> engines;
    for (const char* name : {"eng1", "eng2", "eng3", "eng4", "eng5"}) {
      engines.push_back({name, ""});
    }
    return engines;
  });
  options_.choices.candidates[{kB, DType::kF32}] = "eng58";
  auto graph = test::ParseOrDie(kThree);
  PassContext context(library, options_);
  try {
    AssignLayout(*graph, context);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_TRUE(std::string(error.what())
                    .ends_with("expected eng1 or eng2 or eng3 or one of 2 "
                               "more, got eng58"))
        << error.what();
  }
}

}  // namespace
}  // namespace fusor::passes
