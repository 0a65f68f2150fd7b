#pragma once

// A cuDNN for machines without a GPU, under the name libcudnn.so.9: it takes
// descriptors, and notes what it is asked to execute instead of doing that.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fusor::test {

struct FakeCudnn {
  struct Execution {
    std::string plan;  // its JSON
    const void* stream = nullptr;
    std::map<int64_t, const void*> pointers;  // by unique id
    const void* workspace = nullptr;
  };
  std::vector<Execution> executions;
  int handles = 0;              // that live
  int descriptors = 0;          // that live
  int64_t workspace_bytes = 0;  // that plans say they take
  bool rejects_plans = false;
  std::string device = "here";  // its properties
  std::string planned_for;      // that JSON of plans is for; empty: any
  bool fails_to_execute = false;
};

// Of the process; as new at each call.
FakeCudnn& LoadFakeCudnn();

}  // namespace fusor::test
