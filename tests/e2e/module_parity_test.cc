// Modules whose fusion, rounding or library calls were once wrong. Compares
// them, compiled for the CPU, with the typed interpreter.

#include "tests/testing/module_parity.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "ir/builder.h"
#include "tests/testing/block_models.h"

namespace fusor::test {
namespace {

using ir::DType;

ModuleRun Training() { return {.train = true}; }

// A slice from the start is not a view of the whole, since its result is
// shorter.
TEST(PrefixSlices, BesideTheirWholeOperand) {
  ExpectAsInterpreted(R"(graph whole_and_prefix {
      %a = data : f32[16,256]
      %s = neg(%a) : f32[16,256]
      %l = slice(%s) {limit=[16,64], start=[0,0], stride=[1,1]} : f32[16,64]
      %e = exp(%l) : f32[16,64]
      return %s as "s", %e as "e"
    })");
  // The loops cover only the reduced prefix, which is smaller than the whole.
  ExpectAsInterpreted(R"(graph reduced_prefix {
      %a = data : f32[16,64]
      %s = neg(%a) : f32[16,64]
      %l = slice(%s) {limit=[4,64], start=[0,0], stride=[1,1]} : f32[4,64]
      %m = reduce(%l) {dims=[0], kind="max"} : f32[64]
      return %s as "s", %m as "m"
    })");
  ExpectAsInterpreted(R"(graph reduced_row {
      %a = data : f32[16,64]
      %s = neg(%a) : f32[16,64]
      %l = slice(%s) {limit=[1,64], start=[0,0], stride=[1,1]} : f32[1,64]
      %m = reduce(%l) {dims=[1], kind="sum"} : f32[1]
      return %s as "s", %m as "m"
    })");
  ExpectAsInterpreted(R"(graph readers_of_an_input {
      %a = data : f32[256,64]
      %n = neg(%a) : f32[256,64]
      %m = slice(%n) {limit=[16,64], start=[0,0], stride=[1,1]} : f32[16,64]
      %e = exp(%m) : f32[16,64]
      %p = slice(%a) {limit=[100,64], start=[0,0], stride=[1,1]} : f32[100,64]
      %q = tanh(%p) : f32[100,64]
      %r = reduce(%a) {dims=[0], kind="max"} : f32[64]
      return %n as "n", %e as "e", %q as "q", %r as "r"
    })");
}

TEST(PrefixSlices, ThroughOtherMovement) {
  ExpectAsInterpreted(R"(graph strided {
      %a = data : f32[12,10]
      %s = tanh(%a) : f32[12,10]
      %l = slice(%s) {limit=[12,9], start=[0,0], stride=[3,2]} : f32[4,5]
      %t = transpose(%l) {permutation=[1,0]} : f32[5,4]
      %r = reshape(%t) {shape=[5,1,4]} : f32[5,1,4]
      %b = broadcast(%r) {dims=[0,1,2], shape=[5,1,4]} : f32[5,1,4]
      %e = exp(%b) : f32[5,1,4]
      return %s as "s", %e as "e"
    })");
  ExpectAsInterpreted(R"(graph padded {
      %a = data : f32[4,6]
      %s = tanh(%a) : f32[4,6]
      %p = pad(%s) {high=[2,0], interior=[0,1], low=[0,0], value=0.5} : f32[6,11]
      %l = slice(%p) {limit=[4,6], start=[0,0], stride=[1,1]} : f32[4,6]
      %e = add(%l, %s) : f32[4,6]
      return %e as "e", %p as "p"
    })");
  ExpectAsInterpreted(R"(graph of_a_row {
      %a = data : f32[1,6]
      %s = tanh(%a) : f32[1,6]
      %v = reshape(%s) {shape=[6]} : f32[6]
      %b = broadcast(%v) {dims=[1], shape=[5,6]} : f32[5,6]
      %l = slice(%b) {limit=[1,3], start=[0,0], stride=[1,1]} : f32[1,3]
      %m = neg(%b) : f32[5,6]
      return %l as "l", %m as "m"
    })");
  ExpectAsInterpreted(R"(graph bools {
      %a = data : f32[16,64]
      %b = data : f32[16,64]
      %g = compare(%a, %b) {direction="gt"} : bool[16,64]
      %l = slice(%g) {limit=[8,64], start=[0,0], stride=[1,1]} : bool[8,64]
      %c = cast(%l) {dtype="f32"} : f32[8,64]
      %d = select(%g, %a, %b) : f32[16,64]
      %s = reduce(%c) {dims=[0,1], kind="sum"} : f32[]
      return %s as "s", %d as "d"
    })");
}

