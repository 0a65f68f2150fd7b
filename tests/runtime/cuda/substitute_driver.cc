// A driver that offers two devices and does nothing else, so that what finds
// libraries can be seen without a GPU.

extern "C" {

int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }

int cuDriverGetVersion(int* version) {
  *version = 13070;
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

}  // extern "C"
