#include "models/import/torch_archive.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/json.h"
#include "ir/support/str.h"
#include "ir/support/zip_archive.h"

namespace fusor::models {
namespace {

using Json = nlohmann::json;

constexpr int64_t kSchemaMajor = 8;
// `with` blocks that PyTorch exports as graphs of their own.
constexpr std::string_view kAutocast =
    "torch.ops.higher_order.wrap_with_autocast";
constexpr std::string_view kSetGradEnabled =
    "torch.ops.higher_order.wrap_with_set_grad_enabled";
constexpr int kMaxDepth = 16;  // of such blocks in each other

// Numbers of torch/_export/serde/schema.py, ScalarType.
struct ScalarTypeRow {
  int64_t number;
  std::string_view name;
  std::optional<ir::DType> dtype;  // of complex numbers: of their parts
  bool is_complex = false;
};
constexpr ScalarTypeRow kScalarTypes[] = {
    {1, "uint8", ir::DType::kU8},
    {2, "int8", std::nullopt},
    {3, "int16", std::nullopt},
    {4, "int32", ir::DType::kI32},
    {5, "int64", ir::DType::kI64},
    {6, "float16", ir::DType::kF16},
    {7, "float32", ir::DType::kF32},
    {8, "float64", ir::DType::kF64},
    {9, "complex32", std::nullopt, true},
    {10, "complex64", ir::DType::kF32, true},
    {11, "complex128", ir::DType::kF64, true},
    {12, "bool", ir::DType::kBool},
    {13, "bfloat16", ir::DType::kBF16}};

// Returns the Python file and line of the innermost frame outside of PyTorch's
// own modules. Frames look like: File "PATH", line N, in FUNCTION.
ir::SourceLine UserLine(std::string_view trace) {
  constexpr std::string_view kFile = "File \"";
  constexpr std::string_view kLine = "\", line ";
  ir::SourceLine found;
  for (size_t at = trace.find(kFile); at != std::string_view::npos;
       at = trace.find(kFile, at)) {
    at += kFile.size();
    const size_t end = trace.find(kLine, at);
    if (end == std::string_view::npos) break;
    std::string_view file = trace.substr(at, end - at);
    int line = 0;
    const char* digits = trace.data() + end + kLine.size();
    std::from_chars(digits, trace.data() + trace.size(), line);
    if (line <= 0 || file.find("torch/nn/modules/") != file.npos ||
        file.find("torch/fx/") != file.npos) {
      continue;
    }
    // Only the last two components, because the rest depends on the machine.
    if (size_t slash = file.rfind('/'); slash != file.npos && slash > 0) {
      slash = file.rfind('/', slash - 1);
      if (slash != file.npos) file.remove_prefix(slash + 1);
    }
    found = ir::SourceLine(file, line);
  }
  return found;
}

// Returns the path of the innermost module. The stack is KEY,PATH,CLASS, ...
// separated by semicolons, outermost first.
std::string ModulePath(std::string_view stack) {
  const size_t last = stack.rfind(';');
  if (last != stack.npos) stack.remove_prefix(last + 1);
  const size_t first = stack.find(',');
  if (first == stack.npos) return "";
  stack.remove_prefix(first + 1);
  const size_t second = stack.find(',');
  const std::string_view path = stack.substr(0, second);
  return path.starts_with('_') ? "" : std::string(path);
}

class Parser {
 public:
  Parser(const std::string& path, std::shared_ptr<const ZipArchive> zip)
      : path_(path), zip_(std::move(zip)) {}

  TorchProgram Parse() {
    FindRoot();
    CheckText("archive_format", "pt2");
    CheckText("byteorder", "little");
    for (const char* folder : {"weights", "constants"}) {
      const std::string config =
          fmt::format("data/{0}/model_{0}_config.json", folder);
      if (zip_->Contains(root_ + config)) {
        ReadJson(config, [&](const Json& json) {
          for (const auto& [name, entry] : json.at("config").items()) {
            ReadTensor(fmt::format("data/{}/", folder), name, entry);
          }
        });
      }
    }
    ReadJson("models/model.json", [&](const Json& json) { Program(json); });
    return std::move(program_);
  }

