// A thread that captures a stream may not ask about events or trim pools, or the capture is lost
// (cuThreadExchangeStreamCaptureMode): what is asked here has nothing to do with the capture.
#pragma once

#include "devlimit/cuda_abi.h"
#include "devlimit/real.h"

namespace flatout::devlimit {

extern "C" CUresult cuThreadExchangeStreamCaptureMode(int* mode);

/// For its life this thread may ask anything.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    FLATOUT_REAL(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, &mode_);
  }
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

}  // namespace flatout::devlimit
