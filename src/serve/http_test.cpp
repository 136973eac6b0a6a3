// The server over real sockets: what clients do wrong on purpose, and many of them at once.
#include "serve/http.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::serve {
namespace {

constexpr int kPatienceMs = 20'000;  // for what happens at once on a machine that is not busy

class Client {
 public:
  explicit Client(uint16_t port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~Client() { ::close(fd_); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  bool connected() const { return connected_; }
  bool send(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t put = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (put <= 0) return false;
      text.remove_prefix(static_cast<size_t>(put));
    }
    return true;
  }
  // Until the other side closes, `enough` is found, or patience ends.
  std::string read(std::string_view enough = "") const {
    std::string out;
    char buffer[16384];
    pollfd poll{fd_, POLLIN, 0};
    while (::poll(&poll, 1, kPatienceMs) == 1) {
      const ssize_t got = ::recv(fd_, buffer, sizeof buffer, 0);
      if (got <= 0) return out;
      out.append(buffer, static_cast<size_t>(got));
      if (!enough.empty() && out.find(enough) != std::string::npos) return out;
    }
    return out + "(still open)";
  }
  void end_sending() const { ::shutdown(fd_, SHUT_WR); }

 private:
  int fd_;
  bool connected_ = false;
};

std::string get(const std::string& target) {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
}

// "/NUMBER": a body of so many bytes; "/events": a stream that is told when to go on.
class HttpTest : public ::testing::Test {
 protected:
  void start(const HttpLimits& limits = {}) {
    auto started = HttpServer::start(
        "127.0.0.1", 0, [this](const Request& request) { return respond(request); }, limits);
    ASSERT_TRUE(started.ok()) << started.error().message;
    server = std::move(started).value();
  }
  ~HttpTest() override {
    go_on(1 << 20);
    server.reset();
  }

  Response respond(const Request& request) {
    ++answered;
    Response out;
    if (request.target == "/events") {
      out.type = "text/event-stream";
      out.events = std::make_unique<Ticks>(*this);
      return out;
    }
    const auto size = parse_number<size_t>(request.target.substr(1));
    out.body = std::make_shared<const std::string>(size ? std::string(*size, 'x') : request.target);
    return out;
  }
  void go_on(int ticks) {
    {
      const std::lock_guard lock(mutex);
      told = ticks;
    }
    changed.notify_all();
  }
  std::string ask(std::string_view raw) const {
    const Client client(server->port());
    client.send(raw);
    return client.read();
  }

  class Ticks : public EventStream {
   public:
    explicit Ticks(HttpTest& test) : test_(test) {}
    std::optional<std::string> next(Nanos most) override {
      std::unique_lock lock(test_.mutex);
      test_.changed.wait_for(lock, most, [&] { return test_.told > sent_; });
      if (test_.told == 1 << 20) return std::nullopt;
      if (test_.told <= sent_) return "";
      return "data: " + std::to_string(++sent_) + "\n\n";
    }

   private:
    HttpTest& test_;
    int sent_ = 0;
  };

