#include "model/source_files.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace flatout::model