 private:
  [[noreturn]] void Throw(const std::string& where,
                          const std::string& message) const {
    ThrowError(ErrorCode::kGraph,
               OneLine(fmt::format("{}: {}: {}", path_, where, message)));
  }

  // All entries are in one folder, which is named after the file that
  // torch.export.save wrote.
  void FindRoot() {
    constexpr std::string_view kProgram = "models/model.json";
    for (const std::string& name : zip_->names()) {
      if (!name.ends_with(kProgram)) continue;
      root_ = name.substr(0, name.size() - kProgram.size());
      return;
    }
    Throw(std::string(kProgram),
          "expected this entry, as torch.export.save writes it, got none");
  }

  std::string ReadText(const std::string& entry) const {
    const std::vector<uint8_t> bytes = zip_->Read(root_ + entry);
    return {bytes.begin(), bytes.end()};
  }

  void CheckText(const std::string& entry, std::string_view expected) const {
    const std::string text = ReadText(entry);
    if (text != expected) {
      Throw(entry,
            fmt::format("expected {}, got {}", expected, text.substr(0, 80)));
    }
  }

  // Parses an entry and calls `use` on it. Errors name `where_`, a place in
  // the entry that `use` may set.
  template <typename Use>
  void ReadJson(const std::string& entry, Use use) {
    where_ = entry;
    const std::string text = ReadText(entry);
    try {
      use(Json::parse(text));
    } catch (const Json::exception& error) {
      Throw(where_, error.what());
    } catch (const std::out_of_range& error) {
      Throw(where_, error.what());
    }
  }

  static std::vector<int64_t> Extents(const Json& list) {
    std::vector<int64_t> extents;
    for (const Json& extent : list) {
      extents.push_back(extent.contains("as_int")
                            ? JsonInteger<int64_t>(extent.at("as_int"))
                            : -1);
    }
    return extents;
  }

  // Reads a tensor's bytes and makes them row-major.
  void ReadTensor(const std::string& folder, const std::string& name,
                  const Json& entry) {
    where_ = folder + name;
    const std::string file = entry.at("path_name").get<std::string>();
    const Json& meta = entry.at("tensor_meta");
    if (entry.at("use_pickle").get<bool>() || meta.is_null()) {
      Throw(where_,
            "a pickled tensor, which can run any code: expected raw bytes");
    }
    ir::TensorSource tensor{.name = name};
    const auto dtype = JsonInteger<int64_t>(meta.at("dtype"));
    tensor.type.dtype = TorchDType(dtype, fmt::format("{}: {}", path_, where_));
    tensor.type.shape = Extents(meta.at("sizes"));
    std::vector<int64_t> strides = Extents(meta.at("strides"));
    auto offset = JsonInteger<int64_t>(meta.at("storage_offset").at("as_int"));
    if (IsTorchComplex(dtype)) {
      complex_.insert(name);
      bool fits = !__builtin_mul_overflow(offset, 2, &offset);
      for (int64_t& stride : strides) {
        fits &= !__builtin_mul_overflow(stride, 2, &stride);
      }
      if (!fits) Throw(where_, "strides: out of range");
      tensor.type.shape.push_back(2);
      strides.push_back(1);
    }
    if (std::ranges::find(tensor.type.shape, 0) != tensor.type.shape.end()) {
      ir::TensorType others = tensor.type;
      std::ranges::replace(others.shape, 0, 1);
      ir::CheckType(others);
      tensor.read = [](int64_t, std::span<uint8_t>) {};
      empty_.insert(name);
      program_.tensors.emplace(name, std::move(tensor));
      return;
    }
    ir::CheckType(tensor.type);
    const ZipArchive::Place place = zip_->Find(root_ + folder + file);
    CheckStrides(tensor.type, strides, offset, place.bytes);
    if (!meta.at("requires_grad").get<bool>()) frozen_.insert(name);
    storage_[name] = {
        folder + file,
        fmt::format("[{}] by [{}] from {}", fmt::join(tensor.type.shape, ","),
                    fmt::join(strides, ","), offset)};
    const int64_t first =
        place.begin + offset * ir::DTypeSize(tensor.type.dtype);
    if (IsRowMajor(tensor.type.shape, strides)) {
      tensor.read = [zip = zip_, first](int64_t at, std::span<uint8_t> bytes) {
        zip->ReadAt(first + at, bytes);
      };
    } else {
      const auto bytes = std::make_shared<const std::vector<uint8_t>>(Gather(
          zip_->Read(root_ + folder + file), strides, offset, tensor.type));
      tensor.read = [bytes](int64_t at, std::span<uint8_t> piece) {
        std::copy_n(bytes->begin() + at, piece.size(), piece.begin());
      };
    }
    program_.tensors.emplace(name, std::move(tensor));
  }

