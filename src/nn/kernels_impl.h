// The passes, written once for every instruction set. A file that includes this defines
// FLATOUT_TARGET, the attribute of its functions, and a class S of operations on vectors:
//
//   Real, kLanes, kStreams
//   Vec    kLanes Reals:  set load store stream_line add sub fma relu; passes keep (a bit a lane)
//   Wide   as many doubles: widen wide_set load_wide store_wide wide_add wide_fma wide_sum
//
// load, store and stream_line are overloaded by the type of the data; widen takes a Vec, or values
// in memory, which is quicker.
//
// Sums of f32 are f64 from the first addition; those of 16-bit data are f32 for kFold values, which
// costs half as much and no digit that such data have. Squares are f32 for kFold values in either
// case: all of one sign, so that their errors average out.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "nn/kernels.h"

namespace flatout::nn {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

#define FLATOUT_SIMD FLATOUT_TARGET __attribute__((always_inline)) static inline

template <class S, class T>
struct Passes {
  using Real = typename S::Real;
  using Vec = typename S::Vec;
  using Wide = typename S::Wide;
  static constexpr int kLanes = S::kLanes;
  static constexpr bool kExact = std::is_same_v<T, float>;  // sums in Real would cost digits
  static constexpr int64_t kFold = kExact ? 8 : 16;
  // Values of a cache line: what is stored past the caches is stored by whole lines, one result
  // after the other, or else the buffers that gather them run out.
  static constexpr int64_t kLine = std::max<int64_t>(kStreamBytes / sizeof(T), kLanes);
  static constexpr int kLineVectors = kLine / kLanes;
  // What a core reads in the time that memory takes to answer, and more.
  static constexpr int64_t kAhead = 4096 / sizeof(T);

  template <class Pointer>
  static const T* in(Pointer pointer) {
    return static_cast<const T*>(pointer);
  }

  // The first `lanes` values at `from`, and zeros.
  FLATOUT_SIMD Vec load_some(const T* from, int lanes) {
    if constexpr (requires { S::load_some(from, lanes); }) {
      return S::load_some(from, lanes);
    } else {
      T values[kLanes] = {};
      std::memcpy(values, from, static_cast<size_t>(lanes) * sizeof(T));
      return S::load(values);
    }
  }

  template <bool whole>
  FLATOUT_SIMD Vec load(const T* from, int lanes) {
    if constexpr (whole) return S::load(from);
    return load_some(from, lanes);
  }

  // The vectors from `to` on; if not whole, the first `lanes` values of one.
  template <bool whole, bool stream, int vectors>
  FLATOUT_SIMD void store(T* to, const Vec* values, int lanes) {
    if constexpr (!whole && requires { S::store_some(to, values[0], lanes); }) {
      S::store_some(to, values[0], lanes);
    } else if constexpr (!whole) {
      T some[kLanes];
      S::store(some, values[0]);
      std::memcpy(to, some, static_cast<size_t>(lanes) * sizeof(T));
    } else if constexpr (stream && vectors % kLineVectors == 0) {
      for (int v = 0; v < vectors; v += kLineVectors) S::stream_line(to + v * kLanes, values + v);
    } else {
      for (int v = 0; v < vectors; ++v) S::store(to + v * kLanes, values[v]);
    }
  }

  // A line, before it is needed. Always inline: gcc takes a function that does nothing else for one
  // without effect, and leaves its calls out.
  FLATOUT_SIMD void fetch(const void* from, int64_t i) { __builtin_prefetch(in(from) + i, 0, 3); }
  // Vectors that are summed up at once: whole lines, and two at least, since one sum alone would
  // wait for itself.
  static constexpr int kColumns = std::max(kLineVectors, 2);
  static constexpr int64_t kAtOnce = int64_t{kColumns} * kLanes;

  // Of planes summed up two vectors at a time.
  static constexpr int64_t kBlock = 2 * kFold * kLanes;

  // What is read kAhead values later, in the order of memory: the processor itself does not know
  // that the tile's planes go on in the next image.
  class PlanesAhead {
   public:
    explicit PlanesAhead(const Tile& tile)
        : run_(tile.channels * tile.length), beyond_(tile.stride - run_), left_(run_) {
      skip(kAhead);
    }

