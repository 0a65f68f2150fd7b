// Writes the seed corpora of the fuzzers, OUT/FORMAT/NAME, with the writers of
// each format. Files are small, so that mutations are likely to change
// something relevant.
//
//   make_seeds OUT

#include <fmt/core.h>
#include <onnx/onnx_pb.h>
#include <zip.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/compiler.h"
#include "ir/io/printer.h"
#include "ir/io/serialize_graph.h"
#include "ir/support/file.h"
#include "ir/support/little_endian.h"
#include "ir/support/zip_archive.h"
#include "ir/target/autotune_results.h"
#include "ir/target/descriptions.h"
#include "models/onnx/onnx_ops.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/data/datasets/recordio.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/distributed/store_server.h"
#include "runtime/program_file.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/dataset_files.h"
#include "tests/testing/image_files.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/speed_lines.h"
#include "tests/testing/state_snapshots.h"
#include "tests/testing/temporary_folder.h"
#include "tools/inspect/observers/stats_trace.h"

namespace fusor::fuzz {
namespace {

std::string root;

void Write(std::string_view format, std::string_view name,
           std::string_view bytes) {
  const std::string folder = fmt::format("{}/{}", root, format);
  std::filesystem::create_directories(folder);
  WriteFileAtomically(fmt::format("{}/{}", folder, name), bytes,
                      ErrorCode::kUsage);
}

std::string Read(const std::string& path) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kUsage, bytes);
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<ir::Graph> AnyGraph(uint64_t seed, int nodes) {
  return test::RandomGraph(
      seed, {.inputs = 2,
             .nodes = nodes,
             .ops = test::kEveryOp,
             .dtypes = {std::begin(ir::kAllDTypes), std::end(ir::kAllDTypes)},
             .layouts = true,
             .states = true,
             .fusions = true});
}

void WriteGraphs() {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const auto graph = AnyGraph(seed, 1 + static_cast<int>(seed) % 6);
    Write("graph-text", fmt::format("{}", seed), ir::Print(*graph));
    Write("graph-proto", fmt::format("{}", seed), ir::Serialize(*graph));
  }
  Write("graph-text", "comment",
        "// a graph\ngraph \"a b\" {\n  return\n}  // its end\n");
}

void WriteDescriptions() {
  for (const ir::Description& d : ir::TargetDescriptions()) {
    Write("target", d.name, d.text);
  }
  for (const ir::Description& d : ir::ClusterDescriptions()) {
    Write("cluster", d.name, d.text);
  }
}

void WritePlans() {
  const test::FakeCompiler compiler;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto graph =
        test::RandomGraph(seed, {.inputs = 1 + static_cast<int>(seed) % 3,
                                 .nodes = 1 + static_cast<int>(seed) % 5,
                                 .ops = test::kAllOps | test::kLibrary,
                                 .layouts = seed % 2 == 0,
                                 .states = seed % 3 == 0});
    Write("plan", fmt::format("{}", seed),
          codegen::SerializePlan(test::FuseAndPlan(*graph, compiler).plan));
  }
}

void WriteProgramFiles() {
  const test::FakeCompiler compiler;
  const auto write = [&](std::string_view name,
                         std::unique_ptr<ir::Graph> graph,
                         codegen::ProgramKind kind) {
    const codegen::CompiledProgram program =
        codegen::Compile(std::move(graph), kind, compiler, {});
    const test::TemporaryFolder folder;
    runtime::WriteProgramFile(
        folder / "s", {.origin = runtime::OriginHere("0.1.0", compiler),
                       .backend = "cpu",
                       .options = {"--arch", "small"},
                       .programs = {runtime::PackProgram(kind, program)}});
    Write("program-file", name, Read(folder / "s"));
  };
  for (uint64_t seed = 0; seed < 8; ++seed) {
    write(fmt::format("eval{}", seed),
          test::RandomGraph(seed, {.inputs = 1, .nodes = 2}),
          codegen::ProgramKind::kEval);
    write(fmt::format("train{}", seed),
          test::RandomModel(seed, {.inputs = 1, .nodes = 1}),
          codegen::ProgramKind::kTrain);
  }
}

