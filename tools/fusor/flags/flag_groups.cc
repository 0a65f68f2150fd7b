#include "tools/fusor/flags/flag_groups.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ir/support/str.h"
#include "runtime/train/lr_schedule.h"
#include "tools/fusor/flags/module_model.h"
#include "tools/fusor/flags/validators.h"

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

void AddModelFlags(CLI::App& app, ModelFlags& f) {
  const Heading heading(app, kModel);
  CLI::Option* module =
      app.add_option_function<std::string>(
             "--module", [&f](const std::string& path) { UseModule(path, f); },
             "Take the model from FILE, IR text or protobuf (- = stdin)")
          ->type_name("FILE");
  app.add_option("--arch,-a", f.arch, "Model; `fusor doctor` lists them")
      ->capture_default_str();
  app.add_option("-b,--batch-size", f.batch, "Images a step on this rank")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--image-size", f.image_size,
                 "Height and width of the input (224; CIFAR models 32)")
      ->check(WholeNumber(8, 4096));
  app.add_option("--num-classes", f.num_classes,
                 "Classes (those of the data; 1000 synthetic)")
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("-c,--fan,--model-config", f.fan,
                 "Scale of initial convolution weights: fan-out or fan-in "
                 "(classic is fan-out)")
      ->capture_default_str()
      ->check(OneOf({"fan-out", "fan-in", "fanout", "fanin", "classic"}));
  app.add_flag("--zero-gamma", f.zero_gamma,
               "Start the last normalisation of each residual block at 0");
  app.add_option("--dropout", f.dropout, "Dropout of VGG's classifier")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  app.add_option("--label-smoothing", f.label_smoothing, "In [0, 1)")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  app.add_option("--mixup", f.mixup,
                 "Mix pairs of images and labels by Beta(A, A) (0: do not)")
      ->capture_default_str()
      ->type_name("A")
      ->check(Number(0, 1e6));
  app.add_option("--mean", f.mean,
                 "Means of red, green and blue on the scale 0 to 255")
      ->expected(3)
      ->delimiter(',')
      ->check(Number(0, 255));
  // A value below 1 must be on the scale 0 to 1.
  app.add_option("--std", f.std,
                 "Standard deviations of them on the scale 0 to 255")
      ->expected(3)
      ->delimiter(',')
      ->check(Number(1, 255));
  app.add_option("--freeze", f.freeze,
                 "Do not train parameters whose name matches REGEX "
                 "(repeatable)")
      ->allow_extra_args(false)
      ->type_name("REGEX");
  // A module fixes these.
  for (const char* name :
       {"--arch", "--batch-size", "--image-size", "--fan", "--zero-gamma",
        "--dropout", "--label-smoothing", "--mixup"}) {
    module->excludes(app.get_option(name));
  }
}

