#include "tools/fusor/flags/recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

// How a flag of a published script is translated. The first rule that applies
// is taken.
struct Rule {
  // "--precision", or with one of its values, in lower case:
  // "--precision=fp16". "": a default of the script, whatever flags are given.
  std::string_view flag;
  int values = 0;  // that follow the flag
  // Words of `fusor train`. Replaced in them: {} by the value, {N} by value N,
  // {folder} by the folder of the file that is the value, {/ranks} by the value
  // divided by the number of ranks, {--flag|X} by that flag's value or X.
  std::string_view becomes = "";
  // Why the flag has no effect, or, if `becomes` is kRejected, cannot have one.
  // Only in a default: the parts of the recipe that fusor does not have.
  std::string_view note = "";
  std::string_view with = "";     // applies only if this flag is given,
  std::string_view without = "";  // only if this one is not
};

constexpr std::string_view kRejected = "!";

struct Recipe {
  std::string_view name;
  std::span<const Rule> rules;
};

constexpr std::string_view kCompiled = "the whole step is compiled";
constexpr std::string_view kFused = "fusor fuses whatever it can";
constexpr std::string_view kLayouts = "the compiler chooses the layouts";
constexpr std::string_view kDecoded = "--workers threads decode images";
constexpr std::string_view kPlanned = "memory is planned";
constexpr std::string_view kRanks = "see fusor launch";
constexpr std::string_view kFound = "index files are found beside the data";

// In every recipe, and without one.
constexpr Rule kCommon[] = {
    {"--data-backend=syntetic", 1, "--synthetic --ignore-data"},
    {"--data-backend=synthetic", 1, "--synthetic --ignore-data"},
    {"--data-backend", 1, "", kDecoded},
    {"--memory-format", 1, "", kLayouts},
    {"--gather-checkpoints", 0, "", "see --keep-checkpoints"},
    {"--checkpoint-filename", 1, "", "checkpoints are folders"},
    {"--local-rank", 1, "", kRanks},
    {"--use-xla", 0, "", kCompiled},
    {"--nouse-xla", 0, "", kCompiled},
    {"--use-dali", 0, "", kDecoded},
    {"--nouse-dali", 0, "", kDecoded},
    {"--gpu-memory-fraction", 1, "", kPlanned},
};

// NVIDIA's main.py of PyTorch/Classification/ConvNets, whose names and defaults
// `fusor train` shares, and PyTorch's examples/imagenet.
constexpr Rule kPyTorch[] = {
    {"--fp16", 0, "--dtype fp16"},
    {"--multiprocessing-distributed", 0, "", kRanks},
    {"--dist-backend", 1, "", kRanks},
    {"--dist-url", 1, "", kRanks},
    {"--world-size", 1, "", kRanks},
    {"--rank", 1, "", kRanks},
    {"--gpu", 1, "", "each rank takes the GPU of its local rank"},
    {"--pretrained", 0, kRejected, "use --pretrained-weights FILE"},
};

// imagenet_ddp_apex.py.
constexpr Rule kApex[] = {
    {"", 0,
     "-b 224 --lr 0.1 --lr-scale-batch 256 --lr-schedule step "
     "--milestones 30,60,80 --gamma 0.1 --warmup 5 --bn-weight-decay"},
    {"--loss-scale=dynamic", 1, "--dynamic-loss-scale"},
    {"--loss-scale", 1, "--static-loss-scale {}"},
    {"--keep-batchnorm-fp32", 1, "", "batch norm computes in fp32"},
    {"--channels-last", 0, "", kLayouts},
    {"--start-epoch", 1, "", "--resume continues at the checkpoint's epoch"},
    {"--pretrained", 0, kRejected, "use --pretrained-weights FILE"},
    {"-e", 0, "--evaluate"},
};

