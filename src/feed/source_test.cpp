// Data sets of every form: what is in them, and what becomes of damaged ones.
#include "feed/source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>

#include "feed/crc32c.h"
#include "feed/file_list.h"
#include "feed/pack.h"
#include "feed/picture.h"
#include "feed/seek_index.h"
#include "feed/tar_index.h"
#include "feed/testing/archives.h"
#include "feed/testing/pictures.h"
#include "feed/verify.h"

namespace flatout::feed {
namespace {

using namespace testing;

std::unique_ptr<Source> open(const std::string& path) {
  auto source = open_source(path);
  EXPECT_TRUE(source.ok()) << source.error().message;
  return source.ok() ? std::move(*source) : nullptr;
}

struct Taken {
  std::string picture;
  int64_t label = 0;
  Outcome outcome = Outcome::kOk;
  bool operator==(const Taken&) const = default;
};
void PrintTo(const Taken& taken, std::ostream* out) {
  *out << taken.picture << ' ' << taken.label << ' ' << outcome_name(taken.outcome);
}

Taken take(const Source& source, uint64_t index) {
  Sample sample;
  const auto verdict = source.read(index, sample);
  EXPECT_TRUE(verdict.ok());
  if (!verdict->ok()) return {"", 0, verdict->outcome};
  return {std::string(sample.picture.begin(), sample.picture.end()), sample.label, Outcome::kOk};
}

std::vector<Taken> all_of(const Source& source) {
  std::vector<Taken> out;
  for (uint64_t i = 0; i < source.count(); ++i) out.push_back(take(source, i));
  return out;
}

Outcome outcome_of(const TemporaryFolder& folder, const std::string& name,
                   const std::vector<uint8_t>& data, uint64_t* samples = nullptr) {
  folder.write(name, data);
  Outcome outcome = Outcome::kOk;
  EXPECT_TRUE(verify(folder.path() + "/" + name, 1, [&](const Verified& verified) -> Status {
                outcome = verified.verdict.outcome;
                if (samples != nullptr) *samples = verified.samples;
                return {};
              }).ok());
  return outcome;
}

TEST(Verify, TellsEachFileThatAListNames) {
  const TemporaryFolder folder;
  folder.write("a b.jpg", {});
  const std::string list = "file,label\r\n\"a b.jpg\",1\r\nnowhere.jpg,2\r\n";
  folder.write("list.csv", {list.begin(), list.end()});
  std::vector<std::pair<std::string, Outcome>> told;
  ASSERT_TRUE(verify(folder.path() + "/list.csv", 2, [&](const Verified& verified) -> Status {
                told.emplace_back(verified.file, verified.verdict.outcome);
                return {};
              }).ok());
  EXPECT_EQ(told, (std::vector<std::pair<std::string, Outcome>>{
                      {folder.path() + "/a b.jpg", Outcome::kEmpty},
                      {folder.path() + "/nowhere.jpg", Outcome::kUnreadable}}));
}

TEST(Verify, SaysThatAnArchiveIsCompressed) {
  const TemporaryFolder folder;
  folder.write("x.tar.gz", {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3});
  const Status status =
      verify(folder.path() + "/x.tar.gz", 1, [](const Verified&) { return Status(); });
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("compressed (gzip)"), std::string::npos);
}

TEST(TarSource, GroupsMembersAsWebDatasetDoes) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar;
  add_member(tar, "a/", "", '5');
  add_member(tar, "a/0001.jpg", "first");
  add_member(tar, "a/0001.cls", "7\n");
  add_member(tar, "a/0002.cls", "8");
  add_member(tar, "a/0002.jpg", "second");
  add_member(tar, "a/0002.seg.png", "a mask");
  add_member(tar, "a/0002.txt", "a caption");
  add_member(tar, "a/0003.json", R"({"label": -3, "label_name": "cat"})");
  add_member(tar, "a/0003.jpeg", "third");
  add_member(tar, "a/0004.jpg", "without a label");
  add_member(tar, "a/0005.cls", "5");
  add_member(tar, "a/0006.jpg", "bad label");
  add_member(tar, "a/0006.cls", "five");
  end_tar(tar);
  folder.write("x-000.tar", tar);
  const auto source = open(folder.path());
  EXPECT_EQ(all_of(*source), (std::vector<Taken>{{"first", 7, Outcome::kOk},
                                                 {"second", 8, Outcome::kOk},
                                                 {"third", -3, Outcome::kOk},
                                                 {"", 0, Outcome::kMissingField},
                                                 {"", 0, Outcome::kMissingField},
                                                 {"", 0, Outcome::kMissingField}}));
  EXPECT_EQ(source->name(1), folder.path() + "/x-000.tar/a/0002.jpg");
  EXPECT_TRUE(source->damage().empty());
}

