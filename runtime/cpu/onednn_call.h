#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "codegen/cpu/onednn_plan.h"

namespace fusor::cpu {

// A oneDNN primitive with one memory object per argument, whose pointers are
// set before each run. Uses the C API, which takes the arguments as a plain
// array.
class Primitive {
 public:
  explicit Primitive(const PrimitivePlan& plan);

  // `args`: in the plan's order, then the workspace if the primitive needs one.
  // Throws kOutOfMemory or kDevice.
  void Run(void* const* args) const;

 private:
  void Add(int arg, const dnnl::memory::desc& desc);

  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::string implementation_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> args_;
};

}  // namespace fusor::cpu
