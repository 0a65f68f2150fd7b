#include "tools/fusor/flags/flag_groups.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "ir/support/str.h"
#include "passes/passes.h"
#include "runtime/data/augment/auto_augment.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {

namespace {

constexpr char kModel[] = "Model";
constexpr char kCompilation[] = "Compilation";
constexpr char kDumps[] = "Dumps";
constexpr char kTraining[] = "Training";
constexpr char kData[] = "Data";
constexpr char kLossScale[] = "Loss scale";
// Headings of the options that affect compilation, and of dumps.
constexpr std::array<std::string_view, 5> kCompileHeadings = {
    kModel, kCompilation, kDumps, kTraining, kLossScale};

// RAII: declares options under a heading of --help.
class Heading {
 public:
  Heading(CLI::App& app, const std::string& name) : app_(app) {
    app_.option_defaults()->group(name);
  }
  ~Heading() { app_.option_defaults()->group("Options"); }
  Heading(const Heading&) = delete;
  Heading& operator=(const Heading&) = delete;

 private:
  CLI::App& app_;
};

constexpr int64_t kMaxSteps = int64_t{1} << 40;

// Parses "PASS=N" entries.
std::map<std::string, int64_t> ParseFuel(const std::vector<std::string>& list) {
  std::map<std::string, int64_t> fuel;
  for (const std::string& text : list) {
    const size_t equals = text.find('=');
    const std::string count =
        equals == std::string::npos ? "" : text.substr(equals + 1);
    int64_t rewrites = -1;
    const auto result =
        std::from_chars(count.data(), count.data() + count.size(), rewrites);
    FUSOR_CHECK(result.ec == std::errc() && rewrites >= 0 &&
                    result.ptr == count.data() + count.size(),
                kUsage, "--fuel {}: expected PASS=N, N at least 0", text);
    fuel[text.substr(0, equals)] = rewrites;
  }
  return fuel;
}

// Parses "REGEX:lr-scale=X,weight-decay=X", with one or both settings.
passes::ParameterGroup ParseGroup(const std::string& text) {
  const auto fail = [&] {
    ThrowError(ErrorCode::kUsage,
               fmt::format("--param-group {}: expected "
                           "REGEX:lr-scale=X,weight-decay=X, one or both, X at "
                           "least 0",
                           text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) fail();
  passes::ParameterGroup group{.pattern = text.substr(0, colon)};
  Regex(group.pattern, "--param-group");
  for (const std::string& setting :
       CLI::detail::split(text.substr(colon + 1), ',')) {
    const size_t equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    double value = 0;
    if (equals == std::string::npos ||
        !CLI::detail::lexical_cast(setting.substr(equals + 1), value) ||
        !std::isfinite(value) || value < 0) {
      fail();
    }
    if (name == "lr-scale") {
      group.lr_scale = value;
    } else if (name == "weight-decay") {
      group.weight_decay = value;
    } else {
      fail();
    }
  }
  return group;
}

std::set<inspect::DumpFormat> ParseFormats(
    const std::vector<std::string>& names) {
  using inspect::DumpFormat;
  std::set<DumpFormat> formats;
  for (const std::string& name : names) {
    formats.insert(name == "text"    ? DumpFormat::kText
                   : name == "proto" ? DumpFormat::kProto
                   : name == "dot"   ? DumpFormat::kDot
                                     : DumpFormat::kHtml);
  }
  return formats;
}

}  // namespace

std::map<std::string, std::string> GivenOptions(
    const CLI::App& app, std::span<const std::string_view> headings) {
  std::map<std::string, std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    if (option->count() == 0 || option->get_lnames().empty() ||
        std::find(headings.begin(), headings.end(), group) == headings.end()) {
      continue;
    }
    const std::string value =
        Join(option->reduced_results(), ",", [](const auto& s) { return s; });
    if (value == option->get_default_str()) continue;
    given["--" + option->get_lnames()[0]] = value;
  }
  return given;
}

std::map<std::string, std::string> Parameters(
    const CLI::App& app, std::span<const std::string_view> headings) {
  std::map<std::string, std::string> parameters;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() ||
        std::find(headings.begin(), headings.end(), option->get_group()) ==
            headings.end()) {
      continue;
    }
    std::string name = option->get_lnames()[0];
    std::replace(name.begin(), name.end(), '-', '_');
    std::string value = option->count() == 0
                            ? option->get_default_str()
                            : Join(option->reduced_results(), ",",
                                   [](const auto& s) { return s; });
    if (option->get_expected_max() == 0) {
      value = option->count() == 0 ? "False" : "True";
    }
    if (value.empty()) value = "None";
    parameters[name] = value;
  }
  return parameters;
}