// NVIDIA's main.py of TensorFlow/Classification/ConvNets.
constexpr Rule kTf1[] = {
    {"", 0,
     "--num-classes 1001 --lr 0.1 --lr-scale-batch 256 --warmup 5 "
     "--mom 0.9 --wd 1e-4 --epochs 1"},
    {"", 0, "--lr-schedule step --milestones 30,60,80,90 --gamma 0.1", "", "",
     "--use-cosine-lr"},
    {"", 0, "--synthetic", "", "", "--data-dir"},
    {"--mode=train", 1, "--training-only"},
    {"--mode=train_and_evaluate", 1},
    {"--mode=training_benchmark", 1, "--training-only --no-checkpoints"},
    {"--mode=evaluate", 1, "--evaluate --resume auto"},
    {"--mode", 1, kRejected, "expected a mode that trains or evaluates"},
    {"--data-dir", 1, "{}"},
    {"--data-idx-dir", 1, "", kFound},
    {"--batch-size", 1, "-b {}"},
    // Schedules in batches cover 90 epochs.
    {"--num-iter", 1, "--epochs 90 --prof {}", "", "--iter-unit=batch"},
    {"--num-iter", 1, "--epochs {}"},
    {"--run-iter=-1", 1},
    {"--run-iter", 1, "--prof {}", "", "--iter-unit=batch"},
    {"--run-iter", 1, "--run-epochs {}"},
    {"--iter-unit=batch", 1},
    {"--iter-unit=epoch", 1},
    {"--warmup-steps", 1, "", "each line of the log has its own rate"},
    {"--data-format", 1, "", kLayouts},
    {"--model-dir", 1, "--workspace {} --checkpoint-every 1000"},
    {"--results-dir", 1, "", "--model_dir is the workspace", "--model-dir"},
    {"--results-dir", 1, "--workspace {} --checkpoint-every 1000"},
    {"--log-filename", 1, "--raport-file {}"},
    {"--display-every", 1, "-p {}"},
    {"--lr-init", 1, "--lr {}"},
    {"--lr-warmup-epochs", 1, "--warmup {}"},
    {"--use-cosine-lr", 0, "--lr-schedule cosine"},
    {"--weight-init=fan_in", 1, "-c fan-in"},
    {"--weight-init=fan_out", 1, "-c fan-out"},
    {"--precision=fp32", 1},
    {"--precision=fp16", 1, "--dtype fp16"},
    {"--use-tf-amp", 0, "--amp", "", "--use-static-loss-scaling"},
    {"--use-tf-amp", 0,
     "--amp --dynamic-loss-scale --initial-loss-scale 32768"},
    {"--use-static-loss-scaling", 0, "--static-loss-scale {--loss-scale|256}"},
    {"--loss-scale", 1, "", "", "--use-static-loss-scaling"},
    {"--loss-scale", 1, "", "--use_static_loss_scaling is not given"},
    {"--nouse-tf-amp", 0},
    {"--nouse-cosine-lr", 0},
    {"--nouse-static-loss-scaling", 0},
    {"--gpu-id", 1, "", "each rank takes the GPU of its local rank"},
};

