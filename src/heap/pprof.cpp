#include "heap/pprof.h"

#include <map>
#include <tuple>
#include <unordered_map>

#include "base/protobuf.h"
#include "base/text.h"

namespace flatout::heap {
namespace {

class Profile {
 public:
  Profile() { string(""); }

  uint64_t string(const std::string& text) {
    const auto [known, fresh] = strings_.try_emplace(text, strings_.size());
    if (fresh) order_.push_back(&known->first);
    return known->second;
  }
  uint64_t location(const Frame& f) {
    const auto key = std::tuple(f.function, f.file, f.line);
    const auto [known, fresh] = locations_.try_emplace(key, locations_.size() + 1);
    if (!fresh) return known->second;
    const uint64_t id = known->second;  // of the function, too: one each
    ProtoWriter function;
    function.number(1, id);
    function.number(2, string(to_utf8(f.function)));
    function.number(4, string(to_utf8(f.file)));
    out_.message(5, function);
    ProtoWriter line;
    line.number(1, id);
    line.number(2, f.line);
    ProtoWriter location;
    location.number(1, id);
    location.message(4, line);
    out_.message(4, location);
    return id;
  }
  void value_type(uint32_t field, const char* type, const char* unit) {
    ProtoWriter m;
    m.number(1, string(type));
    m.number(2, string(unit));
    out_.message(field, m);
  }
  ProtoWriter& out() { return out_; }
  std::string finish() {
    for (const std::string* text : order_) out_.bytes(6, *text);
    return out_.data();
  }

 private:
  ProtoWriter out_;
  std::unordered_map<std::string, uint64_t> strings_;
  std::vector<const std::string*> order_;
  std::map<std::tuple<std::string, std::string, uint32_t>, uint64_t> locations_;
};

}  // namespace

std::string pprof_profile(const Record& record, symbols::NativeSymbols* symbols) {
  Profile profile;
  profile.value_type(1, "inuse_objects", "count");
  profile.value_type(1, "inuse_space", "bytes");
  profile.value_type(1, "peak_space", "bytes");
  profile.value_type(1, "alloc_objects", "count");
  profile.value_type(1, "alloc_space", "bytes");
  FrameReader reader(record, symbols);
  for (const RecordStack& s : record.stacks) {
    std::vector<uint64_t> locations;
    for (const Frame& f : reader.frames(s)) locations.push_back(profile.location(f));
    if (locations.empty()) locations.push_back(profile.location({"(unknown code)", "", 0, false}));
    ProtoWriter sample;
    sample.numbers(1, locations);
    sample.numbers(2, {s.live_count, s.live_bytes, s.peak_bytes, s.total_count, s.total_bytes});
    profile.out().message(2, sample);
  }
  profile.value_type(11, "space", "bytes");
  profile.out().number(12, record.interval);
  profile.out().number(14, profile.string("inuse_space"));
  return profile.finish();
}

}  // namespace flatout::heap