void WriteChoices() {
  Write("choices", "empty", ir::PrintAutotuneResults({}));
  Write("choices", "some",
        "fusor choices 2\n"
        "target cpu-avx512\n"
        "device AMD EPYC 9654, AVX-512 with bf16, 2 threads\n"
        "threads 2\n"
        "library oneDNN 2.6.3\n"
        "candidate conv2d x=16x64x56x56 w=64x64x3x3 groups=1 f32 = winograd  "
        "# 3.62 ms\n"
        "precision conv2d x=16x64x56x56 w=64x64x3x3 groups=1 bf16 = f32\n"
        "end 2\n");
}

void WriteWeights() {
  using runtime::NamedTensor;
  const test::TemporaryFolder folder;
  const auto write = [&](std::string_view name,
                         const std::vector<NamedTensor>& tensors,
                         const runtime::Metadata& metadata) {
    runtime::WriteSafetensors(folder / "w", runtime::SourcesOf(tensors),
                              metadata);
    Write("safetensors", name, Read(folder / "w"));
  };
  std::vector<NamedTensor> all;
  for (const ir::DType dtype : ir::kAllDTypes) {
    NamedTensor tensor{
        fmt::format("t.{}", ir::DTypeName(dtype)), {dtype, {2, 1, 3}, {}}, {}};
    tensor.bytes.resize(static_cast<size_t>(tensor.type.num_bytes()), 1);
    all.push_back(tensor);
    write(ir::DTypeName(dtype), {tensor}, {});
  }
  write("all", all, {{"format", "pt"}, {"fusor.arch", "resnet18"}});
  write("none", {}, {});
  // Samples of a data set.
  for (const ir::DType dtype : {ir::DType::kF32, ir::DType::kU8}) {
    NamedTensor input{"input", {dtype, {2, 3}, {}}, {}};
    NamedTensor target{"target", {ir::DType::kI64, {2, 1}, {}}, {}};
    for (NamedTensor* tensor : {&input, &target}) {
      tensor->bytes.resize(static_cast<size_t>(tensor->type.num_bytes()));
    }
    write("set", {input, target}, {});
    Write("tensor-set", ir::DTypeName(dtype), Read(folder / "w"));
  }
  // A file of another program, without a checksum.
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  Write("safetensors", "foreign",
        std::string({static_cast<char>(header.size()), 0, 0, 0, 0, 0, 0, 0}) +
            header + "12345678");
}

// Manifests of files without tensors. Omits the final checksum.
void WriteManifests() {
  const test::TemporaryFolder folder;
  for (int64_t step = 1; step < 5; ++step) {
    runtime::WriteCheckpointFiles(folder.path(), test::MakeHeader(step), {});
    const std::string text = Read(folder / "manifest.json");
    Write("checkpoint", fmt::format("{}", step),
          text.substr(0, text.rfind(",\n  \"crc32c\"")));
  }
}

