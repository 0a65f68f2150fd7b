#pragma once

// Opens CUDA's libraries at run time, under the names that the toolkit and
// pip's wheels install.

#include <filesystem>
#include <string>
#include <vector>

namespace fusor::cuda {

// Returns what a shell command prints; empty if it fails.
std::string ShellOutput(const std::string& command);

// Returns the existing folders to search for CUDA's libraries, in order. Those
// of FUSOR_CUDA_DIR come before the loader's own folders. Those of the toolkit
// in its usual place, and of pip's nvidia-* wheels for the python3 on PATH,
// come after them. Starts a process.
std::vector<std::filesystem::path> LibraryFolders();

// A library, found by the loader or in LibraryFolders(). It stays open for the
// rest of the process.
class Library {
 public:
  // Opens the first of the names that can be opened, in the first folder that
  // has one.
  explicit Library(std::vector<std::string> names);
  // Opens "`stem`.so.13" or "`stem`.so.12", a library of CUDA 13 or else 12; a
  // driver for CUDA 12 prefers 12. The caller checks DriverTooOld before it
  // runs the library's code.
  static Library OfCuda(const std::string& stem);
  // Returns the CUDA version of such a library, or of a cuDNN: 13. 0 if it is
  // not known.
  int cuda() const;

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
  bool OpenIn(const std::filesystem::path& folder,
              const std::vector<std::string>& names);
  void* FindSymbol(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
  std::string problem_;
};

// Oldest CUDA version whose libraries and driver are used.
inline constexpr int kLeastCuda = 12;

// The driver, libcuda.so.1.
const Library& DriverLibrary();

// Returns the newest CUDA version that the driver runs, as cuDriverGetVersion
// does: 12040 is 12.4. 0 without a driver.
int DriverVersion();

// Returns "12.4" of 12040.
std::string VersionText(int version);

// If there is a driver that does not run code of this CUDA version (13),
// returns its version and what is expected; otherwise nothing.
std::string DriverTooOld(int cuda);

}  // namespace fusor::cuda