    /// As many values as are read meanwhile.
    template <class... Tensors>
    FLATOUT_TARGET void fetch(int64_t values, const Tensors*... from) {
      for (int64_t line = 0; line < values; line += kLine) (Passes::fetch(from, at_ + line), ...);
      skip(values);
    }

   private:
    void skip(int64_t values) {
      at_ += values;
      left_ -= values;
      if (left_ > 0) return;
      at_ += beyond_;
      left_ += run_;
    }

    int64_t run_, beyond_, left_;
    int64_t at_ = 0;
  };

  // What is read two blocks of kFold rows later, in the order of memory: down the columns, as the
  // sums go, the processor would not read ahead.
  class RowsAhead {
   public:
    RowsAhead(const Tile& tile, int64_t row)
        : tile_(tile), row_((row + 2 * kFold) * tile.stride), end_(row_ + tile.channels) {}

    /// As many values as one row has of kColumns vectors.
    FLATOUT_TARGET void fetch(std::initializer_list<const void*> tensors) {
      for (int64_t line = 0; line < kAtOnce; line += kLine) {
        for (const void* from : tensors) Passes::fetch(from, row_ + at_);
        at_ += kLine;
        if (row_ + at_ >= end_) {
          row_ += tile_.stride;
          end_ += tile_.stride;
          at_ = 0;
        }
      }
    }

   private:
    const Tile& tile_;
    int64_t row_, end_, at_ = 0;
  };

  // Wide of the values at `from`, of which `values` are the same.
  template <bool whole>
  FLATOUT_SIMD Wide widen(const T* from, Vec values) {
    if constexpr (whole) return S::widen(from);
    return S::widen(values);
  }

  // A run's bits from its value j on, a multiple of 8.
  template <bool whole>
  FLATOUT_SIMD uint32_t load_bits(const uint8_t* run, int64_t j, int lanes) {
    static_assert(kLanes == 8 || kLanes == 16);
    const uint8_t* at = run + j / 8;
    const bool second = kLanes == 16 && (whole || lanes > 8);
    return second ? at[0] | static_cast<uint32_t>(at[1]) << 8 : at[0];
  }

  template <bool whole>
  FLATOUT_SIMD void store_bits(uint8_t* run, int64_t j, uint32_t bits, int lanes) {
    if constexpr (!whole) bits &= (1U << lanes) - 1;
    uint8_t* at = run + j / 8;
    at[0] = static_cast<uint8_t>(bits);
    if (kLanes == 16 && (whole || lanes > 8)) at[1] = static_cast<uint8_t>(bits >> 8);
  }

  // ---- short planes
  //
  // One by one they cost more than their values do: each has sums of its own to be added up across
  // the lanes. So their values are taken for columns, which are summed up over the images, and
  // those of a plane are added up in the end.

  static constexpr int64_t kShort = 2 * kLanes;  // values of a plane at most
  static constexpr int64_t kFewImages = 4;       // less are not worth it

  static bool are_short(const Tile& tile) {
    return tile.length <= kShort && tile.outer >= kFewImages;
  }

  // So many columns at a time that the first cache holds what belongs to them.
  struct Columns {
    static constexpr int64_t kMost = 1024;
    Real shift[kMost + kSlack];
    double sums[2][kMost + kSlack];

    void clear(const Real* of_planes, int64_t planes, int64_t length) {
      Real* to = shift;
      for (int64_t p = 0; p < planes; ++p) to = std::fill_n(to, length, of_planes[p]);
      std::fill_n(to, kSlack, Real(0));
      for (double* sum : sums) std::fill_n(sum, planes * length + kSlack, 0.0);
    }

    void add_to(double* of_planes, int which, int64_t planes, int64_t length) const {
      const double* from = sums[which];
      for (int64_t p = 0; p < planes; ++p, from += length) {
        double sum = 0;
        for (int64_t j = 0; j < length; ++j) sum += from[j];
        of_planes[p] += sum;
      }
    }
  };

  struct Planes {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  // each(rows, planes, columns): the values of some planes as rows, and what belongs to them.
  template <class Each>
  static void by_columns(const Tile& tile, const Real* shift, const Each& each) {
    Columns columns;
    const int64_t most = Columns::kMost / tile.length;
    for (int64_t c = 0; c < tile.channels; c += most) {
      const Planes planes{c, std::min(c + most, tile.channels)};
      columns.clear(shift + c, planes.size(), tile.length);
      each(Tile{tile.outer, tile.stride, planes.size() * tile.length, 1, tile.mask_stride}, planes,
           columns);
    }
  }

