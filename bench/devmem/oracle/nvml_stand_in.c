// What libc10_cuda asks of NVML before it maps expandable segments: every call succeeds and says
// nothing.
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) {
  (void)id;
  *device = 0;
  return 0;
}
int nvmlDeviceGetGpuFabricInfoV(void* device, void* info) {
  (void)device;
  (void)info;
  return 0;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, unsigned* type) {
  (void)device;
  (void)link;
  *type = 255;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, void* info) {
  (void)device;
  (void)link;
  (void)info;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count, void* infos) {
  (void)device;
  (void)infos;
  *count = 0;
  return 0;
}
int nvmlSystemGetCudaDriverVersion_v2(int* version) {
  *version = 13000;
  return 0;
}
