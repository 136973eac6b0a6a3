// Packets for tests, as agents and the recorder write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "wire/messages.h"

namespace flatout::timeline::testing {

class Packets {
 public:
  std::string bytes;
  uint64_t time_ns = 1'000'000'000;
  uint32_t pid = 100, tid = 100;

  Packets& raw(uint16_t type, std::string_view payload) {
    flatout_packet header{};
    header.size = static_cast<uint32_t>((sizeof header + payload.size() + 7) / 8 * 8);
    header.type = type;
    header.pid = pid;
    header.tid = tid;
    header.time_ns = time_ns;
    put(bytes, header);
    bytes.append(payload);
    bytes.append(header.size - sizeof header - payload.size(), '\0');
    return *this;
  }
  template <class T>
  Packets& add(uint16_t type, const T& value, std::string_view tail = {}) {
    std::string payload;
    put(payload, value);
    return raw(type, payload.append(tail));
  }
  Packets& at(uint64_t ns) {
    time_ns = ns;
    return *this;
  }
  Packets& from(uint32_t p, uint32_t t) {
    pid = p;
    tid = t;
    return *this;
  }

  Packets& string(uint32_t id, std::string_view text) {
    return add(FLATOUT_PACKET_STRING, flatout_string{id, static_cast<uint32_t>(text.size())}, text);
  }
  Packets& slice(uint32_t kind, uint64_t begin, uint64_t end, int64_t value = 0, int64_t value2 = 0,
                 uint32_t name = 0) {
    time_ns = end;
    return add(FLATOUT_PACKET_SLICE, flatout_slice{begin, end, kind, name, value, value2});
  }
  Packets& info(std::string_view key, std::string_view value) {
    return raw(FLATOUT_PACKET_INFO, std::string(key) + '\0' + std::string(value));
  }
  Packets& run_info(std::string_view key, std::string_view value) {
    return raw(FLATOUT_PACKET_RUN_INFO, std::string(key) + '\0' + std::string(value));
  }
  Packets& process(int32_t p, uint64_t ticks, uint32_t flags, std::string_view name) {
    const flatout_process in{p, 1, ticks, time_ns, flags | FLATOUT_PROCESS_IN_JOB, 0};
    using namespace std::string_literals;
    return add(FLATOUT_PACKET_PROCESS, in, std::string(name) + "\0exe\0cmd"s);
  }
  Packets& process_end(int32_t p, int32_t status) {
    return add(FLATOUT_PACKET_PROCESS_END, flatout_process_end{p, status, time_ns});
  }
  Packets& entity(uint32_t id, uint16_t kind, int64_t key, std::string_view name) {
    const flatout_entity in{id, kind, 0, key, 0xFFFFFFFF, static_cast<uint32_t>(name.size())};
    return add(FLATOUT_PACKET_ENTITY, in, name);
  }
  Packets& reading(uint32_t entity, uint16_t signal, double value) {
    std::string payload;
    put(payload, flatout_readings{1, 0});
    put(payload, flatout_reading{entity, signal, 0, value});
    return raw(FLATOUT_PACKET_READINGS, payload);
  }
  Packets& thread(uint32_t id, int32_t p, int32_t t, std::string_view name) {
    const flatout_thread in{id, p, t, static_cast<uint32_t>(name.size())};
    return add(FLATOUT_PACKET_THREAD, in, name);
  }
  Packets& frame(uint32_t id, std::string_view function, std::string_view file, uint32_t line) {
    const flatout_frame in{
        id, line, 0, static_cast<uint32_t>(function.size()), static_cast<uint32_t>(file.size()), 0};
    return add(FLATOUT_PACKET_FRAME, in, std::string(function) + '\0' + std::string(file));
  }
  Packets& stack(uint32_t id, uint32_t parent, uint32_t frame) {
    return add(FLATOUT_PACKET_STACK, flatout_stack{id, parent, frame, 0});
  }
  Packets& stack_reading(uint32_t thread, uint32_t stack, uint8_t state) {
    std::string payload;
    put(payload, flatout_readings{1, 0});
    put(payload, flatout_stack_reading{thread, stack, 10'000, state, 0, -1});
    return raw(FLATOUT_PACKET_STACK_READINGS, payload);
  }
};

}  // namespace flatout::timeline::testing