// GluonCV's train_horovod.py and train_imagenet.py.
constexpr Rule kGluon[] = {
    {"", 0,
     "-b 128 --lr 0.05 --warmup 10 --lr-schedule cosine --nesterov "
     "--mom 0.9 --wd 1e-4 -c fan-in -p 40 --color-jitter 0.4 --lighting 0.1"},
    {"", 0, "--bn-weight-decay", "", "", "--no-wd"},
    // The rate is one rank's.
    {"", 0, "--lr-scale-batch {--batch-size|128}", "", "", "--lr-mode"},
    {"--model=resnet50_v1b", 1, "--arch resnet50-v1b"},
    {"--model=resnet50_v1", 1, "--arch resnet50-v1"},
    {"--model=resnet18_v1b", 1, "--arch resnet18"},
    {"--model=resnet34_v1b", 1, "--arch resnet34"},
    {"--model=resnet101_v1b", 1, "--arch resnet101"},
    {"--model=resnet152_v1b", 1, "--arch resnet152"},
    {"--model=resnext50_32x4d", 1, "--arch resnext50-32x4d"},
    {"--model=resnext101_32x4d", 1, "--arch resnext101-32x4d"},
    {"--model=vgg16", 1, "--arch vgg16"},
    {"--model=vgg16_bn", 1, "--arch vgg16-bn"},
    {"--model", 1, kRejected,
     "expected resnet50_v1, resnet18_v1b, 34, 50, 101, 152, "
     "resnext50_32x4d, 101, vgg16 or vgg16_bn"},
    {"--dtype=float32", 1},
    {"--dtype=float16", 1, "--dtype fp16"},
    {"--use-rec", 0, "", "the format is found by content"},
    {"--rec-train", 1, "{folder}"},
    {"--rec-train-idx", 1, "", kFound},
    {"--rec-val", 1, "", "validation records are found beside the others"},
    {"--rec-val-idx", 1, "", kFound},
    {"--data-dir", 1, "{}"},
    {"--data-nthreads", 1, "--workers {}"},
    {"--num-epochs", 1, "--epochs {}"},
    {"--warmup-epochs", 1, "--warmup {}"},
    {"--warmup-lr=0", 1},
    {"--warmup-lr=0.0", 1},
    {"--warmup-lr", 1, kRejected, "the warm-up starts at 0"},
    {"--lr-mode=cosine", 1, "--lr-schedule cosine"},
    {"--lr-mode=step", 1, "--lr-schedule step"},
    {"--lr-mode=poly", 1, "--lr-schedule polynomial"},
    {"--lr-decay", 1, "--gamma {}"},
    {"--lr-decay-epoch", 1, "--milestones {}"},
    {"--last-gamma", 0, "--zero-gamma"},
    {"--mixup", 0, "--mixup {--mixup-alpha|0.2}"},
    {"--mixup-alpha", 1},
    {"--label-smoothing", 0, "--label-smoothing 0.1"},
    {"--no-wd", 0},
    {"--log-interval", 1, "-p {}"},
    {"--save-frequency", 1, "", "see --checkpoint-every"},
    {"--save-dir", 1, "--workspace {}"},
    {"--eval-frequency", 1, "--evaluate-every {}"},
    {"--input-size", 1, "--image-size {}"},
    {"--crop-ratio=0.875", 1},
    {"--crop-ratio", 1, kRejected, "use --val-resize-size"},
    {"--mode", 1, "", kCompiled},
    {"--no-cuda", 0, "--backend cpu"},
    {"--num-gpus", 1, "", kRanks},
    {"--use-pretrained", 0, kRejected, "use --pretrained-weights FILE"},
    {"--resume-params", 1, kRejected, "use --resume CHECKPOINT"},
    {"--resume-states", 1, kRejected, "use --resume CHECKPOINT"},
    {"--resume-epoch", 1, "", "--resume continues at the checkpoint's epoch"},
};