std::vector<Taken> of_tar(const std::vector<std::pair<std::string, std::string>>& members,
                          std::vector<std::string>* classes = nullptr) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar;
  for (const auto& [name, content] : members) add_member(tar, name, content);
  end_tar(tar);
  folder.write("x.tar", tar);
  const auto source = open(folder.path() + "/x.tar");
  if (classes != nullptr) *classes = source->classes();
  return all_of(*source);
}

TEST(TarSource, TakesWordsAsClasses) {
  const std::vector<Taken> expected{
      {"1", 1, Outcome::kOk}, {"2", 0, Outcome::kOk}, {"", 0, Outcome::kMissingField}};
  std::vector<std::string> classes;
  EXPECT_EQ(of_tar({{"1.jpg", "1"},
                    {"1.cls", "dog\n"},
                    {"2.jpg", "2"},
                    {"2.cls", "cat"},
                    {"3.jpg", "3"},
                    {"3.cls", ""}},
                   &classes),
            expected);
  EXPECT_EQ(classes, (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(of_tar({{"1.jpg", "1"},
                    {"1.json", R"({"label": "dog"})"},
                    {"2.jpg", "2"},
                    {"2.json", R"({"label": "cat", "class": 7})"},
                    {"3.jpg", "3"},
                    {"3.json", R"({"label": [1, 2]})"}},
                   &classes),
            expected);
  EXPECT_EQ(classes, (std::vector<std::string>{"cat", "dog"}));
}

TEST(TarSource, FindsNumbersHoweverTheyAreWritten) {
  EXPECT_EQ(of_tar({{"1.JPG", "1"},
                    {"1.CLS", "4"},
                    {"2.jpg", "2"},
                    {"2.cls", "5.0"},
                    {"3.jpg", "3"},
                    {"3.json", R"({"text": ")" + std::string(100'000, 'x') + R"(", "label": 6.0})"},
                    {"4.jpg", "4"},
                    {"4.json", R"({"label": 0.5})"}}),
            (std::vector<Taken>{{"1", 4, Outcome::kOk},
                                {"2", 5, Outcome::kOk},
                                {"3", 6, Outcome::kOk},
                                {"", 0, Outcome::kMissingField}}));
}

TEST(TarSource, DoesNotTakeSamplesForUnlabelledWhereTheFirstIs) {
  EXPECT_EQ(of_tar({{"1.jpg", "1"},
                    {"1.json", R"({"caption": "a cat"})"},
                    {"2.jpg", "2"},
                    {"2.json", R"({"label": 3})"}}),
            (std::vector<Taken>{{"", 0, Outcome::kMissingField}, {"2", 3, Outcome::kOk}}));
}

TEST(TarSource, TakesThePictureOfThePlainestName) {
  EXPECT_EQ(of_tar({{"1.depth.png", "depth"},
                    {"1.cls", "1"},
                    {"1.jpg", "picture"},
                    {"1.mask.png", "mask"},
                    {"2.left.jpg", "left"},
                    {"2.right.jpg", "right"},
                    {"2.cls", "2"}}),
            (std::vector<Taken>{{"picture", 1, Outcome::kOk}, {"left", 2, Outcome::kOk}}));
}

TEST(TarSource, FindsLabelsThatDoNotLieBesideTheirPictures) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar, next;
  for (const char* name : {"a/1", "a/2", "a/3"}) add_member(tar, std::string(name) + ".jpg", name);
  add_member(tar, "a/4.cls", "4");
  add_member(tar, "a/3.cls", "3");
  add_member(tar, "a/1.cls", "1");
  add_member(tar, "a/5.cls", "5");
  end_tar(tar);
  add_member(next, "a/5.jpg", "of another shard");
  end_tar(next);
  folder.write("x-0.tar", tar);
  folder.write("x-1.tar", next);
  EXPECT_EQ(all_of(*open(folder.path())), (std::vector<Taken>{{"a/1", 1, Outcome::kOk},
                                                              {"", 0, Outcome::kMissingField},
                                                              {"a/3", 3, Outcome::kOk},
                                                              {"", 0, Outcome::kMissingField},
                                                              {"", 0, Outcome::kMissingField},
                                                              {"", 0, Outcome::kMissingField}}));
}

TEST(Source, SaysThatAFileIsNothingOfWhatItReads) {
  const TemporaryFolder folder;
  folder.write("train.py", {'i', 'm', 'p', 'o', 'r', 't', '\n'});
  folder.write("none", {});
  folder.write("photo", make_jpeg({}));
  for (const char* name : {"/train.py", "/none"}) {
    const auto source = open_source(folder.path() + name);
    ASSERT_FALSE(source.ok());
    EXPECT_NE(source.error().message.find("is no picture"), std::string::npos);
  }
  EXPECT_EQ(open(folder.path() + "/photo")->count(), 1U);
}

TEST(List, MayBeginAsSpreadsheetsWriteIt) {
  const auto list = parse_list(
      "\xEF\xBB\xBF"
      "a.jpg,3\nb.jpg,4\n",
      "root");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)->name(0), "root/a.jpg");
  EXPECT_EQ((*list)->count(), 2U);
}