std::string_view Text(const testing::Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void WriteImages() {
  const runtime::Image picture = testing::MakePicture(19, 13, 1);
  const testing::JpegOptions jpegs[] = {{},
                                        {.luma_h = 1, .luma_v = 1},
                                        {.luma_h = 2, .luma_v = 1},
                                        {.grey = true},
                                        {.progressive = true},
                                        {.grey = true, .progressive = true},
                                        {.restart_rows = 1}};
  int number = 0;
  for (const testing::JpegOptions& options : jpegs) {
    Write("image", fmt::format("{}.jpg", number++),
          Text(testing::EncodeJpeg(picture, options)));
  }
  const testing::Bytes cmyk(size_t{4} * 9 * 7, 100);
  Write("image", "cmyk.jpg", Text(testing::EncodeCmykJpeg(cmyk, 9, 7)));
  const testing::Bytes palette = {0, 0, 0, 255, 0, 0, 0, 255, 0};
  // Colour type, bits per sample, bytes per row of 8 pixels.
  const struct {
    int colour, bits;
    size_t row;
  } pngs[] = {{0, 1, 1}, {0, 8, 8},   {0, 16, 16}, {2, 8, 24},
              {3, 2, 2}, {2, 16, 48}, {4, 8, 16},  {6, 8, 32}};
  for (const auto& png : pngs) {
    for (const bool interlaced : {false, true}) {
      const testing::Bytes rows(png.row * 5, 0x24);
      Write("image", fmt::format("{}.png", number++),
            Text(testing::EncodePng(
                rows, 8, 5,
                {.colour_type = png.colour,
                 .bits = png.bits,
                 .interlaced = interlaced,
                 .palette = png.colour == 3 ? palette : testing::Bytes{}})));
    }
  }
  for (const auto& file :
       std::filesystem::directory_iterator(FUSOR_GOLDEN_DIR "/images")) {
    const std::string extension = file.path().extension();
    if (extension != ".txt" && extension != ".bin") {
      Write("image", file.path().filename().string(),
            Read(file.path().string()));
    }
  }
}

void WriteLogs() {
  int number = 0;
  for (const std::string line : test::kSpeedLines) {
    Write("speed-log", fmt::format("{}", number++), line + line);
  }
  std::string trace = inspect::TraceHeader("train", "cpu-avx2") + "\n";
  for (int64_t step = -1; step < 2; ++step) {
    trace += inspect::TraceLine({.run = 0,
                                 .step = step,
                                 .name = "x",
                                 .op = "fusion",
                                 .location = {"layer1", {"a.cc", 3}},
                                 .stats = {4, 1, -0.5, 1.5, 0.25, 77}}) +
             "\n";
  }
  Write("stats-trace", "trace", trace);
  Write("run-log", "log",
        R"({"type":"start","step":0,"parameters":{"--lr":"0.1"}})"
        "\n"
        R"({"type":"step","step":1,"loss":2.5,"lr":0.1})"
        "\n"
        R"({"type":"evaluation","step":6,"top1":0.5})"
        "\n");
}

// A byte for the kind, then pieces: connection, number of bytes, bytes.
void WriteMessages() {
  using runtime::MessageWriter;
  using runtime::StoreCall;
  const auto call = [](StoreCall what) {
    return std::move(MessageWriter().Add(static_cast<int64_t>(what)));
  };
  const auto hello = [&](int64_t rank) {
    return call(StoreCall::kHello)
        .Add(runtime::kStoreMagic)
        .Add("run")
        .Add(rank)
        .Add(int64_t{3})
        .Take();
  };
  const auto piece = [](int client, const std::string& bytes) {
    return std::string(
               {static_cast<char>(client), static_cast<char>(bytes.size())}) +
           bytes;
  };
  const std::string serve = "\x02";
  std::string all = serve;
  for (int rank = 0; rank < 3; ++rank) all += piece(rank, hello(rank));
  Write("store", "hello", all);
  for (int rank = 0; rank < 3; ++rank) {
    all += piece(rank, call(StoreCall::kMeet).Add(int64_t{9}).Take());
  }
  Write("store", "meet", all);
  const std::string calls[] = {
      call(StoreCall::kSet).Add("key").Add("value").Take(),
      call(StoreCall::kGet).Add("key").Add(int64_t{5}).Take(),
      call(StoreCall::kAdd).Add("number").Add(int64_t{1}).Take(),
      call(StoreCall::kBye).Take()};
  std::string session = serve + piece(0, hello(0));
  for (const std::string& message : calls) {
    session += piece(0, message);
    Write("store", "message", std::string(1, '\0') + message);
  }
  Write("store", "session", session);
  std::string answers = "\x01";
  for (const char* value : {"", "", "value", "12345678", "", ""}) {
    answers += MessageWriter()
                   .Add(static_cast<int64_t>(runtime::StoreAnswer::kOk))
                   .Add(value)
                   .Take();
  }
  Write("store", "answers", answers);
  Write("store", "rejected",
        "\x01" + MessageWriter()
                     .Add(static_cast<int64_t>(runtime::StoreAnswer::kRejected))
                     .Add("why")
                     .Take());
}

// The value of FUSOR_FLAGS in the first line, then one word per line.
void WriteCommandLines() {
  int number = 0;
  for (const std::string_view text : {
           "\ntrain\nDATA\n-b\n32\n--epochs\n90\n--lr\n0.1\n--workspace\nout",
           "--amp --lr 0.2\ntrain\n--synthetic\n--arch=resnet18\n--iterations\n"
           "5\n--milestones\n30,60\n--freeze\nlayer.*",
           "\nbench\n-b\n16\n--json\n-\n--sweep\nlogs\n--batches\n8,16",
           "\ncompile\n--target\nnvidia-h200\n--dump-to\n/tmp/d\n--amp",
           "\ncompare\n--a\nfusion=off\n--b\nfusion=on,amp=on\n-b\n8",
           "\nlaunch\n--nproc-per-node\n2\n--\ntrain\nDATA\n-b\n16",
           "\nscale\n--nodes\n4\n--gpus\n8\n--json\n-",
           "\nopt\nm.txt\n--pass\nsimplify\n--reference\ninterpreter",
           "\nreport\nlogs\n--skip\n20",
           "\neval\nDATA\n--weights\nw.safetensors\n--mean\n1,2,3",
           "\ndata\ndecode\na.jpg",
           "\n--version",
           "\ntrain\n--help",
           "--a=fusion=off,amp=on,disable-pass=fuse+simplify",
           "--a=bucket-policy=cap:25,dtype=bf16,fuel=fuse:3",
       }) {
    Write("flags", fmt::format("{}", number++), text);
  }
}

// Archives, and their programs without the parts that the reader ignores. A
// first byte selects the archive of a program.
void WriteTorchArchives() {
  int number = 0;
  for (const char* name :
       {"activations", "auxiliary", "convolutional", "windowed"}) {
    const std::string path =
        fmt::format("{}/torch_export/{}.pt2", FUSOR_GOLDEN_DIR, name);
    const std::string file = Read(path);
    Write("torch-archive", name, file);
    const ZipArchive archive(
        path, {reinterpret_cast<const uint8_t*>(file.data()), file.size()},
        ErrorCode::kInternal);
    auto json = nlohmann::json::parse(
        archive.Read(fmt::format("{}/models/model.json", name)));
    nlohmann::json& module = json["graph_module"];
    nlohmann::json& graph = module["graph"];
    nlohmann::json program = {{"schema_version", json["schema_version"]}};
    nlohmann::json& kept = program["graph_module"];
    kept["signature"] = module["signature"];
    for (const auto& [tensor, type] : graph["tensor_values"].items()) {
      kept["graph"]["tensor_values"][tensor] = {{"dtype", type["dtype"]},
                                                {"sizes", type["sizes"]}};
    }
    for (const nlohmann::json& node : graph["nodes"]) {
      nlohmann::json inputs;
      for (const nlohmann::json& input : node["inputs"]) {
        inputs.push_back({{"name", input["name"]}, {"arg", input["arg"]}});
      }
      kept["graph"]["nodes"].push_back(
          {{"target", node["target"]},
           {"inputs", inputs},
           {"outputs", node["outputs"]},
           {"metadata", nlohmann::json::object()}});
    }
    Write("torch-program", name, fmt::format("{}{}", number++, program.dump()));
  }
}

// A model that calls its own function.
void WriteOnnxFunction() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(models::kOldestOpset);
  onnx::FunctionProto& function = *model.add_functions();
  function.set_domain("own");
  function.set_name("F");
  function.add_input("a");
  function.add_output("b");
  onnx::NodeProto& inner = *function.add_node();
  inner.set_op_type("LeakyRelu");
  inner.add_input("a");
  inner.add_output("b");
  onnx::AttributeProto& slope = *inner.add_attribute();
  slope.set_name("alpha");
  slope.set_ref_attr_name("slope");
  onnx::GraphProto& graph = *model.mutable_graph();
  onnx::ValueInfoProto& input = *graph.add_input();
  input.set_name("x");
  input.mutable_type()->mutable_tensor_type()->set_elem_type(
      onnx::TensorProto::FLOAT);
  onnx::NodeProto& call = *graph.add_node();
  call.set_domain("own");
  call.set_op_type("F");
  call.add_input("x");
  call.add_output("y");
  graph.add_output()->set_name("y");
  Write("onnx", "function", model.SerializeAsString());
}

