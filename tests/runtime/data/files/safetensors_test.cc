#include "runtime/data/files/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"
#include "tests/testing/numeric.h"

namespace fusor::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class SafetensorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "fusor_safetensors_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    path_ = folder_ + "/file.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Writes a file with that header and `data_bytes` zeros.
  void Write(const std::string& header, size_t data_bytes) const {
    const uint64_t length = header.size();
    std::string bytes(sizeof(length), '\0');
    std::memcpy(bytes.data(), &length, sizeof(length));
    WriteRaw(bytes + header + std::string(data_bytes, '\0'));
  }
  void WriteRaw(const std::string& bytes) const {
    WriteFileAtomically(path_, bytes, ErrorCode::kCheckpoint);
  }
  std::string ReadRaw() const {
    std::vector<uint8_t> bytes;
    ReadFile(path_, ErrorCode::kCheckpoint, bytes);
    return {bytes.begin(), bytes.end()};
  }

  // Returns the error, which must be one line that names the file.
  std::string Rejection() const {
    try {
      ReadSafetensors(path_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(e.what(), HasSubstr(path_));
      EXPECT_THAT(e.what(), Not(HasSubstr("\n")));
      return e.what();
    }
    return "accepted";
  }

  std::string folder_;
  std::string path_;
};

NamedTensor Random(const std::string& name, ir::DType dtype, ir::Shape shape) {
  const ir::Tensor tensor =
      test::RandomTensor({dtype, std::move(shape), {}}, name.size(), 0, 100);
  return {name, tensor.type, ir::TensorBytes(tensor)};
}

TEST_F(SafetensorsTest, EveryDtypeSurvivesTheRoundTrip) {
  std::vector<NamedTensor> tensors;
  for (const ir::DType dtype : ir::kAllDTypes) {
    tensors.push_back(Random(std::string(ir::DTypeName(dtype)), dtype, {3, 5}));
  }
  tensors.push_back(Random("scalar", ir::DType::kF32, {}));
  tensors.push_back(Random("näme \"quoted\"", ir::DType::kU8, {7}));
  const std::map<std::string, std::string> metadata{{"step", "12"},
                                                    {"json", "{\"a\": 1}"}};
  WriteSafetensors(path_, SourcesOf(tensors), metadata);
  const Safetensors read = ReadSafetensors(path_);
  EXPECT_EQ(read.metadata, metadata);
  ASSERT_EQ(read.tensors.size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const ir::TensorSource* found = read.Find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(found->type, tensor.type);
    EXPECT_EQ(ir::ReadWhole(*found), tensor.bytes);
  }
  EXPECT_EQ(read.Find("absent"), nullptr);
}

TEST_F(SafetensorsTest, NoTensorsIsAFile) {
  WriteSafetensors(path_, {});
  const Safetensors read = ReadSafetensors(path_);
  EXPECT_TRUE(read.tensors.empty());
  EXPECT_TRUE(read.metadata.empty());
}

TEST_F(SafetensorsTest, EveryTensorIsAligned) {
  const NamedTensor tensors[] = {Random("byte", ir::DType::kU8, {3}),
                                 Random("half", ir::DType::kF16, {5}),
                                 Random("double", ir::DType::kF64, {1}),
                                 Random("float", ir::DType::kF32, {3})};
  WriteSafetensors(path_, SourcesOf(tensors));
  const Safetensors read = ReadSafetensors(path_);
  std::vector<std::string> names;
  for (const ir::TensorSource& tensor : read.tensors) {
    names.push_back(tensor.name);
  }
  EXPECT_THAT(names, ElementsAre("double", "float", "half", "byte"));
  uint64_t length = 0;
  std::memcpy(&length, ReadRaw().data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(SafetensorsTest, ReadsFilesOfOthers) {
  Write(R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},)"
        R"("__metadata__":{"format":"pt"},)"
        R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"I32"}}   )",
        12);
  const Safetensors read = ReadSafetensors(path_);
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, "a");
  EXPECT_EQ(read.tensors[1].type, (ir::TensorType{ir::DType::kF32, {2}, {}}));
  EXPECT_EQ(read.metadata.at("format"), "pt");
}

