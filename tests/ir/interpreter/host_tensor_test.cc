#include "ir/interpreter/host_tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/support/error.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::MakeTensor;
using test::RandomTensor;
using ::testing::ElementsAre;

TEST(TensorBytes, EveryDtypeAndLayoutSurvivesTheRoundTrip) {
  for (const DType dtype : kAllDTypes) {
    for (const char* layout : {"", "acdb", "aBcd4b", "ABcd4b2a"}) {
      const TensorType type{dtype, {2, 8, 3, 5}, ParseLayout(layout)};
      const double low = dtype == DType::kU8 ? 0 : -100;
      const Tensor tensor = RandomTensor(type, 1, low, 100);
      const Tensor back = LoadTensor(type, TensorBytes(tensor));
      EXPECT_EQ(back.type, type);
      EXPECT_EQ(back.data, tensor.data) << ToString(type);
    }
  }
}

TEST(TensorBytes, ElementsAreLittleEndianInLayoutOrder) {
  const Tensor tensor =
      MakeTensor({DType::kI32, {2, 2}, ParseLayout("ba")}, {1, 2, -1, 256});
  EXPECT_THAT(TensorBytes(tensor),
              ElementsAre(1, 0, 0, 0, 255, 255, 255, 255,  //
                          2, 0, 0, 0, 0, 1, 0, 0));
  EXPECT_THAT(TensorBytes(MakeTensor({DType::kBF16, {2}, {}}, {1, -2})),
              ElementsAre(0x80, 0x3f, 0x00, 0xc0));
}

TEST(TensorBytes, StoringRounds) {
  const TensorType type{DType::kF16, {1}, {}};
  const Tensor stored = LoadTensor(type, TensorBytes({type, {0.1}}));
  EXPECT_EQ(stored.data[0], RoundTo(DType::kF16, 0.1));
}

TEST(TensorBytes, RejectsTheWrongSize) {
  const std::vector<uint8_t> bytes(7);
  EXPECT_THROW(LoadTensor({DType::kF32, {2}, {}}, bytes), Error);
}

}  // namespace
}  // namespace fusor::ir
