/* What the tuner asks of CUDA's driver, of a GPU of compute capability 9.0. */
#define SHOWN __attribute__((visibility("default")))

SHOWN int cuDeviceGet(int* device, int ordinal);
SHOWN int cuDeviceGetAttribute(int* value, int attribute, int device);

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == 75 ? 9 : 0;
  return device == 0 ? 0 : 1;
}
