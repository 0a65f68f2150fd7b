// A driver with two devices and no other function, to test how libraries are
// found without a GPU. $SUBSTITUTE_CUDA_VERSION sets its version. With
// FUSOR_OLD, it is version 11.8 and fails to initialise.

#include <cstddef>
#include <cstdlib>

extern "C" {

#ifdef FUSOR_OLD
int cuInit(unsigned) { return 100; }
#else
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
#endif

int cuDriverGetVersion(int* version) {
#ifdef FUSOR_OLD
  *version = 11080;
#else
  const char* given = std::getenv("SUBSTITUTE_CUDA_VERSION");
  *version = given == nullptr ? 13070 : std::atoi(given);
#endif
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

// The file is also a cuBLASLt.
size_t cublasLtGetVersion() { return 990100; }

// It is also an NVRTC, in a version whose second library does not exist.
int nvrtcVersion(int* major, int* minor) {
  *major = 77;
  *minor = 7;
  return 0;
}
#define FUSOR_NEVER_CALLED(name) \
  int name() { return 1; }
FUSOR_NEVER_CALLED(nvrtcCreateProgram)
FUSOR_NEVER_CALLED(nvrtcDestroyProgram)
FUSOR_NEVER_CALLED(nvrtcCompileProgram)
FUSOR_NEVER_CALLED(nvrtcGetErrorString)
FUSOR_NEVER_CALLED(nvrtcGetProgramLogSize)
FUSOR_NEVER_CALLED(nvrtcGetProgramLog)
FUSOR_NEVER_CALLED(nvrtcGetCUBINSize)
FUSOR_NEVER_CALLED(nvrtcGetCUBIN)
FUSOR_NEVER_CALLED(nvrtcGetPTXSize)
FUSOR_NEVER_CALLED(nvrtcGetPTX)
FUSOR_NEVER_CALLED(nvrtcGetNumSupportedArchs)
FUSOR_NEVER_CALLED(nvrtcGetSupportedArchs)

}  // extern "C"
