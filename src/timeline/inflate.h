// Unpacks gzip: by ISA-L where the build has it (3 times zlib's rate), else by zlib. Several
// members one after the other are one stream, as gzip has it. The only file that knows either
// library's inflate.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace flatout::timeline {

class Inflater {
 public:
  Inflater();
  ~Inflater();
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  bool hungry() const;               // all input was used: feed() more
  void feed(std::string_view data);  // stays the caller's until hungry() again
  void end_of_input();
  /// Bytes written to `to`.
  size_t unpack(char* to, size_t size);
  bool ended() const { return ended_; }
  bool damaged() const { return damaged_; }

 private:
  struct State;
  std::unique_ptr<State> state_;
  bool ended_ = false, damaged_ = false;
};

}  // namespace flatout::timeline