  void CheckStrides(const ir::TensorType& type,
                    const std::vector<int64_t>& strides, int64_t offset,
                    int64_t bytes) const {
    const int64_t room = bytes / ir::DTypeSize(type.dtype);
    bool fits = strides.size() == type.rank() && offset >= 0 && offset < room;
    int64_t last = offset;  // index of the last element
    for (size_t i = 0; fits && i < strides.size(); ++i) {
      // Divides, so that nothing overflows.
      const int64_t steps = type.shape[i] - 1;
      fits = strides[i] >= 0 &&
             (steps == 0 || strides[i] <= (room - 1 - last) / steps);
      if (fits) last += strides[i] * steps;
    }
    // Otherwise an expanded tensor could require far more memory than the
    // archive.
    fits = fits && type.num_elements() <= room;
    if (!fits) {
      Throw(where_, fmt::format("sizes, strides and offset of {} exceed its "
                                "{} stored bytes",
                                ToString(type), bytes));
    }
  }

  static bool IsRowMajor(const ir::Shape& shape,
                         const std::vector<int64_t>& strides) {
    int64_t expected = 1;
    for (size_t i = shape.size(); i-- > 0;) {
      if (shape[i] != 1 && strides[i] != expected) return false;
      expected *= shape[i];
    }
    return true;
  }

  // Returns a row-major copy.
  static std::vector<uint8_t> Gather(const std::vector<uint8_t>& bytes,
                                     const std::vector<int64_t>& strides,
                                     int64_t offset,
                                     const ir::TensorType& type) {
    const ir::Shape& shape = type.shape;
    const auto size = static_cast<size_t>(ir::DTypeSize(type.dtype));
    std::vector<uint8_t> out(static_cast<size_t>(type.num_bytes()));
    const uint8_t* from = bytes.data() + offset * static_cast<int64_t>(size);
    std::vector<int64_t> index(shape.size(), 0);
    for (size_t at = 0; at < out.size(); at += size) {
      int64_t element = 0;
      for (size_t i = 0; i < shape.size(); ++i) {
        element += index[i] * strides[i];
      }
      std::memcpy(&out[at], from + element * static_cast<int64_t>(size), size);
      for (size_t i = shape.size(); i-- > 0 && ++index[i] == shape[i];) {
        index[i] = 0;
      }
    }
    return out;
  }

  void Program(const Json& json) {
    const auto major =
        JsonInteger<int64_t>(json.at("schema_version").at("major"));
    if (major != kSchemaMajor) {
      Throw("schema_version",
            fmt::format("expected {}, got {}", kSchemaMajor, major));
    }
    const Json& module = json.at("graph_module");
    const Json& graph = module.at("graph");
    for (const Json& spec : module.at("signature").at("input_specs")) {
      Input(spec);
    }
    std::set<std::string> names;
    for (const TorchInput& input : program_.inputs) {
      if (input.name.empty() || !names.insert(input.name).second) {
        Throw(fmt::format("input {} of the program", names.size()),
              fmt::format("expected a name of its own, got '{}'", input.name));
      }
    }
    for (const Json& spec : module.at("signature").at("output_specs")) {
      // Other outputs repeat buffers that the program updates in place.
      if (!spec.contains("user_output")) continue;
      const Json& arg = spec.at("user_output").at("arg");
      if (!arg.contains("as_tensor")) continue;
      program_.outputs.push_back(
          arg.at("as_tensor").at("name").get<std::string>());
    }
    for (const auto& [name, type] : graph.at("tensor_values").items()) {
      where_ = "tensor " + name;
      program_.types[name] = {JsonInteger<int64_t>(type.at("dtype")),
                              Extents(type.at("sizes"))};
    }
    for (const Json& node : graph.at("nodes")) Node(node);
  }

