#include "codegen/cuda/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <nvrtc.h>

#include <algorithm>
#include <filesystem>

#include "codegen/cuda/dynamic_library.h"

namespace fusor::cuda {
namespace {

namespace fs = std::filesystem;

// Division and square root are IEEE-correct unless the text uses intrinsics.
constexpr const char* kOptions[] = {"--std=c++17", "--fmad=true",
                                    "--prec-div=true", "--prec-sqrt=true"};

struct Nvrtc {
  Nvrtc() : library(Library::OfCuda("libnvrtc")) {
    if (!library.found()) return;
    bool all = true;
    const auto find = [&](auto& function, const char* symbol) {
      function = library.Find<std::decay_t<decltype(function)>>(symbol);
      all &= function != nullptr;
    };
    find(version, "nvrtcVersion");
    find(create, "nvrtcCreateProgram");
    find(destroy, "nvrtcDestroyProgram");
    find(compile, "nvrtcCompileProgram");
    find(error_string, "nvrtcGetErrorString");
    find(log_size, "nvrtcGetProgramLogSize");
    find(log, "nvrtcGetProgramLog");
    find(cubin_size, "nvrtcGetCUBINSize");
    find(cubin, "nvrtcGetCUBIN");
    find(ptx_size, "nvrtcGetPTXSize");
    find(ptx, "nvrtcGetPTX");
    find(num_archs, "nvrtcGetNumSupportedArchs");
    find(archs, "nvrtcGetSupportedArchs");
    if (!all) {
      problem = fmt::format("{} lacks functions of CUDA 12", library.name());
      return;
    }
    // NVRTC opens its builtins by bare name, which the loader does not find in
    // pip's wheels. A library that is already open is found.
    int major = 0;
    int minor = 0;
    version(&major, &minor);
    const std::string name =
        fmt::format("libnvrtc-builtins.so.{}.{}", major, minor);
    const Library builtins({(fs::path(Folder()) / name).string(), name});
    if (!builtins.found()) {
      problem = fmt::format("{} needs {}, which cannot be opened",
                            library.name(), name);
    }
    // If there is a driver, NVRTC calls this function of it unchecked.
    constexpr char kAsked[] = "cuGetExportTable";
    const Library& driver = DriverLibrary();
    if (driver.found() && driver.Find<void (*)()>(kAsked) == nullptr) {
      problem = fmt::format("{} needs {}, which {} lacks", library.name(),
                            kAsked, driver.name());
    }
  }

  bool usable() const { return library.found() && problem.empty(); }
  // Why it is not usable: it was not found, or `problem`.
  const std::string& reason() const {
    return library.found() ? problem : library.problem();
  }

  // Returns the folder that the library was opened from.
  std::string Folder() const {
    Dl_info info{};
    if (dladdr(reinterpret_cast<void*>(version), &info) == 0) return "";
    return fs::path(info.dli_fname).parent_path().string();
  }