namespace {

// Selects a built-in model, or a file of another framework.
void SelectModel(const CLI::App& app, const std::string& arch, ModelFlags& f) {
  if (!IsExported(arch)) {
    f.arch = arch;
    return;
  }
  for (const char* name : {"--fan", "--zero-gamma", "--dropout"}) {
    FUSOR_CHECK(app.get_option(name)->count() == 0, kUsage,
                "{}: expected a built-in model, got {}, which determines it",
                name, arch);
  }
  UseExported(arch, f);
}

void AddMixFlags(CLI::App& app, ModelFlags& f) {
  app.add_option("--mixup,--mixup-alpha", f.mix.mixup,
                 "Mix pairs of images and labels by Beta(A, A) (0: off)")
      ->capture_default_str()
      ->type_name("A")
      ->check(Number(0, 1e6));
  app.add_option("--cutmix-alpha", f.mix.cutmix,
                 "Paste a box of another image, of area Beta(A, A) (0: off)")
      ->capture_default_str()
      ->type_name("A")
      ->check(Number(0, 1e6));
  app.add_option("--mixup-switch-prob", f.mix.switch_probability,
                 "Share of steps with CutMix, if mixup is on, too")
      ->capture_default_str()
      ->type_name("P")
      ->check(Number(0, 1));
}

}  // namespace

void AddModelFlags(CLI::App& app, ModelFlags& f) {
  const Heading heading(app, kModel);
  CLI::Option* module =
      app.add_option_function<std::string>(
             "--module", [&f](const std::string& path) { UseModule(path, f); },
             "Read the model from FILE: IR text or protobuf (- = stdin)")
          ->type_name("FILE");
  app.add_option_function<std::string>(
         "--arch,-a",
         [&](const std::string& arch) { SelectModel(app, arch, f); },
         "Model: a name that `fusor doctor` lists, or a .pt2 or .onnx file")
      ->default_str(f.arch);
  app.add_option("-b,--batch-size", f.options.batch,
                 "Images per step on this rank")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option(
         "--image-size", f.options.image_size,
         "Height and width of the input (default: 224; CIFAR models: 32)")
      ->check(WholeNumber(8, 4096));
  app.add_option("--num-classes", f.options.num_classes,
                 "Number of classes (default: the data's; synthetic: 1000)")
      ->check(WholeNumber(1, 1 << 20));
  using Fan = models::FanMode;
  AddChoice(app, "-c,--fan,--model-config", f.options.fan,
            {{"fan-out", Fan::kFanOut},
             {"fan-in", Fan::kFanIn},
             {"fanout", Fan::kFanOut},
             {"fanin", Fan::kFanIn},
             {"classic", Fan::kFanOut},
             {"grp-fanout", Fan::kFanOut},
             {"grp-fanin", Fan::kFanIn}},
            "Initial scale of convolutions: fan-out (or classic), fan-in");
  app.add_flag("--zero-gamma", f.options.zero_gamma,
               "Initialise the last normalisation of each residual block to 0");
  app.add_option("--dropout", f.options.dropout,
                 "Dropout rate of VGG's classifier")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  AddChoice(app, "--loss", f.options.loss,
            {{"cross-entropy", models::Loss::kCrossEntropy},
             {"bce", models::Loss::kBinaryCrossEntropy},
             {"mse", models::Loss::kMeanSquaredError}},
            "Loss: cross-entropy, or bce or mse of values or one-hot labels");
  app.add_option("--label-smoothing", f.options.label_smoothing,
                 "Label smoothing, in [0, 1)")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  AddMixFlags(app, f);
  AddChoice(app, "--augment-on", f.options.augment,
            {{"host", false}, {"device", true}},
            "Change colours and erase regions of images on: host, device");
  app.add_option("--mean", f.mean,
                 "Means of red, green and blue, on a scale of 0 to 255")
      ->expected(3)
      ->delimiter(',')
      ->check(Number(0, 255));
  // A value below 1 must be on the scale 0 to 1.
  app.add_option(
         "--std", f.std,
         "Standard deviations of red, green and blue, on a scale of 0 to 255")
      ->expected(3)
      ->delimiter(',')
      ->check(Number(1, 255));
  app.add_option("--freeze", f.options.freeze,
                 "Freeze parameters whose name matches REGEX (repeatable)")
      ->allow_extra_args(false)
      ->type_name("REGEX");
  // The module determines these settings.
  for (const char* name :
       {"--arch", "--batch-size", "--image-size", "--fan", "--zero-gamma",
        "--dropout", "--loss", "--label-smoothing", "--mixup", "--cutmix-alpha",
        "--mixup-switch-prob", "--augment-on"}) {
    module->excludes(app.get_option(name));
  }
}