  void Input(const Json& spec) {
    where_ = "input_specs";
    const auto add = [&](TorchInputKind kind, const Json& body,
                         const char* target) {
      where_ = body.at(target).get<std::string>();
      program_.inputs.push_back(
          {kind, body.at("arg").at("name").get<std::string>(), where_});
      if (!program_.tensors.contains(where_)) {
        Throw(where_, "expected its values in the archive, got none");
      }
    };
    if (spec.contains("parameter")) {
      add(TorchInputKind::kParameter, spec.at("parameter"), "parameter_name");
      if (empty_.contains(where_))
        Throw(where_, "a parameter without elements");
      if (complex_.contains(where_)) {
        Throw(where_,
              "a complex parameter: expected a real one, of which the "
              "model makes complex numbers by view_as_complex()");
      }
      Tie(program_.inputs.back());
      program_.inputs.back().frozen = frozen_.contains(where_);
    } else if (spec.contains("buffer")) {
      add(TorchInputKind::kBuffer, spec.at("buffer"), "buffer_name");
    } else if (spec.contains("tensor_constant")) {
      add(TorchInputKind::kConstant, spec.at("tensor_constant"),
          "tensor_constant_name");
    } else if (spec.contains("user_input")) {
      const Json& arg = spec.at("user_input").at("arg");
      if (!arg.contains("as_tensor")) {
        Throw("user input", "expected a tensor, got " + arg.dump());
      }
      program_.inputs.push_back(
          {TorchInputKind::kUser,
           arg.at("as_tensor").at("name").get<std::string>(), ""});
    } else {
      Throw("input_specs",
            "expected a parameter, buffer, constant or tensor, got " +
                spec.dump());
    }
  }

  // Parameters that share a storage, such as a language model's embedding and
  // last layer, become one parameter, which is updated once.
  void Tie(TorchInput& input) {
    const Storage& own = storage_.at(input.target);
    for (const TorchInput& other : program_.inputs) {
      if (&other == &input || other.kind != TorchInputKind::kParameter ||
          !other.tied_to.empty()) {
        continue;
      }
      const Storage& storage = storage_.at(other.target);
      if (storage.file != own.file) continue;
      if (storage.view != own.view) {
        Throw(input.target,
              fmt::format("shares its storage with {} as {}, expected {}",
                          other.target, own.view, storage.view));
      }
      input.tied_to = other.target;
      return;
    }
  }

  void Node(const Json& json) {
    TorchNode node;
    node.target = json.at("target").get<std::string>();
    where_ = fmt::format("node {}", node.target);
    const Json& metadata = json.at("metadata");
    node.location.path = ModulePath(metadata.value("nn_module_stack", ""));
    node.location.source = UserLine(metadata.value("stack_trace", ""));
    node.keeps_precision = autocast_off_;
    where_ += AtLocation(node.location);
    if (node.target == kAutocast || node.target == kSetGradEnabled) {
      Region(json, node);
      return;
    }
    for (const Json& input : json.at("inputs")) {
      node.inputs.push_back(Argument(input.at("arg")));
      node.inputs.back().name = input.at("name").get<std::string>();
    }
    for (const Json& output : json.at("outputs")) {
      node.outputs.push_back(Argument(output));
    }
    program_.nodes.push_back(std::move(node));
  }