TEST(TarSource, TakesFoldersAsClassesWhereNothingElseTells) {
  const TemporaryFolder folder;
  std::vector<uint8_t> one, two;
  add_member(one, "train/dog/1.jpg", "1");
  add_member(one, "train/cat/2.jpg", "2");
  add_member(one, "train/cat/2.json", R"({"caption": "no label"})");
  end_tar(one);
  add_member(two, "train/dog/3.1.jpg", "3");
  add_member(two, "train/dog/3.2.jpg", "4");
  end_tar(two);
  folder.write("s-00.tar", one);
  folder.write("s-01.tar", two);
  const auto source = open(folder.path() + "/s-{00..01}.tar");
  EXPECT_EQ(source->classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(all_of(*source), (std::vector<Taken>{{"1", 1, Outcome::kOk},
                                                 {"2", 0, Outcome::kOk},
                                                 {"3", 1, Outcome::kOk},
                                                 {"4", 1, Outcome::kOk}}));
}

TEST(TarIndex, GivesTheSameSamplesAndIsLeftAsideWhereItDoesNotFit) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar, other;
  for (int i = 0; i < 40; ++i) {
    const std::string name = "a/" + std::to_string(1000 + i);
    add_member(tar, name + ".jpg", "picture " + std::to_string(i));
    add_member(tar, name + ".cls", std::to_string(i % 7));
    const std::string changed = i == 0 ? "b" + name.substr(1) : name;
    add_member(other, changed + ".jpg", "pixture " + std::to_string(i));
    add_member(other, changed + ".cls", std::to_string(i % 5));
  }
  end_tar(tar);
  end_tar(other);
  folder.write("x.tar", tar);
  const std::string path = folder.path() + "/x.tar";
  const auto expected = all_of(*open(path));
  const auto indexed = write_tar_index(path);
  ASSERT_TRUE(indexed.ok());
  EXPECT_EQ(indexed->members, 80U);
  EXPECT_TRUE(indexed->verdict.ok());
  std::vector<uint8_t> table;
  ASSERT_TRUE(read_file(path + ".index", 1 << 20, table).ok());

  uint64_t told = 0;
  const auto count = [&](const TarMember&) { ++told; };
  const auto file = DataFile::open(path);
  ASSERT_TRUE(walk_tar_index(path, *file, count).ok());
  EXPECT_EQ(told, 80U);
  EXPECT_EQ(all_of(*open(path)), expected);

  // Damaged anywhere, or cut anywhere: nothing is told, and the archive itself is read.
  for (size_t at = 0; at < table.size(); at += 37) {
    std::vector<uint8_t> damaged = table;
    damaged[at] ^= 0x10;
    folder.write("x.tar.index", damaged);
    told = 0;
    EXPECT_FALSE(walk_tar_index(path, *file, count).ok()) << at;
    EXPECT_EQ(told, 0U);
    damaged = table;
    damaged.resize(at);
    folder.write("x.tar.index", damaged);
    EXPECT_FALSE(walk_tar_index(path, *file, count).ok()) << at;
  }
  EXPECT_EQ(all_of(*open(path)), expected);

  // Another archive of the same size.
  folder.write("x.tar.index", table);
  ASSERT_EQ(other.size(), tar.size());
  folder.write("x.tar", other);
  EXPECT_FALSE(walk_tar_index(path, *DataFile::open(path), count).ok());
  EXPECT_NE(all_of(*open(path)), expected);
}

