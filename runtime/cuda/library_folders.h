#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace fusor::cuda {

// Folders in which CUDA's libraries may lie where the loader does not find
// them, in the order in which they are tried: those of FUSOR_CUDA_DIR, of the
// toolkit in its usual place, and of pip's nvidia-* wheels for the python3 on
// PATH, which is asked for its path. They exist. Starts a process.
std::vector<std::filesystem::path> LibraryFolders();

}  // namespace fusor::cuda
