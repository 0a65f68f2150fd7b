#include "runtime/data/datasets/tensor_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "ir/ignored_label.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/data/loader.h"
#include "tests/testing/data_error.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::DataError;
using ::fusor::testing::WriteTestText;
using ir::DType;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
NamedTensor MakeTensor(const std::string& name, DType dtype, ir::Shape shape,
                       const std::vector<T>& values) {
  NamedTensor tensor{name, {dtype, std::move(shape), {}}, {}};
  tensor.bytes.resize(values.size() * sizeof(T));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

class TensorSetTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name,
                    const std::vector<NamedTensor>& tensors) {
    WriteSafetensors(folder_ / name, SourcesOf(tensors));
    return folder_ / name;
  }
  // Samples i with input [i, i + 1] and a label at each element.
  std::string WriteLabels(const std::string& name,
                          const std::vector<int64_t>& labels) {
    std::vector<float> inputs;
    const auto samples = static_cast<int64_t>(labels.size() / 2);
    for (int64_t i = 0; i < samples; ++i) {
      inputs.push_back(static_cast<float>(i));
      inputs.push_back(static_cast<float>(i + 1));
    }
    return Write(name,
                 {MakeTensor("input", DType::kF32, {samples, 1, 2}, inputs),
                  MakeTensor("target", DType::kI64, {samples, 2}, labels)});
  }
  static SampleForm FormOf(const Dataset& set) {
    return {.inputs = {{"input", set.tensors()->inputs[0]}},
            .labels = 2,
            .classes = 21,
            .ignores = true};
  }
  // Returns the error of the first batch.
  static std::string ErrorOf(std::unique_ptr<TensorSet> set, SampleForm form) {
    Loader loader(std::move(set), {.batch_size = 1, .form = std::move(form)});
    try {
      loader.Next();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kData);
      return error.what();
    }
    return "";
  }

  test::TemporaryFolder folder_;
};

