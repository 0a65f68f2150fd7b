#include "runtime/data/datasets/image_set.h"

#include <algorithm>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

class LimitedSet : public ImageSet {
 public:
  LimitedSet(std::unique_ptr<ImageSet> images, int64_t max_per_class)
      : ImageSet(images->format(), images->path()),
        images_(std::move(images)),
        max_per_class_(max_per_class) {
    num_classes_ = images_->num_classes();
    class_names_ = images_->class_names();
    warnings_ = images_->warnings();
    std::vector<int64_t> counts(static_cast<size_t>(num_classes_));
    for (int64_t i = 0; i < images_->size(); ++i) {
      const int32_t label = images_->Label(i);
      // A broken sample has no class to be counted for.
      if (label == kUnknownLabel) continue;
      if (counts[static_cast<size_t>(label)]++ < max_per_class) {
        indices_.push_back(i);
      }
    }
  }

  int64_t size() const override {
    return static_cast<int64_t>(indices_.size());
  }
  int32_t Label(int64_t index) const override {
    return images_->Label(indices_[index]);
  }
  std::string Name(int64_t index) const override {
    return images_->Name(indices_[index]);
  }
  Sample Read(int64_t index, std::vector<uint8_t>& storage) const override {
    return images_->Read(indices_[index], storage);
  }
  uint64_t Fingerprint() const override {
    return HashCombine(images_->Fingerprint(),
                       static_cast<uint64_t>(max_per_class_));
  }

 private:
  const std::unique_ptr<ImageSet> images_;
  const int64_t max_per_class_;
  std::vector<int64_t> indices_;
};

}  // namespace

std::string ImageSet::Description() const {
  return fmt::format("{} images {:016x}", size(), Fingerprint());
}

std::unique_ptr<ImageSet> FirstOfEachClass(std::unique_ptr<ImageSet> images,
                                           int64_t max_per_class) {
  return std::make_unique<LimitedSet>(std::move(images), max_per_class);
}

void CheckSameClasses(const ImageSet& train, const ImageSet& val) {
  const auto& expected = train.class_names();
  const auto& got = val.class_names();
  if (expected.empty() || got.empty()) return;
  const auto [a, b] =
      std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (a == expected.end() && b == got.end()) return;
  ThrowError(
      ErrorCode::kData,
      fmt::format("{} {}: expected the {} classes of {}, got {} that differ "
                  "from class {} on: expected {}, got {}",
                  val.format(), val.path(), expected.size(), train.path(),
                  got.size(), a - expected.begin(),
                  a == expected.end() ? "none" : Quoted(*a),
                  b == got.end() ? "none" : Quoted(*b)));
}

}  // namespace fusor::runtime