TEST(TarIndex, IsNoPipe) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar;
  add_member(tar, "a.jpg", "picture");
  add_member(tar, "a.cls", "3");
  end_tar(tar);
  folder.write("x.tar", tar);
  // Nobody writes into it: who waits for that waits for ever.
  ASSERT_EQ(::mkfifo((folder.path() + "/x.tar.index").c_str(), 0600), 0);
  EXPECT_EQ(all_of(*open(folder.path() + "/x.tar")), (std::vector<Taken>{{"picture", 3}}));
}

TEST(TarIndex, TellsTheDamageOfItsArchive) {
  const TemporaryFolder folder;
  std::vector<uint8_t> tar;
  add_member(tar, "1.jpg", "first");
  add_member(tar, "2.jpg", std::string(2000, 'x'));
  tar.resize(tar.size() - 1200);
  folder.write("x.tar", tar);
  const auto before = open(folder.path() + "/x.tar");
  ASSERT_TRUE(write_tar_index(folder.path() + "/x.tar").ok());
  const auto after = open(folder.path() + "/x.tar");
  EXPECT_EQ(all_of(*after), all_of(*before));
  ASSERT_EQ(after->damage().size(), 1U);
  EXPECT_EQ(after->damage()[0].verdict.outcome, Outcome::kTruncated);
  EXPECT_EQ(after->damage()[0].verdict.detail, before->damage()[0].verdict.detail);
}

TEST(TarSource, ReadsLongNamesOfBothKinds) {
  const TemporaryFolder folder;
  const std::string name(180, 'n');
  std::vector<uint8_t> tar;
  add_member(tar, "././@LongLink", name + "1.jpg" + std::string(1, '\0'), 'L');
  add_member(tar, "cut", "gnu");
  const std::string record = " path=" + name + "2.jpg\n";
  const std::string length = std::to_string(record.size() + 3);
  add_member(tar, "header", length + record, 'x');
  add_member(tar, "cut", "pax");
  end_tar(tar);
  folder.write("long.tar", tar);
  const auto source = open(folder.path() + "/long.tar");
  ASSERT_EQ(source->count(), 2U);
  EXPECT_EQ(source->name(0), folder.path() + "/long.tar/" + name + "1.jpg");
  EXPECT_EQ(source->name(1), folder.path() + "/long.tar/" + name + "2.jpg");
  EXPECT_EQ(take(*source, 1).picture, "pax");
}

