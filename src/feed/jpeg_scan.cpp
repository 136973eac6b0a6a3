#include "feed/jpeg_scan.h"

namespace flatout::feed {

// A single component whose factors are not 1 has MCUs that are not those of its rows.
bool describe_scan(const jpeg_decompress_struct& info, ScanTables& tables, ScanLayout& layout) {
  if (info.progressive_mode || info.arith_code || info.comps_in_scan != info.num_components ||
      (info.num_components == 1 && info.max_h_samp_factor * info.max_v_samp_factor != 1))
    return false;
  layout = {};
  layout.blocks = info.blocks_in_MCU;
  layout.mcus = info.MCUs_per_row * info.MCU_rows_in_scan;
  layout.restart_interval = info.restart_interval;
  for (int i = 0; i < info.comps_in_scan; ++i) {
    const size_t dc = static_cast<size_t>(info.cur_comp_info[i]->dc_tbl_no);
    const size_t ac = static_cast<size_t>(info.cur_comp_info[i]->ac_tbl_no);
    tables.dc[dc].make(info.dc_huff_tbl_ptrs[dc]->bits, info.dc_huff_tbl_ptrs[dc]->huffval);
    tables.ac[ac].make(info.ac_huff_tbl_ptrs[ac]->bits, info.ac_huff_tbl_ptrs[ac]->huffval);
    layout.dc[i] = &tables.dc[dc];
    layout.ac[i] = &tables.ac[ac];
  }
  for (int i = 0; i < info.blocks_in_MCU; ++i)
    layout.component[i] = static_cast<uint8_t>(info.MCU_membership[i]);
  return true;
}

}  // namespace flatout::feed
