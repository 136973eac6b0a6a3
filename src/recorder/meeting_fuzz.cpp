// Any bytes from a guest, with the right greeting and without: nothing is made but whole folders in
// their place, and the next guest is served.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/fs.h"
#include "base/result.h"
#include "recorder/meeting.h"
#include "recorder/test_folder.h"

namespace {

using namespace flatout::recorder;  // NOLINT: a program of its own

constexpr std::string_view kToken = "abcdefgh-0123456789";

// What is answered to some bytes; "" where the line is cut.
std::string say(uint16_t port, std::string_view text) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) std::abort();
  (void)!::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
  ::shutdown(fd, SHUT_WR);
  std::string out;
  char buffer[64];
  for (ssize_t got = 1; (got = ::recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    out.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TestFolder folder;
  static const auto meeting = [] {
    std::filesystem::create_directory(folder / "runs");
    return Meeting::open({"127.0.0.1", 0}, std::string(kToken), folder / "runs").value();
  }();
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string text;
  if (data[0] % 4 != 0) text += "flatout-meet 1 " + std::string(kToken) + " name\n";
  if (data[0] % 4 > 1) {
    const std::string json = R"({"rank": 1})";
    text += "rank.json " + std::to_string(json.size()) + "\n" + json;
  }
  const std::string answer = say(meeting->port(), text + std::string(bytes));
  FLATOUT_CHECK(answer.empty() || answer == "go\n" || answer == "go\nok\n" || answer == "have\n");
  FLATOUT_CHECK(flatout::fs::Root(folder.path()).list("").value_or({}).size() == 1);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "runs")) {
    std::error_code ignored;  // what still arrives removes itself
    std::filesystem::remove_all(entry.path(), ignored);
  }
  return 0;
}