// Archives with libzip, stored and deflated.
std::string ZipOf(const std::map<std::string, std::string>& files,
                  zip_int32_t method) {
  const test::TemporaryFolder folder;
  int error = 0;
  zip_t* zip = zip_open((folder / "z").c_str(), ZIP_CREATE, &error);
  for (const auto& [name, bytes] : files) {
    const zip_int64_t index =
        zip_file_add(zip, name.c_str(),
                     zip_source_buffer(zip, bytes.data(), bytes.size(), 0), 0);
    zip_set_file_compression(zip, static_cast<zip_uint64_t>(index), method, 0);
  }
  zip_close(zip);
  return Read(folder / "z");
}

// Sets of three samples, whose images are text.
void WriteDatasets() {
  using runtime::ShardFormat;
  std::string magic;
  AppendLittle(runtime::kRecordIoMagic, magic);
  const std::vector<testing::TestSample> samples = {
      {"image", 0, "cat"}, {"an" + magic + "image", 1, "dog"}, {"", 1, "dog"}};
  constexpr size_t kHeader = 12;
  constexpr size_t kFraming = 16;
  for (size_t i = 0; i < samples.size(); ++i) {
    const std::string record =
        testing::ShardBytes(ShardFormat::kTfRecord, {samples[i]});
    Write("tf-example", fmt::format("{}", i),
          record.substr(kHeader, record.size() - kFraming));
  }
  Write("recordio", "set",
        testing::ShardBytes(ShardFormat::kRecordIo, samples));
  Write("tar", "set", testing::ShardBytes(ShardFormat::kTar, samples));
  Write("shard", "set", testing::ShardBytes(ShardFormat::kPacked, samples));
  const std::map<std::string, std::string> files = {
      {"s/train/a/1.jpg", "image"},
      {"s/train/b/2.jpg", "image"},
      {"s/val/a/3.jpg", "image image image"},
      {"s/readme", "text"}};
  Write("zip", "stored", ZipOf(files, ZIP_CM_STORE));
  Write("zip", "deflated", ZipOf(files, ZIP_CM_DEFLATE));
}

