#pragma once

#include <span>
#include <string_view>

#include "models/layers.h"

namespace fusor::models {

// A built-in network.
struct Architecture {
  std::string_view name;
  int64_t min_image_size;  // pixels
  void (*build)(Layers& layers);
};

// torchvision's and gluon's residual networks (He et al. 2015), ResNeXt (Xie et
// al. 2016), and NVIDIA's SE-ResNeXt (Hu et al. 2017).
std::span<const Architecture> ResNets();
// Simonyan and Zisserman 2014, configuration D, with torchvision's layer names.
std::span<const Architecture> Vggs();
// The networks of He et al. section 4.2 for 32x32 images, with 1x1 projections.
std::span<const Architecture> CifarResNets();

// Every family; a new one adds its function here.
inline constexpr std::span<const Architecture> (*kFamilies[])() = {
    ResNets, Vggs, CifarResNets};

}  // namespace fusor::models