  // ---- moments

  struct Moments {
    Wide sum;    // of x if exact, else of x - shift
    Vec part;    // of x - shift, for up to kFold values, if not exact
    Vec square;  // of (x - shift)^2, for up to kFold values
  };

  template <bool whole>
  FLATOUT_SIMD void add_moment(const T* from, int lanes, Vec shift, Moments& m) {
    const Vec x = load<whole>(from, lanes);
    const Vec centered = S::sub(x, shift);
    if constexpr (kExact) {
      m.sum = S::wide_add(m.sum, widen<whole>(from, x));
    } else {
      m.part = S::add(m.part, centered);
    }
    m.square = S::fma(centered, centered, m.square);
  }

  // The same in f64 from the start, with the sum of x - shift.
  template <bool whole>
  FLATOUT_SIMD void add_fine_moment(const T* from, int lanes, const Wide& minus_shift, Wide& sum,
                                    Wide& square) {
    Wide centered;
    if constexpr (kExact) {
      centered = S::wide_add(widen<whole>(from, load<whole>(from, lanes)), minus_shift);
    } else {
      centered = S::wide_add(S::widen(load<whole>(from, lanes)), minus_shift);
    }
    sum = S::wide_add(sum, centered);
    square = S::wide_fma(centered, centered, square);
  }

  FLATOUT_SIMD void fold(Moments& m, Wide& squares) {
    squares = S::wide_add(squares, S::widen(m.square));
    m.square = S::set(0);
    if constexpr (!kExact) {
      m.sum = S::wide_add(m.sum, S::widen(m.part));
      m.part = S::set(0);
    }
  }

  FLATOUT_TARGET static void moments_of_planes(const Tile& tile, const MomentsPass<Real>& pass) {
    if (are_short(tile)) return moments_of_short_planes(tile, pass);
    PlanesAhead ahead(tile);
    for (int64_t i = 0; i < tile.outer; ++i) {
      for (int64_t c = 0; c < tile.channels; ++c) {
        const T* x = in(pass.x) + i * tile.stride + c * tile.length;
        const Vec shift = S::set(pass.shift[c]);
        const Vec zero = S::set(0);
        Wide square = S::wide_set(0);
        Moments even{S::wide_set(0), zero, zero}, odd = even;
        const int64_t vectors = tile.length / kLanes;
        if (vectors == 0) ahead.fetch(tile.length, pass.x);
        for (int64_t v = 0; v < vectors;) {
          // Two at a time: one would wait for itself.
          const int64_t end = std::min(vectors, v + 2 * kFold);
          ahead.fetch((end < vectors ? end * kLanes : tile.length) - v * kLanes, pass.x);
          for (; v + 2 <= end; v += 2) {
            add_moment<true>(x + v * kLanes, kLanes, shift, even);
            add_moment<true>(x + (v + 1) * kLanes, kLanes, shift, odd);
          }
          if (v < end) add_moment<true>(x + v++ * kLanes, kLanes, shift, even);
          square = S::wide_add(square, S::widen(S::add(even.square, odd.square)));
          even.square = odd.square = zero;
          if constexpr (!kExact) {
            even.sum = S::wide_add(even.sum, S::widen(S::add(even.part, odd.part)));
            even.part = odd.part = zero;
          }
        }
        const int64_t done = vectors * kLanes;
        double sum = S::wide_sum(S::wide_add(even.sum, odd.sum));
        if constexpr (kExact) sum -= static_cast<double>(done) * pass.shift[c];
        double squares = S::wide_sum(square);
        for (int64_t j = done; j < tile.length; ++j) {
          const double centered = static_cast<double>(S::value(x[j])) - pass.shift[c];
          sum += centered;
          squares += centered * centered;
        }
        pass.sum[c] += sum;
        pass.square[c] += squares;
      }
    }
  }

