#include "train/tensor_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/text.h"
#include "feed/source.h"

namespace flatout::train {
namespace {

constexpr uint64_t kMostHeader = 100 << 20;  // as in the format's own reader
constexpr size_t kMostBytes = size_t{4} << 30;

Error bad(std::string_view what) {
  return Error{Code::kBadInput, fmt::format("not a safetensors file of f32 arrays: {}", what), ""};
}

Result<std::vector<int64_t>> shape_of(const nlohmann::json& entry) {
  std::vector<int64_t> shape;
  if (!entry.contains("shape") || !entry["shape"].is_array()) return bad("an array has no shape");
  for (const nlohmann::json& side : entry["shape"]) {
    if (!side.is_number_unsigned() || side.get<uint64_t>() > kMostBytes) {
      return bad("the shape of an array is not one");
    }
    shape.push_back(side.get<int64_t>());
  }
  return shape;
}

Result<TensorFile::Array> array_of(const nlohmann::json& entry, std::string_view data) {
  if (!entry.is_object()) return bad("an array has no description");
  if (!entry.contains("dtype") || entry["dtype"] != "F32")
    return bad("an array is not of type F32");
  TensorFile::Array out;
  FLATOUT_TRY(out.shape, shape_of(entry));
  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2 ||
      !(*offsets)[0].is_number_unsigned() || !(*offsets)[1].is_number_unsigned()) {
    return bad("an array has no data_offsets");
  }
  const auto begin = (*offsets)[0].get<uint64_t>();
  const auto end = (*offsets)[1].get<uint64_t>();
  uint64_t bytes = sizeof(float);
  for (const int64_t side : out.shape) {
    if (side != 0 && bytes > kMostBytes / static_cast<uint64_t>(side))
      return bad("it is too large");
    bytes *= static_cast<uint64_t>(side);
  }
  if (begin > end || end > data.size() || end - begin != bytes) {
    return bad("an array lies outside of the file, or its shape and size differ");
  }
  out.values.resize(bytes / sizeof(float));
  if (bytes > 0) std::memcpy(out.values.data(), data.data() + begin, bytes);
  return out;
}

}  // namespace

std::string encode_tensors(const std::map<std::string, std::string>& metadata,
                           const std::vector<Tensor>& tensors) {
  nlohmann::ordered_json header;
  header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const Tensor& tensor : tensors) {
    const uint64_t size = tensor.values.size_bytes();
    header[tensor.name] = {
        {"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {at, at + size}}};
    at += size;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');  // the data begin aligned
  std::string out;
  out.reserve(8 + text.size() + at);
  put(out, static_cast<uint64_t>(text.size()));
  out += text;
  for (const Tensor& tensor : tensors) {
    out.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size_bytes());
  }
  return out;
}

Result<TensorFile> decode_tensors(std::string_view bytes) {
  ByteReader reader(bytes);
  const auto length = reader.get<uint64_t>();
  if (!reader.ok() || length > kMostHeader || length > reader.left()) {
    return bad("the length of its header is not one");
  }
  const nlohmann::json header = nlohmann::json::parse(reader.take(length), nullptr, false);
  if (!header.is_object()) return bad("its header is no JSON object");
  const std::string_view data = reader.take(reader.left());
  TensorFile out;
  size_t left = data.size();
  for (const auto& [name, entry] : header.items()) {
    if (name != "__metadata__") {
      FLATOUT_TRY(TensorFile::Array array, array_of(entry, data));
      const size_t taken = array.values.size() * sizeof(float);
      if (taken > left) return bad("its arrays overlap");
      left -= taken;
      out.arrays[name] = std::move(array);
      continue;
    }
    if (!entry.is_object()) return bad("its metadata are no JSON object");
    for (const auto& [key, value] : entry.items()) {
      if (value.is_string()) out.metadata[key] = value.get<std::string>();
    }
  }
  return out;
}

Result<TensorFile> read_tensors(const std::string& path) {
  std::vector<uint8_t> bytes;
  FLATOUT_TRY_STATUS(feed::read_file(path, kMostBytes, bytes));
  auto file = decode_tensors({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  if (file.ok()) return file;
  Error error = file.error();
  error.message = escape_terminal(path) + " is " + error.message;
  return error;
}

Status fill_tensors(const TensorFile& file, const std::string& path,
                    const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors) {
    const auto it = file.arrays.find(tensor.name);
    if (it == file.arrays.end()) {
      return Error{Code::kBadInput,
                   fmt::format("{} has no array {}", escape_terminal(path), tensor.name),
                   "is it of this model, with this optimizer?"};
    }
    if (it->second.shape != tensor.shape) {
      return Error{Code::kBadInput,
                   fmt::format("{}: {} has the shape [{}], wanted is [{}]", escape_terminal(path),
                               tensor.name, fmt::join(it->second.shape, ", "),
                               fmt::join(tensor.shape, ", ")),
                   "is it of this model, with as many classes?"};
    }
    std::copy(it->second.values.begin(), it->second.values.end(), tensor.values.begin());
  }
  return {};
}

}  // namespace flatout::train