  // Adds the nodes of a `with` block that PyTorch exports as a graph of its
  // own: torch.autocast(enabled=False), or torch.no_grad() and its opposite.
  // The arguments are the settings, the graph, and the operands. `call` has its
  // location.
  void Region(const Json& json, const TorchNode& call) {
    const Json& arguments = json.at("inputs");
    const std::string where = where_;
    const auto at = [&](size_t i) -> const Json& {
      return arguments.at(i).at("arg");
    };
    const bool autocast = call.target == kAutocast;
    const size_t first = autocast ? 4 : 1;  // behind the settings
    const bool enabled = at(autocast ? 2 : 0).at("as_bool").get<bool>();
    if (autocast && enabled) {
      Throw(where, "expected autocast to be off within a model");
    }
    const Json& named = at(first).at("as_graph");
    const Json& graph = named.at("graph");
    const Json& inputs = graph.at("inputs");
    if (inputs.size() != arguments.size() - first - 1) {
      Throw(where, fmt::format("expected {} operands, got {}", inputs.size(),
                               arguments.size() - first - 1));
    }
    Scope scope;
    scope.prefix = scope_.prefix + named.at("name").get<std::string>() + ".";
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string name = NameIn(inputs[i]);
      const std::string operand = NameIn(at(first + 1 + i));
      if (name.empty() || operand.empty()) {
        Throw(where, fmt::format("operand {}: expected a name", i));
      }
      scope.names[name] = Outer(operand);
    }
    if (++depth_ > kMaxDepth) Throw(where, "too many regions in each other");
    const bool outer = std::exchange(autocast_off_, autocast_off_ || autocast);
    std::swap(scope, scope_);
    for (const Json& node : graph.at("nodes")) Node(node);
    const std::vector<TorchItem> results = Items(graph.at("outputs"));
    std::swap(scope, scope_);
    autocast_off_ = outer;
    --depth_;
    where_ = where;
    const std::vector<TorchItem> outputs = Items(json.at("outputs"));
    if (outputs.size() != results.size()) {
      Throw(where, fmt::format("expected {} results, got {}", results.size(),
                               outputs.size()));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      program_.nodes.push_back(
          {.target = autocast || enabled ? "torch.ops.aten.alias.default"
                                         : "torch.ops.aten.detach.default",
           .inputs = {{.name = "self", .items = {results[i]}}},
           .outputs = {{.items = {outputs[i]}}},
           .location = call.location});
    }
  }

  // Returns the name of a tensor or symbol, "" for other arguments.
  static std::string NameIn(const Json& argument) {
    if (argument.contains("as_tensor")) {
      return argument.at("as_tensor").at("name").get<std::string>();
    }
    if (argument.contains("as_sym_int")) {
      return argument.at("as_sym_int").value("as_name", "");
    }
    return "";
  }

  // Returns the items of all arguments.
  std::vector<TorchItem> Items(const Json& arguments) const {
    std::vector<TorchItem> items;
    for (const Json& argument : arguments) {
      for (TorchItem& item : Argument(argument).items) {
        items.push_back(std::move(item));
      }
    }
    return items;
  }

  // Returns a name in the program of what a region calls `name`.
  std::string Outer(const std::string& name) const {
    const auto it = scope_.names.find(name);
    return it != scope_.names.end() ? it->second : scope_.prefix + name;
  }

  // An argument is an object with one field, named after its type.
  TorchArgument Argument(const Json& json) const {
    if (!json.is_object() || json.size() != 1) {
      Throw(where_, "expected an argument with one field");
    }
    const std::string& type = json.begin().key();
    const Json& value = json.begin().value();
    constexpr std::string_view kLists[] = {
        "as_tensors", "as_ints",    "as_sym_ints",        "as_floats",
        "as_bools",   "as_strings", "as_optional_tensors"};
    TorchArgument argument;
    argument.is_list = std::find(std::begin(kLists), std::end(kLists), type) !=
                       std::end(kLists);
    if (!argument.is_list) {
      argument.items.push_back(Item(type, value));
      return argument;
    }
    const std::string item =
        type == "as_optional_tensors" ? type : type.substr(0, type.size() - 1);
    for (const Json& one : value) argument.items.push_back(Item(item, one));
    return argument;
  }

