// The HTTP server: GNU libmicrohttpd with a thread for each connection, and everything that bounds
// what a client can cost. Nothing else knows that library.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"

namespace flatout::serve {

/// The head of a request, as it was sent: nothing is decoded, everything is hostile.
struct Request {
  std::string method, target;  // "GET", "/run/x?y=z"
  std::vector<std::pair<std::string, std::string>> headers;

  /// The value of a header, whatever the case of its name. nullopt: not there, or there twice.
  std::optional<std::string> header(std::string_view name) const;
  bool has(std::string_view name) const;
};

/// Server-sent events, a text at a time.
class EventStream {
 public:
  virtual ~EventStream() = default;
  /// Waits at most so long for the next text. "": nothing yet; nullopt: there is no more.
  virtual std::optional<std::string> next(Nanos most) = 0;
};

struct Response {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::shared_ptr<const std::string> body;
  std::vector<std::pair<std::string, std::string>> headers;
  std::unique_ptr<EventStream> events;  // in place of the body
};

/// May be called by many threads at once, and may block.
using Handler = std::function<Response(const Request&)>;

/// What a client can have, and for how long. Whoever exceeds it loses the connection.
struct HttpLimits {
  unsigned connections = 192;
  unsigned event_streams = 128;                  // of these; more are told 503
  size_t head_bytes = size_t{32} << 10;          // memory for a connection's request
  Nanos head_time = std::chrono::seconds(15);    // from the last answer to a whole request
  Nanos answer_time = std::chrono::seconds(60);  // to take the answer
  Nanos heartbeat = std::chrono::seconds(10);    // of a quiet event stream
};

/// For HTTPS, as PEM: a certificate, with its chain, and its key. Without: plain HTTP.
struct Tls {
  std::string certificate, key;
};

/// Whether `address` is one of this machine's own loopback; only numbers are known.
bool is_loopback(const std::string& address);

class HttpServer {
 public:
  /// Listens on a numeric address; port 0: any that is free. Errors: kBadInput (no such address),
  /// kDenied, kFull (the port is in use), kIo, kUnsupported (the library was built without TLS).
  static Result<std::unique_ptr<HttpServer>> start(const std::string& address, uint16_t port,
                                                   Handler handler, const HttpLimits& limits = {},
                                                   const std::optional<Tls>& tls = std::nullopt);
  /// Ends all connections. Event streams must have ended, or be about to.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;
  unsigned event_streams() const;

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace flatout::serve