void AddDumpFlags(CLI::App& app, DumpFlags& f) {
  const Heading heading(app, kDumps);
  app.add_option("--dump-to", f.to,
                 "Write what the compiler makes of each module into this "
                 "folder (- = stdout): the graph after each pass that changed "
                 "it, decisions, plan, schedule, memory, kernels")
      ->type_name("DIR");
  app.add_option("--dump-pass", f.pass,
                 "Only passes in whose name REGEX is found; \"plan\", "
                 "\"kernels\", ... select what follows them")
      ->type_name("REGEX");
  app.add_option("--dump-module", f.module,
                 "Only modules in whose folder's name REGEX is found")
      ->type_name("REGEX");
  app.add_option("--dump-pipeline", f.pipeline,
                 "Only pipelines in whose name REGEX is found: forward, "
                 "training, optimize, codegen")
      ->type_name("REGEX");
  app.add_option(
         "--dump-format", f.formats,
         "text, proto, dot, html: one or several, separated by commas (text)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(OneOf({"text", "proto", "dot", "html"}));
  app.parse_complete_callback([&app, &f] {
    f.command = app.get_name();
    f.options = GivenOptions(app, kCompileHeadings);
    f.options.erase("--dump-to");  // the dump location is irrelevant
    f.options.erase("--module");   // so is the module's location
  });
}

namespace {

// Options for kernel generation and convolutions.
void AddLoweringFlags(CLI::App& app, CompileFlags& f) {
  const CLI::Validator on_off = OneOf({"on", "off"});
  app.add_option("--fusion", f.fusion, "Fuse kernels: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option("--fusion-rounding", f.rounding,
                 "Inside fusions: fast, or eager to round at every op")
      ->capture_default_str()
      ->check(OneOf({"fast", "eager"}));
  app.add_option("--winograd", f.winograd,
                 "Winograd for 3x3 convolutions, in fp32 and bf16: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option(
         "--bn-lowering", f.bn_lowering,
         "How much of batch normalisation convolutions do, as far as "
         "the library has it. kernels: nothing; separate: nothing, and "
         "each is a kernel of its own; statistics: sum them up; "
         "gradients: and mask and sum up data gradients; prologues: and "
         "apply it to what they read; joins: and that with an addition, and "
         "store what others read")
      ->capture_default_str()
      ->check(OneOf({"separate", "kernels", "statistics", "gradients",
                     "prologues", "joins"}));
}

}  // namespace

void AddGraphFlag(CLI::App& app, CompileFlags& f) {
  app.add_option("--cuda-graph", f.cuda_graph,
                 "Launch a GPU's steps as one graph: on or off")
      ->capture_default_str()
      ->check(OneOf({"on", "off"}));
}

void AddCompileFlags(CLI::App& app, CompileFlags& f) {
  const Heading heading(app, kCompilation);
  const CLI::Validator on_off = OneOf({"on", "off"});
  app.add_option("--backend", f.backend, "Backend plug-in")
      ->capture_default_str();
  app.add_option("--threads", f.threads, "Compute threads (0: all cores)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1024));
  AddGraphFlag(app, f);
  AddLoweringFlags(app, f);
  app.add_option("--dtype", f.dtype,
                 "Precision of convolutions, matmuls and activations: fp32, "
                 "bf16 or fp16")
      ->capture_default_str()
      ->check(OneOf({"fp32", "bf16", "fp16"}));
  app.add_flag("--amp", f.amp,
               "Mixed precision in the device's 16-bit type: bf16 on a CPU, "
               "fp16 on a GPU");
  app.add_option(
         "--opt-level", f.opt_level,
         "NVIDIA Apex's levels. O0: fp32. O1: --amp. O2: and gradients, but "
         "for those of normalisations, are 16 bit on one rank, too, with "
         "a dynamic loss scale. O3: as O2 with loss scale 1 (the fp32 weights "
         "that Apex's O3 gives up are kept)")
      ->check(OneOf({"O0", "O1", "O2", "O3"}));
  app.add_option("--amp-allow", f.amp_allow,
                 "Op that mixed precision runs in 16 bit (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option("--amp-deny", f.amp_deny,
                 "Op that mixed precision keeps in fp32 (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option("--substitute-kernel", f.substitutes,
                 "Run edited LLVM IR, as --dump-to writes it, in place of a "
                 "kernel (repeatable)")
      ->allow_extra_args(false)
      ->type_name("NAME:FILE");
  app.add_option("--kernel-cache", f.cache,
                 "Keep compiled kernels on disk: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option("--choices", f.choices,
                 "Run convolutions as this file of --tune says, not by the "
                 "built-in rule")
      ->type_name("FILE");
  app.add_option("--disable-pass", f.disabled, "Skip a pass (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option("--only-pass", f.only,
                 "Skip all passes but this one (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option("--fuel", f.fuel,
                 "Let a pass make its first N rewrites only (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS=N");
  app.add_flag("--verify", f.verify,
               "Check the graph after each pass, and the plan, and fill memory "
               "with NaN before each kernel that writes it");
  app.add_flag("--verify-each", f.verify_each,
               "Check the graph after each pass that changes it");
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
                 "Compile for this kind of device (default: this machine's)")
      ->type_name("NAME");
}

namespace {

void AddLossScaleFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, kLossScale);
  app.add_option("--static-loss-scale", f.static_loss_scale,
                 "Multiply the loss by this, and divide gradients by it in "
                 "fp32; no step is checked or skipped (1)")
      ->check(Number(0x1p-24, 0x1p64));
  app.add_flag("--dynamic-loss-scale", f.dynamic_loss_scale,
               "Adapt the scale, and skip the update of a step whose gradients "
               "overflow (goes before --static-loss-scale)");
  app.add_option("--initial-loss-scale", f.initial_loss_scale,
                 "Dynamic: scale of the first step")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--loss-scale-window", f.loss_scale_window,
                 "Dynamic: steps without overflow until the scale grows")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  app.add_option("--loss-scale-growth", f.loss_scale_growth,
                 "Dynamic: factor by which it grows")
      ->capture_default_str()
      ->check(Number(1, 1e6));
  app.add_option("--loss-scale-backoff", f.loss_scale_backoff,
                 "Dynamic: factor by which it shrinks after an overflow")
      ->capture_default_str()
      ->check(Number(1e-6, 1));
  app.add_option("--min-loss-scale", f.min_loss_scale,
                 "Dynamic: it shrinks no further")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--max-loss-scale", f.max_loss_scale,
                 "Dynamic: it grows no further")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
}

}  // namespace

void AddOptimizerFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, kTraining);
  app.add_option("--mom,--momentum", f.momentum, "Momentum")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--wd,--weight-decay", f.weight_decay,
                 "Weight decay of weights")
      ->capture_default_str()
      ->check(Number(0));
  app.add_flag("--bn-weight-decay", f.norm_weight_decay,
               "Decay batch-norm parameters and biases as well");
  app.add_flag("--nesterov", f.nesterov, "Nesterov momentum");
  app.add_flag("--decoupled-weight-decay", f.decoupled,
               "Decay weights directly instead of through the gradient");
  app.add_option("--optimizer", f.optimizer,
                 "sgd, or lars: a rate of its own for each layer")
      ->capture_default_str()
      ->check(OneOf({"sgd", "lars"}));
  app.add_option("--lars-coefficient", f.lars_coefficient,
                 "LARS: rate of a layer, relative to |weight| / |gradient|")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--clip-grad-norm", f.clip_norm,
                 "Scale gradients down to this norm of all of them together "
                 "(0: never)")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--ema-decay", f.ema_decay,
                 "Keep a moving average of the weights, average = DECAY * "
                 "average + (1 - DECAY) * weight, and evaluate it (0: none)")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  AddLossScaleFlags(app, f);
}

void AddScheduleFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, "Schedule");
  app.add_option("--lr", f.lr, "Peak learning rate")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--lr-scale-batch", f.lr_images,
                 "The rate is for a batch of N images and grows with the batch "
                 "(0: as it is)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--lr-schedule", f.schedule,
                 "Over time: constant, step, linear, cosine or polynomial")
      ->capture_default_str()
      ->check(OneOf(runtime::LrScheduleNames()));
  app.add_option("--lr-update", f.lr_update,
                 "Change the rate every step or every epoch")
      ->capture_default_str()
      ->check(OneOf({"step", "epoch"}));
  app.add_option("--end-lr", f.end_lr,
                 "Where linear, cosine and polynomial end")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--power", f.power, "Exponent of polynomial")
      ->capture_default_str()
      ->check(Number(0, 1e3));
  app.add_option("--warmup", f.warmup_epochs, "Linear warm-up, epochs")
      ->capture_default_str()
      ->check(Number(0, 1e9));
  app.add_option("--warmup-steps", f.warmup_steps, "Linear warm-up, steps")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--milestones", f.milestones,
                 "Epochs at which the step schedule drops (30,60,80)")
      ->delimiter(',')
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--gamma", f.gamma, "Factor of the step schedule")
      ->capture_default_str()
      ->check(Number(0));
}

void AddLoaderFlags(CLI::App& app, DataFlags& f) {
  const Heading heading(app, kData);
  app.add_option("-j,--workers", f.workers, "Threads that decode images")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  app.add_option("--prefetch", f.prefetch, "Batches kept ready")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  app.add_option("--bad-record", f.bad_record,
                 "Images that cannot be decoded: fail or skip")
      ->capture_default_str()
      ->check(OneOf({"fail", "skip"}));
}

void AddReaderFlags(CLI::App& app, DataFlags& f) {
  {
    const Heading heading(app, kData);
    app.add_option("DATA", f.path,
                   "Image folder: DATA/train/CLASS/*.jpg, DATA/val/CLASS/*.jpg")
        ->type_name("DIR");
  }
  AddLoaderFlags(app, f);
}

void AddDataFlags(CLI::App& app, DataFlags& f) {
  AddReaderFlags(app, f);
  const Heading heading(app, kData);
  app.add_flag("--synthetic", f.synthetic, "Random images instead of a folder");
  app.add_option("--train-transform", f.transform,
                 "random-resized-crop, centre-crop, pad-crop or exact")
      ->check(
          OneOf({"random-resized-crop", "centre-crop", "pad-crop", "exact"}));
  app.add_option("--max-per-class", f.max_per_class,
                 "Use the first images of each class only (0: all)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_option("--seed", f.seed,
                 "Of initialisation, order, augmentation and dropout")
      ->capture_default_str()
      ->check(WholeNumber(0));
}

void AddEvaluationFlags(CLI::App& app, DataFlags& f) {
  const Heading heading(app, kData);
  app.add_option("--val-transform", f.val_transform,
                 "Evaluate on centre-crop (CIFAR models: exact)")
      ->check(OneOf({"centre-crop", "exact"}));
  app.add_option("--val-resize-size", f.val_resize,
                 "Resize the shorter side before the crop (crop * 256 / 224)")
      ->check(WholeNumber(8, 4096));
  app.add_option("--val-crop-size", f.val_crop,
                 "Evaluate on crops of this size (--image-size)")
      ->check(WholeNumber(8, 4096));
}

void AddJsonFlag(CLI::App& app, std::string& path) {
  const Heading heading(app, "Output");
  app.add_option("--json", path, "Write results as JSON to FILE (- = stdout)")
      ->type_name("FILE");
}

}  // namespace fusor::tools