TEST(TarSource, TellsHowAnArchiveIsDamaged) {
  const TemporaryFolder folder;
  const auto jpeg = make_jpeg({});
  std::vector<uint8_t> tar;
  add_member(tar, "1.jpg", text_of(jpeg));
  const size_t second = tar.size();
  add_member(tar, "2.jpg", text_of(jpeg));
  auto whole = tar;
  end_tar(whole);
  uint64_t samples = 0;
  EXPECT_EQ(outcome_of(folder, "whole.tar", whole, &samples), Outcome::kOk);
  EXPECT_EQ(samples, 2U);
  EXPECT_EQ(outcome_of(folder, "no_end.tar", tar, &samples), Outcome::kTruncated);
  EXPECT_EQ(samples, 2U);
  tar.resize(second + 1000);
  EXPECT_EQ(outcome_of(folder, "cut.tar", tar, &samples), Outcome::kTruncated);
  EXPECT_EQ(samples, 2U);
  auto garbled = whole;
  garbled[second + 3] ^= 0x55;
  EXPECT_EQ(outcome_of(folder, "garbled.tar", garbled, &samples), Outcome::kCorrupt);
  EXPECT_EQ(samples, 1U);
  EXPECT_EQ(outcome_of(folder, "empty.tar", {}), Outcome::kEmpty);
  auto bad_picture = whole;
  std::fill_n(bad_picture.begin() + 512, 10, uint8_t{'x'});
  EXPECT_EQ(outcome_of(folder, "bad_picture.tar", bad_picture), Outcome::kNotAnImage);
}

TEST(TfrecordSource, ReadsExamples) {
  const TemporaryFolder folder;
  std::vector<uint8_t> file;
  add_record(file, example(bytes_feature("image/encoded", "one") +
                           integer_feature("image/class/label", 281, false)));
  add_record(file, example(integer_feature("label", 300, true) + bytes_feature("image", "two") +
                           bytes_feature("other", "x")));
  add_record(file, example(integer_feature("label", 3, true)));
  add_record(file, example(bytes_feature("image", "no label")));
  add_record(file, "no example");
  folder.write("train-00000-of-00001", file);
  const auto source = open(folder.path());
  EXPECT_EQ(all_of(*source), (std::vector<Taken>{{"one", 281, Outcome::kOk},
                                                 {"two", 300, Outcome::kOk},
                                                 {"", 0, Outcome::kMissingField},
                                                 {"", 0, Outcome::kMissingField},
                                                 {"", 0, Outcome::kCorrupt}}));
  EXPECT_EQ(source->name(2), folder.path() + "/train-00000-of-00001, record 2");
  Sample sample;
  EXPECT_EQ(source->read(2, sample)->detail, "the record has no picture; it has 'label'");
  EXPECT_EQ(source->read(3, sample)->detail,
            "the record has no label that is a number; it has 'image'");
}

TEST(TfrecordSource, TellsHowAFileIsDamaged) {
  const TemporaryFolder folder;
  const auto jpeg = make_jpeg({});
  const std::string record = example(bytes_feature("image/encoded", text_of(jpeg)) +
                                     integer_feature("image/class/label", 1, true));
  std::vector<uint8_t> file;
  add_record(file, record);
  const size_t second = file.size();
  add_record(file, record);
  uint64_t samples = 0;
  EXPECT_EQ(outcome_of(folder, "whole.tfrecord", file, &samples), Outcome::kOk);
  EXPECT_EQ(samples, 2U);
  auto cut = file;
  cut.resize(second + 100);
  EXPECT_EQ(outcome_of(folder, "cut.tfrecord", cut, &samples), Outcome::kTruncated);
  EXPECT_EQ(samples, 2U);
  auto flipped = file;
  flipped[second / 2] ^= 1;
  EXPECT_EQ(outcome_of(folder, "flipped.tfrecord", flipped, &samples), Outcome::kCorrupt);
  EXPECT_EQ(samples, 2U);
  auto length = file;
  length[second] ^= 1;
  EXPECT_EQ(outcome_of(folder, "length.tfrecord", length, &samples), Outcome::kCorrupt);
  EXPECT_EQ(samples, 1U);
  EXPECT_EQ(outcome_of(folder, "empty.tfrecord", {}), Outcome::kEmpty);
}

TEST(Crc32c, GivesTheKnownAnswersByBothWays) {
  const std::string_view digits = "123456789";  // RFC 3720's check value
  const std::span<const uint8_t> data(reinterpret_cast<const uint8_t*>(digits.data()),
                                      digits.size());
  EXPECT_EQ(crc32c(data), 0xE3069283U);
  std::mt19937 random(1);
  for (size_t size = 0; size < 70; ++size) {
    std::vector<uint8_t> bytes(size);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    EXPECT_EQ(crc32c(bytes), crc32c_portable(bytes));
  }
}

