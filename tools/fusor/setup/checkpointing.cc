#include "tools/fusor/setup/checkpointing.h"

#include <fmt/core.h>

#include <filesystem>
#include <utility>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"
#include "models/model.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/trained_model.h"

namespace fusor::tools {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "manifest.json";
// Hash of the autotune results; omitted if there are none.
constexpr char kChoices[] = "choices";

std::string ValueOf(const Checkpointing::Options& options,
                    const std::string& name) {
  const auto it = options.find(name);
  return it == options.end() ? "the default" : it->second;
}

std::string ChoicesOf(const Checkpointing::Options& options) {
  const auto it = options.find(kChoices);
  return it == options.end() ? ir::AutotuneHashText(0) : it->second;
}

// Returns the names of differing options.
std::vector<std::string> Differences(const Checkpointing::Options& a,
                                     const Checkpointing::Options& b) {
  Checkpointing::Options all = a;
  all.insert(b.begin(), b.end());
  std::vector<std::string> names;
  for (const auto& [name, value] : all) {
    if (ValueOf(a, name) != ValueOf(b, name)) names.push_back(name);
  }
  return names;
}

std::string Folder(const CheckpointFlags& flags) {
  return flags.workspace + "/checkpoints";
}

runtime::Checkpoint ReadNewest(const std::string& folder) {
  auto newest = runtime::ReadNewestCheckpoint(folder);
  FUSOR_CHECK(newest.checkpoint, kCheckpoint,
              "--resume: none of the {} checkpoints in {} is intact; {}",
              newest.skipped.size(), folder, newest.skipped.front());
  for (const std::string& why : newest.skipped) Warn("skipped: " + why);
  return std::move(*newest.checkpoint);
}

// Opens the checkpoint that --resume names. Returns nothing for a workspace
// without checkpoints.
std::optional<runtime::Checkpoint> FindCheckpoint(
    const CheckpointFlags& flags) {
  if (flags.resume == "auto") {
    if (runtime::ListCheckpoints(Folder(flags)).empty()) return std::nullopt;
    return ReadNewest(Folder(flags));
  }
  const fs::path path = flags.resume;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  FUSOR_CHECK(fs::status_known(status), kCheckpoint, "--resume {}: {}",
              flags.resume, error.message());
  FUSOR_CHECK(fs::exists(status), kCheckpoint,
              "--resume {}: no such file or folder", flags.resume);
  if (!fs::is_directory(status)) {
    FUSOR_CHECK(fs::exists(path.parent_path() / kManifest), kCheckpoint,
                "--resume {}: expected a fusor checkpoint; use "
                "--pretrained-weights to load only weights",
                flags.resume);
    const std::string folder = path.parent_path();
    return runtime::ReadCheckpoint(folder.empty() ? "." : folder);
  }
  if (fs::exists(path / kManifest)) {
    return runtime::ReadCheckpoint(flags.resume);
  }
  const bool workspace = fs::is_directory(path / "checkpoints");
  const std::string folder =
      workspace ? (path / "checkpoints").string() : flags.resume;
  FUSOR_CHECK(!runtime::ListCheckpoints(folder).empty(), kCheckpoint,
              "--resume {}: expected a checkpoint, found none", flags.resume);
  return ReadNewest(folder);
}

}  // namespace