// Slices of channels in blocked layouts, at the end of a block and inside.
TEST(PrefixSlices, OfTheChannelsOfAConvolution) {
  for (const int channels : {16, 24}) {
    ExpectAsInterpreted(fmt::format(R"(graph channels {{
        %x = data : f32[2,32,8,8]
        %w = data : f32[64,32,3,3]
        %c = conv2d(%x, %w) {{pad=[1,1]}} : f32[2,64,8,8]
        %l = slice(%c) {{limit=[2,{0},8,8], start=[0,0,0,0], stride=[1,1,1,1]}}
           : f32[2,{0},8,8]
        %t = tanh(%l) : f32[2,{0},8,8]
        %n = neg(%c) : f32[2,64,8,8]
        return %t as "t", %n as "n"
      }})",
                                    channels));
  }
}

TEST(PrefixSlices, InTraining) {
  ExpectAsInterpreted(R"(graph gated {
      %x = data : f32[64,32]
      %w = weight {init="normal", std=0.2} : f32[128,32]
      %b = bias {init="constant", value=0.1} : f32[128]
      %z = matmul(%x, %w) {transpose_b=true} : f32[64,128]
      %bb = broadcast(%b) {dims=[1], shape=[64,128]} : f32[64,128]
      %y = add(%z, %bb) : f32[64,128]
      %i = slice(%y) {limit=[64,64], start=[0,0], stride=[1,1]} : f32[64,64]
      %f = slice(%y) {limit=[64,128], start=[0,64], stride=[1,1]} : f32[64,64]
      %t = tanh(%f) : f32[64,64]
      %g = mul(%i, %t) : f32[64,64]
      %q = mul(%g, %g) : f32[64,64]
      %loss = reduce(%q) {dims=[0,1], kind="sum"} : f32[]
      return %loss as "loss"
    })",
                      Training());
  ExpectAsInterpreted(R"(graph concat_gradient {
      %w = weight {init="normal", std=1.0} : f32[3]
      %c = concat(%w, %w) {dim=0} : f32[6]
      %t = tanh(%c) : f32[6]
      %loss = reduce(%t) {dims=[0], kind="sum"} : f32[]
      return %loss as "loss"
    })",
                      Training());
}

// The input gate is the first quarter of the matmul for all gates.
TEST(PrefixSlices, InALstm) {
  constexpr int64_t kSteps = 8, kBatch = 16, kIn = 32, kUnits = 64;
  auto graph = std::make_unique<ir::Graph>("lstm");
  ir::Builder b(*graph);
  const auto parameter = [&](const char* name, ir::Shape shape, double std) {
    return graph->AddInput({DType::kF32, std::move(shape), {}},
                           ir::InputRole::kWeight, name,
                           {{"init", std::string("normal")}, {"std", std}});
  };
  ir::Value* x = graph->AddInput({DType::kF32, {kSteps, kBatch, kIn}, {}},
                                 ir::InputRole::kData, "x");
  ir::Value* wi = parameter("wi", {4 * kUnits, kIn}, 0.18);
  ir::Value* wh = parameter("wh", {4 * kUnits, kUnits}, 0.125);
  ir::Value* bias = parameter("bias", {4 * kUnits}, 0.1);
  ir::Value* hidden = b.Constant(DType::kF32, {kBatch, kUnits}, {0});
  ir::Value* cell = hidden;
  for (int64_t t = 0; t < kSteps; ++t) {
    ir::Value* now =
        b.Reshape(b.Slice(x, {t, 0, 0}, {t + 1, kBatch, kIn}), {kBatch, kIn});
    ir::Value* gates =
        b.Plus(b.Linear(now, wi, bias),
               b.Matmul(hidden, wh, false, /*transpose_b=*/true));
    const auto gate = [&](int64_t i) {
      return b.Slice(gates, {0, i * kUnits}, {kBatch, (i + 1) * kUnits});
    };
    cell = b.Plus(b.Times(b.Sigmoid(gate(1)), cell),
                  b.Times(b.Sigmoid(gate(0)), b.Tanh(gate(2))));
    hidden = b.Times(b.Sigmoid(gate(3)), b.Tanh(cell));
  }
  graph->AddOutput(b.ReduceMean(b.Times(hidden, hidden), {0, 1}), "loss");
  ExpectAsInterpreted(std::move(graph), Training());
}

