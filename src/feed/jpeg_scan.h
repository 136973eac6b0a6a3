// What libjpeg knows of a scan, as our entropy decoder takes it.
#pragma once

#include <cstdio>
// After <cstdio>: it needs FILE and size_t.
#include <jpeglib.h>

#include <array>

#include "feed/huffman.h"

namespace flatout::feed {

struct ScanTables {
  std::array<HuffmanTable, NUM_HUFF_TBLS> dc, ac;
};

/// Of a decompressor that jpeg_start_decompress has come back from, with tables that live in
/// `tables`. False where the scan is not one of all components of a sequential picture.
bool describe_scan(const jpeg_decompress_struct& info, ScanTables& tables, ScanLayout& layout);

}  // namespace flatout::feed
