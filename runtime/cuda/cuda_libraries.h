#pragma once

// CUDA's own libraries, opened at run time by the names under which the toolkit
// and pip's wheels install them, where the loader finds them or in one of
// LibraryFolders().

#include <string>
#include <vector>

namespace fusor::cuda {

// One library, open for the rest of the process.
class Library {
 public:
  // Opens the first of the names that can be.
  explicit Library(std::vector<std::string> names);

  bool found() const { return handle_ != nullptr; }
  // Under which it was found, with its folder where the loader had no part.
  const std::string& name() const { return name_; }
  // Where none was found: what the loader says of the last file that there is,
  // or that there is none.
  const std::string& problem() const { return problem_; }

  // Null when there is no such symbol.
  template <typename Function>
  Function Find(const char* symbol) const {
    return reinterpret_cast<Function>(FindSymbol(symbol));
  }

 private:
  bool Open(const std::string& name);
  void* FindSymbol(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
  std::string problem_;
};

// The driver, cuDNN, cuBLASLt and NCCL: a line each with the version, or what
// is missing and what that means.
std::vector<std::string> DescribeLibraries();

// Devices that the driver offers; 0 without a driver.
int CountDevices();

}  // namespace fusor::cuda