  TorchItem Item(const std::string& type, const Json& value) const {
    if (type == "as_none" || type == "as_device" || type == "as_layout" ||
        type == "as_memory_format") {
      return std::monostate();
    }
    if (type == "as_tensor") {
      return TorchTensor{Outer(value.at("name").get<std::string>())};
    }
    if (type == "as_optional_tensors" || type == "as_optional_tensor") {
      if (!value.contains("as_tensor")) return std::monostate();
      return TorchTensor{
          Outer(value.at("as_tensor").at("name").get<std::string>())};
    }
    if (type == "as_int" || type == "as_scalar_type") {
      return JsonInteger<int64_t>(value);
    }
    if (type == "as_float") return Float(value);
    if (type == "as_bool") return value.get<bool>();
    if (type == "as_string") return value.get<std::string>();
    if (type == "as_sym_int" || type == "as_sym_bool" ||
        type == "as_sym_float") {
      if (value.contains("as_name")) {
        return TorchSymbol{Outer(value.at("as_name").get<std::string>())};
      }
      const std::string number = "as_" + type.substr(7);  // as_sym_int: as_int
      return Item(number, value.at(number));
    }
    Throw(where_, fmt::format("expected a tensor, number, bool or string, got "
                              "an argument {}",
                              type));
  }

  // JSON has no infinities, which are strings in the archive.
  double Float(const Json& value) const {
    if (value.is_number()) return value.get<double>();
    const std::string text = value.get<std::string>();
    if (text == "Infinity") return std::numeric_limits<double>::infinity();
    if (text == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (text == "NaN") return std::numeric_limits<double>::quiet_NaN();
    Throw(where_, fmt::format("expected a number, got {}", text));
  }

  const std::string& path_;
  std::shared_ptr<const ZipArchive> zip_;
  std::string root_;   // "resnet18/"
  std::string where_;  // for messages
  struct Storage {
    std::string file;  // entry
    std::string view;  // sizes, strides and offset
  };
  std::map<std::string, Storage> storage_;  // of each tensor
  std::set<std::string> frozen_;            // tensors without a gradient
  std::set<std::string> empty_;             // tensors without elements
  std::set<std::string> complex_;           // tensors of complex numbers
  // Names of the region that is read: those of its inputs in the program, and
  // what the others begin with there.
  struct Scope {
    std::map<std::string, std::string> names;
    std::string prefix;
  };
  Scope scope_;
  int depth_ = 0;
  bool autocast_off_ = false;
  TorchProgram program_;
};

}  // namespace

bool IsTorchComplex(int64_t scalar_type) {
  return std::ranges::any_of(kScalarTypes, [&](const ScalarTypeRow& row) {
    return row.number == scalar_type && row.is_complex;
  });
}

ir::DType TorchDType(int64_t scalar_type, const std::string& where) {
  for (const ScalarTypeRow& row : kScalarTypes) {
    if (row.number != scalar_type) continue;
    FUSOR_CHECK(row.dtype, kGraph, "{}: dtype {}: expected {}", where, row.name,
                "uint8, int32, int64, bool or a float of 16, 32 or 64 bits");
    return *row.dtype;
  }
  ThrowError(ErrorCode::kGraph,
             fmt::format("{}: unknown dtype {}", where, scalar_type));
}

TorchProgram ReadTorchArchive(const std::string& path) {
  // The archive refers to the file, so both are freed together.
  struct OpenArchive {
    explicit OpenArchive(const std::string& path)
        : file(path, ErrorCode::kUsage), zip(file, ErrorCode::kGraph) {}
    InputFile file;
    ZipArchive zip;
  };
  const auto open = std::make_shared<const OpenArchive>(path);
  return Parser(path, {open, &open->zip}).Parse();
}

TorchProgram ReadTorchArchive(const std::string& path,
                              std::span<const uint8_t> file) {
  return Parser(path, std::make_shared<const ZipArchive>(path, file,
                                                         ErrorCode::kGraph))
      .Parse();
}

}  // namespace fusor::models
