// Compares convolutions with tiles of AMX with the interpreter. A CPU without
// AMX runs the same loops with plain tiles.

#include <gmock/gmock.h>

#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/runtime/cpu/one_node.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::DType;
using ir::Layout;

// Runs what the algorithm has of a convolution, on poisoned memory: gradients,
// and with groups all.
void ExpectAmxClose(const ConvCase& c) {
  const Layout channels_last{{0, 2, 3, 1}, {}};
  for (const auto& one : ConvNodes(c, DType::kBF16)) {
    if (c.groups == 1 && one->node->op_name() == "conv2d") continue;
    LibraryCall call =
        one->Call({channels_last, channels_last}, {channels_last}, "amx");
    Cpu::Get().compiler().PrepareCall(call);
    EXPECT_EQ(call.implementation, "fusor_amx") << one->node->op_name();
    ExpectClose(*one, call);
  }
}

TEST(AmxConvTest, GradientsOfOddGeometryUseNoUnwrittenMemory) {
  int tried = 0;
  for (const ConvCase& c : OddConvCases(150)) {
    if (c.groups > 1 || c.kernel == 1) continue;
    ExpectAmxClose(c);
    ++tried;
  }
  EXPECT_GT(tried, 40);
}

// Several tiles of pixels and of channels, whole or not, and one image or more
// per thread.
TEST(AmxConvTest, GradientsOfManyTiles) {
  const ConvCase cases[] = {
      {3, 64, 48, 14, 3, 1, 1, 1, 1}, {1, 40, 72, 9, 3, 2, 1, 1, 1},
      {5, 24, 20, 12, 5, 2, 2, 1, 1}, {2, 96, 64, 7, 3, 1, 1, 1, 1},
      {4, 32, 32, 11, 3, 1, 2, 2, 1}, {1, 16, 160, 6, 3, 1, 1, 1, 1},
      {2, 160, 16, 6, 3, 3, 1, 1, 1},
  };
  for (const ConvCase& c : cases) ExpectAmxClose(c);
}

// The columns of a filter that reads few channels are channels, too.
TEST(AmxConvTest, GradientsOfFewChannels) {
  const ConvCase cases[] = {
      {2, 3, 64, 30, 7, 2, 3, 1, 1},
      {3, 3, 32, 16, 3, 1, 1, 1, 1},
      {2, 1, 20, 13, 5, 3, 2, 1, 1},
      {2, 4, 16, 10, 7, 1, 3, 1, 1},
  };
  for (const ConvCase& c : cases) ExpectAmxClose(c);
}

// One tile or several per group, whole or not, and fewer images than threads.
TEST(AmxConvTest, GroupedConvolutions) {
  const ConvCase cases[] = {
      {3, 72, 72, 14, 3, 1, 1, 1, 3},  {2, 48, 96, 13, 3, 2, 1, 1, 3},
      {1, 168, 168, 9, 3, 1, 1, 1, 7}, {2, 80, 160, 8, 5, 3, 2, 1, 2},
      {1, 32, 32, 8, 3, 1, 1, 1, 2},   {5, 64, 34, 7, 3, 1, 2, 2, 2},
      {1, 34, 64, 6, 3, 1, 1, 1, 2},
  };
  for (const ConvCase& c : cases) ExpectAmxClose(c);
}

// Groups of few channels share tiles. The last ones may be fewer. One tile of
// a weight gradient is complete, or adds up several images.
TEST(AmxConvTest, JoinedGroups) {
  const ConvCase cases[] = {
      {3, 48, 48, 14, 3, 2, 1, 1, 6},    {2, 104, 104, 9, 3, 1, 1, 1, 13},
      {1, 440, 440, 7, 3, 2, 1, 1, 55},  {4, 128, 128, 8, 3, 1, 1, 1, 32},
      {2, 36, 36, 11, 5, 3, 2, 1, 3},    {1, 30, 45, 6, 3, 1, 1, 1, 3},
      {3, 16, 32, 10, 3, 1, 2, 2, 2},    {2, 20, 20, 12, 3, 1, 1, 1, 5},
      {1, 208, 208, 13, 3, 1, 1, 1, 26}, {5, 28, 16, 9, 7, 2, 3, 1, 4},
      {2, 24, 24, 40, 3, 1, 1, 1, 6},
  };
  for (const ConvCase& c : cases) ExpectAmxClose(c);
}

// Sums leave their tiles where the pixels of an image exceed a cache.
TEST(AmxConvTest, GradientsOfLargeImages) {
  ExpectAmxClose({1, 16, 16, 144, 3, 1, 1, 1, 1});
}

}  // namespace
}  // namespace fusor::test
