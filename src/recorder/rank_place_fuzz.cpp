// Any bytes as a rank's file, a launcher's environment and a place to meet.
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/text.h"
#include "recorder/meeting.h"
#include "recorder/rank_place.h"
#include "recorder/test_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flatout;            // NOLINT: a program of its own
  using namespace flatout::recorder;  // NOLINT
  static const TestFolder folder;
  static const std::string own = folder / "a-r0", other = folder / "b-r1";
  if (!std::filesystem::exists(own)) {
    std::filesystem::create_directories(own);
    std::filesystem::create_directories(other);
  }
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::ofstream(own + "/rank.json", std::ios::binary) << text;
  std::ofstream(other + "/rank.json", std::ios::binary) << text.substr(size / 2);
  const RankFile file = read_rank_file(own);
  const size_t found = folders_of_launch(own).size();
  FLATOUT_CHECK(file.place.is_rank() ? found >= 1 : found == 0);
  std::vector<std::string> environment;
  for (const std::string_view entry : split(text, '\n')) environment.emplace_back(entry);
  const RankPlace place = rank_place(environment);
  (void)rank_file(place, 1, 1);
  if (const auto meeting = parse_meeting_place(text)) FLATOUT_CHECK(!meeting->host.empty());
  return 0;
}
