#include "tools/fusor/flags/flag_groups.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "ir/support/error.h"
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
  app.add_option("--mixup,--mixup-alpha", f.mixup,
                 "Mix pairs of images and labels by Beta(A, A) (0: off)")
      ->capture_default_str()
      ->type_name("A")
      ->check(Number(0, 1e6));
  app.add_option("--cutmix-alpha", f.cutmix,
                 "Paste a box of another image, of area Beta(A, A) (0: off)")
      ->capture_default_str()
      ->type_name("A")
      ->check(Number(0, 1e6));
  app.add_option("--mixup-switch-prob", f.mixup_switch,
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
  app.add_option("-b,--batch-size", f.batch, "Images per step on this rank")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option(
         "--image-size", f.image_size,
         "Height and width of the input (default: 224; CIFAR models: 32)")
      ->check(WholeNumber(8, 4096));
  app.add_option("--num-classes", f.num_classes,
                 "Number of classes (default: the data's; synthetic: 1000)")
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("-c,--fan,--model-config", f.fan,
                 "Initial scale of convolutions: fan-out (or classic), fan-in")
      ->capture_default_str()
      ->check(OneOf({"fan-out", "fan-in", "fanout", "fanin", "classic",
                     "grp-fanout", "grp-fanin"}));
  app.add_flag("--zero-gamma", f.zero_gamma,
               "Initialise the last normalisation of each residual block to 0");
  app.add_option("--dropout", f.dropout, "Dropout rate of VGG's classifier")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  app.add_option("--loss", f.loss,
                 "Loss: cross-entropy, or bce or mse of one-hot labels")
      ->capture_default_str()
      ->check(OneOf({"cross-entropy", "bce", "mse"}));
  app.add_option("--label-smoothing", f.label_smoothing,
                 "Label smoothing, in [0, 1)")
      ->capture_default_str()
      ->check(Number(0, 0.999));
  AddMixFlags(app, f);
  app.add_option("--augment-on", f.augment_on,
                 "Change colours and erase regions of images on: host, device")
      ->capture_default_str()
      ->check(OneOf({"host", "device"}));
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
  app.add_option("--freeze", f.freeze,
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
         "--dump-pass", f.pass,
         "Dump only passes (or plan, kernels, ...) whose name matches REGEX")
      ->type_name("REGEX");
  app.add_option("--dump-module", f.module,
                 "Dump only modules whose folder name matches REGEX")
      ->type_name("REGEX");
  app.add_option("--dump-pipeline", f.pipeline,
                 "Dump only pipelines (forward, training, optimize, codegen) "
                 "that match REGEX")
      ->type_name("REGEX");
  app.add_option(
         "--dump-format", f.formats,
         "Dump formats, comma-separated: text (default), proto, dot, html")
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
                 "Rounding in fusions: fast, or eager to round after every op")
      ->capture_default_str()
      ->check(OneOf({"fast", "eager"}));
  app.add_option("--winograd", f.winograd,
                 "Winograd for 3x3 convolutions in fp32 and bf16: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option(
         "--bn-lowering", f.bn_lowering,
         "Batch-norm work done by convolutions: none (separate, kernels), "
         "statistics, gradients, prologues or joins; auto: gradients in fp16 "
         "on GPUs, else kernels")
      ->capture_default_str()
      ->check(OneOf({"auto", "separate", "kernels", "statistics", "gradients",
                     "prologues", "joins"}));
}

}  // namespace

void AddGraphFlag(CLI::App& app, CompileFlags& f) {
  app.add_option("--cuda-graph", f.cuda_graph,
                 "Launch GPU steps as one CUDA graph: on or off")
      ->capture_default_str()
      ->check(OneOf({"on", "off"}));
}

