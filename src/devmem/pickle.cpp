#include "devmem/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/bytes.h"
#include "base/text.h"

namespace flatout::devmem {

using Value = Pickle::Value;
using Index = Pickle::Index;

class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : in_(bytes), size_(bytes.size()) {}

  Result<Pickle> read() {
    while (!done_ && problem_.empty()) step();
    if (problem_.empty() && stack_.size() != 1) fail("more than one value is left at its end");
    if (!problem_.empty())
      return Error{Code::kBadInput, fmt::format("no plain pickle: {}", problem_), hint_};
    out_.root_ = stack_.back();
    return std::move(out_);
  }

 private:
  void fail(std::string what) {
    if (problem_.empty())
      problem_ = fmt::format("{}, at byte {} of {}", what, size_ - in_.left(), size_);
  }

  void push(Value value) {
    stack_.push_back(static_cast<Index>(out_.values_.size()));
    out_.values_.push_back(std::move(value));
  }
  void push_int(int64_t v) { push({Value::kInt, v, {}, {}}); }
  void push_text(uint64_t length) {
    if (length > in_.left()) return fail("cut off");
    push({Value::kString, 0, in_.take(length), {}});
  }

  std::string_view line() {
    const size_t left = in_.left();
    ByteReader copy = in_;
    const std::string_view all = copy.take(left);
    const size_t end = all.find('\n');
    if (end == std::string_view::npos) {
      fail("cut off");
      return {};
    }
    in_.take(end + 1);
    return all.substr(0, end);
  }

