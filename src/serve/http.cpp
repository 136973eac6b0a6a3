#include "serve/http.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "base/fs.h"
#include "base/text.h"

namespace flatout::serve {
namespace {

constexpr Nanos kSweep = std::chrono::milliseconds(500);
constexpr Nanos kLookForHangUp = std::chrono::seconds(1);
constexpr unsigned kIdleSeconds = 30;             // without a byte in either direction
constexpr unsigned kUnacknowledgedMs = 20'000;    // a peer that has vanished
constexpr size_t kThreadStack = size_t{1} << 20;  // a report is rendered on it
constexpr size_t kEventBlock = 4096;
constexpr int kBacklog = 128;
// As GnuTLS writes it; nothing older is needed by any browser or Prometheus.
constexpr char kTlsVersions[] = "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2";

// An address and its size, as the socket calls want them.
struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

std::optional<Address> parse_address(const std::string& text, uint16_t port) {
  Address out;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
  if (::inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    out.size = sizeof *v4;
    return out;
  }
  out = {};
  if (::inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    out.size = sizeof *v6;
    return out;
  }
  return std::nullopt;
}

Result<int> listen_on(const std::string& address, uint16_t port) {
  const auto parsed = parse_address(address, port);
  if (!parsed) {
    return Error{Code::kBadInput, escape_terminal(address) + " is not an address of numbers",
                 "127.0.0.1, ::1, 0.0.0.0 or :: for all"};
  }
  const int fd = ::socket(parsed->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return fs::error_from_errno(errno, "cannot open a socket");
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&parsed->storage), parsed->size) == 0 &&
      ::listen(fd, kBacklog) == 0) {
    return fd;
  }
  const int failed = errno;
  ::close(fd);
  Error error = fs::error_from_errno(
      failed, fmt::format("cannot listen on {} port {}", escape_terminal(address), port));
  if (failed == EADDRINUSE) {
    error.code = Code::kFull;
    error.hint = "another server has it; --port 0 takes one that is free";
  }
  return error;
}

uint16_t port_of(int fd) {
  Address own;
  own.size = sizeof own.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&own.storage), &own.size) != 0) return 0;
  return ntohs(own.storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6*>(&own.storage)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&own.storage)->sin_port);
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

struct Connection {
  int fd = -1;
  TimePoint since;         // of the last change of state
  bool answering = false;  // its request is here
  bool streaming = false;
};

// One request and its answer; lives from the request line to the end of the answer.
struct Exchange {
  explicit Exchange(const char* uri) : target(uri == nullptr ? "" : uri) {}
  std::string target;
  bool seen = false;  // its head
};

}  // namespace

std::optional<std::string> Request::header(std::string_view name) const {
  std::optional<std::string> out;
  for (const auto& [key, value] : headers) {
    if (!same_name(key, name)) continue;
    if (out) return std::nullopt;
    out = value;
  }
  return out;
}

bool Request::has(std::string_view name) const {
  return std::any_of(headers.begin(), headers.end(),
                     [&](const auto& header) { return same_name(header.first, name); });
}

bool is_loopback(const std::string& address) {
  const auto parsed = parse_address(address, 0);
  if (!parsed) return false;
  if (parsed->storage.ss_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&parsed->storage);
    return (ntohl(v4->sin_addr.s_addr) >> 24) == 127;
  }
  const in6_addr& v6 = reinterpret_cast<const sockaddr_in6*>(&parsed->storage)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