// Models exported by PyTorch, and one model per operator. The latter have
// tensors of ones, and a constant that many operators accept as shape, axes or
// index.
void WriteOnnx() {
  for (const char* name :
       {"activations", "auxiliary", "convolutional", "windowed"}) {
    Write("onnx", name,
          Read(fmt::format("{}/torch_export/{}.onnx", FUSOR_GOLDEN_DIR, name)));
  }
  for (const models::OnnxOp& op : models::AllOnnxOps()) {
    onnx::ModelProto model;
    model.set_ir_version(8);
    model.add_opset_import()->set_version(models::kNewestOpset);
    onnx::GraphProto& graph = *model.mutable_graph();
    for (const char* name : {"x", "y"}) {
      onnx::ValueInfoProto& input = *graph.add_input();
      input.set_name(name);
      auto& type = *input.mutable_type()->mutable_tensor_type();
      type.set_elem_type(onnx::TensorProto::FLOAT);
      for (const int64_t extent : {1, 2, 4, 4}) {
        type.mutable_shape()->add_dim()->set_dim_value(extent);
      }
    }
    onnx::TensorProto& ints = *graph.add_initializer();
    ints.set_name("i");
    ints.set_data_type(onnx::TensorProto::INT64);
    ints.add_dims(1);
    ints.add_int64_data(1);
    onnx::TensorProto& weight = *graph.add_initializer();
    weight.set_name("w");
    weight.set_data_type(onnx::TensorProto::FLOAT);
    weight.add_float_data(1);
    for (const char* second : {"y", "i", "w"}) {
      graph.clear_node();
      onnx::NodeProto& node = *graph.add_node();
      node.set_op_type(std::string(op.name));
      const char* third = second == std::string_view("w") ? "w" : "i";
      for (const char* name : {"x", second, third}) node.add_input(name);
      node.add_output("z");
      graph.clear_output();
      graph.add_output()->set_name("z");
      Write("onnx", fmt::format("{}-{}", op.name, second),
            model.SerializeAsString());
    }
  }
  WriteOnnxFunction();
}

}  // namespace
}  // namespace fusor::fuzz

int main(int argc, char** argv) {
  using namespace fusor::fuzz;
  if (argc != 2) {
    fmt::print(stderr, "usage: make_seeds OUT\n");
    return 2;
  }
  try {
    root = argv[1];
    WriteGraphs();
    WriteDescriptions();
    WritePlans();
    WriteProgramFiles();
    WriteChoices();
    WriteWeights();
    WriteManifests();
    WriteImages();
    WriteDatasets();
    WriteLogs();
    WriteMessages();
    WriteCommandLines();
    WriteTorchArchives();
    WriteOnnx();
  } catch (const std::exception& error) {
    fmt::print(stderr, "make_seeds: {}\n", error.what());
    return 1;
  }
}