  // Columns c and beside it of the rows of a block, no more than kFold.
  template <bool fine, bool whole, int vectors>
  FLATOUT_SIMD void moments_of_columns(const Tile& tile, const MomentsPass<Real>& pass, int64_t i,
                                       int64_t rows, int64_t c, int lanes, RowsAhead& ahead) {
    Vec shift[vectors];
    Moments m[vectors];
    Wide squares[vectors], minus_shift[vectors];
    for (int v = 0; v < vectors; ++v) {
      shift[v] = S::load(pass.shift + c + v * kLanes);
      m[v] = {S::wide_set(0), S::set(0), S::set(0)};
      squares[v] = S::wide_set(0);
      minus_shift[v] = S::widen(S::sub(S::set(0), shift[v]));
    }
    const T* x = in(pass.x) + i * tile.stride + c;
    for (int64_t row = 0; row < rows; ++row, x += tile.stride) {
      ahead.fetch({pass.x});
      for (int v = 0; v < vectors; ++v) {
        if constexpr (fine) {
          add_fine_moment<whole>(x + v * kLanes, lanes, minus_shift[v], m[v].sum, squares[v]);
        } else {
          add_moment<whole>(x + v * kLanes, lanes, shift[v], m[v]);
        }
      }
    }
    for (int v = 0; v < vectors; ++v) {
      double* sum = pass.sum + c + v * kLanes;
      double* square = pass.square + c + v * kLanes;
      fold(m[v], squares[v]);
      Wide part = m[v].sum;
      if constexpr (kExact && !fine) {
        part = S::wide_fma(S::wide_set(static_cast<double>(rows)), minus_shift[v], part);
      }
      S::store_wide(sum, S::wide_add(S::load_wide(sum), part));
      S::store_wide(square, S::wide_add(S::load_wide(square), squares[v]));
    }
  }

  // `fine`: all is f64, as it is for few values in planes.
  template <bool fine>
  FLATOUT_TARGET static void moments_of_rows(const Tile& tile, const MomentsPass<Real>& pass) {
    for (int64_t i = 0; i < tile.outer; i += kFold) {
      const int64_t rows = std::min(kFold, tile.outer - i);
      RowsAhead ahead(tile, i);
      int64_t c = 0;
      for (; c + kAtOnce <= tile.channels; c += kAtOnce) {
        moments_of_columns<fine, true, kColumns>(tile, pass, i, rows, c, kLanes, ahead);
      }
      for (; c + kLanes <= tile.channels; c += kLanes) {
        moments_of_columns<fine, true, 1>(tile, pass, i, rows, c, kLanes, ahead);
      }
      if (c < tile.channels) {
        moments_of_columns<fine, false, 1>(tile, pass, i, rows, c,
                                           static_cast<int>(tile.channels - c), ahead);
      }
    }
  }

  static void moments_of_short_planes(const Tile& tile, const MomentsPass<Real>& pass) {
    by_columns(tile, pass.shift, [&](const Tile& rows, Planes planes, Columns& columns) {
      moments_of_rows<true>(rows, {in(pass.x) + planes.begin * tile.length, columns.shift,
                                   columns.sums[0], columns.sums[1]});
      columns.add_to(pass.sum + planes.begin, 0, planes.size(), tile.length);
      columns.add_to(pass.square + planes.begin, 1, planes.size(), tile.length);
    });
  }

  // ---- normalize

  enum NormalizeFlag { kResidual = 1, kRelu = 2, kMask = 4, kStream = 8, kNormalizeFlags = 16 };

  // Coefficients of a plane (the same for every vector) or of columns of rows.
  struct Normalizer {
    Vec shift, scale, offset;
  };
  template <bool rows>
  FLATOUT_SIMD Normalizer normalizer(const NormalizePass<Real>& pass, int64_t c) {
    if constexpr (rows) {
      return {S::load(pass.shift + c), S::load(pass.scale + c), S::load(pass.offset + c)};
    } else {
      return {S::set(pass.shift[c]), S::set(pass.scale[c]), S::set(pass.offset[c])};
    }
  }

  // The vectors from value j on of the run that begins at `first` and at `mask`. If not whole, it
  // is one of `lanes` values.
  template <int flags, bool rows, bool whole, int vectors>
  FLATOUT_SIMD void normalize_vectors(const NormalizePass<Real>& pass, int64_t first, uint8_t* mask,
                                      int64_t j, int lanes, const Normalizer& plane) {
    Vec y[vectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = j + int64_t{v} * kLanes;
      const Normalizer k = rows ? normalizer<true>(pass, i) : plane;
      const Vec x = load<whole>(in(pass.x) + first + i, lanes);
      y[v] = S::fma(S::sub(x, k.shift), k.scale, k.offset);
      if constexpr ((flags & kResidual) != 0) {
        y[v] = S::add(y[v], load<whole>(in(pass.residual) + first + i, lanes));
      }
      if constexpr ((flags & kMask) != 0) store_bits<whole>(mask, i, S::passes(y[v]), lanes);
      if constexpr ((flags & kRelu) != 0) y[v] = S::relu(y[v]);
    }
    store<whole, (flags & kStream) != 0, vectors>(static_cast<T*>(pass.y) + first + j, y, lanes);
  }

