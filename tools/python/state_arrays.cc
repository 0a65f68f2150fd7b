#include "tools/python/state_arrays.h"

#include "runtime/checkpoint/weights.h"
#include "tools/python/host_array.h"

namespace fusor::python {

std::vector<std::string> StateNames(const runtime::StateStore& state) {
  std::vector<std::string> names;
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (runtime::IsModelState(state.Role(entry.name))) {
      names.push_back(entry.name);
    }
  }
  return names;
}

nanobind::dict StateArrays(runtime::StateStore& state) {
  nanobind::dict arrays;
  for (const std::string& name : StateNames(state)) {
    arrays[name.c_str()] =
        NumpyArray(state.Read(name), state.LogicalType(name).shape);
  }
  return arrays;
}

}  // namespace fusor::python