// train.py of PaddlePaddle/models' image_classification, and the switches of
// FleetX's strategies.
constexpr Rule kPaddle[] = {
    {"", 0,
     "--lr 0.1 --lr-schedule step --milestones 30,60,90 --gamma 0.1 "
     "--mom 0.9 --wd 1e-4 --bn-weight-decay --epochs 120"},
    {"--model=resnet18", 1, "--arch resnet18"},
    {"--model=resnet34", 1, "--arch resnet34"},
    {"--model=resnet50", 1, "--arch resnet50"},
    {"--model=resnet101", 1, "--arch resnet101"},
    {"--model=resnet152", 1, "--arch resnet152"},
    {"--model=resnext50_32x4d", 1, "--arch resnext50-32x4d"},
    {"--model=resnext101_32x4d", 1, "--arch resnext101-32x4d"},
    {"--model=vgg16", 1, "--arch vgg16"},
    {"--model", 1, kRejected,
     "expected ResNet18, 34, 50, 101, 152, ResNeXt50_32x4d, 101 or VGG16"},
    // The batch of all ranks.
    {"--batch-size", 1, "-b {/ranks}"},
    {"--data-dir", 1, "{}"},
    {"--image-shape", 3, "--image-size {2}"},
    {"--class-dim", 1, "--num-classes {}"},
    {"--total-images", 1, "", "the data are counted"},
    {"--validate=false", 1, "--training-only"},
    {"--validate=true", 1},
    {"--print-step", 1, "-p {}"},
    {"--save-step", 1, "", "see --checkpoint-every"},
    {"--model-save-dir", 1, "--workspace {}"},
    {"--reader-thread", 1, "--workers {}"},
    {"--reader-buf-size", 1, "", "see --prefetch"},
    {"--lr-strategy=piecewise_decay", 1, "--lr-schedule step"},
    {"--lr-strategy=cosine_decay", 1, "--lr-schedule cosine"},
    {"--lr-strategy=cosine_decay_warmup", 1, "--lr-schedule cosine"},
    {"--lr-strategy=linear_decay", 1, "--lr-schedule linear"},
    {"--lr-strategy", 1, kRejected,
     "expected piecewise_decay, cosine_decay, cosine_decay_warmup or "
     "linear_decay"},
    {"--warm-up-epochs", 1, "--warmup {}", "",
     "--lr-strategy=cosine_decay_warmup"},
    {"--warm-up-epochs", 1, "", "only cosine_decay_warmup warms up"},
    {"--momentum-rate", 1, "--mom {}"},
    {"--l2-decay", 1, "--wd {}"},
    {"--num-epochs", 1, "--epochs {}"},
    {"--max-iter", 1, "--prof {}"},
    {"--random-seed", 1, "--seed {}"},
    {"--use-mixup=true", 1, "--mixup {--mixup-alpha|0.2}"},
    {"--use-mixup=false", 1},
    {"--mixup-alpha", 1},
    {"--use-label-smoothing=true", 1,
     "--label-smoothing {--label-smoothing-epsilon|0.1}"},
    {"--use-label-smoothing=false", 1},
    {"--label-smoothing-epsilon", 1},
    {"--use-fp16=true", 1, "--amp"},
    {"--use-fp16=false", 1},
    {"--fp16", 0, "--amp"},
    {"--use-dynamic-loss-scaling=true", 1,
     "--dynamic-loss-scale --initial-loss-scale {--scale-loss|1}"},
    {"--use-dynamic-loss-scaling=false", 1,
     "--static-loss-scale {--scale-loss|1}"},
    {"--scale-loss", 1},
    {"--use-ema=false", 1},
    {"--use-ema=true", 1, "--ema-decay {--ema-decay|0.9999}"},
    {"--fuse-elewise-add-act-ops", 1, "", kFused},
    {"--fuse-bn-act-ops", 1, "", kFused},
    {"--fuse-bn-add-act-ops", 1, "", kFused},
    {"--fuse-resunit", 1, "", kFused},
    {"--enable-addto", 1, "", kFused},
    {"--enable-inplace", 1, "", kPlanned},
    {"--data-format", 1, "", kLayouts},
    {"--use-dali", 1, "", kDecoded},
    {"--use-gpu=true", 1, "--backend cuda"},
    {"--use-gpu=false", 1, "--backend cpu"},
};

// torchvision's reference script for its weights IMAGENET1K_V1 and V2.
constexpr Rule kTorchvision1[] = {
    {"", 0,
     "--arch resnet50 --lr 0.1 --lr-scale-batch 256 --lr-schedule step "
     "--milestones 30,60 --gamma 0.1 --epochs 90 --mom 0.9 --wd 1e-4 "
     "--bn-weight-decay"},
};
constexpr Rule kTorchvision2[] = {
    {"", 0,
     "--arch resnet50 --image-size 176 --val-resize-size 232 "
     "--val-crop-size 224 --lr 0.5 --lr-scale-batch 1024 --lr-schedule cosine "
     "--lr-update epoch --warmup 5 --epochs 600 --mom 0.9 --wd 2e-5 "
     "--label-smoothing 0.1 --mixup-alpha 0.2 --cutmix-alpha 1 "
     "--auto-augment ta_wide --random-erase 0.1 --ra-sampler --ra-reps 4 "
     "--ema-decay 0.999966",
     "averages of running statistics, weight decay of the last bias"},
};