TEST(List, HasLabelsFromTextAndJson) {
  const TemporaryFolder folder;
  for (const char* name : {"a.jpg", "my cat.jpg", "deep/b.png"}) folder.write(name, {1});
  const auto labels = [&](const std::string& name, std::string_view text) {
    folder.write(name, {text.begin(), text.end()});
    const auto source = open(folder.path() + "/" + name);
    std::vector<std::pair<std::string, int64_t>> out;
    for (uint64_t i = 0; i < source->count(); ++i) {
      Sample sample;
      const auto verdict = source->read(i, sample);
      EXPECT_TRUE(verdict.ok());
      out.emplace_back(source->name(i).substr(folder.path().size() + 1),
                       verdict->ok() ? sample.label : -99);
    }
    return out;
  };
  using Rows = std::vector<std::pair<std::string, int64_t>>;
  const Rows expected{{"a.jpg", 3}, {"my cat.jpg", -1}, {"deep/b.png", 0}};
  EXPECT_EQ(labels("blanks.txt", "# a comment\na.jpg 3\nmy cat.jpg -1\ndeep/b.png 0\n"), expected);
  EXPECT_EQ(labels("heading.csv", "file,label\r\na.jpg,3\r\n\"my cat.jpg\",-1\r\ndeep/b.png,0\r\n"),
            expected);
  EXPECT_EQ(labels("tabs.tsv", "a.jpg\t3\nmy cat.jpg\t-1\ndeep/b.png\t0"), expected);
  EXPECT_EQ(labels("im2rec.lst", "0\t3.000000\ta.jpg\n1\t-1\tmy cat.jpg\n2\t0\tdeep/b.png\n"),
            expected);
  EXPECT_EQ(labels("object.json", R"({"a.jpg": 3, "my cat.jpg": -1, "deep/b.png": 0})"), expected);
  EXPECT_EQ(labels("pairs.json", R"([["a.jpg", 3], ["my cat.jpg", -1], ["deep/b.png", 0]])"),
            expected);
  EXPECT_EQ(labels("lines.jsonl",
                   "{\"file_name\": \"a.jpg\", \"label\": 3}\n{\"file_name\": \"my cat.jpg\", "
                   "\"label\": -1}\n"
                   "{\"path\": \"deep/b.png\", \"class\": 0}\n"),
            expected);
  EXPECT_EQ(labels("words.csv", "a.jpg,dog\nmy cat.jpg,cat\ndeep/b.png,dog\n"),
            (Rows{{"a.jpg", 1}, {"my cat.jpg", 0}, {"deep/b.png", 1}}));
  EXPECT_EQ(labels("some.csv", "a.jpg,dog\nmy cat.jpg\n"),
            (Rows{{"a.jpg", 0}, {"my cat.jpg", -99}}));
  EXPECT_EQ(labels("names.txt", "a.jpg\nmy cat.jpg\n"), (Rows{{"a.jpg", 0}, {"my cat.jpg", 0}}));
}

TEST(List, NamesTheLineThatIsWrong) {
  const auto bad = parse_list("{\"file\": \"a.jpg\"}\n{\"file\": 3}\n", "root");
  ASSERT_FALSE(bad.ok());
  EXPECT_EQ(bad.error().message, "line 2: no name of a file");
  EXPECT_FALSE(parse_list("\n\n", "root").ok());
}

