#pragma once

#include <memory>

#include "ir/graph.h"
#include "runtime/data/batch_source.h"
#include "runtime/data/datasets/image_set.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/session.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

using runtime::Split;

// Opens a split of DATA (see runtime::OpenDataset). Returns null with
// --synthetic, and for kVal if DATA has training images only. Prints warnings
// to stderr. Throws kUsage unless exactly one of DATA and --synthetic is given,
// and for images if the model has other inputs or results than a classifier.
// Throws kData for a single class unless `model` sets more.
std::unique_ptr<runtime::ImageSet> OpenImages(const DataFlags& data,
                                              const ModelFlags& model,
                                              Split split);

// Returns height and width of the images that evaluation feeds to the model.
int64_t EvalImageSize(const DataFlags& data, const ModelFlags& model);

// Throws kData, naming the flag to change, if the transform does not fit the
// images; see runtime::CheckImages. `images` may be null. Checks
// nothing if --bad-record skips bad images.
void CheckTransform(const runtime::ImageSet* images, const DataFlags& data,
                    const ModelFlags& model, Split split);

// Sets the types of samples that the model reads: those of a set of tensors.
// Throws kUsage if the model is a module, which reads images only.
void UseSamples(const runtime::ImageSet* images, ModelFlags& model);

// Returns the number of classes of the set; 0 for null, and for tensors.
int NumClasses(const runtime::ImageSet* images);

// Returns an allocator of memory from which the session's device copies images.
// The memory may outlive the session, the allocator may not.
runtime::AllocateImages ImagesFor(runtime::Session& session);

// Opens shuffled, augmented batches of a set, or of noise if `images` is null,
// for a program of that graph. Skips the first `start` updates, of
// `micro_batches` batches each. Throws kData for tensors of other types than
// the program's inputs.
std::unique_ptr<runtime::BatchSource> OpenTraining(
    std::unique_ptr<runtime::ImageSet> images, const DataFlags& data,
    const ModelFlags& model, const ir::Graph& graph, int64_t start = 0,
    int64_t micro_batches = 1,
    const runtime::AllocateImages& allocate = nullptr);

// Opens every image of the set once, transformed for evaluation by a program of
// that graph.
std::unique_ptr<runtime::BatchSource> OpenEvaluation(
    std::unique_ptr<const runtime::Dataset> images, const DataFlags& data,
    const ModelFlags& model, const ir::Graph& graph,
    const runtime::AllocateImages& allocate = nullptr);

// Returns the bytes of host memory that the batches of a split's source need.
int64_t SourceBytes(const DataFlags& data, const ModelFlags& model,
                    Split split);

}  // namespace fusor::tools
