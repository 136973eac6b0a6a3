#include "model/source_files.h"

#include <gtest/gtest.h>

#include <string>

namespace flatout::model {
namespace {

// As the names of functions are read from programs that g++ and clang make.
TEST(SourceFiles, FunctionsThatParseTextAreKnownByName) {
  for (const std::string_view function :
       {"std::__cxx11::stof", "std::__cxx11::stoi",
        "float __gnu_cxx::__stoa<float, float, char>(float (*)(char const*, char**))",
        "std::istream::operator>>", "std::getline<char, std::char_traits<char> >", "strtof32_l",
        "__isoc99_sscanf", "atof", "std::regex_match<char const*>"}) {
    EXPECT_TRUE(parses_text(function)) << function;
  }
  for (const std::string_view function : {"std::ostream::operator<<", "Net::forward", "stop",
                                          "std::__cxx11::to_string", "catofish"}) {
    EXPECT_FALSE(parses_text(function)) << function;
  }
}

TEST(SourceFiles, StreamsOfCppAndOfCThatAreWrittenTo) {
  for (const std::string_view function :
       {"std::ostream::write(char const*, long)", "fwrite", "_IO_file_xsputn", "_IO_new_do_write",
        "fprintf",
        "std::basic_filebuf<char, std::char_traits<char> >::xsputn(char const*, long)"}) {
    EXPECT_TRUE(writes_stream(function)) << function;
  }
  for (const std::string_view function : {"fread", "do_write", "std::istream::read(char*, long)",
                                          "rewrite", "overwrite", "_IO_file_xsgetn"}) {
    EXPECT_FALSE(writes_stream(function)) << function;
  }
}

TEST(SourceFiles, WhatPackagesOfModelsPrepareBatchesWithIsNoFramework) {
  const std::string packages = "/x/site-packages/";
  for (const char* file :
       {"torch/functional.py", "torchvision/ops/boxes.py", "timm/utils/model_ema.py",
        "deepspeed/runtime/engine.py", "torch_geometric/utils/loop.py"}) {
    EXPECT_TRUE(in_framework(packages + file)) << file;
  }
  for (const char* file : {"numpy/fft/_pocketfft.py", "torchvision/transforms/functional.py",
                           "torchaudio/functional/functional.py", "timm/data/mixup.py",
                           "torch_geometric/loader/neighbor_loader.py"}) {
    EXPECT_FALSE(in_framework(packages + file)) << file;
  }
  EXPECT_FALSE(in_framework("/home/u/apex/train.py"));
}

}  // namespace
}  // namespace flatout::model