TEST(List, HasColumnsWhereAHeadingNamesThem) {
  const std::vector<std::pair<std::string, int64_t>> expected{{"r/a, b.jpg", 3}, {"r/c.jpg", 4}};
  for (const char* text :
       {"label,filename\n3,\"a, b.jpg\"\n4,c.jpg\n",
        "id;Path;split;Label\n0;a, b.jpg;x;3\n1;c.jpg;y;4\n",
        ",image,target\n0,\"a, b.jpg\",3.0\n1,c.jpg,4.0\n",
        "file_name\tbox\tclass\na, b.jpg\t1\t3\nc.jpg\t2\t4\n",
        R"([{"filename": "a, b.jpg", "category": 3.0}, {"filename": "c.jpg", "category": 4}])"}) {
    const auto list = parse_list(text, "r");
    ASSERT_TRUE(list.ok()) << text << list.error().message;
    std::vector<std::pair<std::string, int64_t>> found;
    for (uint64_t i = 0; i < (*list)->count(); ++i) {
      Sample sample;
      (void)(*list)->read(i, sample);  // there are no such files; the label is known all the same
      found.emplace_back((*list)->name(i), sample.label);
    }
    EXPECT_EQ(found, expected) << text;
    EXPECT_TRUE((*list)->classes().empty());
  }
}

TEST(List, RefusesLabelsThatItWouldLose) {
  for (const auto& [text, message] : std::map<std::string, std::string>{
           {R"([{"file": "a.jpg", "label": [1, 2]}])",
            "line 1: its label is no number and no word"},
           {R"({"images": [{"file_name": "a.jpg"}], "annotations": []})",
            "the label of images is no number and no word"},
           {"a.jpg,0.25\nb.jpg,1\n", "there are labels with a fraction"},
           {"a.jpg,0,train\n", "line 1: 3 columns, and no heading says what they are"},
           {"file,x,y\na.jpg,1,2\n", "line 1: none of the columns is the label: file,x,y"},
           {"file,x,label\na.jpg,1\n", "line 2: fewer columns than the heading has"}}) {
    const auto list = parse_list(text, "r");
    ASSERT_FALSE(list.ok()) << text;
    EXPECT_EQ(list.error().message, message);
  }
}

TEST(Braces, AreSpeltOut) {
  EXPECT_EQ(*expand_braces("a{08..10}b"), (std::vector<std::string>{"a08b", "a09b", "a10b"}));
  EXPECT_EQ(*expand_braces("{x,yy}{1..2}"), (std::vector<std::string>{"x1", "x2", "yy1", "yy2"}));
  EXPECT_EQ(*expand_braces("plain"), (std::vector<std::string>{"plain"}));
  EXPECT_FALSE(expand_braces("{0..999999}{0..999999}").ok());
}

TEST(Pack, HoldsTheSameSamplesAndAnIndexOfThem) {
  const TemporaryFolder folder;
  for (int i = 0; i < 5; ++i)
    folder.write("data/class" + std::to_string(i % 2) + "/" + std::to_string(i) + ".jpg",
                 make_jpeg({}, static_cast<unsigned>(i)));
  folder.write("data/class1/bad.jpg", {1, 2, 3});
  JpegKind kind;
  kind.progressive = true;
  folder.write("data/class1/progressive.jpg", make_jpeg(kind));
  const auto source = open(folder.path() + "/data");
  const std::string path = folder.path() + "/data.fpack";
  std::vector<std::string> bad;
  const auto result =
      pack(*source, path, 2, [&](const BadSample& sample) { bad.push_back(sample.file); });
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->samples, 7U);
  EXPECT_EQ(result->indexed, 5U);
  EXPECT_EQ(bad, std::vector<std::string>{folder.path() + "/data/class1/bad.jpg"});
  const auto packed = open(path);
  EXPECT_EQ(packed->classes(), source->classes());
  EXPECT_EQ(all_of(*packed), all_of(*source));
  const auto index = SeekIndex::load(packed->seek_index(), 7, 0);
  ASSERT_TRUE(index.ok()) << index.error().message;
  for (uint64_t i = 0; i < 7; ++i) {
    const std::string picture = take(*packed, i).picture;
    const auto found = (*index)->find(
        i, fingerprint({reinterpret_cast<const uint8_t*>(picture.data()), picture.size()}));
    EXPECT_EQ(found.checkpoints.empty(),
              packed->name(i).ends_with("bad.jpg") || packed->name(i).ends_with("progressive.jpg"));
  }
}

