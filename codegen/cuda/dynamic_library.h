#pragma once

// Opens CUDA's libraries at run time, under the names that the toolkit and
// pip's wheels install.

#include <filesystem>
#include <string>
#include <vector>

namespace fusor::cuda {

// Returns what a shell command prints; empty if it fails.
std::string ShellOutput(const std::string& command);

// Returns the existing folders to search for CUDA's libraries after the loader,
// in order: those of FUSOR_CUDA_DIR, of the toolkit in its usual place, and of
// pip's nvidia-* wheels for the python3 on PATH. Starts a process.
std::vector<std::filesystem::path> LibraryFolders();

// A library, found by the loader or in LibraryFolders(). It stays open for the
// rest of the process.
class Library {
 public:
  // Opens the first of the names that can be opened.
  explicit Library(std::vector<std::string> names);

  bool found() const { return handle_ != nullptr; }
  // The name that was opened; a path if it was found in LibraryFolders().
  const std::string& name() const { return name_; }
  // If none was opened: the loader's error for the last existing file, or that
  // none exists.
  const std::string& problem() const { return problem_; }

  // Returns null if there is no such symbol.
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