// u8 arithmetic has 32 bits and wraps around after each op.
TEST(Integers, WrapInsideFusions) {
  ExpectAsInterpreted(R"(graph bytes {
      %a = data : u8[300]
      %s = add(%a, %a) : u8[300]
      %m = mul(%s, %a) : u8[300]
      %n = neg(%m) : u8[300]
      %d = sub(%n, %s) : u8[300]
      %c = cast(%s) {dtype="f32"} : f32[300]
      %e = cast(%d) {dtype="f32"} : f32[300]
      %i = iota() {dim=0, dtype="u8", shape=[300]} : u8[300]
      %g = compare(%i, %s) {direction="lt"} : bool[300]
      %t = reduce(%s) {dims=[0], kind="sum"} : u8[]
      %u = cast(%t) {dtype="i32"} : i32[]
      return %c as "c", %e as "e", %g as "g", %u as "u"
    })",
                      {.first = {{"a", 200}}});
  ExpectAsInterpreted(R"(graph casts {
      %x = data : i32[40]
      %u = cast(%x) {dtype="u8"} : u8[40]
      %r = relu(%u) : u8[40]
      %w = cast(%u) {dtype="i32"} : i32[40]
      %l = cast(%x) {dtype="i64"} : i64[40]
      %k = mul(%l, %l) : i64[40]
      %m = cast(%k) {dtype="u8"} : u8[40]
      %f = cast(%m) {dtype="f32"} : f32[40]
      return %r as "r", %w as "w", %f as "f"
    })",
                      {.first = {{"x", -1}}});
}

class NotANumber : public testing::TestWithParam<const char*> {};

TEST_P(NotANumber, PassesReluAndMaxPool) {
  const std::string dtype = GetParam();
  ModuleRun run{.tolerance = 0.02, .first = {{"x", NAN}}};
  run.options.passes.winograd = false;  // else a whole tile is NaN
  const auto with = [&](std::string text) {
    for (size_t at; (at = text.find("TYPE")) != std::string::npos;) {
      text.replace(at, 4, dtype);
    }
    return text;
  };
  for (const char* channels : {"16", "3"}) {
    SCOPED_TRACE(channels);
    std::string text = with(R"(graph conv_relu {
        %x = data : TYPE[1,IN,8,8]
        %w = data : TYPE[16,IN,3,3]
        %b = data : TYPE[16]
        %c = conv2d(%x, %w, %b) {pad=[1,1]} : TYPE[1,16,8,8]
        %r = relu(%c) : TYPE[1,16,8,8]
        return %r as "r"
      })");
    for (size_t at; (at = text.find("IN,")) != std::string::npos;) {
      text.replace(at, 2, channels);
    }
    ExpectAsInterpreted(text, run);
    ModuleRun weight = run;
    weight.first = {{"w", NAN}};
    // AMX kernels multiply the zeros of the padding, too.
    for (const auto& [from, to] :
         {std::pair(" {pad=[1,1]}", " {pad=[0,0]}"),
          std::pair("[1,16,8,8]\n        %r", "[1,16,6,6]\n        %r"),
          std::pair("[1,16,8,8]\n        return",
                    "[1,16,6,6]\n        return")}) {
      const size_t at = text.find(from);
      ASSERT_NE(at, std::string::npos);
      text.replace(at, std::string_view(from).size(), to);
    }
    ExpectAsInterpreted(text, weight);
  }
  for (const char* shape : {"2,32", "1,3"}) {
    ExpectAsInterpreted(with(fmt::format(R"(graph pool {{
        %x = data : TYPE[{0},9,9]
        %p, %i = max_pool(%x) {{window=[3,3], stride=[2,2], pad=[1,1]}}
               : TYPE[{0},5,5], u8[{0},5,5]
        %y = relu(%x) : TYPE[{0},9,9]
        %q, %j = max_pool(%y) {{window=[2,2], stride=[2,2]}}
               : TYPE[{0},4,4], u8[{0},4,4]
        return %p as "p", %i as "i", %q as "q", %j as "j"
      }})",
                                         shape)),
                        run);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, NotANumber, testing::Values("f32", "bf16"),
                         [](const auto& param) { return param.param; });