TEST(Pack, MayBeCutWhileItIsRead) {
  const TemporaryFolder folder;
  folder.write("data/a.jpg", make_jpeg({}));
  folder.write("data/b.jpg", make_jpeg({}));
  const std::string path = folder.path() + "/a.fpack";
  ASSERT_TRUE(pack(*open(folder.path() + "/data"), path, 1, [](const BadSample&) {}).ok());
  const auto source = open(path);
  for (const off_t size : {100, 0}) {
    ASSERT_EQ(::truncate(path.c_str(), size), 0);
    EXPECT_EQ(take(*source, 1).outcome, Outcome::kTruncated);
    EXPECT_EQ(source->name(1), path + "/");
  }
}

TEST(Pack, NoticesDamage) {
  const TemporaryFolder folder;
  folder.write("data/1.jpg", make_jpeg({}, 1));
  const auto source = open(folder.path() + "/data");
  ASSERT_TRUE(pack(*source, folder.path() + "/a.fpack", 1, [](const BadSample&) {}).ok());
  std::vector<uint8_t> data;
  ASSERT_TRUE(read_file(folder.path() + "/a.fpack", 1 << 20, data).ok());
  auto cut = data;
  cut.resize(cut.size() - 1);
  folder.write("cut.fpack", cut);
  EXPECT_FALSE(open_source(folder.path() + "/cut.fpack").ok());
  data[100] ^= 1;
  EXPECT_EQ(outcome_of(folder, "flipped.fpack", data), Outcome::kCorrupt);
}

TEST(SeekIndex, ComesBackFromItsFile) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/index";
  SeekIndex index(4, 1000);
  const std::vector<Checkpoint> places{{1, {2, 3, 4, 5}}, {6, {-7, 8, -9, 10}}};
  EXPECT_TRUE(index.find(1, 11).wanted);
  index.put(1, 11, places);
  index.put(2, 22, {});
  ASSERT_TRUE(index.save(path).ok());
  const auto loaded = SeekIndex::load(path, 4, 1000);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const auto same = [](const SeekIndex::Found& found, const std::vector<Checkpoint>& expected) {
    return std::equal(found.checkpoints.begin(), found.checkpoints.end(), expected.begin(),
                      expected.end());
  };
  EXPECT_TRUE(same((*loaded)->find(1, 11), places));
  EXPECT_TRUE((*loaded)->find(1, 12).wanted);  // another picture by now
  EXPECT_TRUE(same((*loaded)->find(2, 22), {}));
  EXPECT_FALSE((*loaded)->find(2, 22).wanted);
  EXPECT_TRUE((*loaded)->find(3, 0).wanted);
  EXPECT_FALSE(SeekIndex::load(path, 5, 1000).ok());
  {
    const std::string cut = folder.path() + "/cut while it is used";
    std::filesystem::copy_file(path, cut);
    const auto used = SeekIndex::load(cut, 4, 1000);
    ASSERT_EQ(::truncate(cut.c_str(), 0), 0);
    EXPECT_TRUE((*used)->find(1, 11).wanted);
    EXPECT_TRUE((*used)->find(1, 11).checkpoints.empty());
  }
  std::vector<uint8_t> bytes;
  ASSERT_TRUE(read_file(path, 1 << 20, bytes).ok());
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto damaged = bytes;
    damaged[i] ^= 0x80;
    folder.write("damaged", damaged);
    const auto other = SeekIndex::load(folder.path() + "/damaged", 4, 1000);
    if (other.ok()) {
      EXPECT_LE((*other)->find(1, 11).checkpoints.size(), 2U);
    }
    damaged.resize(i);
    folder.write("cut", damaged);
    EXPECT_FALSE(SeekIndex::load(folder.path() + "/cut", 4, 1000).ok());
  }
}

TEST(SeekIndex, TakesNoMoreThanItMay) {
  SeekIndex index(1000, 100);
  const std::vector<Checkpoint> places(4);
  for (uint64_t i = 0; i < 3; ++i) {
    if (index.find(i, 0).wanted) index.put(i, 0, places);
  }
  EXPECT_FALSE(index.find(5, 0).wanted);
}

}  // namespace
}  // namespace flatout::feed
