#pragma once

// CUDA's own libraries, opened at run time by the names under which the toolkit
// and pip's wheels install them.

#include <filesystem>
#include <string>
#include <vector>

namespace fusor::cuda {

// Returns what a shell command prints; empty if it fails.
std::string ShellOutput(const std::string& command);

// Returns the folders that may hold CUDA's libraries if the loader does not
// find them, in search order: those of FUSOR_CUDA_DIR, of the toolkit in its
// usual place, and of pip's nvidia-* wheels for the python3 on PATH. They
// exist. Starts a process.
std::vector<std::filesystem::path> LibraryFolders();

// One library, open for the rest of the process; searched for by the loader,
// then in LibraryFolders().
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

}  // namespace fusor::cuda