// timm's procedures A1 to A3: Wightman et al., "ResNet strikes back", 2021.
constexpr std::string_view kTimmMissing =
    "timm's RandAugment (torchvision's is used), bicubic interpolation, "
    "stochastic depth";
constexpr Rule kTimmA1[] = {
    {"", 0,
     "--arch resnet50 --image-size 224 --val-resize-size 235 "
     "--val-crop-size 224 --optimizer lamb --lr 0.005 --lr-scale-batch 2048 "
     "--wd 0.01 --clip-grad-norm 1 --lr-schedule cosine --lr-update epoch "
     "--warmup 5 --epochs 600 --loss bce --label-smoothing 0.1 "
     "--mixup-alpha 0.2 --cutmix-alpha 1 --auto-augment ra --ra-magnitude 7 "
     "--ra-sampler --ra-reps 3",
     kTimmMissing},
};
constexpr Rule kTimmA2[] = {
    {"", 0,
     "--arch resnet50 --image-size 224 --val-resize-size 235 "
     "--val-crop-size 224 --optimizer lamb --lr 0.005 --lr-scale-batch 2048 "
     "--wd 0.02 --clip-grad-norm 1 --lr-schedule cosine --lr-update epoch "
     "--warmup 5 --epochs 300 --loss bce --mixup-alpha 0.1 --cutmix-alpha 1 "
     "--auto-augment ra --ra-magnitude 7 --ra-sampler --ra-reps 3",
     kTimmMissing},
};
constexpr Rule kTimmA3[] = {
    {"", 0,
     "--arch resnet50 --image-size 160 --val-resize-size 235 "
     "--val-crop-size 224 --optimizer lamb --lr 0.008 --lr-scale-batch 2048 "
     "--wd 0.02 --clip-grad-norm 1 --lr-schedule cosine --lr-update epoch "
     "--warmup 5 --epochs 100 --loss bce --mixup-alpha 0.1 --cutmix-alpha 1 "
     "--auto-augment ra --ra-magnitude 6",
     "timm's RandAugment (torchvision's is used), bicubic interpolation"},
};

// Bello et al., 2021: the training of ResNet-RS.
constexpr Rule kResNetRs[] = {
    {"", 0,
     "--arch resnet50 --image-size 160 --lr 0.1 --lr-scale-batch 256 "
     "--lr-schedule cosine --warmup 5 --epochs 350 --mom 0.9 --wd 4e-5 "
     "--label-smoothing 0.1 --auto-augment ra --ra-magnitude 30 "
     "--ema-decay 0.9999",
     "ResNet-RS's stem and squeeze-and-excitation, dropout 0.25"},
};

constexpr Recipe kRecipes[] = {{"pytorch", kPyTorch},
                               {"apex", kApex},
                               {"tf1", kTf1},
                               {"gluon", kGluon},
                               {"paddle", kPaddle},
                               {"torchvision-v1", kTorchvision1},
                               {"torchvision-v2", kTorchvision2},
                               {"timm-a1", kTimmA1},
                               {"timm-a2", kTimmA2},
                               {"timm-a3", kTimmA3},
                               {"resnet-rs-50", kResNetRs}};

