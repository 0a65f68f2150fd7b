#pragma once

// A fake cuBLASLt for machines without a GPU, named libcublasLt.so.13. It
// computes column-major matmuls with sums in f64, as a host function in a
// stream of the fake driver. It fills the workspace that it requested with
// garbage, and rejects incomplete or inconsistent problems.

#include <cstdint>
#include <string>
#include <vector>

namespace fusor::test {

struct FakeCublaslt {
  struct Product {
    int64_t m = 0, n = 0, k = 0, batch = 0;
    bool transpose_a = false, transpose_b = false;
    const void* a = nullptr;
    const void* b = nullptr;
    const void* c = nullptr;
    const void* bias = nullptr;  // per row of the result; null: none
    bool relu = false;           // applied last
    const void* workspace = nullptr;
    int algorithm = 0;  // index in the heuristic's results
  };
  std::vector<Product> products;  // in the order of the calls
  int handles = 0;                // alive
  int descriptors = 0;            // alive
  // The heuristic's algorithms by workspace size. A negative size marks an
  // algorithm as not supported.
  std::vector<int64_t> algorithms{0};
  // The name of a function that returns CUBLAS_STATUS_NOT_SUPPORTED.
  std::string fails;
  // Arguments of the last call of the heuristic.
  int64_t workspace_limit = 0;
  int64_t alignment = 0;
  int64_t bias_alignment = 0;  // alignment of its address; 0: no bias
};

// Returns the instance of the process, reset by each call. Loads the fake
// driver too.
FakeCublaslt& LoadFakeCublaslt();

}  // namespace fusor::test
