#include "timeline/inflate.h"

#include "timeline/byte_source.h"
#if FLATOUT_HAS_ISAL
#include <isa-l/igzip_lib.h>
#else
#include <zlib.h>
#endif

namespace flatout::timeline {

#if FLATOUT_HAS_ISAL

struct Inflater::State {
  inflate_state stream;
  bool between = false;  // a member has ended
  void begin() {
    auto* const in = stream.next_in;
    const uint32_t left = stream.avail_in;
    isal_inflate_init(&stream);
    stream.crc_flag = ISAL_GZIP;
    stream.next_in = in;
    stream.avail_in = left;
    between = false;
  }
};

Inflater::Inflater() : state_(std::make_unique<State>()) {
  state_->stream.next_in = nullptr;
  state_->stream.avail_in = 0;
  state_->begin();
}

bool Inflater::hungry() const {
  // Output may still be held inside where none of the input is left.
  return state_->stream.avail_in == 0 &&
         state_->stream.tmp_out_valid == state_->stream.tmp_out_processed;
}

void Inflater::feed(std::string_view data) {
  state_->stream.next_in = reinterpret_cast<uint8_t*>(const_cast<char*>(data.data()));
  state_->stream.avail_in = static_cast<uint32_t>(data.size());
}

size_t Inflater::unpack(char* to, size_t size) {
  inflate_state& s = state_->stream;
  if (state_->between) {
    // Another member, or padding: anything else ends the stream without a word, as gzip does.
    if (s.avail_in == 0 || s.next_in[0] != 0x1f) {
      ended_ = true;
      return 0;
    }
    state_->begin();
  }
  s.next_out = reinterpret_cast<uint8_t*>(to);
  s.avail_out = static_cast<uint32_t>(size < (1u << 30) ? size : (1u << 30));
  const uint32_t room = s.avail_out;
  if (isal_inflate(&s) != ISAL_DECOMP_OK) damaged_ = ended_ = true;
  if (s.block_state == ISAL_BLOCK_FINISH) state_->between = true;
  return room - s.avail_out;
}

void Inflater::end_of_input() {
  damaged_ = damaged_ || !state_->between;
  ended_ = true;
}

#else

struct Inflater::State {
  z_stream stream{};
  bool between = false;
};

Inflater::Inflater() : state_(std::make_unique<State>()) {
  if (inflateInit2(&state_->stream, 15 + 16) != Z_OK) damaged_ = ended_ = true;
}

bool Inflater::hungry() const { return state_->stream.avail_in == 0; }

void Inflater::feed(std::string_view data) {
  state_->stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  state_->stream.avail_in = static_cast<uInt>(data.size());
}

size_t Inflater::unpack(char* to, size_t size) {
  z_stream& s = state_->stream;
  if (state_->between) {
    if (s.avail_in == 0 || s.next_in[0] != 0x1f) {
      ended_ = true;
      return 0;
    }
    inflateReset(&s);
    state_->between = false;
  }
  s.next_out = reinterpret_cast<Bytef*>(to);
  s.avail_out = static_cast<uInt>(size < (1u << 30) ? size : (1u << 30));
  const uInt room = s.avail_out;
  const int code = inflate(&s, Z_NO_FLUSH);
  if (code == Z_STREAM_END) {
    state_->between = true;
  } else if (code != Z_OK && code != Z_BUF_ERROR) {
    damaged_ = ended_ = true;
  }
  return room - s.avail_out;
}

void Inflater::end_of_input() {
  damaged_ = damaged_ || !state_->between;
  ended_ = true;
}

#endif

#if FLATOUT_HAS_ISAL
Inflater::~Inflater() = default;
#else
Inflater::~Inflater() { inflateEnd(&state_->stream); }
#endif

}  // namespace flatout::timeline