// The checksum covers the bytes of tensors and fusor's metadata. The rest of
// the header must match the bytes and the model.
TEST_F(SafetensorsTest, AChangedTensorOrDescriptionIsRejected) {
  const NamedTensor tensors[] = {Random("first", ir::DType::kF32, {5}),
                                 Random("second", ir::DType::kF16, {3})};
  WriteSafetensors(path_, SourcesOf(tensors),
                   {{"fusor.arch", "small"}, {"k", "v"}});
  const std::string whole = ReadRaw();
  EXPECT_THAT(whole, HasSubstr(R"("fusor.crc32c":")"));
  const size_t data = whole.size() - 26;
  for (size_t at = data; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] ^= 1;
    WriteRaw(damaged);
    EXPECT_THAT(Rejection(), HasSubstr("damaged: expected CRC-32C")) << at;
  }
  std::string other = whole;
  other.replace(other.find("small"), 5, "smell");
  WriteRaw(other);
  EXPECT_THAT(Rejection(), HasSubstr("damaged: expected CRC-32C"));
  // Metadata of other tools is not covered.
  other = whole;
  other.replace(other.find(R"("v")"), 3, R"("w")");
  WriteRaw(other);
  EXPECT_EQ(ReadSafetensors(path_).metadata,
            (Metadata{{"fusor.arch", "small"}, {"k", "w"}}));
}

TEST_F(SafetensorsTest, APickleIsNamedWithWhatConvertsIt) {
  for (const char* bytes : {"PK\x03\x04 archive", "\x80\x02}q\x01."}) {
    WriteRaw(bytes);
    EXPECT_THAT(Rejection(), HasSubstr("expected safetensors, got a pickle"));
    EXPECT_THAT(Rejection(), HasSubstr("weights_only=True"));
  }
}

TEST_F(SafetensorsTest, AFailedWriteKeepsTheOldFile) {
  const NamedTensor tensor = Random("x", ir::DType::kF32, {4});
  WriteSafetensors(path_, SourcesOf({&tensor, 1}));
  const std::string before = ReadRaw();
  EXPECT_THROW(WriteSafetensors(folder_, SourcesOf({&tensor, 1})), Error);
  const NamedTensor twice[] = {tensor, tensor};
  EXPECT_THROW(WriteSafetensors(path_, SourcesOf(twice)), Error);
  EXPECT_EQ(ReadRaw(), before);
}

// --- Damaged files -----------------------------------------------------------

struct Damage {
  const char* header;
  size_t data_bytes;
  const char* message;
};

