// What is answered to whom: who may ask at all, which path means what. A function of the request
// and the store, without a socket.
#pragma once

#include <string>
#include <string_view>

#include "serve/http.h"
#include "serve/run_store.h"

namespace flatout::serve {

struct SiteOptions {
  // Whoever has it may ask from anywhere. Empty: only who speaks to this machine by a loopback name
  // or number is answered, so that no name that another page's owner controls can lead here.
  std::string token;
  bool encrypted = false;  // by TLS: the cookie is for such connections only
};

/// Letters, digits and -_.~, at least 16: such a token needs no escaping anywhere, and nobody
/// guesses it.
bool is_good_token(std::string_view token);

/// Which of the two formats an Accept header prefers.
report::Exposition preferred_exposition(std::string_view accept);

class Site {
 public:
  Site(RunStore& store, SiteOptions options);
  Response respond(const Request& request);

 private:
  enum class Access { kGranted, kByLink, kDenied };
  Access access_of(const Request& request, std::string_view query) const;
  Response route(const Request& request, std::string_view path, std::string_view query);
  Response route_run(std::string_view rest);

  RunStore& store_;
  SiteOptions options_;
  // Made anew with each start; browsers keep one cookie of a name for all ports of a host.
  std::string cookie_, session_;
};

}  // namespace flatout::serve