void AddDumpFlags(CLI::App& app, DumpFlags& f) {
  const Heading heading(app, kDumps);
  app.add_option("--dump-to", f.to,
                 "Dump graphs, decisions, plan and kernels to DIR (- = stdout)")
      ->type_name("DIR");
  app.add_option(
         "--dump-pass", f.options.pass,
         "Dump only passes (or plan, kernels, ...) whose name matches REGEX")
      ->type_name("REGEX");
  app.add_option("--dump-module", f.options.module,
                 "Dump only modules whose folder name matches REGEX")
      ->type_name("REGEX");
  app.add_option("--dump-pipeline", f.options.pipeline,
                 "Dump only pipelines (forward, training, optimize, codegen) "
                 "that match REGEX")
      ->type_name("REGEX");
  app.add_option_function<std::vector<std::string>>(
         "--dump-format",
         [&f](const std::vector<std::string>& names) {
           f.options.formats = ParseFormats(names);
         },
         "Dump formats, comma-separated: text (default), proto, dot, html")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(OneOf({"text", "proto", "dot", "html"}));
  app.parse_complete_callback([&app, &f] {
    f.options.command = app.get_name();
    f.options.options = GivenOptions(app, kCompileHeadings);
    f.options.options.erase("--dump-to");  // the dump location is irrelevant
    f.options.options.erase("--module");   // so is the module's location
  });
}

namespace {

// Options for kernel generation and convolutions.
void AddLoweringFlags(CLI::App& app, CompileFlags& f) {
  passes::PassOptions& passes = f.passes;
  AddChoice(app, "--fusion", passes.fusion, kOnOff, "Fuse kernels: on or off");
  AddChoice(app, "--fusion-rounding", passes.eager_rounding,
            {{"fast", false}, {"eager", true}},
            "Rounding in fusions: fast, or eager to round after every op");
  AddChoice(app, "--winograd", passes.winograd, kOnOff,
            "Winograd for 3x3 convolutions in fp32 and bf16: on or off");
  AddNamed<passes::NormLowering>(
      app, "--bn-lowering", passes.norm_lowering,
      {"auto", "separate", "kernels", "statistics", "gradients", "prologues",
       "joins"},
      passes::ParseNormLowering,
      "Batch-norm work done by convolutions: none (separate, kernels), "
      "statistics, gradients, prologues or joins; auto: gradients in fp16 "
      "on GPUs, else kernels");
}

}  // namespace

void AddGraphFlag(CLI::App& app, CompileFlags& f) {
  AddChoice(app, "--cuda-graph", f.device.graph, kOnOff,
            "Launch GPU steps as one CUDA graph: on or off");
}

void AddGraphStepsFlag(CLI::App& app, CompileFlags& f) {
  app.add_option("--cuda-graph-steps", f.device.graph_steps,
                 "Training steps per CUDA graph (useful if steps are short)")
      ->group("Run")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(1, 64));
}