void AddGraphStepsFlag(CLI::App& app, CompileFlags& f) {
  app.add_option("--cuda-graph-steps", f.graph_steps,
                 "Training steps per CUDA graph (useful if steps are short)")
      ->group("Run")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(1, 64));
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
                 "Precision of matmuls and activations: fp32, bf16 or fp16")
      ->capture_default_str()
      ->check(OneOf({"fp32", "bf16", "fp16"}));
  app.add_flag("--amp", f.amp, "Mixed precision: bf16 on a CPU, fp16 on a GPU");
  app.add_option(
         "--opt-level", f.opt_level,
         "NVIDIA Apex level: O0 (fp32), O1 (--amp), O2 (16-bit gradients), O3")
      ->check(OneOf({"O0", "O1", "O2", "O3"}));
  app.add_option("--amp-allow", f.amp_allow,
                 "Run OP in 16 bit in mixed precision (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option("--amp-deny", f.amp_deny,
                 "Keep OP in fp32 in mixed precision (repeatable)")
      ->allow_extra_args(false)
      ->type_name("OP");
  app.add_option(
         "--substitute-kernel", f.substitutes,
         "Replace a kernel by edited LLVM IR from --dump-to (repeatable)")
      ->allow_extra_args(false)
      ->type_name("NAME:FILE");
  app.add_option("--kernel-cache", f.cache,
                 "Cache compiled kernels on disk: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option(
         "--choices", f.choices,
         "Choose convolution algorithms by the autotune results in FILE")
      ->type_name("FILE");
  app.add_option("--disable-pass", f.disabled, "Skip a pass (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option("--only-pass", f.only,
                 "Skip all passes except this one (repeatable)")
      ->allow_extra_args(false)
      ->type_name("PASS");
  app.add_option("--fuel", f.fuel,
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
      "--dynamic-loss-scale", f.dynamic_loss_scale,
      "Adapt the loss scale, skip overflowing steps; static scale is ignored");
  app.add_option("--initial-loss-scale", f.initial_loss_scale,
                 "Dynamic loss scale: value at the first step")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--loss-scale-window", f.loss_scale_window,
                 "Dynamic loss scale: steps without overflow before it grows")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  app.add_option("--loss-scale-growth", f.loss_scale_growth,
                 "Dynamic loss scale: factor when it grows")
      ->capture_default_str()
      ->check(Number(1, 1e6));
  app.add_option("--loss-scale-backoff", f.loss_scale_backoff,
                 "Dynamic loss scale: factor after an overflow")
      ->capture_default_str()
      ->check(Number(1e-6, 1));
  app.add_option("--min-loss-scale", f.min_loss_scale,
                 "Dynamic loss scale: minimum")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
  app.add_option("--max-loss-scale", f.max_loss_scale,
                 "Dynamic loss scale: maximum")
      ->capture_default_str()
      ->check(Number(0x1p-24, 0x1p64));
}

}  // namespace

namespace {

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
  app.add_option("--mom,--momentum", f.momentum,
                 "Momentum of sgd, lars, rmsprop and rmsprop-tf")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--wd,--weight-decay", f.weight_decay, "Weight decay")
      ->capture_default_str()
      ->check(Number(0));
  app.add_flag("--bn-weight-decay", f.norm_weight_decay,
               "Apply weight decay to batch-norm parameters and biases too");
  app.add_flag("--nesterov", f.nesterov, "Nesterov momentum of sgd and lars");
  app.add_flag("--decoupled-weight-decay", f.decoupled,
               "sgd: apply weight decay directly, not through the gradient");
  app.add_option(
         "--optimizer", f.optimizer,
         "Optimizer: sgd, lars, adam, adamw, rmsprop, rmsprop-tf or lamb")
      ->capture_default_str()
      ->check(OneOf(passes::OptimizerNames()));
  app.add_option("--beta1", f.beta1,
                 "adam, adamw, lamb: decay of the average gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option("--beta2", f.beta2,
                 "adam, adamw, lamb: decay of the average squared gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option("--alpha", f.alpha,
                 "rmsprop, rmsprop-tf: decay of the average squared gradient")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  app.add_option(
         "--eps", f.eps,
         "Term in the denominator of all optimizers except sgd and lars")
      ->capture_default_str()
      ->check(Number(1e-30, 1));
  app.add_option(
         "--lars-coefficient", f.lars_coefficient,
         "LARS: learning rate of a layer, relative to |weight| / |gradient|")
      ->capture_default_str()
      ->check(Number(0, 1));
  app.add_option("--clip-grad-norm", f.clip_norm,
                 "Clip the global gradient norm (0: off)")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option(
         "--ema-decay", f.ema_decay,
         "Evaluate a moving average of the weights with this decay (0: off)")
      ->capture_default_str()
      ->check(Number(0, 0.9999999));
  NoteGiven(app, f,
            {"momentum", "nesterov", "decoupled-weight-decay", "beta1", "beta2",
             "alpha", "eps", "lars-coefficient"});
  app.add_option("--param-group", f.groups,
                 "Settings of parameters whose name matches REGEX (repeatable)")
      ->allow_extra_args(false)
      ->type_name("REGEX:lr-scale=X,weight-decay=X");
  AddLossScaleFlags(app, f);
}