  template <int flags, bool rows>
  FLATOUT_TARGET static void normalize_tile(const Tile& tile, const NormalizePass<Real>& pass) {
    const int64_t runs = rows ? 1 : tile.channels;
    const int64_t length = rows ? tile.channels : tile.length;
    for (int64_t i = 0; i < tile.outer; ++i) {
      for (int64_t c = 0; c < runs; ++c) {
        const int64_t first = i * tile.stride + c * length;
        uint8_t* mask = (flags & kMask) == 0
                            ? nullptr
                            : pass.mask + i * tile.mask_stride + c * mask_run(length);
        const Normalizer k = normalizer<false>(pass, c);
        int64_t j = 0;
        for (; j + kLine <= length; j += kLine) {
          if constexpr (rows) fetch(pass.x, first + j + kAhead);
          if constexpr ((flags & kResidual) != 0) fetch(pass.residual, first + j + kAhead);
          normalize_vectors<flags, rows, true, kLineVectors>(pass, first, mask, j, kLanes, k);
        }
        for (; j + kLanes <= length; j += kLanes) {
          normalize_vectors<flags, rows, true, 1>(pass, first, mask, j, kLanes, k);
        }
        if (j < length) {
          normalize_vectors<flags, rows, false, 1>(pass, first, mask, j,
                                                   static_cast<int>(length - j), k);
        }
      }
    }
    if constexpr ((flags & kStream) != 0) S::fence();
  }

  template <bool rows, int... flags>
  static void normalize_by_flags(const Tile& tile, const NormalizePass<Real>& pass,
                                 std::integer_sequence<int, flags...> /*all*/) {
    using Function = void (*)(const Tile&, const NormalizePass<Real>&);
    static constexpr std::array<Function, kNormalizeFlags> kFunctions = {
        &normalize_tile<flags, rows>...};
    kFunctions[(pass.residual != nullptr ? kResidual : 0) | (pass.relu ? kRelu : 0) |
               (pass.mask != nullptr ? kMask : 0) | (pass.stream ? kStream : 0)](tile, pass);
  }

  template <bool rows>
  static void normalize(const Tile& tile, const NormalizePass<Real>& pass) {
    normalize_by_flags<rows>(tile, pass, std::make_integer_sequence<int, kNormalizeFlags>{});
  }

  // ---- sums of backward

  struct Sums {
    Wide dz, dot;           // of dz * x if exact, else of dz * (x - shift)
    Vec dz_part, dot_part;  // for up to kFold values, if not
  };

  FLATOUT_SIMD Sums no_sums() { return {S::wide_set(0), S::wide_set(0), S::set(0), S::set(0)}; }

  template <bool whole>
  FLATOUT_SIMD void add_sums(const T* from, int lanes, Vec dz, Vec shift, Sums& sums) {
    const Vec x = load<whole>(from, lanes);
    if constexpr (kExact) {  // products of two f32 have all their digits in f64
      const Wide wide = S::widen(dz);
      sums.dz = S::wide_add(sums.dz, wide);
      sums.dot = S::wide_fma(wide, widen<whole>(from, x), sums.dot);
    } else {
      sums.dz_part = S::add(sums.dz_part, dz);
      sums.dot_part = S::fma(dz, S::sub(x, shift), sums.dot_part);
    }
  }

  FLATOUT_SIMD void fold(Sums& sums) {
    if constexpr (!kExact) {
      sums.dz = S::wide_add(sums.dz, S::widen(sums.dz_part));
      sums.dot = S::wide_add(sums.dot, S::widen(sums.dot_part));
      sums.dz_part = sums.dot_part = S::set(0);
    }
  }

  // Value j of the run that begins at `dy` and at `mask`.
  template <bool whole, bool masked>
  FLATOUT_SIMD Vec load_dz(const T* dy, const uint8_t* mask, int64_t j, int lanes) {
    const Vec gradient_in = load<whole>(dy + j, lanes);
    if constexpr (masked) return S::keep(load_bits<whole>(mask, j, lanes), gradient_in);
    return gradient_in;
  }