void AddCompileFlags(CLI::App& app, CompileFlags& f) {
  const Heading heading(app, kCompilation);
  passes::PassOptions& passes = f.passes;
  app.add_option("--backend", f.backend, "Backend plug-in")
      ->capture_default_str();
  app.add_option("--threads", f.device.threads,
                 "Compute threads (0: all cores)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1024));
  AddGraphFlag(app, f);
  AddLoweringFlags(app, f);
  app.add_option("--dtype", f.dtype,
                 "Precision of matmuls and activations: fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(OneOf({"fp32", "bf16", "fp16"}));
  app.add_flag("--amp", f.amp, "Mixed precision: bf16 on a CPU, fp16 on a GPU");
  app.add_option(
         "--opt-level", f.opt_level,
         "NVIDIA Apex level: O0 (fp32), O1 (--amp), O2 (16-bit gradients), O3")
      ->check(OneOf({"O0", "O1", "O2", "O3"}));
  app.add_option("--amp-allow", passes.precision.allow,
                 "Run OP in 16 bit in mixed precision (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option("--amp-deny", passes.precision.deny,
                 "Keep OP in fp32 in mixed precision (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option(
         "--substitute-kernel", f.substitutes,
         "Replace a kernel by edited LLVM IR from --dump-to (repeatable)")
      ->allow_extra_args(false)
      ->type_name("NAME:FILE");
  AddChoice(app, "--kernel-cache", f.cache, kOnOff,
            "Cache compiled kernels on disk: on or off");
  app.add_option(
         "--choices", f.choices,
         "Choose convolution algorithms by the autotune results in FILE")
      ->type_name("FILE");
  app.add_option("--disable-pass", passes.disabled, "Skip a pass (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option("--only-pass", passes.only,
                 "Skip all passes except this one (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option_function<std::vector<std::string>>(
         "--fuel",
         [&passes](const std::vector<std::string>& list) {
           passes.fuel = ParseFuel(list);
         },
         "Limit a pass to its first N rewrites (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS=N");
  app.add_flag(
      "--verify", f.verify,
      "Verify graphs and plan; fill memory with NaN before kernels write it");
  app.add_flag("--verify-each", f.verify_each,
               "Verify the graph after each pass that changes it");
}

std::vector<std::string> WordsOf(const CLI::Option& option) {
  const std::vector<std::string> values = option.reduced_results();
  if (option.get_lnames().empty()) return values;  // positional
  const std::string name = "--" + option.get_lnames()[0];
  if (option.get_delimiter() != '\0') {
    return {name, Join(values, std::string(1, option.get_delimiter()),
                       [](const std::string& s) { return s; })};
  }
  const bool has_value = option.get_items_expected_max() > 0;
  std::vector<std::string> words;
  for (const std::string& value : values) {
    words.push_back(name);
    if (has_value) words.push_back(value);
  }
  return words;
}

std::vector<std::string> CompileWords(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    const std::string& group = option->get_group();
    const bool decides =
        group == kCompilation || group == kTraining || group == kLossScale;
    if (option->count() == 0 || !decides ||
        option->get_lnames()[0] == "substitute-kernel" ||
        option->get_lnames()[0] == "tune") {
      continue;
    }
    for (std::string& word : WordsOf(*option)) words.push_back(std::move(word));
  }
  return words;
}

void AddTargetFlag(CLI::App& app, CompileFlags& f) {
  const Heading heading(app, kCompilation);
  app.add_option("--target", f.target,
                 "Compile for this type of device (default: this machine's)")
      ->type_name("NAME");
}

namespace {

void AddLossScaleFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, kLossScale);
  app.add_option("--static-loss-scale", f.static_loss_scale,
                 "Multiply the loss by this constant; never skip an update "
                 "(default: 1)")
      ->check(Number(0x1p-24, 0x1p64));
  app.add_flag(
      "--dynamic-loss-scale", f.loss_scale.dynamic,
      "Adapt the loss scale, skip overflowing steps; static scale is ignored");
  app.add_option("--initial-loss-scale", f.loss_scale.initial,
                 "Dynamic loss scale: value at the first step")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--loss-scale-window", f.loss_scale.growth_interval,
                 "Dynamic loss scale: steps without overflow before it grows")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  app.add_option("--loss-scale-growth", f.loss_scale.growth_factor,
                 "Dynamic loss scale: factor when it grows")
      ->capture_default_str()
      ->check(Number(1, 1e6));
  app.add_option("--loss-scale-backoff", f.loss_scale.backoff_factor,
                 "Dynamic loss scale: factor after an overflow")
      ->capture_default_str()
      ->check(Number(1e-6, 1));
  app.add_option("--min-loss-scale", f.loss_scale.floor,
                 "Dynamic loss scale: minimum")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--max-loss-scale", f.loss_scale.ceiling,
                 "Dynamic loss scale: maximum")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
}

// Notes which of these flags are given.
void NoteGiven(CLI::App& app, OptimizerFlags& f,
               std::initializer_list<const char*> names) {
  for (const std::string name : names) {
    app.get_option("--" + name)->each([&f, name](const std::string& value) {
      if (value != "false") f.given.insert(name);
    });
  }
}

}  // namespace

void AddOptimizerFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, kTraining);
  passes::OptimizerOptions& o = f.options;
  app.add_option("--mom,--momentum", o.momentum,
                 "Momentum of sgd, lars, rmsprop and rmsprop-tf")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--wd,--weight-decay", o.weight_decay, "Weight decay")
      ->capture_default_str()
      ->check(Number(0));
  app.add_flag("--bn-weight-decay", f.norm_weight_decay,
               "Apply weight decay to batch-norm parameters and biases too");
  app.add_flag("--nesterov", o.nesterov, "Nesterov momentum of sgd and lars");
  app.add_flag("--decoupled-weight-decay", o.decoupled_weight_decay,
               "sgd: apply weight decay directly, not through the gradient");
  AddNamed<passes::OptimizerKind>(
      app, "--optimizer", o.kind, passes::OptimizerNames(),
      passes::ParseOptimizer,
      "Optimizer: sgd, lars, adam, adamw, rmsprop, rmsprop-tf or lamb");
  app.add_option("--beta1", o.beta1,
                 "adam, adamw, lamb: decay of the average gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option("--beta2", o.beta2,
                 "adam, adamw, lamb: decay of the average squared gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option("--alpha", o.alpha,
                 "rmsprop, rmsprop-tf: decay of the average squared gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option(
         "--eps", o.eps,
         "Term in the denominator of all optimizers except sgd and lars")
      ->capture_default_str()
      ->check(Number(1e-30, 1));
  app.add_option(
         "--lars-coefficient", o.lars_coefficient,
         "LARS: learning rate of a layer, relative to |weight| / |gradient|")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--clip-grad-norm", o.clip_norm,
                 "Clip the global gradient norm (0: off)")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option(
         "--ema-decay", o.ema_decay,
         "Evaluate a moving average of the weights with this decay (0: off)")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  NoteGiven(app, f,
            {"momentum", "nesterov", "decoupled-weight-decay", "beta1", "beta2",
             "alpha", "eps", "lars-coefficient"});
  app.add_option_function<std::vector<std::string>>(
         "--param-group",
         [&o](const std::vector<std::string>& list) {
           o.groups.clear();
           for (const std::string& text : list) {
             o.groups.push_back(ParseGroup(text));
           }
         },
         "Settings of parameters whose name matches REGEX (repeatable)")
      ->allow_extra_args(false)
      ->type_name("REGEX:lr-scale=X,weight-decay=X");
  AddLossScaleFlags(app, f);
}

void AddScheduleFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, "Schedule");
  runtime::LrScheduleOptions& schedule = f.schedule;
  app.add_option("--lr", schedule.base, "Peak learning rate")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--lr-scale-batch", f.lr_images,
                 "Scale the learning rate by batch size / N (0: off)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(0, kMaxSteps));
  AddNamed<runtime::LrScheduleKind>(
      app, "--lr-schedule", schedule.kind, runtime::LrScheduleNames(),
      runtime::ParseLrSchedule,
      "Learning rate: constant, step, linear, cosine or polynomial");
  AddChoice(app, "--lr-update", f.by_epoch, {{"step", false}, {"epoch", true}},
            "Update the learning rate every step or epoch");
  app.add_option("--end-lr", schedule.end,
                 "Final learning rate of linear, cosine and polynomial")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--power", schedule.power,
                 "Exponent of the polynomial schedule")
      ->capture_default_str()
      ->check(Number(0, 1e3));
  app.add_option(
         "--lr-cycle-epochs", schedule.first_cycle,
         "Restart linear, cosine and polynomial after N epochs (0: off)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--lr-cycle-mul", schedule.cycle_factor,
                 "Length of each cycle relative to the one before")
      ->capture_default_str()
      ->check(WholeNumber(1, 1000));
  app.add_option("--warmup", f.warmup_epochs, "Linear warm-up in epochs")
      ->capture_default_str()
      ->check(Number(0, 1e9));
  app.add_option("--warmup-steps", schedule.warmup, "Linear warm-up in steps")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--milestones", schedule.milestones,
                 "Epochs at which the step schedule drops (default: 30,60,80)")
      ->delimiter(',')
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--gamma", schedule.gamma, "Factor of the step schedule")
      ->capture_default_str()
      ->check(Number(0));
}

