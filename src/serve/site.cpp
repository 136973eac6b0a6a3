#include "serve/site.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/lower.h"
#include "base/secret.h"
#include "base/text.h"
#include "report/live_html.h"

namespace flatout::serve {
namespace {

constexpr size_t kLeastToken = 16, kMostToken = 512;

bool is_unreserved(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.' ||
         c == '~';
}

std::string random_text() {
  std::array<unsigned char, 24> bytes{};
  FLATOUT_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  std::string out;
  for (const unsigned char byte : bytes) out += fmt::format("{:02x}", byte);
  return out;
}

// The value of `name` in "a=b&name=value": not decoded, since nothing that is asked for needs it.
std::string_view argument(std::string_view query, std::string_view name) {
  for (const std::string_view part : split(query, '&')) {
    const size_t equals = part.find('=');
    if (equals != std::string_view::npos && part.substr(0, equals) == name) {
      return part.substr(equals + 1);
    }
  }
  return "";
}

std::string_view cookie(std::string_view header, std::string_view name) {
  for (const std::string_view part : split(header, ';')) {
    const std::string_view pair = trim(part);
    const size_t equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == name) {
      return pair.substr(equals + 1);
    }
  }
  return "";
}

// A Host header that leads to this machine whatever a name server says.
bool is_local_name(std::string_view host) {
  std::string_view name = host;
  if (name.starts_with('[')) {
    const size_t end = name.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view rest = name.substr(end + 1);
    return (rest.empty() || rest.starts_with(':')) &&
           is_loopback(std::string(name.substr(1, end - 1)));
  }
  name = name.substr(0, name.find(':'));
  if (name.ends_with('.')) name.remove_suffix(1);
  const std::string plain = lower(name);
  return plain == "localhost" || plain.ends_with(".localhost") || is_loopback(plain);
}

// No browser takes it for an address of another server.
bool is_own_path(std::string_view path) {
  return path.starts_with('/') && !path.starts_with("//") &&
         std::all_of(path.begin(), path.end(), [](char c) { return c == '/' || is_unreserved(c); });
}

Response text(int status, std::string body) {
  Response out;
  out.status = status;
  out.body = std::make_shared<const std::string>(std::move(body));
  return out;
}

Response document(std::string_view type, std::string body) {
  Response out = text(200, std::move(body));
  out.type = type;
  return out;
}

Response not_found() { return text(404, "There is no such page or run.\n"); }

Response json(std::optional<std::string> body) {
  return body ? document("application/json", std::move(*body)) : not_found();
}

Response page(report::Page made) {
  Response out = document("text/html; charset=utf-8", std::move(made.html));
  out.headers.emplace_back("Content-Security-Policy", made.policy + "; frame-ancestors 'none'");
  return out;
}

// Says when a run's revision changes (id "": that of the list).
class StateEvents : public EventStream {
 public:
  StateEvents(RunStore& store, std::string id, RunState state)
      : store_(store), id_(std::move(id)), state_(state) {}

  std::optional<std::string> next(Nanos most) override {
    if (!told_) {
      told_ = true;
      return "retry: 3000\n" + event();
    }
    if (over_) return std::nullopt;
    const auto now = store_.wait(id_, state_.revision, most);
    if (!now) return std::nullopt;
    if (now->revision == state_.revision) return "";
    state_ = *now;
    return event();
  }

 private:
  std::string event() {
    over_ = !id_.empty() && !state_.live;
    return fmt::format("event: state\ndata: {{\"revision\":{},\"live\":{}}}\n\n", state_.revision,
                       state_.live);
  }

  RunStore& store_;
  std::string id_;
  RunState state_;
  bool told_ = false;
  bool over_ = false;  // a run that has ended says nothing more
};

Response events(RunStore& store, std::string_view id) {
  const auto state = store.wait(id, 0, Nanos(0));
  if (!state) return not_found();
  Response out;
  out.type = "text/event-stream";
  out.events = std::make_unique<StateEvents>(store, std::string(id), *state);
  return out;
}

}  // namespace

bool is_good_token(std::string_view token) {
  return token.size() >= kLeastToken && token.size() <= kMostToken &&
         std::all_of(token.begin(), token.end(), is_unreserved);
}

report::Exposition preferred_exposition(std::string_view accept) {
  double best_open = 0, best_plain = 0;
  for (const std::string_view range : split(accept, ',')) {
    const auto parts = split(range, ';');
    const std::string_view type = trim(parts[0]);
    double q = 1;
    for (size_t i = 1; i < parts.size(); ++i) {
      const std::string_view part = trim(parts[i]);
      if (part.starts_with("q=")) q = parse_number<double>(part.substr(2)).value_or(0);
    }
    if (type == "application/openmetrics-text") best_open = std::max(best_open, q);
    if (type == "text/plain" || type == "text/*" || type == "*/*") {
      best_plain = std::max(best_plain, q);
    }
  }
  return best_open > 0 && best_open >= best_plain ? report::Exposition::kOpenMetrics
                                                  : report::Exposition::kPrometheus;
}

Site::Site(RunStore& store, SiteOptions options)
    : store_(store),
      options_(std::move(options)),
      cookie_("flatout_" + random_text().substr(0, 8)),
      session_(random_text()) {}