  // Little-endian two's complement of any length.
  void push_long(uint64_t length) {
    if (length > in_.left()) return fail("cut off");
    const std::string_view bytes = in_.take(length);
    if (bytes.empty()) return push_int(0);
    const bool negative = static_cast<uint8_t>(bytes.back()) >= 0x80;
    uint64_t value = negative ? ~uint64_t{0} : 0;
    bool fits = true;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const uint64_t byte = static_cast<uint8_t>(bytes[i]);
      if (i < 8) {
        value = (value & ~(uint64_t{0xff} << (8 * i))) | byte << (8 * i);
      } else {
        fits = fits && byte == (negative ? 0xff : 0);
      }
    }
    const auto as_signed = static_cast<int64_t>(value);
    if (!fits || (as_signed < 0) != negative) return push_int(negative ? INT64_MIN : INT64_MAX);
    push_int(as_signed);
  }

  bool need(size_t count) {
    // A mark is no value: what an operation takes must lie above the last one.
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() >= floor + count) return true;
    fail("an operation without its operands");
    return false;
  }
  // What lies above the last mark; the mark goes.
  std::vector<Index> pop_to_mark() {
    if (marks_.empty()) {
      fail("an operation without its mark");
      return {};
    }
    const auto from = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
    std::vector<Index> items(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return items;
  }
  Index pop() {
    const Index top = stack_.back();
    stack_.pop_back();
    return top;
  }
  void add_to(Value::Kind kind, const std::vector<Index>& items) {
    if (!need(1)) return;
    Value& target = out_.values_[stack_.back()];
    if (target.kind != kind || (kind == Value::kDict && items.size() % 2 != 0))
      return fail("items for what is no such container");
    target.items.insert(target.items.end(), items.begin(), items.end());
    check_keys(target);
  }
  void push_container(Value::Kind kind, std::vector<Index> items) {
    if (kind == Value::kDict && items.size() % 2 != 0) return fail("a key without a value");
    push({kind, 0, {}, std::move(items)});
    check_keys(out_.values_.back());
  }
  void check_keys(const Value& value) {
    if (value.kind == Value::kDict && value.items.size() / 2 > Pickle::kMostKeys)
      fail(fmt::format("a dictionary of more than {} keys, which no memory snapshot has",
                       Pickle::kMostKeys));
  }
  void push_tuple(size_t count) {
    if (!need(count)) return;
    std::vector<Index> items(stack_.end() - static_cast<ptrdiff_t>(count), stack_.end());
    stack_.resize(stack_.size() - count);
    push_container(Value::kList, std::move(items));
  }
  void get(std::optional<uint64_t> key) {
    const auto it = key ? memo_.find(*key) : memo_.end();
    if (it == memo_.end()) return fail("a reference to nothing");
    stack_.push_back(it->second);
  }
  void put(std::optional<uint64_t> key) {
    if (!key) return fail("a memo without a number");
    if (need(1)) memo_[*key] = stack_.back();
  }

  void step() {
    const uint8_t op = in_.get<uint8_t>();
    if (!in_.ok()) return fail("cut off");
    switch (op) {
      case 0x80:  // PROTO
        if (in_.get<uint8_t>() > 5) fail("a protocol newer than 5");
        break;
      case 0x95:  // FRAME
        in_.get<uint64_t>();
        break;
      case '.':
        done_ = true;
        if (!marks_.empty()) fail("a mark is left at its end");
        break;
      case '(':
        marks_.push_back(stack_.size());
        break;
      case '0':
        if (need(1)) pop();
        break;
      case '1':
        pop_to_mark();
        break;
      case '2':
        if (need(1)) stack_.push_back(stack_.back());
        break;
      case 'N':
        push({});
        break;
      case 0x88:
      case 0x89:
        push({Value::kBool, op == 0x88, {}, {}});
        break;
      case 'I':
      case 'L': {
        std::string_view digits = line();
        if (op == 'I' && (digits == "00" || digits == "01")) {
          push({Value::kBool, digits == "01", {}, {}});
          break;
        }
        if (digits.ends_with('L')) digits.remove_suffix(1);
        const auto value = parse_number<int64_t>(digits);
        value ? push_int(*value) : fail("no number");
        break;
      }
      case 'J':
        push_int(in_.get<int32_t>());
        break;
      case 'K':
        push_int(in_.get<uint8_t>());
        break;
      case 'M':
        push_int(in_.get<uint16_t>());
        break;
      case 0x8a:
        push_long(in_.get<uint8_t>());
        break;
      case 0x8b:
        push_long(in_.get<uint32_t>());
        break;
      case 'F':
        line();
        push({Value::kFloat, 0, {}, {}});
        break;
      case 'G':
        in_.get<uint64_t>();
        push({Value::kFloat, 0, {}, {}});
        break;
      case 'S':
      case 'V': {
        std::string_view text = line();
        if (op == 'S' && text.size() >= 2) text = text.substr(1, text.size() - 2);
        push({Value::kString, 0, text, {}});
        break;
      }
      case 'U':
      case 'C':
      case 0x8c:
        push_text(in_.get<uint8_t>());
        break;
      case 'T':
      case 'B':
      case 'X':
        push_text(in_.get<uint32_t>());
        break;
      case 0x8d:
      case 0x8e:
        push_text(in_.get<uint64_t>());
        break;
      case ']':
      case ')':
        push_container(Value::kList, {});
        break;
      case '}':
        push_container(Value::kDict, {});
        break;
      case 'l':
      case 't':
        push_container(Value::kList, pop_to_mark());
        break;
      case 'd':
        push_container(Value::kDict, pop_to_mark());
        break;
      case 0x85:
      case 0x86:
      case 0x87:
        push_tuple(op - 0x84u);
        break;
      case 'a':
        if (need(2)) add_to(Value::kList, {pop()});
        break;
      case 'e':
        add_to(Value::kList, pop_to_mark());
        break;
      case 's':
        if (need(3)) {
          const Index value = pop(), key = pop();
          add_to(Value::kDict, {key, value});
        }
        break;
      case 'u':
        add_to(Value::kDict, pop_to_mark());
        break;
      case 'h':
        get(in_.get<uint8_t>());
        break;
      case 'j':
        get(in_.get<uint32_t>());
        break;
      case 'g':
        get(parse_number<uint64_t>(line()));
        break;
      case 'q':
        put(in_.get<uint8_t>());
        break;
      case 'r':
        put(in_.get<uint32_t>());
        break;
      case 'p':
        put(parse_number<uint64_t>(line()));
        break;
      case 0x94:
        put(memo_.size());
        break;
      case 'c':
      case 'i':
      case 'o':
      case 'R':
      case 'b':
      case 'P':
      case 'Q':
      case 0x81:
      case 0x82:
      case 0x83:
      case 0x84:
      case 0x92:
      case 0x93:
        fail("it holds objects of Python classes, which are never loaded");
        hint_ = "a memory snapshot by torch.cuda.memory._dump_snapshot() holds plain data";
        break;
      default:
        fail(fmt::format("an operation that plain data does not need (0x{:02x})", op));
    }
    if (!in_.ok()) fail("cut off");
  }

  ByteReader in_;
  size_t size_;
  Pickle out_;
  std::vector<Index> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Index> memo_;
  bool done_ = false;
  std::string problem_, hint_;
};

Result<Pickle> Pickle::read(std::string_view bytes) { return PickleReader(bytes).read(); }

const Value* Pickle::find(const Value& dict, std::string_view key) const {
  if (dict.kind != Value::kDict) return nullptr;
  for (size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const Value& k = values_[dict.items[i]];
    if (k.kind == Value::kString && k.text == key) return &values_[dict.items[i + 1]];
  }
  return nullptr;
}

std::optional<int64_t> Pickle::integer(const Value& dict, std::string_view key) const {
  const Value* value = find(dict, key);
  if (!value || value->kind != Value::kInt) return std::nullopt;
  return value->integer;
}

std::string_view Pickle::text(const Value& dict, std::string_view key) const {
  const Value* value = find(dict, key);
  return value && value->kind == Value::kString ? value->text : std::string_view();
}

const std::vector<Index>* Pickle::list(const Value& dict, std::string_view key) const {
  const Value* value = find(dict, key);
  return value && value->kind == Value::kList ? &value->items : nullptr;
}

}  // namespace flatout::devmem
