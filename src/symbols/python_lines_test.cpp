#include "symbols/python_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace flatout::symbols {
namespace {

struct Case {
  int minor;
  const char* table;                              // hex
  std::vector<std::pair<int, int>> instructions;  // offset where a line begins, line (-1: none)
};

// Made by each interpreter itself, with co_lines() or dis.findlinestarts() as the truth, of a
// function with calls over several lines, a loop, and 140 empty lines before its last statement.
const std::vector<Case> kCases = {
    {8,
     "00020201040102ff02fe0404080104010201020102ff067f000f020102ff",
     {{0, 3},
      {2, 4},
      {6, 5},
      {8, 4},
      {10, 2},
      {14, 6},
      {22, 7},
      {26, 8},
      {28, 9},
      {30, 10},
      {32, 9},
      {38, 151},
      {40, 152},
      {42, 151}}},
    {9,
     "00020201040102ff02fe0404080104010201020102ff067f000f020102ff",
     {{0, 3},
      {2, 4},
      {6, 5},
      {8, 4},
      {10, 2},
      {14, 6},
      {22, 7},
      {26, 8},
      {28, 9},
      {30, 10},
      {32, 9},
      {38, 151},
      {40, 152},
      {42, 151}}},
    {10,
     "02020401020102ff04fe0804040102010201020106ff007f020f020104ff",
     {{0, 3},
      {2, 4},
      {6, 5},
      {8, 4},
      {10, 2},
      {14, 6},
      {22, 7},
      {26, 8},
      {28, 9},
      {30, 10},
      {32, 9},
      {38, 151},
      {40, 152},
      {42, 151}}},
    {11,
     "8000e00809dd08098821d80a0bf10301090df40001090df00503090e8041f008000e0ff00004050ff00004050f880"
     "1d80b0cf000010915d80c14dd0809d80c0df10301090ff40001090ff00001090ff00001090ff05c04000d0ed80c0d"
     "f103010d0ef00001050f",
     {{0, 1},
      {2, 3},
      {4, 4},
      {18, 5},
      {20, 4},
      {34, 2},
      {38, 6},
      {46, 7},
      {50, 8},
      {52, 9},
      {64, 10},
      {66, 9},
      {84, 151},
      {86, 152},
      {88, 151}}},
    {12,
     "8000e00809dc08098821d80a0bf30301090df00503090e8041f008000e0ff20004050f8801d90b0cd80c14dc0809d"
     "80c0df50301090ff00704050ff06204000d0ed80c0df103010d0ef00001050f",
     {{0, 1},
      {2, 3},
      {4, 4},
      {16, 5},
      {18, 4},
      {26, 2},
      {30, 6},
      {40, 7},
      {44, 8},
      {46, 9},
      {56, 10},
      {58, 9},
      {70, 6},
      {72, 151},
      {74, 152},
      {76, 151}}},
    {13,
     "8000e00809dc08098821d80a0bf30301090df00503090e8041f308000e0f8801de0b0cd90c14dc0809d80c0df6030"
     "1090ff107000e0ff06204000d0ed80c0df103010d0ef00001050f",
     {{0, 1},
      {2, 3},
      {4, 4},
      {16, 5},
      {18, 4},
      {26, 2},
      {30, 6},
      {40, 7},
      {54, 8},
      {58, 9},
      {68, 10},
      {70, 9},
      {84, 6},
      {88, 151},
      {90, 152},
      {92, 151}}},
};

std::string from_hex(const std::string& hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    out.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return out;
}

TEST(PythonLines, GivesTheLineOfEveryInstructionInEveryVersion) {
  for (const Case& c : kCases) {
    const PythonLines lines = PythonLines::decode(from_hex(c.table), 1, c.minor);
    for (size_t i = 0; i < c.instructions.size(); i++) {
      const auto [begin, line] = c.instructions[i];
      const int end = i + 1 < c.instructions.size() ? c.instructions[i + 1].first : begin + 2;
      if (line < 0) continue;
      for (int at = begin; at < end; at += 2) {
        EXPECT_EQ(lines.line(at), line) << "CPython 3." << c.minor << ", offset " << at;
      }
    }
  }
}

TEST(PythonLines, GivesTheFirstLineBeforeTheFirstInstruction) {
  const PythonLines lines = PythonLines::decode(from_hex(kCases.back().table), 41, 13);
  EXPECT_EQ(lines.line(-2), 41);
}

TEST(PythonLines, KeepsWhatCameBeforeACutInTheTable) {
  for (const Case& c : kCases) {
    const std::string table = from_hex(c.table);
    for (size_t size = 0; size < table.size(); size++) {
      const PythonLines lines = PythonLines::decode(table.substr(0, size), 1, c.minor);
      EXPECT_GE(lines.line(0), 1);
      EXPECT_LE(lines.size(), table.size() + 1);
    }
  }
}

TEST(PythonLines, EmptyTableMeansTheFirstLine) {
  EXPECT_EQ(PythonLines::decode("", 7, 11).line(20), 7);
}

}  // namespace
}  // namespace flatout::symbols
