#pragma once

#include <string>
#include <vector>

#include "models/layers.h"

namespace fusor::models {

// Adds the loss and the outputs of a model that is not a classifier of whole
// samples. The first result, f32 [N,..], is compared with a target:
//
//   - labels, input "labels" i32: logits [N,C,..] have labels [N,..], and
//     logits [N,T,C] of rank 3, such as those of tokens, labels [N,T]. The loss
//     is the mean over all labels except ir::kIgnoredLabel, or 0 if there are
//     none. In kEval "loss_sum", "top1" and "top5" are sums over the labels
//     that count, and "counted" is their number.
//   - values, input "targets" f32 of the result's shape, perhaps without a
//     dimension of one class. The loss is the mean of the squared error or of
//     the binary cross entropy. kEval has the output "loss_sum" only.
//
// options().sample decides, and must fit. Without it, targets are labels for
// cross entropy, otherwise values. Further results have the type of the first
// one. 0.5 times their losses are added, as torchvision does in segmentation.
// With options().per_image, kEval has the result as the output "logits".
//
// Throws kData, naming the data set, if its targets do not fit, and kGraph for
// other results.
void AddDenseLoss(Layers& layers, const std::string& path,
                  const std::vector<ir::Value*>& results);

// Returns the dimension of the classes of results of this rank, at least 2.
size_t ClassDim(size_t rank);

}  // namespace fusor::models
