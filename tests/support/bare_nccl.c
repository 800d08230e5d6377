/* A library that says that it is NCCL 2.30, and has nothing else of it. */
#define SHOWN __attribute__((visibility("default")))

SHOWN int ncclGetVersion(int* version);

int ncclGetVersion(int* version) {
  *version = 23000;
  return 0;
}