  enum SumsFlag { kSumsMasked = 1, kToResidual = 2, kSumsStream = 4, kSumsFlags = 8 };

  // Adds up the vectors from value j on of the run that begins at `first` and at `mask`. Columns of
  // rows have a shift and sums for each vector; a plane has one shift, and two sums that take
  // turns.
  template <int flags, bool rows, bool whole, int vectors>
  FLATOUT_SIMD void sum_vectors(const SumsPass<Real>& pass, int64_t first, const uint8_t* mask,
                                int64_t j, int lanes, const Vec* shift, Sums* sums) {
    Vec dz[vectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = j + int64_t{v} * kLanes;
      dz[v] = load_dz<whole, (flags & kSumsMasked) != 0>(in(pass.dy) + first, mask, i, lanes);
      add_sums<whole>(in(pass.x) + first + i, lanes, dz[v], shift[rows ? v : 0],
                      sums[rows ? v : v % 2]);
    }
    if constexpr ((flags & kToResidual) != 0) {
      store<whole, (flags & kSumsStream) != 0, vectors>(
          static_cast<T*>(pass.d_residual) + first + j, dz, lanes);
    }
  }

  template <int flags>
  FLATOUT_TARGET static void sums_of_planes(const Tile& tile, const SumsPass<Real>& pass) {
    // Columns have their bits beside each other.
    if (are_short(tile) && ((flags & kSumsMasked) == 0 || tile.length % 8 == 0)) {
      return sums_of_short_planes<flags>(tile, pass);
    }
    PlanesAhead ahead(tile);
    for (int64_t i = 0; i < tile.outer; ++i) {
      for (int64_t c = 0; c < tile.channels; ++c) {
        const int64_t first = i * tile.stride + c * tile.length;
        const uint8_t* mask = (flags & kSumsMasked) == 0
                                  ? nullptr
                                  : pass.mask + i * tile.mask_stride + c * mask_run(tile.length);
        const Vec shift = S::set(pass.shift[c]);
        Sums sums[2] = {no_sums(), no_sums()};
        int64_t j = 0;
        while (j + kAtOnce <= tile.length) {
          const int64_t end = std::min(tile.length, j + kBlock);
          for (; j + kAtOnce <= end; j += kAtOnce) {
            ahead.fetch(kAtOnce, pass.x, pass.dy);
            sum_vectors<flags, false, true, kColumns>(pass, first, mask, j, kLanes, &shift, sums);
          }
          fold(sums[0]);
          fold(sums[1]);
        }
        ahead.fetch(tile.length - j, pass.x, pass.dy);
        for (; j + kLanes <= tile.length; j += kLanes) {
          sum_vectors<flags, false, true, 1>(pass, first, mask, j, kLanes, &shift, sums);
        }
        if (j < tile.length) {  // dz is zero in the lanes beyond
          sum_vectors<flags, false, false, 1>(pass, first, mask, j,
                                              static_cast<int>(tile.length - j), &shift, sums);
        }
        fold(sums[0]);
        const double dz = S::wide_sum(S::wide_add(sums[0].dz, sums[1].dz));
        double dot = S::wide_sum(S::wide_add(sums[0].dot, sums[1].dot));
        if constexpr (kExact) dot -= dz * pass.shift[c];
        pass.dz_sum[c] += dz;
        pass.dot[c] += dot;
      }
    }
  }

  // As moments_of_columns().
  template <int flags, bool fine, bool whole, int vectors>
  FLATOUT_SIMD void sums_of_columns(const Tile& tile, const SumsPass<Real>& pass, int64_t i,
                                    int64_t rows, int64_t c, int lanes, RowsAhead& ahead) {
    Vec shift[vectors];
    Sums sums[vectors];
    for (int v = 0; v < vectors; ++v) {
      shift[v] = S::load(pass.shift + c + v * kLanes);
      sums[v] = no_sums();
    }
    for (const int64_t end = i + rows; i < end; ++i) {
      ahead.fetch({pass.x, pass.dy});
      const uint8_t* mask = (flags & kSumsMasked) == 0 ? nullptr : pass.mask + i * tile.mask_stride;
      sum_vectors<flags, true, whole, vectors>(pass, i * tile.stride, mask, c, lanes, shift, sums);
      for (int v = 0; fine && v < vectors; ++v) fold(sums[v]);
    }
    for (int v = 0; v < vectors; ++v) {
      fold(sums[v]);
      double* dz = pass.dz_sum + c + v * kLanes;
      double* dot = pass.dot + c + v * kLanes;
      if constexpr (kExact) {
        const Wide minus_shift = S::widen(S::sub(S::set(0), shift[v]));
        sums[v].dot = S::wide_fma(minus_shift, sums[v].dz, sums[v].dot);
      }
      S::store_wide(dz, S::wide_add(S::load_wide(dz), sums[v].dz));
      S::store_wide(dot, S::wide_add(S::load_wide(dot), sums[v].dot));
    }
  }

