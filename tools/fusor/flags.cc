#include "tools/fusor/flags.h"

#include "models/model.h"

namespace fusor::tools {

void AddModelFlags(CLI::App& app, ModelFlags& f) {
  app.add_option("--arch,-a", f.arch, "Model; `fusor doctor` lists them")
      ->capture_default_str();
  app.add_option("-b,--batch-size", f.batch, "Images a step on this rank")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--image-size", f.image_size,
                 "Height and width of the input (224; CIFAR models 32)")
      ->check(CLI::Range(8, 4096));
  app.add_option("--num-classes", f.num_classes,
                 "Classes (those of the data; 1000 synthetic)")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("-c,--fan", f.fan,
                 "Scale of initial convolution weights: fan-out or fan-in")
      ->capture_default_str()
      ->check(CLI::IsMember({"fan-out", "fan-in", "fanout", "fanin"}));
  app.add_flag("--zero-gamma", f.zero_gamma,
               "Start the last normalisation of each residual block at 0");
  app.add_option("--dropout", f.dropout, "Dropout of VGG's classifier")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.999));
  app.add_option("--label-smoothing", f.label_smoothing, "In [0, 1)")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 0.999));
  app.add_option("--mean", f.mean, "Pixel means, three, of 0..255")
      ->expected(3);
  app.add_option("--std", f.std, "Pixel standard deviations, three, of 0..255")
      ->expected(3);
}

void AddCompileFlags(CLI::App& app, CompileFlags& f) {
  const auto on_off = CLI::IsMember({"on", "off"});
  app.add_option("--backend", f.backend, "Backend plug-in")
      ->capture_default_str();
  app.add_option("--threads", f.threads, "Compute threads (0: all cores)")
      ->capture_default_str()
      ->check(CLI::Range(0, 4096));
  app.add_option("--fusion", f.fusion, "Fuse kernels: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option("--fusion-rounding", f.rounding,
                 "Inside fusions: fast, or eager to round at every op")
      ->capture_default_str()
      ->check(CLI::IsMember({"fast", "eager"}));
  app.add_option("--winograd", f.winograd,
                 "Winograd for fp32 3x3 convolutions: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option("--kernel-cache", f.cache,
                 "Keep compiled kernels on disk: on or off")
      ->capture_default_str()
      ->check(on_off);
  app.add_option("--disable-pass", f.disabled, "Skip a pass (repeatable)");
  app.add_flag("--verify", f.verify,
               "Check the graph after each pass, each kernel, and the plan");
}

void AddOptimizerFlags(CLI::App& app, OptimizerFlags& f) {
  app.add_option("--mom", f.momentum, "Momentum")->capture_default_str();
  app.add_option("--wd", f.weight_decay, "Weight decay of weights")
      ->capture_default_str();
  app.add_flag("--bn-weight-decay", f.norm_weight_decay,
               "Decay batch-norm parameters and biases as well");
  app.add_flag("--nesterov", f.nesterov, "Nesterov momentum");
  app.add_flag("--decoupled-weight-decay", f.decoupled,
               "Decay weights directly instead of through the gradient");
}

void AddScheduleFlags(CLI::App& app, OptimizerFlags& f) {
  app.add_option("--lr", f.lr, "Peak learning rate")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--lr-schedule", f.schedule, "constant, step or cosine")
      ->capture_default_str()
      ->check(CLI::IsMember({"constant", "step", "cosine"}));
  app.add_option("--warmup", f.warmup_epochs, "Linear warm-up, epochs")
      ->capture_default_str();
  app.add_option("--warmup-steps", f.warmup_steps, "Linear warm-up, steps")
      ->capture_default_str();
  app.add_option("--milestones", f.milestones,
                 "Epochs at which the step schedule drops (30 60 80)");
  app.add_option("--gamma", f.gamma, "Factor of the step schedule")
      ->capture_default_str();
}

void AddDataFlags(CLI::App& app, DataFlags& f) {
  app.add_option("data", f.path,
                 "Image folder: DATA/train/CLASS/*.jpg, DATA/val/CLASS/*.jpg");
  app.add_flag("--synthetic", f.synthetic, "Random images instead of a folder");
  app.add_option("-j,--workers", f.workers, "Threads that decode images")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--prefetch", f.prefetch, "Batches kept ready")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--bad-record", f.bad_record,
                 "Images that cannot be decoded: fail or skip")
      ->capture_default_str()
      ->check(CLI::IsMember({"fail", "skip"}));
  app.add_option("--train-transform", f.transform,
                 "random-resized-crop, centre-crop, pad-crop or exact")
      ->check(CLI::IsMember(
          {"random-resized-crop", "centre-crop", "pad-crop", "exact"}));
  app.add_option("--max-per-class", f.max_per_class,
                 "Use the first images of each class only (0: all)")
      ->capture_default_str();
  app.add_option("--seed", f.seed,
                 "Of initialisation, order, augmentation and dropout")
      ->capture_default_str();
}

void AddJsonFlag(CLI::App& app, std::string& path) {
  app.add_option("--json", path, "Write results as JSON to FILE (- = stdout)")
      ->type_name("FILE");
}

}  // namespace fusor::tools
