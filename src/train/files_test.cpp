// The files that the trainer reads and writes.
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <fstream>

#include "base/fs.h"
#include "train/checkpoint.h"
#include "train/data_files.h"
#include "train/mirrored.h"
#include "train/tensor_file.h"

namespace flatout::train {
namespace {

std::string big_endian(std::initializer_list<uint32_t> values) {
  std::string out;
  for (const uint32_t value : values) {
    for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(value >> shift);
  }
  return out;
}

TEST(Idx, IsReadAsMnistHasIt) {
  const std::string images = big_endian({0x803, 2, 2, 2}) + std::string("\1\2\3\4\5\6\7\x80");
  const auto pictures = parse_idx(images, big_endian({0x801, 2}) + std::string("\7\3"));
  ASSERT_TRUE(pictures.ok()) << pictures.error().message;
  EXPECT_EQ(pictures->classes(), 8);
  const auto source = pictures_source(*pictures);
  const auto second = source->read(1);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->label, 3);
  EXPECT_EQ(second->side, 2);
  EXPECT_EQ(second->rgb, (std::vector<uint8_t>{5, 5, 5, 6, 6, 6, 7, 7, 7, 128, 128, 128}));
}

TEST(Idx, DamagedFilesAreErrors) {
  const std::string images = big_endian({0x803, 2, 2, 2}) + std::string(8, 'x');
  const std::string labels = big_endian({0x801, 2}) + std::string(2, '\1');
  ASSERT_TRUE(parse_idx(images, labels).ok());
  for (size_t cut = 0; cut < images.size(); ++cut) {
    EXPECT_FALSE(parse_idx(images.substr(0, cut), labels).ok()) << cut;
  }
  for (size_t cut = 0; cut < labels.size(); ++cut) {
    EXPECT_FALSE(parse_idx(images, labels.substr(0, cut)).ok()) << cut;
  }
  EXPECT_FALSE(parse_idx(images + "x", labels).ok());
  EXPECT_FALSE(parse_idx(big_endian({0x803, 0xFFFFFFFF, 1024, 1024}), labels).ok());
  EXPECT_FALSE(parse_idx(big_endian({0x803, 1, 2, 4}) + std::string(8, 'x'), labels).ok());
}

TEST(Cifar10, IsReadPlaneAfterPlane) {
  std::string record(1, '\x04');
  for (const char plane : {'r', 'g', 'b'}) record += std::string(size_t{32} * 32, plane);
  Pictures out;
  ASSERT_TRUE(parse_cifar10(record + record, out).ok());
  EXPECT_EQ(out.labels, (std::vector<uint8_t>{4, 4}));
  EXPECT_EQ(std::string(out.pixels.begin(), out.pixels.begin() + 6), "rgbrgb");
  EXPECT_FALSE(parse_cifar10(record.substr(1), out).ok());
  EXPECT_FALSE(parse_cifar10("", out).ok());
  record[0] = '\x0a';
  EXPECT_FALSE(parse_cifar10(record, out).ok());
}

TEST(TensorFile, KeepsNamesShapesAndBits) {
  std::vector<float> a = {1.5F, -0.0F, 3e-40F, 4};
  std::vector<float> none;
  const auto file = decode_tensors(
      encode_tensors({{"step", "12"}}, {{"conv1.weight", {2, 2}, a}, {"empty", {0, 3}, none}}));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file->metadata.at("step"), "12");
  EXPECT_EQ(file->arrays.at("conv1.weight").shape, (std::vector<int64_t>{2, 2}));
  const std::vector<float>& read = file->arrays.at("conv1.weight").values;
  ASSERT_EQ(read.size(), a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(read[i]), std::bit_cast<uint32_t>(a[i]));
  }
  EXPECT_TRUE(file->arrays.at("empty").values.empty());
}

