#include "runtime/cpu/activation.h"

#include <array>

namespace fusor::cpu {

Activation ActivationOf(const ir::TensorType& type) {
  Activation a{.images = type.shape[0],
               .groups = type.shape[1],
               .channels = 1,
               .height = type.shape[2],
               .width = type.shape[3]};
  std::array<int64_t*, 4> steps{&a.image_step, &a.group_step, &a.row_step,
                                &a.column_step};
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    if (axis.dim == 1 && axis.stride == 1 && axis.extent > 1) {
      a.channels = axis.extent;
      a.groups /= axis.extent;
    } else {
      *steps[axis.dim] = axis.stride;
    }
  }
  return a;
}

void Align(Activation& a, Activation& b) {
  if (a.channels == b.channels) return;
  Activation& apart = a.channels > 1 ? a : b;
  apart.groups *= apart.channels;
  apart.channels = 1;
  apart.group_step = 1;
}

}  // namespace fusor::cpu
