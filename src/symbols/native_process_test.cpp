#include "symbols/native_process.h"

#include <gtest/gtest.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/fs.h"
#include "symbols/native_symbols.h"

namespace flatout::symbols {

// Outside of the unnamed namespace, so that the names are in the symbol table as they are here.
[[gnu::noinline]] std::vector<std::string> native_test_inner(NativeProcess& process) {
  ucontext_t context;
  getcontext(&context);
  NativeRegisters r;
#if defined(__x86_64__)
  const auto& g = context.uc_mcontext.gregs;
  r.pc = static_cast<uint64_t>(g[REG_RIP]);
  r.set(3, static_cast<uint64_t>(g[REG_RBX]));
  r.set(6, static_cast<uint64_t>(g[REG_RBP]));
  r.set(7, static_cast<uint64_t>(g[REG_RSP]));
  r.set(12, static_cast<uint64_t>(g[REG_R12]));
  r.set(13, static_cast<uint64_t>(g[REG_R13]));
  r.set(14, static_cast<uint64_t>(g[REG_R14]));
  r.set(15, static_cast<uint64_t>(g[REG_R15]));
#elif defined(__aarch64__)
  r.pc = context.uc_mcontext.pc;
  for (unsigned i = 0; i < 31; i++) r.set(i, context.uc_mcontext.regs[i]);
  r.set(31, context.uc_mcontext.sp);
#endif
  const auto maps = fs::Root("/").read("proc/self/maps", 1 << 22);
  const auto symbols = NativeSymbols::open(maps.ok() ? *maps : "");
  std::vector<std::string> names;
  const auto pcs = process.unwind(r, {}, 64);
  for (size_t i = 0; i < pcs.size(); i++) {
    const uint64_t after_call = i == 0 ? pcs[i] + 1 : pcs[i];
    names.push_back((*symbols)->call_at(after_call).back().function);
  }
  return names;
}

[[gnu::noinline]] std::vector<std::string> native_test_outer(NativeProcess& process) {
  auto names = native_test_inner(process);
  names.emplace_back("end");  // not a tail call
  return names;
}

namespace {

TEST(NativeProcess, UnwindsToTheCallersByTheUnwindTables) {
  auto process = NativeProcess::open(getpid());
  ASSERT_TRUE(process.ok()) << process.error().message;
  const auto names = native_test_outer(**process);
  ASSERT_GE(names.size(), 4u);
  EXPECT_NE(names[0].find("native_test_inner"), std::string::npos) << names[0];
  EXPECT_NE(names[1].find("native_test_outer"), std::string::npos) << names[1];
  EXPECT_NE(names[2].find("TestBody"), std::string::npos) << names[2];
}

TEST(NativeProcess, GivesFileAndLineByDwarf) {
  auto process = NativeProcess::open(getpid());
  ASSERT_TRUE(process.ok());
  const auto at = reinterpret_cast<uint64_t>(&native_test_inner);
  const NativeFrame frame = (*process)->frames(at, {}).back();
  if (frame.line == 0) GTEST_SKIP() << "this program was built without debug information";
  EXPECT_NE(frame.file.find("native_process_test.cpp"), std::string::npos) << frame.file;
}

TEST(NativeProcess, StandsRegistersThatMakeNoSense) {
  auto process = NativeProcess::open(getpid());
  ASSERT_TRUE(process.ok());
  for (const uint64_t pc : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    const auto pcs = (*process)->unwind(NativeRegisters::blocked(pc, 8), {}, 64);
    EXPECT_LE(pcs.size(), 64u);
    EXPECT_EQ((*process)->frames(pc, {"f", "binary", 0}).back().file, "binary");
  }
}

TEST(NativeProcess, SaysThatAProcessIsGone) {
  EXPECT_EQ(NativeProcess::open(0x7ffffff0).error().code, Code::kGone);
}

}  // namespace
}  // namespace flatout::symbols
