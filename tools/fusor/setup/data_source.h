#pragma once

#include <memory>

#include "runtime/data/batch_source.h"
#include "runtime/data/datasets/image_folder.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

enum class Split { kTrain, kVal };

// DATA/train or DATA/val, or DATA itself where it has neither; only listed.
// Null under --synthetic, and for kVal where there is none. Prints what is odd
// about it to stderr. Throws kUsage unless one of DATA and --synthetic is
// given; kData also for a single class unless `model` asks for more.
std::unique_ptr<runtime::ImageFolder> ListImages(const DataFlags& data,
                                                 const ModelFlags& model,
                                                 Split split);

// Height and width of the images that evaluation feeds to the model.
int64_t EvalImageSize(const DataFlags& data, const ModelFlags& model);

// Throws kData, naming the flag that decides, if the transform does not fit the
// images of a folder: see runtime::CheckImages. `images` may be null. Of images
// that may be bad by --bad-record nothing is checked.
void CheckTransform(const runtime::ImageFolder* images, const DataFlags& data,
                    const ModelFlags& model, Split split);

// Classes of the folder, 0 for null.
int NumClasses(const runtime::ImageFolder* images);

// Memory from which the session's device takes images. It may outlive the
// session; the function may not.
runtime::AllocateImages ImagesFor(runtime::Session& session);

// Shuffled and augmented batches of a folder, or of noise for null; without
// those of the first `start` updates, which take `micro_batches` each.
std::unique_ptr<runtime::BatchSource> OpenTraining(
    std::unique_ptr<runtime::ImageFolder> images, const DataFlags& data,
    const ModelFlags& model, int64_t start = 0, int64_t micro_batches = 1,
    const runtime::AllocateImages& allocate = nullptr);

// Every image of the set once, as it is for evaluation.
std::unique_ptr<runtime::BatchSource> OpenEvaluation(
    std::unique_ptr<const runtime::Dataset> images, const DataFlags& data,
    const ModelFlags& model, const runtime::AllocateImages& allocate = nullptr);

// Main memory that the batches of one of these sources take.
int64_t SourceBytes(const DataFlags& data, const ModelFlags& model);

}  // namespace fusor::tools