Site::Access Site::access_of(const Request& request, std::string_view query) const {
  if (options_.token.empty()) return Access::kGranted;
  const std::string_view given = argument(query, "token");
  if (!given.empty() && same_secret(given, options_.token)) return Access::kByLink;
  const std::string bearer = request.header("Authorization").value_or("");
  if (bearer.starts_with("Bearer ") && same_secret(bearer.substr(7), options_.token)) {
    return Access::kGranted;
  }
  const std::string cookies = request.header("Cookie").value_or("");
  return same_secret(cookie(cookies, cookie_), session_) ? Access::kGranted : Access::kDenied;
}

Response Site::respond(const Request& request) {
  std::string_view target = request.target;
  auto host = request.header("Host");
  // As proxies are asked: then its host counts (RFC 9112, 3.2.2).
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (!host || !target.starts_with(scheme)) continue;
    target.remove_prefix(scheme.size());
    host = target.substr(0, target.find_first_of("/?"));
    target.remove_prefix(host->size());
    if (target.empty()) target = "/";
    break;
  }
  const size_t mark = std::min(target.find('?'), target.size());
  const std::string_view path = target.substr(0, mark);
  const std::string_view query = target.substr(std::min(mark + 1, target.size()));
  Response out;
  if (request.method != "GET" && request.method != "HEAD") {
    out = text(405, "Only GET and HEAD are answered: nothing can be changed here.\n");
    out.headers.emplace_back("Allow", "GET, HEAD");
  } else if (!host) {
    out = text(400, "The request names no host, or two.\n");
  } else if (options_.token.empty() && !is_local_name(*host)) {
    out = text(403,
               "This server answers to localhost and loopback numbers only. For another name, "
               "start it with --token-file.\n");
  } else if (path == "/healthz") {
    out = text(200, "ok\n");
  } else {
    const Access access = access_of(request, query);
    // Another site's page may lead here by a link, and nothing else.
    const std::string site = request.header("Sec-Fetch-Site").value_or("none");
    const bool foreign = site == "cross-site" || site == "same-site";
    if (foreign && request.header("Sec-Fetch-Mode").value_or("") != "navigate") {
      out = text(403, "Another site's page may not ask for this.\n");
    } else if (access == Access::kDenied) {
      out = text(401,
                 "A token is needed: open /?token=TOKEN, or send \"Authorization: Bearer TOKEN\"; "
                 "it stands in the file that --token-file names.\n");
      out.headers.emplace_back("WWW-Authenticate", "Bearer");
    } else if (access == Access::kByLink) {
      // The token goes out of the address, and with it out of the history.
      out = text(303, "");
      out.headers.emplace_back("Location", is_own_path(path) ? std::string(path) : "/");
      out.headers.emplace_back(
          "Set-Cookie", fmt::format("{}={}; Path=/; HttpOnly; SameSite=Lax{}", cookie_, session_,
                                    options_.encrypted ? "; Secure" : ""));
    } else {
      out = route(request, path, query);
    }
  }
  const auto add = [&](const char* name, const char* value) {
    out.headers.emplace_back(name, value);
  };
  const bool has_policy = std::any_of(out.headers.begin(), out.headers.end(), [](const auto& h) {
    return h.first == "Content-Security-Policy";
  });
  if (!has_policy) {
    add("Content-Security-Policy", "default-src 'none'; base-uri 'none'; frame-ancestors 'none'");
  }
  add("X-Content-Type-Options", "nosniff");
  add("X-Frame-Options", "DENY");
  add("Referrer-Policy", "no-referrer");
  add("Cross-Origin-Resource-Policy", "same-origin");
  add("Cross-Origin-Opener-Policy", "same-origin");
  add("Cache-Control", "no-store");
  return out;
}

Response Site::route(const Request& request, std::string_view path, std::string_view query) {
  if (path == "/") return page(report::runs_page());
  if (path == "/runs.json") return document("application/json", store_.runs_json());
  if (path == "/events") return events(store_, "");
  if (path == "/metrics") {
    const auto exposition = preferred_exposition(request.header("Accept").value_or(""));
    return document(report::content_type(exposition), store_.metrics(exposition));
  }
  if (path == "/favicon.ico") return text(204, "");
  const std::string_view older = argument(query, "old"), newer = argument(query, "new");
  if (path == "/compare.json") return json(store_.comparison_json(older, newer));
  if (path == "/compare") {
    const auto found = store_.comparison(older, newer);
    if (!found) return not_found();
    return page(report::live_page(newer, *found->html, found->state.revision, false));
  }
  if (path.starts_with("/run/")) return route_run(path.substr(5));
  return not_found();
}

Response Site::route_run(std::string_view rest) {
  const std::string_view id = rest.substr(0, rest.find('/'));
  const std::string_view what = rest.substr(id.size());
  if (id.empty()) return not_found();
  if (what == "/events") return events(store_, id);
  if (what == "/findings.json") return json(store_.findings_json(id));
  if (what == "/run.json") return json(store_.run_json(id));
  if (!what.empty() && what != "/body") return not_found();
  const auto found = store_.report(id);
  if (!found) return not_found();
  if (what.empty()) {
    return page(report::live_page(id, *found->html, found->state.revision, found->state.live));
  }
  Response out;
  out.type = "text/html; charset=utf-8";
  out.body = found->html;
  return out;
}

}  // namespace flatout::serve
