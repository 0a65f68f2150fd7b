#include "runtime/data/datasets/sample_images.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"
#include "runtime/data/image/image.h"
#include "runtime/data/image/image_writer.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kQuality = 90;
constexpr float kNoise = 24;  // amplitude in grey levels

// Random numbers of one picture.
class Draws {
 public:
  Draws(uint64_t seed, uint32_t split, uint32_t kind, uint32_t image)
      : seed_(seed), split_(split), kind_(kind), image_(image) {}

  // Returns a number in [low, high).
  float Uniform(float low, float high) {
    if (used_ == block_.size()) {
      block_ = Philox({counter_++, split_, kind_, image_}, seed_);
      used_ = 0;
    }
    return low + (high - low) * UniformFloat(block_[used_++]);
  }

  // Returns an integer in [low, high].
  int Integer(int low, int high) {
    const float draw =
        Uniform(static_cast<float>(low), static_cast<float>(high) + 1);
    return std::min(static_cast<int>(draw), high);
  }

 private:
  uint64_t seed_;
  uint32_t split_, kind_, image_;
  uint32_t counter_ = 0;
  std::array<uint32_t, 4> block_ = {};
  size_t used_ = block_.size();
};

float Fraction(float x) { return x - std::floor(x); }

// A pattern maps a point, in periods of the pattern, to a blend weight in [0,
// 1] between two colours. The origin is near the picture's centre.
float Checkers(float u, float v) {
  return (static_cast<int>(std::floor(u) + std::floor(v)) & 1) != 0 ? 1 : 0;
}

float Discs(float u, float v) {
  const float distance = std::hypot(Fraction(u) - 0.5f, Fraction(v) - 0.5f);
  return distance < 0.35f ? 1 : 0;
}

float Gradients(float u, float) {
  return 0.5f + 0.5f * std::sin(u * std::numbers::pi_v<float> / 4);
}

float Rings(float u, float v) {
  return Fraction(std::hypot(u, v)) < 0.5f ? 1 : 0;
}

float Stripes(float u, float) { return Fraction(u) < 0.5f ? 1 : 0; }

struct ImageKind {
  const char* name;
  float (*blend)(float u, float v);
};

constexpr ImageKind kKinds[] = {
    {"checkers", Checkers}, {"discs", Discs},     {"gradients", Gradients},
    {"rings", Rings},       {"stripes", Stripes},
};

void Draw(const ImageKind& kind, const SampleImagesOptions& options,
          Draws& draws, Image& image) {
  image.SetSize(draws.Integer(options.min_side, options.max_side),
                draws.Integer(options.min_side, options.max_side));
  // Draws one dark and one light colour, in random roles.
  std::array<std::array<float, 3>, 2> colours;
  const size_t dark = draws.Uniform(0, 1) < 0.5f ? 0 : 1;
  for (float& channel : colours[dark]) channel = draws.Uniform(0, 110);
  for (float& channel : colours[1 - dark]) channel = draws.Uniform(145, 255);
  const float period =
      static_cast<float>(options.min_side) * draws.Uniform(0.12f, 0.3f);
  const float angle = draws.Uniform(0, std::numbers::pi_v<float>);
  const float cosine = std::cos(angle) / period;
  const float sine = std::sin(angle) / period;
  const float centre_x =
      static_cast<float>(image.width) * draws.Uniform(0.4f, 0.6f);
  const float centre_y =
      static_cast<float>(image.height) * draws.Uniform(0.4f, 0.6f);
  for (int row = 0; row < image.height; ++row) {
    uint8_t* pixel = image.Row(row);
    const float y = static_cast<float>(row) - centre_y;
    for (int column = 0; column < image.width; ++column) {
      const float x = static_cast<float>(column) - centre_x;
      const float blend =
          kind.blend(x * cosine + y * sine, y * cosine - x * sine);
      const float noise = draws.Uniform(-kNoise, kNoise);
      for (size_t c = 0; c < 3; ++c) {
        const float level =
            colours[0][c] + (colours[1][c] - colours[0][c]) * blend + noise;
        *pixel++ = static_cast<uint8_t>(std::clamp(level, 0.0f, 255.0f));
      }
    }
  }
}

void DrawAll(const fs::path& folder, const SampleImagesOptions& options) {
  struct Split {
    const char* name;
    int images;
  };
  const Split splits[] = {{"train", options.train_images},
                          {"val", options.val_images}};
  Image image;
  for (uint32_t split = 0; split < std::size(splits); ++split) {
    for (uint32_t kind = 0; kind < std::size(kKinds); ++kind) {
      const fs::path target = folder / splits[split].name / kKinds[kind].name;
      fs::create_directories(target);
      for (int i = 0; i < splits[split].images; ++i) {
        Draws draws(options.seed, split, kind, static_cast<uint32_t>(i));
        Draw(kKinds[kind], options, draws, image);
        const std::vector<uint8_t> bytes = EncodeJpeg(image, kQuality);
        WriteFileAtomically(
            target / fmt::format("{:04}.jpg", i),
            {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
            ErrorCode::kData);
      }
    }
  }
}

// Removes its folder unless released.
class FolderGuard {
 public:
  explicit FolderGuard(fs::path folder) : folder_(std::move(folder)) {}
  ~FolderGuard() {
    std::error_code ignored;  // errors cannot be handled while unwinding
    if (!folder_.empty()) fs::remove_all(folder_, ignored);
  }
  void Release() { folder_.clear(); }

 private:
  fs::path folder_;
};

}  // namespace

void WriteSampleImages(const fs::path& folder,
                       const SampleImagesOptions& options) {
  FUSOR_CHECK(options.train_images > 0 && options.val_images >= 0, kUsage,
              "sample images: expected at least one training image and no "
              "negative count, got {} and {}",
              options.train_images, options.val_images);
  FUSOR_CHECK(0 < options.min_side && options.min_side <= options.max_side,
              kUsage,
              "sample images: expected 0 < min_side <= max_side, got {} and {}",
              options.min_side, options.max_side);
  try {
    fs::path target = fs::absolute(folder).lexically_normal();
    if (!target.has_filename()) target = target.parent_path();  // a/b/
    FUSOR_CHECK(!fs::exists(target) ||
                    (fs::is_directory(target) && fs::is_empty(target)),
                kData, "sample images: {} holds something already",
                target.string());
    const fs::path partial = target.string() + ".partial";
    fs::remove_all(partial);
    FolderGuard guard(partial);
    DrawAll(partial, options);
    fs::remove(target);
    fs::rename(partial, target);
    guard.Release();
  } catch (const fs::filesystem_error& error) {
    FUSOR_CHECK(false, kData, "sample images: {}: {}", error.path1().string(),
                error.code().message());
  }
}

}  // namespace fusor::runtime