TEST_F(TensorSetTest, ReadsSamplesOfSeveralFiles) {
  WriteLabels("train-0.safetensors", {0, 1, 2, 3});
  WriteLabels("train-1.safetensors", {4, 5});
  WriteLabels("val.safetensors", {6, 7});
  const auto train = OpenDataset(folder_.path(), {});
  EXPECT_EQ(train->size(), 3);
  EXPECT_EQ(train->format(), "safetensors");
  EXPECT_EQ(train->Name(2), folder_ / "train-1.safetensors" + ": sample 0");
  EXPECT_EQ(ToString(train->tensors()->inputs[0]), "f32[1,2]");
  EXPECT_EQ(ToString(train->tensors()->target), "i64[2]");
  EXPECT_EQ(OpenDataset(folder_.path(), {.split = Split::kVal})->size(), 1);

  Loader loader(OpenDataset(folder_.path(), {}),
                {.batch_size = 2, .form = FormOf(*train)});
  const Batch& first = loader.Next();
  std::vector<float> inputs(4);
  std::memcpy(inputs.data(), first.images().data(), first.images().size());
  EXPECT_THAT(inputs, ElementsAre(0, 1, 1, 2));
  EXPECT_THAT(first.labels, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(first.weights, ElementsAre(1, 1));
  const Batch& last = loader.Next();  // one sample is padding
  EXPECT_THAT(last.labels, ElementsAre(4, 5, 0, 0));
  EXPECT_THAT(last.weights, ElementsAre(1, 0));
  EXPECT_THAT(last.samples, ElementsAre(2, -1));
}

TEST_F(TensorSetTest, TrainingFollowsTheShuffledOrder) {
  WriteLabels("a", {0, 0, 1, 1, 2, 2, 3, 3, 4, 4});
  auto set = OpenDataset(folder_.path(), {});
  const SampleForm form = FormOf(*set);
  Loader loader(std::move(set), {.batch_size = 2,
                                 .form = form,
                                 .training = true,
                                 .seed = 5,
                                 .start_batch = 1});
  const std::vector<int64_t> order = ShuffledOrder(5, 5, 0);
  const Batch& batch = loader.Next();
  EXPECT_THAT(batch.labels,
              ElementsAre(order[2], order[2], order[3], order[3]));
}

TEST_F(TensorSetTest, ConvertsMasksAndIgnoresUnlabelledPixels) {
  Write("a", {MakeTensor<uint8_t>("input", DType::kU8, {1, 3}, {9, 8, 7}),
              MakeTensor<uint8_t>("target", DType::kU8, {1, 2}, {20, 255})});
  auto set = OpenDataset(folder_.path(), {});
  const SampleForm form = FormOf(*set);
  Loader loader(std::move(set), {.batch_size = 1, .form = form});
  const Batch& batch = loader.Next();
  EXPECT_THAT(batch.images(), ElementsAre(9, 8, 7));
  EXPECT_THAT(batch.labels, ElementsAre(20, ir::kIgnoredLabel));
}

TEST_F(TensorSetTest, ConvertsValuesToFloat) {
  const std::string file = Write(
      "a", {MakeTensor<float>("input", DType::kF32, {1}, {1}),
            MakeTensor<double>("target", DType::kF64, {1, 2}, {0.5, -2})});
  auto set = std::make_unique<TensorSet>("a", std::vector{file});
  const SampleForm form{.inputs = {{"input", set->tensors()->inputs[0]}},
                        .values = 2};
  Loader loader(std::move(set), {.batch_size = 1, .form = form});
  const Batch& batch = loader.Next();
  EXPECT_THAT(batch.values, ElementsAre(0.5F, -2.0F));
  EXPECT_TRUE(batch.labels.empty());
}

TEST_F(TensorSetTest, LabelsAndTokensOutOfRangeAreErrors) {
  const std::string file = WriteLabels("a", {3, 21});
  const auto open = [&] {
    return std::make_unique<TensorSet>("a", std::vector{file});
  };
  SampleForm form = FormOf(*open());
  EXPECT_EQ(ErrorOf(open(), form),
            file +
                ": sample 0: label 21 at [1]: expected 0 to 20, or -100 or "
                "255 to ignore it");
  form.ignores = false;
  EXPECT_EQ(ErrorOf(open(), form),
            file + ": sample 0: label 21 at [1]: expected 0 to 20");
  form.classes = 22;
  EXPECT_EQ(ErrorOf(open(), form), "");

  const std::string text =
      Write("b", {MakeTensor<int32_t>("input", DType::kI32, {1, 2}, {1, -1}),
                  MakeTensor<int32_t>("target", DType::kI32, {1}, {0})});
  auto set = std::make_unique<TensorSet>("b", std::vector{text});
  const ir::TensorType input = set->tensors()->inputs[0];
  EXPECT_EQ(
      ErrorOf(std::move(set),
              {.inputs = {{"input", input, 10}}, .labels = 1, .classes = 1}),
      text + ": sample 0: input -1 at [1]: expected 0 to 9");
}

// A sample's inputs are next to those of the other samples.
TEST_F(TensorSetTest, ReadsSeveralInputs) {
  const std::string file = Write(
      "a", {MakeTensor<int32_t>("input", DType::kI32, {2, 2}, {1, 2, 3, 4}),
            MakeTensor<uint8_t>("mask", DType::kU8, {2, 1}, {0, 1}),
            MakeTensor<int32_t>("target", DType::kI32, {2}, {0, 1})});
  const std::vector<std::string> names{"input", "mask"};
  const auto open = [&] {
    return std::make_unique<TensorSet>("a", std::vector{file}, names);
  };
  auto set = open();
  SampleForm form{.labels = 1, .classes = 2};
  for (size_t k = 0; k < 2; ++k) {
    form.inputs.push_back({names[k], set->tensors()->inputs[k]});
  }
  Loader loader(std::move(set), {.batch_size = 3, .form = form});
  const Batch& batch = loader.Next();
  ASSERT_EQ(batch.inputs(), 2U);
  std::vector<int32_t> tokens(6);
  std::memcpy(tokens.data(), batch.input(0).data(), batch.input(0).size());
  EXPECT_THAT(tokens, ElementsAre(1, 2, 3, 4, 0, 0));
  EXPECT_THAT(batch.input(1), ElementsAre(0, 1, 0));
  form.inputs[1].tokens = 1;
  EXPECT_EQ(ErrorOf(open(), form), "");  // the first sample fits
  form.inputs[0].tokens = 2;
  EXPECT_EQ(ErrorOf(open(), form),
            file + ": sample 0: input 2 at [1]: expected 0 to 1");
  EXPECT_THAT(
      [&] {
        TensorSet("a", {file}, {"input", "weights"});
      },
      DataError("",
                "a: expected tensors input, weights and target, "
                "got input, target, mask"));
}

// 255 is a class if there are more than 255, e.g. of bytes of text.
TEST_F(TensorSetTest, ClassesUpTo255AreNotIgnored) {
  WriteLabels("a", {255, -100});
  auto set = OpenDataset(folder_.path(), {});
  SampleForm form = FormOf(*set);
  form.classes = 256;
  Loader loader(std::move(set), {.batch_size = 1, .form = form});
  EXPECT_THAT(loader.Next().labels, ElementsAre(255, ir::kIgnoredLabel));
}

TEST_F(TensorSetTest, ABadSampleCanBeSkipped) {
  WriteLabels("a", {0, 1, 2, 99});
  auto set = OpenDataset(folder_.path(), {});
  const SampleForm form = FormOf(*set);
  Loader loader(
      std::move(set),
      {.batch_size = 2, .form = form, .bad_record = BadRecord::kSkip});
  const Batch& batch = loader.Next();
  EXPECT_THAT(batch.labels, ElementsAre(0, 1, 0, 0));
  EXPECT_THAT(batch.weights, ElementsAre(1, 0));
  EXPECT_THAT(loader.TakeWarnings(), ElementsAre(HasSubstr("label 99")));
}

TEST_F(TensorSetTest, FilesThatDoNotFitAreErrors) {
  const auto error = [&](const std::vector<std::string>& files,
                         const std::string& message) {
    EXPECT_THAT([&] { TensorSet("DATA", files); }, DataError("", message));
  };
  const NamedTensor input =
      MakeTensor<float>("input", DType::kF32, {2, 1}, {1, 2});
  const NamedTensor target =
      MakeTensor<int32_t>("target", DType::kI32, {2}, {0, 1});
  const std::string good = Write("good", {input, target});
  error({Write("a", {input})},
        "a: expected tensors input and target, got "
        "input");
  error({Write("b", {})}, "b: expected tensors input and target, got none");
  error({Write("c", {input, MakeTensor<int32_t>("target", DType::kI32, {3},
                                                {0, 1, 2})})},
        "c: tensor target: expected 2 samples, as in input, got 3");
  error(
      {Write("d", {MakeTensor<float>("input", DType::kF32, {}, {1}), target})},
      "d: tensor input: expected a dimension of samples, got a scalar");
  error({good,
         Write("e", {MakeTensor<float>("input", DType::kF32, {1, 2}, {1, 2}),
                     MakeTensor<int32_t>("target", DType::kI32, {1}, {0})})},
        "e: tensor input: expected samples f32[1], as in " + good +
            ", got f32[2]");
  std::filesystem::resize_file(good, std::filesystem::file_size(good) - 1);
  error({good}, "truncated?");
}

TEST_F(TensorSetTest, AFileThatBecomesShorterIsAnError) {
  const std::string file = WriteLabels("a", {0, 1, 2, 3});
  auto set = std::make_unique<TensorSet>("a", std::vector{file});
  const SampleForm form = FormOf(*set);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 40);
  EXPECT_THAT(ErrorOf(std::move(set), form), HasSubstr(file));
}

TEST_F(TensorSetTest, TheDescriptionDependsOnTheContents) {
  const std::string file = WriteLabels("a", {0, 1});
  const std::string before = TensorSet("a", {file}).Description();
  EXPECT_THAT(before, HasSubstr("1 samples "));
  EXPECT_EQ(TensorSet("b", {file}).Description(), before);
  WriteLabels("a", {0, 2});
  EXPECT_NE(TensorSet("a", {file}).Description(), before);
}

TEST_F(TensorSetTest, SamplesAreNotImages) {
  const TensorSet set("a", {WriteLabels("a", {0, 1})});
  std::vector<uint8_t> storage;
  EXPECT_THAT([&] { set.Read(0, storage); },
              DataError("sample 0", "expected an image, got tensors"));
  EXPECT_THAT([&] { OpenDataset(folder_.path(), {.max_per_class = 1}); },
              ::testing::ThrowsMessage<Error>(HasSubstr("--max-per-class")));
}

}  // namespace
}  // namespace fusor::runtime
