// What programs see: the limit as the card's size, what all processes under it have taken as used.
#include <stdlib.h>
#include <string.h>

#include "devlimit/async_free.h"
#include "devlimit/books.h"
#include "devlimit/export.h"
#include "devlimit/real.h"
#include "devlimit/spec.h"

namespace flatout::devlimit {

extern "C" {
nvmlReturn nvmlDeviceGetUUID(Opaque device, char* uuid, unsigned size);
nvmlReturn nvmlDeviceGetIndex(Opaque device, unsigned* index);
}

namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

// "GPU-" or "MIG-" and 16 bytes in hexadecimal digits, with hyphens, which CUDA names the card or
// the instance by, too. False: another form ("MIG-GPU-...", before driver 470).
bool parse_uuid(const char* text, CUuuid& out) {
  if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) return false;
  int n = 0;
  for (const char* at = text + 4; *at != 0; ++at) {
    if (*at == '-') continue;
    if (n == 32 || digit(*at) < 0) return false;
    unsigned char& byte = out.bytes[n / 2];
    byte = static_cast<unsigned char>((n % 2 == 0 ? 0 : byte) * 16 + digit(*at));
    ++n;
  }
  return n == 32;
}

// The number by which the job's CUDA knows a card, as CUDA_VISIBLE_DEVICES says; -1: it sees it
// not. Without that variable CUDA counts as NVML does, where all cards are alike or
// CUDA_DEVICE_ORDER=PCI_BUS_ID.
int ordinal_of_card(int index, const char* uuid) {
  const char* at = ::getenv("CUDA_VISIBLE_DEVICES");
  if (at == nullptr) return index;
  for (int ordinal = 0;; ++ordinal) {
    while (*at == ' ') ++at;
    const size_t length = strcspn(at, ", ");
    if (length == 0) return -1;
    char* end = nullptr;
    const long number = strtol(at, &end, 10);
    const bool is_number = end == at + length;
    if (is_number ? number == index : strncmp(at, uuid, length) == 0) return ordinal;
    if (is_number && number < 0) return -1;  // CUDA reads no further
    at += length;
    at += strspn(at, " ");
    if (*at++ != ',') return -1;
  }
}

struct Shown {
  uint64_t total = 0, used = 0;
  bool limited = false;
};

Shown shown_of(Opaque device, uint64_t total) {
  char text[96] = {};
  CUuuid uuid = {};
  if (FLATOUT_REAL(nvmlDeviceGetUUID, nvmlDeviceGetUUID, device, text, sizeof text) !=
          NVML_SUCCESS ||
      !parse_uuid(text, uuid))
    return {};
  uint64_t limit = 0, used = 0;
  const int row = row_of_uuid(uuid);
  if (row >= 0) {
    ledger()->reclaim();
    end_frees(row);
    limit = ledger()->limit(row);
    used = ledger()->used(row);
  } else {
    unsigned index = 0;
    FLATOUT_REAL(nvmlDeviceGetIndex, nvmlDeviceGetIndex, device, &index);
    limit = limit_of(::getenv("FLATOUT_DEVLIMIT"), ordinal_of_card(static_cast<int>(index), text),
                     total);
  }
  if (limit == kUnlimited) return {};
  const uint64_t seen = limit < total ? limit : total;
  return {seen, used < seen ? used : seen, true};
}

}  // namespace

extern "C" {

FLATOUT_EXPORT CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  const Outermost outermost;
  const CUresult result = FLATOUT_REAL(cuMemGetInfo_v2, cuMemGetInfo_v2, free_bytes, total);
  const int row = outermost && result == CUDA_SUCCESS ? row_of_current() : -1;
  if (row < 0) return result;
  ledger()->reclaim();
  end_frees(row);
  const uint64_t limit = ledger()->limit(row), room = ledger()->room(row);
  if (*total > limit) *total = limit;
  if (*free_bytes > room) *free_bytes = room;
  return result;
}

FLATOUT_EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  const Outermost outermost;
  const CUresult result = FLATOUT_REAL(cuDeviceTotalMem_v2, cuDeviceTotalMem_v2, bytes, device);
  const int row = outermost && result == CUDA_SUCCESS ? row_of(device) : -1;
  if (row >= 0 && *bytes > ledger()->limit(row)) *bytes = ledger()->limit(row);
  return result;
}

FLATOUT_EXPORT nvmlReturn nvmlDeviceGetMemoryInfo(Opaque device, nvmlMemory* out) {
  const Outermost outermost;
  const nvmlReturn result =
      FLATOUT_REAL(nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo, device, out);
  if (!outermost || result != NVML_SUCCESS) return result;
  const Shown shown = shown_of(device, out->total);
  if (shown.limited) *out = {shown.total, shown.total - shown.used, shown.used};
  return result;
}

FLATOUT_EXPORT nvmlReturn nvmlDeviceGetMemoryInfo_v2(Opaque device, nvmlMemory_v2* out) {
  const Outermost outermost;
  const nvmlReturn result =
      FLATOUT_REAL(nvmlDeviceGetMemoryInfo_v2, nvmlDeviceGetMemoryInfo_v2, device, out);
  if (!outermost || result != NVML_SUCCESS) return result;
  const Shown shown = shown_of(device, out->total);
  if (shown.limited) *out = {out->version, shown.total, 0, shown.total - shown.used, shown.used};
  return result;
}

}  // extern "C"
}  // namespace flatout::devlimit
