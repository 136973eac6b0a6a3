// The structures of DLPack 0.8, as its specification lays them out (dmlc/dlpack, dlpack.h): how
// frameworks hand tensors to each other without a copy.
#pragma once

#include <cstdint>

extern "C" {

enum : int32_t { kDLCPU = 1 };
enum : uint8_t { kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4 };

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // null: dense
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);
};

}  // extern "C"