std::string WithDashes(std::string flag) {
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

std::string_view FlagOf(const Rule& rule) {
  return rule.flag.substr(0, rule.flag.find('='));
}

// One flag or another word of a command line.
struct Item {
  std::string flag;  // with dashes; "" for a word that is no flag
  std::vector<std::string> values;
  std::vector<std::string> words;  // as given
};

class Translator {
 public:
  // `name` and `rules` empty: only the rules of every recipe.
  Translator(std::string_view name, std::span<const Rule> rules,
             const std::function<int64_t()>& ranks)
      : name_(name),
        prefix_(name.empty() ? "" : fmt::format("recipe {}: ", name)),
        ranks_(ranks) {
    for (const Rule& rule : rules) rules_.push_back(&rule);
    for (const Rule& rule : kCommon) rules_.push_back(&rule);
  }

  // Whether the recipe has rules for the flag.
  bool Knows(std::string_view flag) const { return FindRule(flag) != nullptr; }

  // Returns the arguments after the command's name, and notes on them.
  std::vector<std::string> Translate(const std::vector<std::string>& words,
                                     std::vector<std::string>& notes) {
    const std::vector<Item> items = Split(words);
    for (const Item& item : items) {
      if (!item.flag.empty()) given_[item.flag] = item.values;
    }
    std::vector<std::string> translated;
    const auto append = [&](const std::vector<std::string>& more) {
      translated.insert(translated.end(), more.begin(), more.end());
    };
    std::string missing;
    for (const Rule* rule : rules_) {
      if (!rule->flag.empty() || !Applies(*rule)) continue;
      append(Expand(*rule, {}));
      missing += rule->note;
    }
    std::vector<std::string> ignored;
    for (const Item& item : items) {
      if (!Knows(item.flag)) {
        append(item.words);
        continue;
      }
      const Rule& rule = RuleOf(item);
      if (rule.becomes.empty() && !rule.note.empty()) {
        ignored.push_back(fmt::format("{} ({})", item.words[0], rule.note));
      }
      append(Expand(rule, item.values));
    }
    if (!name_.empty()) {
      notes.push_back(
          fmt::format("recipe    {}: {}", name_,
                      Join(translated, " ", [](const auto& w) { return w; })));
    }
    if (!missing.empty()) notes.push_back("without   " + missing);
    if (!ignored.empty()) {
      notes.push_back("ignored   " +
                      Join(ignored, ", ", [](const auto& i) { return i; }));
    }
    return translated;
  }

 private:
  const Rule* FindRule(std::string_view flag) const {
    const auto found =
        std::find_if(rules_.begin(), rules_.end(), [&](const Rule* rule) {
          return !flag.empty() && FlagOf(*rule) == flag;
        });
    return found == rules_.end() ? nullptr : *found;
  }

  std::vector<Item> Split(const std::vector<std::string>& words) const {
    std::vector<Item> items;
    bool flags = true;  // false after "--"
    for (size_t i = 0; i < words.size(); ++i) {
      Item item{"", {}, {words[i]}};
      flags = flags && words[i] != "--";
      if (flags && words[i].starts_with("-")) Read(words, i, item);
      items.push_back(std::move(item));
    }
    return items;
  }

  // Reads the flag at words[i], and its values if the recipe knows it.
  void Read(const std::vector<std::string>& words, size_t& i,
            Item& item) const {
    const size_t equals = words[i].find('=');
    item.flag = WithDashes(words[i].substr(0, equals));
    if (equals != std::string::npos) {
      item.values.push_back(words[i].substr(equals + 1));
    }
    const Rule* rule = FindRule(item.flag);
    if (rule == nullptr) {
      // The value of a flag of `fusor train`, for rules that refer to it.
      if (item.values.empty() && i + 1 < words.size()) {
        item.values.push_back(words[i + 1]);
      }
      return;
    }
    FUSOR_CHECK(rule->values > 0 || item.values.empty(), kUsage,
                "{}{}: expected no value", prefix_, words[i]);
    const auto count = static_cast<size_t>(rule->values);
    // A list is given as separate words or as one.
    const auto is_list = [&] {
      return count > 1 && !item.values.empty() &&
             item.values[0].find(',') != std::string::npos;
    };
    while (item.values.size() < count && !is_list() && i + 1 < words.size() &&
           !(count > 1 && words[i + 1].starts_with("--"))) {
      item.values.push_back(words[++i]);
      item.words.push_back(words[i]);
    }
    if (is_list()) {
      std::istringstream list(std::exchange(item.values, {})[0]);
      for (std::string value; std::getline(list, value, ',');) {
        item.values.push_back(value);
      }
    }
    FUSOR_CHECK(item.values.size() == count, kUsage,
                "{}{}: expected {} value{}, got {}", prefix_, item.words[0],
                count, count == 1 ? "" : "s", item.values.size());
  }

  // `flag`: "--mode" or "--mode=train".
  bool IsGiven(std::string_view flag) const {
    const size_t equals = flag.find('=');
    const auto found = given_.find(std::string(flag.substr(0, equals)));
    return found != given_.end() &&
           (equals == std::string_view::npos ||
            (!found->second.empty() &&
             LowerCase(found->second[0]) == flag.substr(equals + 1)));
  }

  bool Applies(const Rule& rule) const {
    return (rule.with.empty() || IsGiven(rule.with)) &&
           (rule.without.empty() || !IsGiven(rule.without));
  }

  const Rule& RuleOf(const Item& item) const {
    std::vector<std::string> expected;
    for (const Rule* rule : rules_) {
      if (FlagOf(*rule) != item.flag || !Applies(*rule)) continue;
      const size_t equals = rule->flag.find('=');
      if (equals != std::string_view::npos) {
        expected.emplace_back(rule->flag.substr(equals + 1));
        if (LowerCase(item.values[0]) != expected.back()) continue;
      }
      FUSOR_CHECK(rule->becomes != kRejected, kUsage, "{}{}: {}", prefix_,
                  fmt::join(item.words, " "), rule->note);
      return *rule;
    }
    ThrowError(
        ErrorCode::kUsage,
        fmt::format("{}{}: expected {}, got {}", prefix_, item.words[0],
                    fmt::join(expected, ", "), fmt::join(item.values, " ")));
  }

  std::vector<std::string> Expand(const Rule& rule,
                                  const std::vector<std::string>& values) {
    std::vector<std::string> words;
    std::istringstream stream{std::string(rule.becomes)};
    for (std::string word; stream >> word;) {
      // A list collects values instead of replacing them.
      if (rule.flag.empty() && word == "--milestones" && IsGiven(word)) {
        stream >> word;
        continue;
      }
      if (word.starts_with("{") && word.ends_with("}")) {
        word = Value(word.substr(1, word.size() - 2), rule, values);
      }
      words.push_back(word);
    }
    return words;
  }

  std::string Value(const std::string& what, const Rule& rule,
                    const std::vector<std::string>& values) const {
    if (what.starts_with("--")) {
      const size_t bar = what.find('|');
      const auto found = given_.find(what.substr(0, bar));
      return found == given_.end() || found->second.empty()
                 ? what.substr(bar + 1)
                 : found->second[0];
    }
    if (what.empty()) return values[0];
    if (what == "folder") {
      const auto folder = std::filesystem::path(values[0]).parent_path();
      return folder.empty() ? "." : folder.string();
    }
    if (what != "/ranks") return values[std::stoul(what) - 1];
    int64_t total = 0;
    const char* end = values[0].data() + values[0].size();
    const auto parsed = std::from_chars(values[0].data(), end, total);
    const int64_t ranks = ranks_();
    FUSOR_CHECK(parsed.ec == std::errc() && parsed.ptr == end && total > 0 &&
                    total % ranks == 0,
                kUsage, "{}{}: expected a multiple of {} ranks, got {}",
                prefix_, rule.flag, ranks, values[0]);
    return fmt::format("{}", total / ranks);
  }

  static std::string LowerCase(std::string text) {
    for (char& c : text) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return text;
  }

  const std::string name_;
  const std::string prefix_;  // of errors
  const std::function<int64_t()>& ranks_;
  std::vector<const Rule*> rules_;
  std::map<std::string, std::vector<std::string>> given_;
};

// Returns the recipe of --recipe; null without the flag, or for an unknown
// name, which the parser rejects.
const Recipe* NamedRecipe(const std::vector<std::string>& words) {
  std::string name;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--recipe=")) {
      name = words[i].substr(words[i].find('=') + 1);
    } else if (words[i] == "--recipe" && i + 1 < words.size()) {
      name = words[i + 1];
    }
  }
  const auto* found =
      std::find_if(std::begin(kRecipes), std::end(kRecipes),
                   [&](const Recipe& recipe) { return recipe.name == name; });
  return found == std::end(kRecipes) ? nullptr : found;
}

}  // namespace

