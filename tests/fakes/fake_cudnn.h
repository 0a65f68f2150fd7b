#pragma once

// A fake cuDNN for machines without a GPU, named libcudnn.so.9. It accepts
// descriptors, and records executions instead of computing.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fusor::test {

struct FakeCudnn {
  struct Execution {
    std::string plan;  // as JSON
    const void* stream = nullptr;
    std::map<int64_t, const void*> pointers;  // by unique id
    const void* workspace = nullptr;
  };
  std::vector<Execution> executions;
  int handles = 0;              // alive
  int descriptors = 0;          // alive
  int64_t workspace_bytes = 0;  // of plans
  bool rejects_plans = false;
  std::string device = "here";  // device properties
  std::string planned_for;  // the device that JSON plans require; empty: any
  bool fails_to_execute = false;
};

// Returns the instance of the process, reset by each call.
FakeCudnn& LoadFakeCudnn();

}  // namespace fusor::test
