// Fuzzes archives of torch.export.

#include <zip.h>

#include <map>
#include <string>
#include <vector>

#include "ir/support/file.h"
#include "ir/support/zip_archive.h"
#include "models/import/torch_importer.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

std::span<const uint8_t> Bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Imports an archive and builds its graph in both phases.
void Import(std::span<const uint8_t> file) {
  const models::CustomModel model = models::ImportTorch("model.pt2", file);
  models::ModelOptions options{.batch = 2, .image_size = 16};
  if (model.batch != 0) options.batch = model.batch;
  if (model.image_size != 0) options.image_size = model.image_size;
  if (model.num_classes != 0) options.num_classes = model.num_classes;
  for (const auto phase : {models::Phase::kTrain, models::Phase::kEval}) {
    Require(model.build(phase, options) != nullptr, "no graph");
  }
  Require(!model.weights().empty(), "no weights");
}

// A stored archive whose program can be replaced.
class Template {
 public:
  explicit Template(const std::string& path) {
    std::vector<uint8_t> file;
    ReadFile(path, ErrorCode::kInternal, file);
    const ZipArchive archive(path, file, ErrorCode::kInternal);
    for (const std::string& name : archive.names()) {
      entries_[name] = archive.Read(name);
      if (name.ends_with("models/model.json")) program_ = name;
    }
  }

  std::vector<uint8_t> With(std::string_view program) {
    entries_.at(program_).assign(program.begin(), program.end());
    zip_error_t error;
    zip_error_init(&error);
    zip_source_t* source = zip_source_buffer_create(nullptr, 0, 0, &error);
    zip_source_keep(source);
    zip_t* zip = zip_open_from_source(source, ZIP_TRUNCATE, &error);
    Require(zip != nullptr, "cannot make an archive");
    for (const auto& [name, bytes] : entries_) {
      const zip_int64_t index = zip_file_add(
          zip, name.c_str(),
          zip_source_buffer(zip, bytes.data(), bytes.size(), 0), 0);
      zip_set_file_compression(zip, static_cast<zip_uint64_t>(index),
                               ZIP_CM_STORE, 0);
    }
    Require(zip_close(zip) == 0, "cannot write an archive");
    zip_stat_t stat;
    zip_source_stat(source, &stat);
    std::vector<uint8_t> file(stat.size);
    zip_source_open(source);
    zip_source_read(source, file.data(), file.size());
    zip_source_close(source);
    zip_source_free(source);
    return file;
  }

 private:
  std::map<std::string, std::vector<uint8_t>> entries_;
  std::string program_;  // name of the program's entry
};

}  // namespace

void ReadTorchArchive(std::string_view bytes) { Import(Bytes(bytes)); }

// The first byte selects the archive with the program's weights.
void ReadTorchProgram(std::string_view bytes) {
  static std::vector<Template> templates = [] {
    std::vector<Template> all;
    for (const char* name :
         {"activations", "auxiliary", "convolutional", "windowed"}) {
      all.emplace_back(
          fmt::format("{}/torch_export/{}.pt2", FUSOR_GOLDEN_DIR, name));
    }
    return all;
  }();
  if (bytes.empty()) return;
  const size_t chosen = static_cast<uint8_t>(bytes[0]) % templates.size();
  Import(templates[chosen].With(bytes.substr(1)));
}

}  // namespace fusor::fuzz