const Damage kDamages[] = {
    {"", 0, "not JSON"},
    {"[]", 0, "not a JSON object"},
    {"{", 0, "not JSON at byte"},
    {"{} x", 0, "not JSON at byte"},
    {R"({"a":1e999})", 0, "a number beyond double's range"},
    {"\xff\xfe", 0, "not JSON"},
    {R"({"a":1})", 0, "tensor a: no field dtype"},
    {R"({"a":{}})", 0, "no field dtype"},
    {R"({"a":{"dtype":5}})", 0, "dtype is not a string"},
    {R"({"a":{"dtype":"C64"}})", 0, "unsupported dtype C64"},
    {R"({"a":{"dtype":"F32"}})", 0, "no field shape"},
    {R"({"a":{"dtype":"F32","shape":3}})", 0, "shape: expected a list"},
    {R"({"a":{"dtype":"F32","shape":[-1]}})", 0, "integers of at least 0"},
    {R"({"a":{"dtype":"F32","shape":[1.5]}})", 0, "integers of at least 0"},
    {R"({"a":{"dtype":"F32","shape":[18446744073709551615]}})", 0,
     "integers of at least 0"},
    {R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", 0,
     "no elements"},
    {R"({"a":{"dtype":"F32","shape":[1]}})", 4, "no field data_offsets"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4,
     "expected [begin, end]"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4,
     "expected [begin, end]"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,5]}})", 5,
     "f32[1] does not fit in 5 bytes"},
    {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 7,
     "ends at byte 8 of 7"},
    {R"({"a":{"dtype":"F64","shape":[4294967296,4294967296,2],)"
     R"("data_offsets":[0,0]}})",
     0, "does not fit in 0 bytes"},
    {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
     3, "tensor b: overlap: begins at byte 1, the one before ends at 2"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
     3, "tensor b: gap: begins at byte 2"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "gap"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 9,
     "9 bytes of data, but tensors end at 1"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
     1, "tensor a appears twice"},
    {R"({"__metadata__":[]})", 0, "__metadata__ is not a JSON object"},
    {R"({"__metadata__":{"k":1}})", 0, "__metadata__ k is not a string"},
    {R"({"line\nbreak":{}})", 0, "tensor line?break"},
};

TEST_F(SafetensorsTest, DamagedHeadersAreRejectedInOneLine) {
  for (const Damage& damage : kDamages) {
    Write(damage.header, damage.data_bytes);
    EXPECT_THAT(Rejection(), HasSubstr(damage.message)) << damage.header;
  }
}

TEST_F(SafetensorsTest, DeepNestingIsRejected) {
  Write(R"({"a":)" + std::string(100000, '[') + std::string(100000, ']') + "}",
        0);
  EXPECT_THAT(Rejection(), HasSubstr("nested too deep"));
}

TEST_F(SafetensorsTest, WrongHeaderLengthsAreRejected) {
  WriteRaw("abc");
  EXPECT_THAT(Rejection(), HasSubstr("too few"));
  WriteRaw(std::string(8, '\xff') + "{}");
  EXPECT_THAT(Rejection(), HasSubstr("truncated"));
  WriteRaw(std::string("\x03\0\0\0\0\0\0\0{}", 10));
  EXPECT_THAT(Rejection(), HasSubstr("truncated"));
  std::filesystem::remove(path_);
  EXPECT_THAT(Rejection(), HasSubstr("No such file"));
}

TEST_F(SafetensorsTest, EveryTruncationIsRejected) {
  const NamedTensor tensors[] = {Random("first", ir::DType::kF32, {5}),
                                 Random("second", ir::DType::kF16, {3})};
  WriteSafetensors(path_, SourcesOf(tensors), {{"k", "v"}});
  const std::string whole = ReadRaw();
  for (size_t size = 0; size < whole.size(); ++size) {
    WriteRaw(whole.substr(0, size));
    ASSERT_NE(Rejection(), "accepted") << size;
  }
}

// The reader rejects damaged files or returns consistent tensors.
TEST_F(SafetensorsTest, RandomDamageNeverCrashes) {
  const NamedTensor tensors[] = {Random("first", ir::DType::kF32, {5}),
                                 Random("second", ir::DType::kF16, {3})};
  WriteSafetensors(path_, SourcesOf(tensors), {{"k", "v"}});
  const std::string whole = ReadRaw();
  for (uint64_t round = 0; round < 2000; ++round) {
    std::string damaged = whole;
    for (uint64_t i = 0; i <= round % 4; ++i) {
      const auto bits = Philox({static_cast<uint32_t>(i), 0, 0, 0}, round);
      damaged[bits[0] % damaged.size()] = static_cast<char>(bits[1]);
    }
    WriteRaw(damaged);
    try {
      for (const ir::TensorSource& tensor : ReadSafetensors(path_).tensors) {
        ir::ReadWhole(tensor);
      }
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), ErrorCode::kCheckpoint) << e.what();
    }
  }
}

}  // namespace
}  // namespace fusor::runtime