// The same value as several operands.
TEST(RepeatedOperands, OfReductionsOverManyTensors) {
  ExpectAsInterpreted(R"(graph twice {
      %a = data : f32[5]
      %b = tanh(%a) : f32[5]
      %s = sum_of_squares(%a, %a) : f32[]
      %t = sum_of_squares(%b, %a, %b) : f32[]
      %f = all_finite(%a, %b, %a) : bool[]
      %e = erf(%t) : f32[]
      return %s as "s", %t as "t", %f as "f", %e as "e"
    })");
  ExpectAsInterpreted(R"(graph twice_large {
      %a = data : f32[20000]
      %s = sum_of_squares(%a, %a) : f32[]
      return %s as "s"
    })");
}

TEST(RepeatedOperands, OfOtherOps) {
  ExpectAsInterpreted(R"(graph others {
      %a = data : f32[6,6]
      %m = matmul(%a, %a) {transpose_b=true} : f32[6,6]
      %c = concat(%m, %a, %m) {dim=1} : f32[6,18]
      %p = compare(%a, %a) {direction="eq"} : bool[6,6]
      %s = select(%p, %m, %m) : f32[6,6]
      %x = maximum(%s, %s) : f32[6,6]
      return %c as "c", %x as "x"
    })");
  ExpectAsInterpreted(R"(graph itself {
      %x = data : f32[16,16,3,3]
      %y = conv2d(%x, %x) {pad=[1,1]} : f32[16,16,3,3]
      return %y as "y"
    })");
}

// Two parameters share a gradient, then two are each other's gradients.
TEST(RepeatedOperands, OfUpdates) {
  const std::string shared = R"(graph two_biases {
      %x = data : f32[4,5]
      %a = bias {init="constant", value=0.1} : f32[5]
      %b = bias {init="constant", value=0.1} : f32[5]
      %ab = broadcast(%a) {dims=[1], shape=[4,5]} : f32[4,5]
      %bb = broadcast(%b) {dims=[1], shape=[4,5]} : f32[4,5]
      %y = add(%x, %ab) : f32[4,5]
      %z = add(%y, %bb) : f32[4,5]
      %q = mul(%z, %z) : f32[4,5]
      %loss = reduce(%q) {dims=[0,1], kind="sum"} : f32[]
      return %loss as "loss"
    })";
  ExpectAsInterpreted(shared, Training());
  ModuleRun clipped = Training();
  clipped.options.passes.optimizer.clip_norm = 0.5;
  ExpectAsInterpreted(shared, clipped);
  ExpectAsInterpreted(R"(graph product {
      %a = weight {init="normal", std=1.0} : f32[40]
      %b = weight {init="normal", std=1.0} : f32[40]
      %q = mul(%a, %b) : f32[40]
      %loss = reduce(%q) {dims=[0], kind="sum"} : f32[]
      return %loss as "loss"
    })",
                      Training());
}