class HttpServer::Impl {
 public:
  Impl(Handler handler, const HttpLimits& limits, const std::optional<Tls>& tls)
      : handler_(std::move(handler)), limits_(limits), tls_(tls) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (sweeper_.joinable()) sweeper_.join();
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }

  Status start(int listening) {
    port_ = port_of(listening);
    unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_THREAD_PER_CONNECTION;
    std::vector<MHD_OptionItem> encryption;
    if (tls_) {
      flags |= MHD_USE_TLS;
      encryption = {{MHD_OPTION_HTTPS_MEM_CERT, 0, tls_->certificate.data()},
                    {MHD_OPTION_HTTPS_MEM_KEY, 0, tls_->key.data()},
                    {MHD_OPTION_HTTPS_PRIORITIES, 0, const_cast<char*>(kTlsVersions)}};
    }
    encryption.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ =
        MHD_start_daemon(flags, 0, nullptr, nullptr, &Impl::on_request, this,           //
                         MHD_OPTION_ARRAY, encryption.data(),                           //
                         MHD_OPTION_LISTEN_SOCKET, listening,                           //
                         MHD_OPTION_CONNECTION_LIMIT, limits_.connections,              //
                         MHD_OPTION_CONNECTION_TIMEOUT, kIdleSeconds,                   //
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, limits_.head_bytes,        //
                         MHD_OPTION_THREAD_STACK_SIZE, kThreadStack,                    //
                         MHD_OPTION_STRICT_FOR_CLIENT, 1,                               //
                         MHD_OPTION_UNESCAPE_CALLBACK, &Impl::leave_as_it_is, nullptr,  //
                         MHD_OPTION_URI_LOG_CALLBACK, &Impl::on_target, this,           //
                         MHD_OPTION_NOTIFY_CONNECTION, &Impl::on_connection, this,      //
                         MHD_OPTION_NOTIFY_COMPLETED, &Impl::on_completed, this, MHD_OPTION_END);
    if (daemon_ == nullptr) {
      ::close(listening);
      if (!tls_) return Error{Code::kIo, "cannot start the HTTP server", ""};
      if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES) {
        return Error{Code::kUnsupported, "this libmicrohttpd was built without TLS", ""};
      }
      return Error{Code::kBadInput, "the certificate and the key are no pair",
                   "PEM: the certificate with its chain, and its key without a passphrase"};
    }
    sweeper_ = std::thread([this] { sweep(); });
    return {};
  }

  uint16_t port() const { return port_; }
  unsigned event_streams() const { return streams_; }

 private:
  class Stream {
   public:
    Stream(Impl& server, std::unique_ptr<EventStream> events, int fd)
        : server_(server), events_(std::move(events)), fd_(fd), written_(MonotonicClock::now()) {
      ++server_.streams_;
    }
    ~Stream() { --server_.streams_; }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    ssize_t read(char* out, size_t most) {
      while (pending_.empty()) {
        if (server_.stopping_) return MHD_CONTENT_READER_END_OF_STREAM;
        auto text = events_->next(kLookForHangUp);
        if (!text) return MHD_CONTENT_READER_END_OF_STREAM;
        pending_ = std::move(*text);
        if (!pending_.empty()) break;
        if (hung_up()) return MHD_CONTENT_READER_END_WITH_ERROR;
        if (MonotonicClock::now() - written_ >= server_.limits_.heartbeat) pending_ = ":\n\n";
      }
      const size_t size = std::min(most, pending_.size());
      std::memcpy(out, pending_.data(), size);
      pending_.erase(0, size);
      written_ = MonotonicClock::now();
      return static_cast<ssize_t>(size);
    }

   private:
    bool hung_up() const {
      pollfd poll{fd_, POLLRDHUP, 0};
      return ::poll(&poll, 1, 0) > 0 && (poll.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }

    Impl& server_;
    std::unique_ptr<EventStream> events_;
    int fd_;
    TimePoint written_;
    std::string pending_;
  };

  // Paths and queries are taken apart by who knows what they mean.
  static size_t leave_as_it_is(void*, MHD_Connection*, char* text) { return std::strlen(text); }

  static void* on_target(void*, const char* uri, MHD_Connection*) { return new Exchange(uri); }

  static void on_completed(void* self, MHD_Connection* connection, void** exchange,
                           MHD_RequestTerminationCode) {
    delete static_cast<Exchange*>(*exchange);
    *exchange = nullptr;
    static_cast<Impl*>(self)->set_state(connection, false, false);
  }

  static void on_connection(void* self, MHD_Connection* connection, void** context,
                            MHD_ConnectionNotificationCode what) {
    auto& server = *static_cast<Impl*>(self);
    const std::lock_guard lock(server.mutex_);
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
      auto* old = static_cast<Connection*>(*context);
      server.connections_.erase(old);
      delete old;
      return;
    }
    auto made = std::make_unique<Connection>();
    made->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    made->since = MonotonicClock::now();
    ::setsockopt(made->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnacknowledgedMs,
                 sizeof kUnacknowledgedMs);
    *context = made.get();
    server.connections_.insert(made.release());
  }

  static Connection* context_of(MHD_Connection* connection) {
    const auto* info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info == nullptr ? nullptr : static_cast<Connection*>(info->socket_context);
  }

  void set_state(MHD_Connection* connection, bool answering, bool streaming) {
    const std::lock_guard lock(mutex_);
    Connection* state = context_of(connection);
    if (state == nullptr) return;
    state->since = MonotonicClock::now();
    state->answering = answering;
    state->streaming = streaming;
  }

  // An exception must not leave through the library's frames.
  static MHD_Result on_request(void* self, MHD_Connection* connection, const char*,
                               const char* method, const char*, const char*, size_t* upload_size,
                               void** context) noexcept {
    auto& exchange = *static_cast<Exchange*>(*context);
    auto& server = *static_cast<Impl*>(self);
    Request request;
    request.method = method;
    request.target = exchange.target;
    MHD_get_connection_values(
        connection, MHD_HEADER_KIND,
        [](void* into, MHD_ValueKind, const char* key, const char* value) {
          static_cast<Request*>(into)->headers.emplace_back(key, value == nullptr ? "" : value);
          return MHD_YES;
        },
        &request);
    const auto length = request.header("Content-Length");
    const bool body = request.has("Transfer-Encoding") ||
                      (request.has("Content-Length") && length != std::optional<std::string>("0"));
    if (body || *upload_size != 0) {
      Response refused;
      refused.status = 413;
      refused.body = std::make_shared<const std::string>("No request has a body here.\n");
      refused.headers.emplace_back("Connection", "close");
      return server.answer(connection, std::move(refused));
    }
    if (!exchange.seen) {  // the library wants the answer after the (empty) body
      exchange.seen = true;
      return MHD_YES;
    }
    server.set_state(connection, true, false);
    return server.answer(connection, server.handler_(request));
  }

  MHD_Result answer(MHD_Connection* connection, Response response) {
    if (response.events != nullptr && streams_ >= limits_.event_streams) {
      response.events.reset();
      response.status = 503;
      response.type = "text/plain; charset=utf-8";
      response.body = std::make_shared<const std::string>("Too many pages are being followed.\n");
      response.headers.emplace_back("Retry-After", "10");
    }
    MHD_Response* out = nullptr;
    if (response.events != nullptr) {
      set_state(connection, true, true);
      const int fd =
          MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
      out = MHD_create_response_from_callback(
          MHD_SIZE_UNKNOWN, kEventBlock,
          [](void* stream, uint64_t, char* into, size_t most) {
            return static_cast<Stream*>(stream)->read(into, most);
          },
          new Stream(*this, std::move(response.events), fd),
          [](void* stream) { delete static_cast<Stream*>(stream); });
    } else {
      // The body is shared: hundred readers of a report hold it once.
      using Body = std::shared_ptr<const std::string>;
      auto* body = new Body(response.body != nullptr ? std::move(response.body)
                                                     : std::make_shared<const std::string>());
      out = MHD_create_response_from_buffer_with_free_callback_cls(
          (*body)->size(), const_cast<char*>((*body)->data()),
          [](void* held) { delete static_cast<Body*>(held); }, body);
    }
    if (out == nullptr) return MHD_NO;
    MHD_add_response_header(out, MHD_HTTP_HEADER_CONTENT_TYPE, response.type.c_str());
    for (const auto& [name, value] : response.headers) {
      MHD_add_response_header(out, name.c_str(), value.c_str());
    }
    const MHD_Result queued =
        MHD_queue_response(connection, static_cast<unsigned>(response.status), out);
    MHD_destroy_response(out);
    return queued;
  }

  // Hangs up on whoever takes too long: the library's own limit begins anew with each byte.
  void sweep() {
    std::unique_lock lock(mutex_);
    while (!stopping_) {
      const TimePoint now = MonotonicClock::now();
      for (const Connection* connection : connections_) {
        const Nanos limit = connection->answering ? limits_.answer_time : limits_.head_time;
        if (!connection->streaming && now - connection->since > limit) {
          ::shutdown(connection->fd, SHUT_RDWR);
        }
      }
      changed_.wait_for(lock, kSweep);
    }
  }

  Handler handler_;
  HttpLimits limits_;
  std::optional<Tls> tls_;
  MHD_Daemon* daemon_ = nullptr;
  uint16_t port_ = 0;
  std::atomic<unsigned> streams_ = 0;
  std::atomic<bool> stopping_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<Connection*> connections_;  // owned by the library's notification of their end
  std::thread sweeper_;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
uint16_t HttpServer::port() const { return impl_->port(); }
unsigned HttpServer::event_streams() const { return impl_->event_streams(); }

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, uint16_t port,
                                                      Handler handler, const HttpLimits& limits,
                                                      const std::optional<Tls>& tls) {
  FLATOUT_TRY(const int listening, listen_on(address, port));
  auto impl = std::make_unique<Impl>(std::move(handler), limits, tls);
  FLATOUT_TRY_STATUS(impl->start(listening));
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace flatout::serve