void AddScheduleFlags(CLI::App& app, OptimizerFlags& f) {
  const Heading heading(app, "Schedule");
  app.add_option("--lr", f.lr, "Peak learning rate")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--lr-scale-batch", f.lr_images,
                 "Scale the learning rate by batch size / N (0: off)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--lr-schedule", f.schedule,
                 "Learning rate: constant, step, linear, cosine or polynomial")
      ->capture_default_str()
      ->check(OneOf(runtime::LrScheduleNames()));
  app.add_option("--lr-update", f.lr_update,
                 "Update the learning rate every step or epoch")
      ->capture_default_str()
      ->check(OneOf({"step", "epoch"}));
  app.add_option("--end-lr", f.end_lr,
                 "Final learning rate of linear, cosine and polynomial")
      ->capture_default_str()
      ->check(Number(0));
  app.add_option("--power", f.power, "Exponent of the polynomial schedule")
      ->capture_default_str()
      ->check(Number(0, 1e3));
  app.add_option(
         "--lr-cycle-epochs", f.cycle_epochs,
         "Restart linear, cosine and polynomial after N epochs (0: off)")
      ->capture_default_str()
      ->type_name("N")
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--lr-cycle-mul", f.cycle_factor,
                 "Length of each cycle relative to the one before")
      ->capture_default_str()
      ->check(WholeNumber(1, 1000));
  app.add_option("--warmup", f.warmup_epochs, "Linear warm-up in epochs")
      ->capture_default_str()
      ->check(Number(0, 1e9));
  app.add_option("--warmup-steps", f.warmup_steps, "Linear warm-up in steps")
      ->capture_default_str()
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--milestones", f.milestones,
                 "Epochs at which the step schedule drops (default: 30,60,80)")
      ->delimiter(',')
      ->check(WholeNumber(0, kMaxSteps));
  app.add_option("--gamma", f.gamma, "Factor of the step schedule")
      ->capture_default_str()
      ->check(Number(0));
}

void AddLoaderFlags(CLI::App& app, DataFlags& f) {
  const Heading heading(app, kData);
  app.add_option("-j,--workers", f.workers,
                 "Number of threads that decode images")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  app.add_option("--prefetch", f.prefetch, "Number of batches to prefetch")
      ->capture_default_str()
      ->check(WholeNumber(1, 1024));
  app.add_option("--bad-record", f.bad_record,
                 "If an image cannot be decoded: fail or skip")
      ->capture_default_str()
      ->check(OneOf({"fail", "skip"}));
}

void AddReaderFlags(CLI::App& app, DataFlags& f) {
  {
    const Heading heading(app, kData);
    app.add_option(
           "DATA", f.path,
           "Image folder (DATA/train/CLASS/*.jpg, DATA/val/CLASS/*.jpg), or "
           "files of another format")
        ->type_name("PATH");
  }
  AddLoaderFlags(app, f);
}

namespace {

void AddAugmentFlags(CLI::App& app, AugmentFlags& f) {
  app.add_option("--auto-augment", f.policy,
                 "Automatic augmentation: ra (RandAugment), ta_wide, imagenet")
      ->capture_default_str()
      ->check(OneOf({"none", "ra", "ta_wide", "imagenet"}));
  app.add_option("--ra-magnitude", f.magnitude, "Magnitude of RandAugment")
      ->capture_default_str()
      ->check(WholeNumber(0, runtime::kMagnitudeBins - 1));
  app.add_option("--color-jitter", f.jitter,
                 "Jitter of brightness, contrast and saturation (, and hue)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("X[,C,S[,H]]")
      ->check(Number(0, 100));
  app.add_option("--lighting", f.lighting,
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
  probability("--gray", f.grey, "Probability of a grey image");
  probability("--blur", f.blur, "Probability of a Gaussian blur");
  probability("--random-erase", f.erasing,
              "Probability of a region of the mean colour");
  app.add_flag("--ra-sampler", f.repeats,
               "Repeat each image, with other augmentations, in a batch");
  app.add_option("--ra-reps", f.repetitions, "Repetitions of --ra-sampler")
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
  AddAugmentFlags(app, f.augment);
  app.add_option("--max-per-class", f.max_per_class,
                 "Use only the first images of each class (0: all)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  app.add_option("--seed", f.seed,
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
