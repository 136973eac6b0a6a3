// The policies of TensorFlow and PyTorch against the originals: every offset, every refusal, the
// peak, the calls. The golden files come from bench/devmem/make_golden.py, which drives the real
// libraries.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/text.h"
#include "devmem/bfc.h"
#include "devmem/sim_driver.h"
#include "devmem/torch_policy.h"

namespace flatout::devmem {
namespace {

std::unique_ptr<Policy> policy_of(const std::string& line, std::unique_ptr<SimDriver>& driver) {
  std::istringstream words(line);
  std::string kind, word;
  words >> kind;
  std::map<std::string, std::string> options;
  while (words >> word) options[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  const Bytes capacity = std::stoull(options.at("capacity"));
  driver = std::make_unique<SimDriver>(capacity);
  if (kind == "tf") {
    BfcOptions bfc;
    bfc.allow_growth = options.at("growth") == "1";
    return std::make_unique<Bfc>(*driver, std::stoull(options.at("limit")), bfc);
  }
  TorchOptions torch;
  const std::string& settings = options.at("settings");
  const std::string value = settings.substr(settings.find(':') + 1);
  torch.expandable = settings == "expandable_segments:True";
  if (settings.starts_with("max_split_size_mb")) torch.max_split_size = std::stoull(value) << 20;
  if (settings.starts_with("roundup")) torch.roundup_power2_divisions = std::stoull(value);
  if (settings.starts_with("garbage")) torch.garbage_collection_threshold = std::stod(value);
  const double fraction = std::stod(options.at("fraction"));
  torch.limited = fraction > 0;
  const Bytes limit =
      torch.limited ? static_cast<Bytes>(fraction * static_cast<double>(capacity)) : capacity;
  return std::make_unique<TorchPolicy>(*driver, limit, torch);
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, EqualsTheOriginal) {
  std::ifstream in(std::string(FLATOUT_TEST_DATA) + "/golden/devmem/" + GetParam() + ".txt");
  std::string line;
  ASSERT_TRUE(std::getline(in, line));
  std::unique_ptr<SimDriver> driver;
  const auto policy = policy_of(line, driver);
  std::map<uint64_t, Address> live;
  size_t number = 1, requests = 0;
  while (std::getline(in, line)) {
    ++number;
    std::istringstream words(line);
    std::string kind, offset;
    uint64_t id = 0, size = 0, stream = 0;
    words >> kind >> id;
    if (kind == "a") {
      words >> size >> stream >> offset;
      const auto got = policy->allocate(size, stream);
      const std::string ours = got.ok() ? std::to_string(*got - SimDriver::kBase) : "x";
      ASSERT_EQ(ours, offset) << "line " << number << ": " << line;
      if (got.ok()) live[id] = *got;
      ++requests;
    } else if (kind == "f") {
      if (!live.contains(id)) continue;  // it was refused
      ASSERT_TRUE(policy->free(live[id]).ok());
      live.erase(id);
    } else if (kind == "peak") {
      EXPECT_EQ(driver->peak(), id);
    } else if (kind == "calls") {
      // Waiting for a stream is a call of ours that the stand-in for the original does not count.
      EXPECT_EQ(driver->calls() - driver->calls(Call::kSynchronize), id);
    }
    policy->check();
  }
  EXPECT_GT(requests, 100u);
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& file :
       std::filesystem::directory_iterator(std::string(FLATOUT_TEST_DATA) + "/golden/devmem"))
    if (file.path().extension() == ".txt") names.push_back(file.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Devmem, Golden, testing::ValuesIn(cases()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace flatout::devmem