ModuleRun Mixed(DType dtype) {
  ModuleRun run = Training();
  run.options.passes.precision.dtype = dtype;
  run.tolerance = 0.02;
  run.only = "loss";
  return run;
}

// The loss depends on one of the parameters, then on none.
TEST(UnusedWeights, TrainVerified) {
  for (const char* factor : {"w", "x"}) {
    const std::string text = fmt::format(R"(graph unused_weight {{
        %x = data : f32[3]
        %w = weight {{init="normal", std=0.1}} : f32[3]
        %u = weight {{init="normal", std=0.1}} : f32[3]
        %y = mul(%x, %{}) : f32[3]
        %loss = reduce(%y) {{dims=[0], kind="sum"}} : f32[]
        return %loss as "loss"
      }})",
                                         factor);
    ExpectAsInterpreted(text, Training());
    ExpectAsInterpreted(text, Mixed(DType::kBF16));
  }
}

// The weight of a depthwise convolution is padded differently in 16 and in 32
// bits.
TEST(MixedPrecision, KeepsCopiesOfWeightsOfAllSizes) {
  ExpectAsInterpreted(R"(graph depthwise {
      %x = data : f32[2,48,8,8]
      %w = weight {init="normal", std=0.1} : f32[48,1,3,3]
      %v = weight {init="normal", std=0.1} : f32[10,48,1,1]
      %c = conv2d(%x, %w) {groups=48, pad=[1,1]} : f32[2,48,8,8]
      %d = conv2d(%c, %v) : f32[2,10,8,8]
      %q = mul(%d, %d) : f32[2,10,8,8]
      %loss = reduce(%q) {dims=[0,1,2,3], kind="sum"} : f32[]
      return %loss as "loss"
    })",
                      Mixed(DType::kBF16));
}

TEST(MixedPrecision, LeavesWhatIs16BitAlready) {
  for (const char* dtype : {"f16", "bf16"}) {
    for (const DType mixed : {DType::kF16, DType::kBF16}) {
      ModuleRun run;
      run.options.passes.precision.dtype = mixed;
      run.tolerance = 0.05;
      ExpectAsInterpreted(fmt::format(R"(graph narrow {{
          %a = data : {0}[8,16]
          %b = data : {0}[16,8]
          %g = data : f32[8,8]
          %c = matmul(%a, %b) : {0}[8,8]
          %d = cast(%c) {{dtype="f32"}} : f32[8,8]
          %e = tanh(%d) : f32[8,8]
          %f = matmul(%e, %g) : f32[8,8]
          return %e as "e", %f as "f"
        }})",
                                      dtype),
                          run);
    }
  }
}

class MixedPrecisionBlocks : public testing::TestWithParam<const char*> {};

TEST_P(MixedPrecisionBlocks, TrainVerified) {
  ExpectAsInterpreted(BlockModel(GetParam()), Mixed(DType::kBF16));
}

INSTANTIATE_TEST_SUITE_P(Networks, MixedPrecisionBlocks,
                         testing::Values("mobilenet_v2", "efficientnet",
                                         "convnext", "vit", "densenet"),
                         [](const auto& param) { return param.param; });

