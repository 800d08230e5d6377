// The entry points of CUDA's driver that the stand-in exports, with the types that its ABI gives
// them: handles are pointers, device addresses 64-bit numbers, enumerations ints.
//
// Threads: any thread, as CUDA's.
#pragma once

#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned flags);
int cuDriverGetVersion(int* version);
int cuGetErrorName(int code, const char** name);
int cuGetErrorString(int code, const char** text);

int cuDeviceGet(int* device, int ordinal);
int cuDeviceGetCount(int* count);
int cuDeviceGetName(char* name, int length, int device);
int cuDeviceGetAttribute(int* value, int attribute, int device);
int cuDeviceGetPCIBusId(char* id, int length, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active);

int cuCtxCreate_v2(void** context, unsigned flags, int device);
int cuCtxDestroy_v2(void* context);
int cuCtxGetCurrent(void** context);
int cuCtxSetCurrent(void* context);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuCtxGetDevice(int* device);
int cuCtxGetStreamPriorityRange(int* least, int* greatest);
int cuCtxSynchronize();

int cuStreamCreate(void** stream, unsigned flags);
int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority);
int cuStreamDestroy_v2(void* stream);
int cuStreamGetCtx(void* stream, void** context);
int cuStreamGetPriority(void* stream, int* priority);
int cuStreamGetFlags(void* stream, unsigned* flags);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuStreamQuery(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamIsCapturing(void* stream, int* status);

int cuEventCreate(void** event, unsigned flags);
int cuEventDestroy_v2(void* event);
int cuEventRecord(void* event, void* stream);
int cuEventQuery(void* event);
int cuEventSynchronize(void* event);
int cuEventElapsedTime(float* milliseconds, void* start, void* end);
int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end);

int cuMemAlloc_v2(uint64_t* address, size_t bytes);
int cuMemAllocAsync(uint64_t* address, size_t bytes, void* stream);
int cuMemFree_v2(uint64_t address);
int cuMemAllocHost_v2(void** address, size_t bytes);
int cuMemHostAlloc(void** address, size_t bytes, unsigned flags);
int cuMemFreeHost(void* address);
int cuMemHostRegister_v2(void* address, size_t bytes, unsigned flags);
int cuMemHostUnregister(void* address);
int cuMemGetInfo_v2(size_t* free, size_t* total);
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes);
int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes);
int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream);
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream);
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void* stream);
int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* stream);
int cuPointerGetAttribute(void* value, int attribute, uint64_t address);
int cuPointerGetAttributes(unsigned count, int* attributes, void** values, uint64_t address);

int cuModuleLoadData(void** module, const void* image);
int cuModuleUnload(void* module);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuFuncGetAttribute(int* value, int attribute, void* function);
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void* stream, void** parameters, void** extra);

}  // extern "C"
#pragma GCC visibility pop