void AddLoaderFlags(CLI::App& app, DataFlags& f) {
  const Heading heading(app, kData);
  app.add_option("-j,--workers", f.loader.threads,
                 "Number of threads that decode images")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  app.add_option("--prefetch", f.loader.prefetch,
                 "Number of batches to prefetch")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  AddChoice(app, "--bad-record", f.loader.bad_record,
            {{"fail", runtime::BadRecord::kFail},
             {"skip", runtime::BadRecord::kSkip}},
            "If an image cannot be decoded: fail or skip");
}

void AddReaderFlags(CLI::App& app, DataFlags& f) {
  {
    const Heading heading(app, kData);
    app.add_option(
           "DATA", f.path,
           "Image folder (DATA/train/CLASS/*.jpg, DATA/val/CLASS/*.jpg), "
           "safetensors with tensors input and target, or files of another "
           "format")
        ->type_name("PATH");
  }
  AddLoaderFlags(app, f);
}

namespace {

void AddAugmentFlags(CLI::App& app, DataFlags& f) {
  using Policy = runtime::AutoAugmentPolicy;
  runtime::RandomOpsOptions& ops = f.loader.transform.ops;
  AddChoice(app, "--auto-augment", ops.policy,
            {{"none", Policy::kNone},
             {"ra", Policy::kRandAugment},
             {"ta_wide", Policy::kTrivialAugmentWide},
             {"imagenet", Policy::kImageNet}},
            "Automatic augmentation: ra (RandAugment), ta_wide, imagenet");
  app.add_option("--ra-magnitude", ops.magnitude, "Magnitude of RandAugment")
      ->capture_default_str()
      ->check(WholeNumber(0, runtime::kMagnitudeBins - 1));
  app.add_option("--color-jitter", f.jitter,
                 "Jitter of brightness, contrast and saturation (, and hue)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("X[,C,S[,H]]")
      ->check(Number(0, 100));
  app.add_option("--lighting", ops.lighting,
                 "Standard deviation of AlexNet's PCA lighting (0: off)")
      ->capture_default_str()
      ->check(Number(0, 100));
  const auto probability = [&app](const char* name, double& value,
                                  const char* help) {
    app.add_option(name, value, help)
        ->capture_default_str()
        ->type_name("P")
        ->check(Number(0, 1));
  };
  probability("--gray", ops.grey, "Probability of a grey image");
  probability("--blur", ops.blur, "Probability of a Gaussian blur");
  probability("--random-erase", ops.erasing,
              "Probability of a region of the mean colour");
  app.add_flag("--ra-sampler", f.repeats,
               "Repeat each image, with other augmentations, in a batch");
  app.add_option("--ra-reps", f.loader.repetitions,
                 "Repetitions of --ra-sampler")
      ->capture_default_str()
      ->check(WholeNumber(1, 64));
}

}  // namespace

void AddDataFlags(CLI::App& app, DataFlags& f) {
  AddReaderFlags(app, f);
  const Heading heading(app, kData);
  app.add_flag("--synthetic", f.synthetic, "Use random images instead of DATA");
  app.add_option("--train-transform", f.transform,
                 "Training transform: random-resized-crop, centre-crop, "
                 "pad-crop, exact")
      ->check(
          OneOf({"random-resized-crop", "centre-crop", "pad-crop", "exact"}));
  AddAugmentFlags(app, f);
  app.add_option("--max-per-class", f.max_per_class,
                 "Use only the first images of each class (0: all)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_option("--seed", f.loader.seed,
                 "Seed for initialisation, shuffling, augmentation, dropout")
      ->capture_default_str()
      ->check(WholeNumber(0));
}

void AddEvaluationFlags(CLI::App& app, DataFlags& f) {
  const Heading heading(app, kData);
  app.add_option("--val-transform", f.val_transform,
                 "Evaluation transform: centre-crop or exact (default for "
                 "CIFAR models)")
      ->check(OneOf({"centre-crop", "exact"}));
  app.add_option(
         "--val-resize-size", f.val_resize,
         "Resize the shorter side before the crop (default: crop * 256 / 224)")
      ->check(WholeNumber(8, 4096));
  app.add_option("--val-crop-size", f.val_crop,
                 "Evaluate on crops of this size (default: --image-size)")
      ->check(WholeNumber(8, 4096));
}

void AddJsonFlag(CLI::App& app, std::string& path) {
  const Heading heading(app, "Output");
  app.add_option("--json", path, "Write results as JSON to FILE (- = stdout)")
      ->type_name("FILE");
}

}  // namespace fusor::tools