  template <int flags, bool fine>
  FLATOUT_TARGET static void sums_of_rows(const Tile& tile, const SumsPass<Real>& pass) {
    for (int64_t i = 0; i < tile.outer; i += kFold) {
      const int64_t rows = std::min(kFold, tile.outer - i);
      RowsAhead ahead(tile, i);
      int64_t c = 0;
      for (; c + kAtOnce <= tile.channels; c += kAtOnce) {
        sums_of_columns<flags, fine, true, kColumns>(tile, pass, i, rows, c, kLanes, ahead);
      }
      for (; c + kLanes <= tile.channels; c += kLanes) {
        sums_of_columns<flags, fine, true, 1>(tile, pass, i, rows, c, kLanes, ahead);
      }
      if (c < tile.channels) {
        sums_of_columns<flags, fine, false, 1>(tile, pass, i, rows, c,
                                               static_cast<int>(tile.channels - c), ahead);
      }
    }
  }

  template <int flags>
  static void sums_of_short_planes(const Tile& tile, const SumsPass<Real>& pass) {
    by_columns(tile, pass.shift, [&](const Tile& rows, Planes planes, Columns& columns) {
      const int64_t first = planes.begin * tile.length;
      SumsPass<Real> part = pass;
      part.x = in(pass.x) + first;
      part.dy = in(pass.dy) + first;
      if constexpr ((flags & kSumsMasked) != 0) part.mask = pass.mask + first / 8;
      if constexpr ((flags & kToResidual) != 0) {
        part.d_residual = static_cast<T*>(pass.d_residual) + first;
      }
      part.shift = columns.shift;
      part.dz_sum = columns.sums[0];
      part.dot = columns.sums[1];
      sums_of_rows<flags, true>(rows, part);
      columns.add_to(pass.dz_sum + planes.begin, 0, planes.size(), tile.length);
      columns.add_to(pass.dot + planes.begin, 1, planes.size(), tile.length);
    });
  }

  template <int flags, bool rows>
  FLATOUT_TARGET static void sums_of_tile(const Tile& tile, const SumsPass<Real>& pass) {
    if constexpr (rows) {
      sums_of_rows<flags, false>(tile, pass);
    } else {
      sums_of_planes<flags>(tile, pass);
    }
    if constexpr ((flags & kSumsStream) != 0) S::fence();
  }

  template <bool rows, int... flags>
  static void sums_by_flags(const Tile& tile, const SumsPass<Real>& pass,
                            std::integer_sequence<int, flags...> /*all*/) {
    using Function = void (*)(const Tile&, const SumsPass<Real>&);
    static constexpr std::array<Function, kSumsFlags> kFunctions = {&sums_of_tile<flags, rows>...};
    kFunctions[(pass.mask != nullptr ? kSumsMasked : 0) |
               (pass.d_residual != nullptr ? kToResidual : 0) | (pass.stream ? kSumsStream : 0)](
        tile, pass);
  }

  template <bool rows>
  static void sums(const Tile& tile, const SumsPass<Real>& pass) {
    sums_by_flags<rows>(tile, pass, std::make_integer_sequence<int, kSumsFlags>{});
  }

  // ---- gradient

  enum GradientFlag { kMasked = 1, kCentered = 2, kGradientStream = 4, kGradientFlags = 8 };

  struct Slopes {
    Vec shift, scale, slope, offset;
  };
  template <bool rows>
  FLATOUT_SIMD Slopes slopes(const GradientPass<Real>& pass, int64_t c) {
    if constexpr (rows) {
      return {S::load(pass.shift + c), S::load(pass.scale + c), S::load(pass.slope + c),
              S::load(pass.offset + c)};
    } else {
      return {S::set(pass.shift[c]), S::set(pass.scale[c]), S::set(pass.slope[c]),
              S::set(pass.offset[c])};
    }
  }

