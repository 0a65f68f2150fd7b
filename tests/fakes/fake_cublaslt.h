#pragma once

// A cuBLASLt for machines without a GPU, under the name libcublasLt.so.13: it
// computes what it is told, column-major, with sums in f64, as a function of
// the host in the stream of the fake driver, and fills the workspace that
// it asked for with garbage. Problems that are not described in full, or not
// consistently, are not supported.

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
    const void* bias = nullptr;  // of rows of the result; null: none
    bool relu = false;           // applied last
    const void* workspace = nullptr;
    int algorithm = 0;  // as the heuristic has numbered it
  };
  std::vector<Product> products;  // in the order in which they were asked for
  int handles = 0;                // that live
  int descriptors = 0;            // that live
  // Algorithms that the heuristic names, by the workspace they take; those
  // below 0 it names as not supported.
  std::vector<int64_t> algorithms{0};
  // A function that fails, with CUBLAS_STATUS_NOT_SUPPORTED.
  std::string fails;
  // Asked for in the last heuristic.
  int64_t workspace_limit = 0;
  int64_t alignment = 0;
  int64_t bias_alignment = 0;  // that the address told; 0: no bias
};

// Of the process; as new at each call. Loads the fake driver too.
FakeCublaslt& LoadFakeCublaslt();

}  // namespace fusor::test