std::vector<std::string> RecipeNames() {
  std::vector<std::string> names;
  for (const Recipe& recipe : kRecipes) names.emplace_back(recipe.name);
  return names;
}

void AddRecipeFlags(CLI::App& app, RecipeFlags& flags) {
  app.add_option("--recipe", flags.name,
                 "Published script whose flags are given (default: found by "
                 "its flags)")
      ->type_name("NAME")
      ->check(OneOf(RecipeNames()));
  // Only TranslateRecipe gives these.
  app.add_option("--recipe-note", flags.notes)->group("");
  app.add_flag("--ignore-data", flags.ignores_data)->group("");
}

std::vector<std::string> TranslateRecipe(
    const CLI::App& app, std::vector<std::string> args,
    const std::function<int64_t()>& ranks) {
  if (args.empty() || args[0] != "train") return args;
  const CLI::App& train = *app.get_subcommand("train");
  const std::vector<std::string> words(args.begin() + 1, args.end());
  std::vector<std::string> unknown;  // flags
  for (const std::string& word : words) {
    if (word == "--") break;
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with("--") && train.get_option_no_throw(flag) == nullptr) {
      unknown.push_back(WithDashes(flag));
    }
  }
  const Recipe* recipe = NamedRecipe(words);
  int64_t most = 0;
  for (const Recipe& candidate : kRecipes) {
    if (recipe != nullptr && most == 0) break;  // named
    const int64_t count = std::count_if(
        unknown.begin(), unknown.end(), [&](const std::string& flag) {
          return std::any_of(
              candidate.rules.begin(), candidate.rules.end(),
              [&](const Rule& rule) { return FlagOf(rule) == flag; });
        });
    if (count > most) recipe = &candidate;
    most = std::max(most, count);
  }
  Translator translator(
      recipe == nullptr ? "" : recipe->name,
      recipe == nullptr ? std::span<const Rule>() : recipe->rules, ranks);
  if (recipe == nullptr &&
      std::none_of(unknown.begin(), unknown.end(),
                   [&](const auto& flag) { return translator.Knows(flag); })) {
    return args;
  }
  std::vector<std::string> notes;
  std::vector<std::string> translated = {args[0]};
  for (std::string& word : translator.Translate(words, notes)) {
    translated.push_back(std::move(word));
  }
  for (std::string& note : notes) {
    translated.insert(translated.end(), {"--recipe-note", std::move(note)});
  }
  return translated;
}

std::vector<std::string> SeparateCommand(const CLI::App& app,
                                         std::vector<std::string> args) {
  if (args.empty() || args[0] != "launch") return args;
  const auto command =
      std::find_if(args.begin() + 1, args.end(), [&](const std::string& word) {
        return word == "--" || FindCommand(app, {word}).words > 0;
      });
  if (command != args.end() && *command != "--") args.insert(command, "--");
  return args;
}

std::vector<std::string> SpellWithDashes(const CLI::App& app,
                                         std::vector<std::string> args) {
  const CLI::App& command = *FindCommand(app, args).command;
  for (std::string& word : args) {
    const std::string flag = word.substr(0, word.find('='));
    const std::string dashed = WithDashes(flag);
    if (flag.starts_with("--") &&
        command.get_option_no_throw(flag) == nullptr &&
        command.get_option_no_throw(dashed) != nullptr) {
      word.replace(0, flag.size(), dashed);
    }
  }
  return args;
}

}  // namespace fusor::tools