  // As normalize_vectors().
  template <int flags, bool rows, bool whole, int vectors>
  FLATOUT_SIMD void gradient_vectors(const GradientPass<Real>& pass, int64_t first,
                                     const uint8_t* mask, int64_t j, int lanes,
                                     const Slopes& plane) {
    Vec dx[vectors];
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = j + int64_t{v} * kLanes;
      const Slopes k = rows ? slopes<true>(pass, i) : plane;
      const Vec dz = load_dz<whole, (flags & kMasked) != 0>(in(pass.dy) + first, mask, i, lanes);
      if constexpr ((flags & kCentered) != 0) {
        const Vec centered = S::sub(load<whole>(in(pass.x) + first + i, lanes), k.shift);
        dx[v] = S::fma(dz, k.scale, S::fma(centered, k.slope, k.offset));
      } else {
        dx[v] = S::mul(dz, k.scale);
      }
    }
    store<whole, (flags & kGradientStream) != 0, vectors>(static_cast<T*>(pass.dx) + first + j, dx,
                                                          lanes);
  }

  template <int flags, bool rows>
  FLATOUT_TARGET static void gradient_of_tile(const Tile& tile, const GradientPass<Real>& pass) {
    const int64_t runs = rows ? 1 : tile.channels;
    const int64_t length = rows ? tile.channels : tile.length;
    for (int64_t i = 0; i < tile.outer; ++i) {
      for (int64_t c = 0; c < runs; ++c) {
        const int64_t first = i * tile.stride + c * length;
        const uint8_t* mask = (flags & kMasked) == 0
                                  ? nullptr
                                  : pass.mask + i * tile.mask_stride + c * mask_run(length);
        const Slopes k = slopes<false>(pass, c);
        int64_t j = 0;
        for (; j + kLine <= length; j += kLine) {
          fetch(pass.dy, first + j + kAhead);
          if constexpr ((flags & kCentered) != 0) fetch(pass.x, first + j + kAhead);
          gradient_vectors<flags, rows, true, kLineVectors>(pass, first, mask, j, kLanes, k);
        }
        for (; j + kLanes <= length; j += kLanes) {
          gradient_vectors<flags, rows, true, 1>(pass, first, mask, j, kLanes, k);
        }
        if (j < length) {
          gradient_vectors<flags, rows, false, 1>(pass, first, mask, j,
                                                  static_cast<int>(length - j), k);
        }
      }
    }
    if constexpr ((flags & kGradientStream) != 0) S::fence();
  }

  template <bool rows, int... flags>
  static void gradient_by_flags(const Tile& tile, const GradientPass<Real>& pass,
                                std::integer_sequence<int, flags...> /*all*/) {
    using Function = void (*)(const Tile&, const GradientPass<Real>&);
    static constexpr std::array<Function, kGradientFlags> kFunctions = {
        &gradient_of_tile<flags, rows>...};
    kFunctions[(pass.mask != nullptr ? kMasked : 0) | (pass.x != nullptr ? kCentered : 0) |
               (pass.stream ? kGradientStream : 0)](tile, pass);
  }

  template <bool rows>
  static void gradient(const Tile& tile, const GradientPass<Real>& pass) {
    gradient_by_flags<rows>(tile, pass, std::make_integer_sequence<int, kGradientFlags>{});
  }

  template <bool rows>
  static constexpr Kernels<Real> kKernels = {rows ? &moments_of_rows<false> : &moments_of_planes,
                                             &normalize<rows>, &sums<rows>, &gradient<rows>,
                                             S::kStreams ? kStreamBytes : 0};
};

/// The table of one instruction set.
template <class S>
const Kernels<float>& kernels_of(Type type, bool rows) {
  if (type == Type::kBf16) {
    return rows ? Passes<S, Bf16>::template kKernels<true>
                : Passes<S, Bf16>::template kKernels<false>;
  }
  if (type == Type::kF16) {
    return rows ? Passes<S, F16>::template kKernels<true>
                : Passes<S, F16>::template kKernels<false>;
  }
  return rows ? Passes<S, float>::template kKernels<true>
              : Passes<S, float>::template kKernels<false>;
}

}  // namespace flatout::nn