  Library library;
  std::string problem;  // of a library that was found
  decltype(&nvrtcVersion) version = nullptr;
  decltype(&nvrtcCreateProgram) create = nullptr;
  decltype(&nvrtcDestroyProgram) destroy = nullptr;
  decltype(&nvrtcCompileProgram) compile = nullptr;
  decltype(&nvrtcGetErrorString) error_string = nullptr;
  decltype(&nvrtcGetProgramLogSize) log_size = nullptr;
  decltype(&nvrtcGetProgramLog) log = nullptr;
  decltype(&nvrtcGetCUBINSize) cubin_size = nullptr;
  decltype(&nvrtcGetCUBIN) cubin = nullptr;
  decltype(&nvrtcGetPTXSize) ptx_size = nullptr;
  decltype(&nvrtcGetPTX) ptx = nullptr;
  decltype(&nvrtcGetNumSupportedArchs) num_archs = nullptr;
  decltype(&nvrtcGetSupportedArchs) archs = nullptr;
};

const Nvrtc& Loaded() {
  static const Nvrtc nvrtc;
  return nvrtc;
}

std::string Version() {
  int major = 0;
  int minor = 0;
  Loaded().version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

class Program {
 public:
  Program(const std::string& text, const std::string& source) {
    Check(Loaded().create(&program_, text.c_str(), source.c_str(), 0, nullptr,
                          nullptr),
          "nvrtcCreateProgram");
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() { Loaded().destroy(&program_); }

  // Returns false if there are errors, which Log contains.
  bool Compile(const std::string& architecture) {
    const std::string arch = "--gpu-architecture=" + architecture;
    std::vector<const char*> options(std::begin(kOptions), std::end(kOptions));
    options.push_back(arch.c_str());
    const nvrtcResult result = Loaded().compile(
        program_, static_cast<int>(options.size()), options.data());
    if (result == NVRTC_ERROR_COMPILATION) return false;
    Check(result, "nvrtcCompileProgram");
    return true;
  }

  std::string Log() { return Text(Get(Loaded().log_size, Loaded().log)); }
  std::string Cubin() { return Get(Loaded().cubin_size, Loaded().cubin); }
  std::string Ptx() { return Text(Get(Loaded().ptx_size, Loaded().ptx)); }

 private:
  // Removes trailing zeros.
  static std::string Text(std::string bytes) {
    while (!bytes.empty() && bytes.back() == '\0') bytes.pop_back();
    return bytes;
  }
  static void Check(nvrtcResult result, const char* call) {
    FUSOR_ASSERT(result == NVRTC_SUCCESS, "{}: {}", call,
                 Loaded().error_string(result));
  }

  template <typename Size, typename Read>
  std::string Get(Size size_of, Read read) {
    size_t size = 0;
    Check(size_of(program_, &size), "NVRTC output");
    std::string bytes(size, '\0');
    Check(read(program_, bytes.data()), "NVRTC output");
    return bytes;
  }

  nvrtcProgram program_ = nullptr;
};

// Returns the first line of a log with this mark, else its first line.
// Rewrites "kernel.cu(12): error: .." as "kernel.cu:12: ..".
std::string FirstOf(const std::string& log, std::string_view mark) {
  const size_t at = log.find(mark);
  if (at == std::string::npos) return log.substr(0, log.find('\n'));
  const size_t begin = log.rfind('\n', at) + 1;
  const size_t colon = log.find(": ", at + 2);
  const std::string what =
      log.substr(colon + 2, log.find('\n', colon) - colon - 2);
  std::string where = log.substr(begin, at - begin);
  if (!where.empty() && where.back() == ')') {
    where.pop_back();
    where[where.rfind('(')] = ':';
  }
  return where + ": " + what;
}

}  // namespace

NvrtcCompiler::NvrtcCompiler(int compute_capability) {
  const Nvrtc& nvrtc = Loaded();
  FUSOR_CHECK(nvrtc.usable(), kDevice, "CUDA backend: no NVRTC: {}",
              nvrtc.reason());
  int count = 0;
  nvrtc.num_archs(&count);
  std::vector<int> known(static_cast<size_t>(count));
  nvrtc.archs(known.data());
  // The newest one that the GPU supports.
  std::erase_if(known, [&](int arch) { return arch > compute_capability; });
  FUSOR_CHECK(!known.empty(), kUsage,
              "CUDA backend: NVRTC {} makes no code for sm_{}", Version(),
              compute_capability);
  const int arch = *std::max_element(known.begin(), known.end());
  makes_ptx_ = arch != compute_capability;
  // Warp group instructions of compute capability 9.0 need the name sm_90a,
  // which all its GPUs support.
  architecture_ = makes_ptx_
                      ? fmt::format("compute_{}", arch)
                      : fmt::format("sm_{}{}", arch, arch == 90 ? "a" : "");
}

int NvrtcCompiler::cuda() const { return Loaded().library.cuda(); }

std::string NvrtcCompiler::version() const { return "nvrtc " + Version(); }

std::string NvrtcCompiler::options() const {
  return fmt::format("{}", fmt::join(kOptions, " "));
}

NvrtcCompiler::Output NvrtcCompiler::Compile(const std::string& text,
                                             const std::string& source,
                                             ErrorCode code) const {
  Program program(text, source);
  if (!program.Compile(architecture_)) {
    throw Error(code, FirstOf(program.Log(), ": error"));
  }
  std::string ptx = program.Ptx();
  return {makes_ptx_ ? ptx : program.Cubin(), ptx,
          FirstOf(program.Log(), ": warning")};
}

std::string DescribeNvrtc() {
  const Nvrtc& nvrtc = Loaded();
  if (!nvrtc.library.found()) {
    return fmt::format("NVRTC: missing ({}): no kernels can be compiled",
                       nvrtc.library.problem());
  }
  if (!nvrtc.usable()) {
    return fmt::format("NVRTC: {}: no kernels can be compiled", nvrtc.problem);
  }
  const std::string old = DriverTooOld(nvrtc.library.cuda());
  return fmt::format("NVRTC {} ({}){}{}", Version(), nvrtc.library.name(),
                     old.empty() ? "" : ": ", old);
}

std::string NvrtcFolder() { return Loaded().usable() ? Loaded().Folder() : ""; }

}  // namespace fusor::cuda