  std::mutex mutex;
  std::condition_variable changed;
  int told = 0;
  std::atomic<int> answered = 0;
  std::unique_ptr<HttpServer> server;
};

TEST_F(HttpTest, AnswersInFull) {
  start();
  const std::string answer = ask(get("/100000"));
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n"));
  EXPECT_TRUE(answer.ends_with(std::string(100'000, 'x')));
  EXPECT_TRUE(ask(get("/a%2fb?c=%20d")).ends_with("\r\n\r\n/a%2fb?c=%20d"));  // as it was sent
}

TEST_F(HttpTest, KeepsAConnectionForTheNextRequest) {
  start();
  const Client client(server->port());
  for (int i = 0; i < 5; ++i) {
    client.send("GET /7 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_TRUE(client.read("xxxxxxx").ends_with("xxxxxxx"));
  }
}

TEST_F(HttpTest, ListensOnlyWhereItIsTold) {
  start();
  Client elsewhere(server->port());
  EXPECT_TRUE(elsewhere.connected());
  // No socket of this process listens on another address: /proc/net/tcp has it as hex.
  const auto table = fs::Root("/").read("proc/net/tcp", 16 << 20);
  ASSERT_TRUE(table.ok());
  std::string_view rest = *table, line;
  const std::string port = [&] {
    char text[8];
    std::snprintf(text, sizeof text, ":%04X", server->port());
    return std::string(text);
  }();
  int found = 0;
  while (next_line(rest, line)) {
    next_word(line);
    const std::string_view local = next_word(line);
    next_word(line);
    if (!local.ends_with(port) || next_word(line) != "0A") continue;  // LISTEN
    EXPECT_TRUE(local.starts_with("0100007F")) << local;
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST_F(HttpTest, SaysWhyItCannotListen) {
  start();
  const auto taken =
      HttpServer::start("127.0.0.1", server->port(), [](const Request&) { return Response(); });
  ASSERT_FALSE(taken.ok());
  EXPECT_EQ(taken.error().code, Code::kFull);
  const auto nowhere = HttpServer::start("name", 0, [](const Request&) { return Response(); });
  ASSERT_FALSE(nowhere.ok());
  EXPECT_EQ(nowhere.error().code, Code::kBadInput);
}

TEST_F(HttpTest, RequestsThatAreTooBigOrHaveABodyAreRefused) {
  start();
  std::string many = "GET / HTTP/1.1\r\nHost: localhost\r\n";
  for (int i = 0; i < 5000; ++i) many += "X-" + std::to_string(i) + ": y\r\n";
  for (const std::string& raw :
       {get("/" + std::string(100'000, 'a')),
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: " + std::string(100'000, 'b') + "\r\n\r\n",
        many + "\r\n",
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"),
        std::string("GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")}) {
    const std::string answer = ask(raw);
    EXPECT_TRUE(answer.empty() || answer.starts_with("HTTP/1.1 4")) << answer.substr(0, 200);
  }
  EXPECT_EQ(answered, 0);
  EXPECT_TRUE(ask(get("/1")).ends_with("x"));
}

TEST_F(HttpTest, HangsUpOnASlowRequestThoughEachByteComesInTime) {
  HttpLimits limits;
  limits.head_time = std::chrono::milliseconds(300);
  start(limits);
  const Client idle(server->port()), slow(server->port());
  std::thread trickle([&] {
    const std::string request = get("/1") + std::string(1'000'000, ' ');
    for (const char c : request.substr(0, 30)) {
      if (!slow.send(std::string_view(&c, 1))) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  });
  EXPECT_EQ(slow.read(), "");
  EXPECT_EQ(idle.read(), "");
  trickle.join();
  EXPECT_EQ(answered, 0);
}

TEST_F(HttpTest, HangsUpOnAReaderThatDoesNotRead) {
  HttpLimits limits;
  limits.answer_time = std::chrono::milliseconds(300);
  start(limits);
  const Client slow(server->port());
  slow.send(get("/50000000"));  // more than the socket's buffers hold
  std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_LT(slow.read().size(), 50'000'000u);
}

TEST_F(HttpTest, HundredClientsFollowAtOnceAndOthersAreAnsweredMeanwhile) {
  start();
  std::vector<Client> clients;
  for (int i = 0; i < 100; ++i) {
    clients.emplace_back(server->port());
    ASSERT_TRUE(clients.back().send(get("/events")));
  }
  for (int tick = 1; tick <= 3; ++tick) {
    go_on(tick);
    const std::string want = "data: " + std::to_string(tick) + "\n\n";
    for (const Client& client : clients) {
      ASSERT_NE(client.read(want).find(want), std::string::npos);
    }
    EXPECT_EQ(server->event_streams(), 100u);
    EXPECT_TRUE(ask(get("/3")).ends_with("xxx"));
  }
  // All of them go: their threads notice and end.
  clients.clear();
  for (int i = 0; i < 200 && server->event_streams() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  EXPECT_EQ(server->event_streams(), 0u);
}

TEST_F(HttpTest, MoreStreamsThanThereMayBeAreToldSo) {
  HttpLimits limits;
  limits.event_streams = 2;
  start(limits);
  go_on(1);
  const Client a(server->port()), b(server->port());
  for (const Client* client : {&a, &b}) {
    client->send(get("/events"));
    client->read("data: 1");
  }
  EXPECT_TRUE(ask(get("/events")).starts_with("HTTP/1.1 503"));
  EXPECT_TRUE(ask(get("/1")).starts_with("HTTP/1.1 200"));
}

TEST_F(HttpTest, EndsAtOnceThoughClientsAreConnected) {
  start();
  go_on(1);
  const Client stream(server->port()), idle(server->port());
  stream.send(get("/events"));
  stream.read("data: 1");
  go_on(1 << 20);
  server.reset();
  EXPECT_EQ(stream.read().find("(still open)"), std::string::npos);
  EXPECT_EQ(idle.read(), "");
}

// Real requests cut up, mixed and spoilt: whatever comes, the next one is answered.
TEST_F(HttpTest, SurvivesSpoiltRequests) {
  start();
  std::mt19937 random(7);
  const auto pick = [&](size_t n) {
    return std::uniform_int_distribution<size_t>(0, n - 1)(random);
  };
  const std::vector<std::string> pieces = {"GET ",
                                           "HEAD ",
                                           "POST ",
                                           "PRI * HTTP/2.0",
                                           "/",
                                           "/7",
                                           "*",
                                           " HTTP/1.1",
                                           " HTTP/1.0",
                                           " HTTP/9.9",
                                           "\r\n",
                                           "\n",
                                           "\r",
                                           "\r\n\r\n",
                                           "Host: localhost",
                                           "Host:",
                                           ": ",
                                           "Content-Length: 5",
                                           "Content-Length: -1",
                                           "Content-Length: 1e9",
                                           "Transfer-Encoding: chunked",
                                           "Connection: close",
                                           "Upgrade: websocket",
                                           "Expect: 100-continue",
                                           "Range: bytes=0-1",
                                           "Cookie: a=b",
                                           "\xff\xfe",
                                           std::string(3, '\0'),
                                           "%",
                                           "%zz",
                                           "?",
                                           "a=b&",
                                           std::string(9000, 'A'),
                                           "\x16\x03\x01\x02"};
  for (int i = 0; i < 400; ++i) {
    const Client client(server->port());
    for (size_t n = 1 + pick(12); n > 0; --n) client.send(pieces[pick(pieces.size())]);
    client.end_sending();
    EXPECT_EQ(client.read().find("(still open)"), std::string::npos) << i;
  }
  EXPECT_TRUE(ask(get("/7")).ends_with("xxxxxxx"));
}

TEST_F(HttpTest, WithoutAPairOfCertificateAndKeyThereIsNoServer) {
  const auto started = HttpServer::start(
      "127.0.0.1", 0, [](const Request&) { return Response(); }, {},
      Tls{"-----BEGIN CERTIFICATE-----\nnone\n", "-----BEGIN PRIVATE KEY-----\nnone\n"});
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.error().code, Code::kBadInput);
}

TEST(Loopback, IsKnownByItsNumbers) {
  for (const char* address : {"127.0.0.1", "127.255.0.3", "::1", "::ffff:127.0.0.1"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost", "", "127.1", "::ffff:10.0.0.1"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

}  // namespace
}  // namespace flatout::serve