void AddCheckpointFlags(CLI::App& app, CheckpointFlags& f) {
  app.option_defaults()->group("Checkpoints");
  app.add_option("--workspace", f.workspace,
                 "Write checkpoints and the final model.safetensors to DIR")
      ->type_name("DIR");
  app.add_option("--resume", f.resume,
                 "Resume from a checkpoint, or the newest of a folder (auto: "
                 "--workspace)")
      ->type_name("FILE|DIR|auto");
  app.add_option(
         "--checkpoint-every", f.every,
         "Steps between checkpoints, besides the final one (0: one epoch)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_option("--keep-checkpoints", f.keep,
                 "Number of newest checkpoints to keep (0: all)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 30));
  app.add_flag("--no-checkpoints", f.off, "Save no checkpoints and no weights");
  app.add_option("--pretrained-weights", f.weights,
                 "Start from safetensors weights; the last layer may differ")
      ->type_name("FILE");
  app.add_option("--init", f.init,
                 "Initial weights for a model file: its own (model, the "
                 "default) or random")
      ->check(OneOf({"model", "random"}));
  AddMismatchFlag(app, f.allow_mismatch);
  app.option_defaults()->group("Options");
}

Checkpointing::Checkpointing(const CheckpointFlags& flags, Options identity,
                             Options options, runtime::Metadata description,
                             uint64_t seed, FILE* text)
    : flags_(flags),
      identity_(std::move(identity)),
      options_(std::move(options)),
      description_(std::move(description)),
      seed_(seed),
      text_(text) {
  CheckFlags();
  if (!flags.resume.empty()) {
    resumed_ = FindCheckpoint(flags);
    if (!resumed_) {
      fmt::print(text_, "resumed   nothing: no checkpoint in {}\n",
                 Folder(flags));
    }
  }
  if (resumed_) {
    CheckIdentity();
    const runtime::CheckpointHeader& header = resumed_->header;
    start_ = {header.step, header.evaluation_due, header.best_top1,
              header.loss_hash};
    fmt::print(text_, "resumed   {} after step {} (epoch {}, batch {})\n",
               resumed_->path, header.step, header.epoch, header.batch);
  } else if (!flags.weights.empty()) {
    OpenPretrained();
  }
  if (!flags.workspace.empty() && !flags.off) {
    writer_ =
        std::make_unique<runtime::CheckpointWriter>(Folder(flags), flags.keep);
  }
}

bool Checkpointing::loads() const {
  return resumed_ || !flags_.weights.empty() || OwnWeights() != nullptr;
}

void Checkpointing::CheckFlags() const {
  FUSOR_CHECK(flags_.init.empty() || flags_.weights.empty(), kUsage,
              "--init {}: expected no --pretrained-weights, got {}",
              flags_.init, flags_.weights);
  FUSOR_CHECK(!flags_.workspace.empty() || flags_.resume != "auto", kUsage,
              "--resume auto: expected --workspace, got none");
  FUSOR_CHECK(!flags_.workspace.empty() || flags_.every == 0, kUsage,
              "--checkpoint-every: expected --workspace, got none");
  if (flags_.workspace.empty() || flags_.off || !flags_.resume.empty()) return;
  const auto there = runtime::ListCheckpoints(Folder(flags_));
  FUSOR_CHECK(
      there.empty(), kUsage,
      "--workspace {}: contains checkpoints of another run ({}): expected "
      "--resume auto to continue it, --no-checkpoints, or another folder",
      flags_.workspace, there.back());
}

void Checkpointing::CheckIdentity() const {
  const runtime::CheckpointHeader& header = resumed_->header;
  for (const std::string& name : Differences(header.identity, identity_)) {
    ThrowError(
        ErrorCode::kCheckpoint,
        fmt::format("{}: checkpoint of another run: {} was {}, is now {}",
                    resumed_->path, name, ValueOf(header.identity, name),
                    ValueOf(identity_, name)));
  }
}

// Warns about changes that may alter the numbers but may be intended.
void Checkpointing::WarnOfChanges() const {
  const runtime::CheckpointHeader& header = resumed_->header;
  for (const std::string& name : Differences(header.options, options_)) {
    if (name == kChoices) {
      Warn(
          fmt::format("resume: autotune results were {}, are now {}; the run "
                      "is no longer bit-identical to an uninterrupted one",
                      ChoicesOf(header.options), ChoicesOf(options_)));
      continue;
    }
    Warn(fmt::format("resume: {} was {}, is now {}", name,
                     ValueOf(header.options, name), ValueOf(options_, name)));
  }
  if (header.version != FUSOR_VERSION) {
    Warn(fmt::format("resume: fusor {} wrote the checkpoint, this is {}",
                     header.version, FUSOR_VERSION));
  }
}

void Checkpointing::Initialize(runtime::Session& session) {
  options_["device"] = session.device().description();
  const uint64_t choices = session.programs()[0]->plan().choices;
  if (choices != 0) options_[kChoices] = ir::AutotuneHashText(choices);
  if (resumed_) {
    WarnOfChanges();
    runtime::RestoreState(session.state(), *resumed_);
    resumed_->tensors.clear();  // closes the files
    return;
  }
  session.state().Initialize(seed_);
  if (!flags_.weights.empty()) {
    LoadPretrained(session);
  } else if (flags_.init != "random") {
    LoadOwnWeights(session);
  }
}

void Checkpointing::TellWeights(const std::string& source,
                                const runtime::WeightMatch& match) const {
  fmt::print(text_, "weights   {}", source);
  if (!match.initialized.empty()) {
    fmt::print(text_, "; initialised: {}",
               Join(match.initialized, ", ", [](const auto& n) { return n; }));
  }
  fmt::print(text_, "\n");
}

const models::CustomModel* Checkpointing::OwnWeights() const {
  const models::CustomModel* model =
      models::FindCustomModel(description_.at(kArchKey));
  return model != nullptr && model->weights != nullptr ? model : nullptr;
}

void Checkpointing::LoadOwnWeights(runtime::Session& session) const {
  const models::CustomModel* model = OwnWeights();
  if (model == nullptr) return;
  TellWeights(model->name, runtime::LoadWeights(
                               session.state(), {model->weights(), {}},
                               model->name, runtime::WeightUse::kAvailable));
}

void Checkpointing::OpenPretrained() {
  pretrained_ = runtime::ReadWeights(flags_.weights);
  if (flags_.allow_mismatch) return;
  CheckDescription(flags_.weights, pretrained_.metadata, description_,
                   ClassCheck::kAny);
}

void Checkpointing::LoadPretrained(runtime::Session& session) const {
  const std::string& path = flags_.weights;
  const runtime::WeightMatch match = runtime::LoadWeights(
      session.state(), pretrained_, path, runtime::WeightUse::kNewHead);
  if (!flags_.allow_mismatch) CheckUnused(path, match.unused);
  TellWeights(path, match);
}

void Checkpointing::Save(runtime::StateStore& state,
                         const runtime::TrainPosition& position,
                         int64_t steps_per_epoch) {
  runtime::CheckpointHeader header;
  header.step = position.step;
  header.epoch = position.step / steps_per_epoch;
  header.batch = position.step % steps_per_epoch;
  header.seed = seed_;
  header.evaluation_due = position.evaluation_due;
  header.best_top1 = position.best_top1;
  header.loss_hash = position.loss_hash;
  header.identity = identity_;
  header.options = options_;
  header.choices = choices_;
  header.description = description_;
  header.version = FUSOR_VERSION;
  writer_->Save(state, header);
  Tell();
}

void Checkpointing::Finish() {
  if (writer_ == nullptr) return;
  writer_->Finish();
  Tell();
}

void Checkpointing::KeepChoices(const std::string& file) {
  std::vector<uint8_t> bytes;
  ReadFile(file, ErrorCode::kUsage, bytes);
  choices_.assign(bytes.begin(), bytes.end());
}

void Checkpointing::Tell() {
  for (const std::string& warning : writer_->TakeWarnings()) Warn(warning);
  for (const std::string& path : writer_->TakeSaved()) {
    fmt::print(text_, "saved     {}\n", path);
  }
  std::fflush(text_);
}

void RestoreChoices(const CheckpointFlags& flags, const std::string& file) {
  if (flags.resume.empty() || fs::exists(file)) return;
  const auto checkpoint = FindCheckpoint(flags);
  if (checkpoint && !checkpoint->header.choices.empty()) {
    WriteText(file, checkpoint->header.choices);
  }
}

}  // namespace fusor::tools