// The layout pass must not merge these casts into its copies.
// LLVM before 22 swaps the operands of a masked AVX512-FP16 comparison without
// its condition when it runs out of registers (its issue 159723). The gradient
// was 0. The logarithm and the power use up registers.
TEST(Comparisons, OfF16UnderRegisterPressure) {
  ModuleRun run = Training();
  run.options.passes.eager_rounding = true;
  run.tolerance = 5e-3;
  ExpectAsInterpreted(R"(graph slopes {
      %x = weight : f16[4,2,4]
      %y = data : f16[4,2,4]
      %c = constant() {dtype="f16", shape=[4,2,4], value=[-0.4]} : f16[4,2,4]
      %mask = compare(%x, %c) {direction="ne"} : bool[4,2,4]
      %a = abs(%x) : f16[4,2,4]
      %half = constant() {dtype="f16", shape=[4,2,4], value=[0.5]} : f16[4,2,4]
      %b = add(%a, %half) : f16[4,2,4]
      %l = log(%b) : f16[4,2,4]
      %d = abs(%l) : f16[4,2,4]
      %e = add(%d, %half) : f16[4,2,4]
      %p = pow(%e, %y) : f16[4,2,4]
      %f = floor(%p) : f16[4,2,4]
      %g = abs(%e) : f16[4,2,4]
      %k = constant() {dtype="f16", shape=[4,2,4], value=[1.6]} : f16[4,2,4]
      %s = select(%mask, %g, %k) : f16[4,2,4]
      %sum2 = reduce(%k) {dims=[0,1,2], kind="sum"} : f16[]
      %cast2 = cast(%sum2) {dtype="f32"} : f32[]
      %sum = reduce(%s) {dims=[0,1,2], kind="sum"} : f16[]
      %cast = cast(%sum) {dtype="f32"} : f32[]
      %loss = add(%cast2, %cast) : f32[]
      return %loss as "loss", %f as "floor"
    })",
                      run);
}

TEST(Copies, OfACastFromBool) {
  ModuleRun run;
  run.options.passes.eager_rounding = true;
  ExpectAsInterpreted(R"(graph pooled_mask {
      %image = data : f32[2,8,1,1]
      %filter = data : f32[2,8,2,2]
      %mask = data : bool[2,8,2,2]
      %conv2d = conv2d(%image, %filter) {pad=[1,1], stride=[3,3]}
        : f32[2,2,1,1]
      %cast = cast(%mask) {dtype="f32"} : f32[2,8,2,2]
      %y, %at = max_pool(%cast) {pad=[1,0], stride=[3,3], window=[2,2]}
        : f32[2,8,1,1], u8[2,8,1,1]
      return %conv2d as "conv", %y as "y"
    })",
                      run);
}

// oneDNN does not support this reorder.
TEST(Copies, FromF16ToBF16) {
  constexpr char kModule[] = R"(graph model {
      %x = weight : f16[4,3]
      %matrix = weight : bf16[4,4]
      %cast = cast(%x) {dtype="bf16"} : bf16[4,3]
      %y = matmul(%cast, %matrix) {result_dtype="f32", transpose_a=true,
        transpose_b=true} : f32[3,4]
      %loss = reduce(%y) {dims=[0,1], kind="sum"} : f32[]
      return %loss as "loss"
    })";
  for (const bool fusion : {true, false}) {
    ModuleRun run = Training();
    run.options.passes.fusion = fusion;
    run.tolerance = 1e-2;
    ExpectAsInterpreted(kModule, run);
  }
}

// Fusion accepted these reductions in one order of the nodes. The kernel had
// another order, in which their loops do not match.
TEST(Reductions, OfOneElementBesideWholeOnes) {
  ExpectAsInterpreted(R"(graph one_element {
      %x = data : f16[9,1,1,1]
      %gamma = weight : f32[1]
      %beta = weight : f32[1]
      %zero = constant() {dtype="f32", shape=[], value=[0]} : f32[]
      %a = tanh(%x) : f16[9,1,1,1]
      %rows = reduce(%x) {dims=[1,2,3], kind="sum"} : f16[9]
      %b = tanh(%x) : f16[9,1,1,1]
      %y, %m, %v = batch_norm_train(%b, %gamma, %beta) {epsilon=0.01}
          : f16[9,1,1,1], f32[1], f32[1]
      %s = reduce(%a) {dims=[0,1,2,3], kind="sum"} : f16[]
      %t = reduce(%y) {dims=[0,1,2,3], kind="sum"} : f16[]
      return %zero as "loss", %rows as "rows", %s as "s", %t as "t"
    })",
                      Training());
}

}  // namespace
}  // namespace fusor::test