TEST(TensorFile, DamagedBytesAreErrors) {
  std::vector<float> a = {1, 2};
  const std::string good = encode_tensors({}, {{"a", {2}, a}});
  for (size_t cut = 0; cut < good.size(); ++cut) {
    EXPECT_FALSE(decode_tensors(good.substr(0, cut)).ok()) << cut;
  }
  const auto with_header = [](const std::string& header) {
    std::string out(8, '\0');
    out[0] = static_cast<char>(header.size());
    return decode_tensors(out + header + std::string(8, '\0'));
  };
  EXPECT_TRUE(with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})").ok());
  for (const char* header :
       {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})",
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})",
        R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})",
        R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,8]}})",
        R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]}})",
        R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", R"({"a":7})", R"([])",
        R"({"__metadata__":7})", R"({"a":{"dtype":"F32","shape":[2]}})",
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})"}) {
    const auto file = with_header(header);
    ASSERT_FALSE(file.ok()) << header;
    EXPECT_EQ(file.error().code, Code::kBadInput);
  }
}

class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() : folder_(std::move(TemporaryFolder::make("")).value()) {
    options_.model = "lenet";
    options_.batch = 4;
  }
  std::unique_ptr<Mirrored> learner(const char* optimizer = "sgd", int classes = 4) {
    MirroredOptions layered;
    layered.batch = 4;
    layered.classes = classes;
    layered.optimizer.name = optimizer;
    return std::move(Mirrored::make(layered)).value();
  }
  std::string path() const { return folder_->path() + "/weights.safetensors"; }

  std::unique_ptr<TemporaryFolder> folder_;
  TrainOptions options_;
};

TEST_F(CheckpointTest, HoldsAllStateAndThePlace) {
  const auto from = learner();
  float value = 0;
  for (const Tensor& tensor : from->state()) {
    for (float& v : tensor.values) v = value += 0.001F;
  }
  ASSERT_TRUE(save_checkpoint(path(), options_, *from, {17, 2, 68}).ok());
  const auto to = learner();
  const auto progress = resume_checkpoint(path(), options_, *to);
  ASSERT_TRUE(progress.ok()) << progress.error().message;
  EXPECT_EQ(progress->step, 17);
  EXPECT_EQ(progress->epoch, 2u);
  EXPECT_EQ(progress->position, 68u);
  const auto a = from->state();
  const auto b = to->state();
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(std::equal(a[i].values.begin(), a[i].values.end(), b[i].values.begin()))
        << a[i].name;
  }
  EXPECT_EQ(digest(*from), digest(*to));
}

TEST_F(CheckpointTest, IsRefusedWhereItsArraysAreNotWhatWasSaved) {
  const auto from = learner();
  ASSERT_TRUE(save_checkpoint(path(), options_, *from, {17, 2, 68}).ok());
  ASSERT_TRUE(load_weights(path(), *from).ok());
  {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-4000, std::ios::end);  // in the optimizer's arrays
    file.put('\x7f');
  }
  const auto damaged = resume_checkpoint(path(), options_, *from);
  ASSERT_FALSE(damaged.ok());
  EXPECT_NE(damaged.error().message.find("is damaged"), std::string::npos);
  EXPECT_FALSE(load_weights(path(), *from).ok());
}

TEST_F(CheckpointTest, IsRefusedByAnotherJobWhichIsTold) {
  const auto from = learner();
  ASSERT_TRUE(save_checkpoint(path(), options_, *from, {}).ok());
  TrainOptions other = options_;
  other.batch = 8;
  const auto refused = resume_checkpoint(path(), other, *from);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("batch \"4\""), std::string::npos);
  other = options_;
  other.samples = 77;
  EXPECT_FALSE(resume_checkpoint(path(), other, *from).ok());
  const auto ten = learner("sgd", 10);
  const Status shape = load_weights(path(), *ten);
  ASSERT_FALSE(shape.ok());
  EXPECT_NE(shape.error().message.find("fc3.weight"), std::string::npos) << shape.error().message;
  // Parameters alone fit whatever the optimizer.
  EXPECT_TRUE(load_weights(path(), *learner("adam")).ok());
  EXPECT_EQ(load_weights(path() + "x", *from).error().code, Code::kNotFound);
}

}  // namespace
}  // namespace flatout::train
