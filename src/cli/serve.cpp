// flatout serve: runs in a browser and their metrics, over HTTP.
#include "cli/serve.h"

#include <fmt/format.h>
#include <malloc.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/json_file.h"
#include "cli/merged.h"
#include "cli/outputs.h"
#include "diagnose/compare.h"
#include "recorder/folder.h"
#include "serve/http.h"
#include "serve/run_store.h"
#include "serve/site.h"
#include "timeline/import_folder.h"

namespace flatout::cli {
namespace {

const Usage kServe{
    "serve",
    "[DIR...] [options]",
    "Shows runs in a browser, live ones as they go on, and gives their metrics to Prometheus. DIR "
    "is a run folder or holds run folders; without, flatout-runs. Nothing can be changed over it, "
    "and it listens on this machine's loopback only, unless told otherwise.",
    "  flatout serve                                    # http://127.0.0.1:8610/\n"
    "  flatout serve /scratch/me/flatout-runs --port 9000\n"
    "  flatout serve --listen 0.0.0.0 --token-file ~/.flatout-token --tls-cert c.pem --tls-key "
    "k.pem\n"
    "  ssh -L 8610:127.0.0.1:8610 gpu-node              # else: the loopback of another machine",
    {"listen", "port", "token_file", "tls_cert", "tls_key"},
    true,
    false,
    false,
    0,
    1000};

constexpr int kPortsToTry = 32;                              // from the usual one on
constexpr rlim_t kFiles = 1024;                              // clients and run folders
constexpr int64_t kFreshSeconds = 10;                        // a file that is being written
constexpr auto kFarewell = std::chrono::milliseconds(1500);  // for pages to fetch the end
constexpr size_t kMostPem = 1 << 20;

class FollowedRun : public serve::RunSource {
 public:
  explicit FollowedRun(std::unique_ptr<timeline::FolderFollower> folder)
      : folder_(std::move(folder)) {}
  bool read(bool ended) override { return folder_->read(MonotonicClock::now(), ended); }
  model::Run& run() override { return folder_->run(); }

 private:
  std::unique_ptr<timeline::FolderFollower> folder_;
};

class FolderReader : public serve::RunReader {
 public:
  bool is_run(const std::string& folder) const override { return recorder::is_run_folder(folder); }

  // Locked by its recorder. Where a file system has no locks, and for the moment in which a new
  // recording has none yet: written to just now, and without the file that its end leaves.
  bool is_live(const std::string& folder) const override {
    if (recorder::is_live(folder)) return true;
    struct stat info;
    return ::lstat((folder + "/findings.json").c_str(), &info) != 0 &&
           ::lstat((folder + "/series.bin").c_str(), &info) == 0 &&
           ::time(nullptr) - info.st_mtim.tv_sec < kFreshSeconds;
  }

  Result<std::unique_ptr<serve::RunSource>> open(const std::string& folder,
                                                 size_t max_bytes) override {
    FLATOUT_TRY(auto follower, timeline::FolderFollower::open(folder, max_bytes));
    return std::unique_ptr<serve::RunSource>(std::make_unique<FollowedRun>(std::move(follower)));
  }
  model::Diagnosis judge(model::Run& run) override { return cli::judge(run); }
  model::Comparison compare(model::Run& older, model::Run& newer) override {
    return diagnose::compare(older, newer);
  }
};

Result<std::string> read_token(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!file || !std::getline(file, line)) {
    return Error{Code::kNotFound, "cannot read a token from " + escape_terminal(path),
                 "head -c 24 /dev/urandom | base64 | tr +/ -_ > FILE; chmod 600 FILE"};
  }
  const std::string token(trim(line));
  if (!serve::is_good_token(token)) {
    return Error{Code::kBadInput,
                 "the first line of " + escape_terminal(path) +
                     " is no token: 16 or more of letters, digits and -_.~",
                 "head -c 24 /dev/urandom | base64 | tr +/ -_ > FILE; chmod 600 FILE"};
  }
  return token;
}

Result<std::string> read_pem(const std::string& path) {
  std::ifstream file(path);
  std::string text(kMostPem, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  if (text.find("-----BEGIN ") == std::string::npos) {
    return Error{Code::kNotFound, "cannot read PEM from " + escape_terminal(path),
                 "a file with -----BEGIN CERTIFICATE----- or -----BEGIN PRIVATE KEY-----"};
  }
  return text;
}

// nullopt: HTTP without encryption.
Result<std::optional<serve::Tls>> read_tls(const Settings& settings) {
  if (settings.tls_cert.empty()) return std::optional<serve::Tls>();
  FLATOUT_TRY(std::string certificate, read_pem(settings.tls_cert));
  FLATOUT_TRY(std::string key, read_pem(settings.tls_key));
  return std::optional(serve::Tls{std::move(certificate), std::move(key)});
}

Result<std::vector<std::string>> find_folders(const std::vector<std::string>& named) {
  std::vector<std::string> out;
  for (const std::string& path : named.empty() ? std::vector<std::string>{"flatout-runs"} : named) {
    char* full = ::realpath(path.c_str(), nullptr);
    struct stat info;
    const bool folder = full != nullptr && ::stat(full, &info) == 0 && S_ISDIR(info.st_mode);
    // Of a merged folder the runs that it was made of.
    const std::vector<std::string> parts = folder ? merged_from(full) : std::vector<std::string>();
    out.insert(out.end(), parts.begin(), parts.end());
    if (folder && parts.empty()) out.emplace_back(full);
    ::free(full);
    if (!folder) {
      return Error{Code::kNotFound, "there is no folder " + escape_terminal(path),
                   "name a run folder, or a folder of them, as flatout run makes"};
    }
  }
  return out;
}

// On the port asked for; on the usual one, or the next that is free, where none was.
Result<std::unique_ptr<serve::HttpServer>> start_server(const std::string& address, int64_t port,
                                                        const serve::Handler& handler,
                                                        const std::optional<serve::Tls>& tls) {
  const bool usual = port == Settings().port;
  for (int i = 0;; ++i) {
    auto server =
        serve::HttpServer::start(address, static_cast<uint16_t>(port + i), handler, {}, tls);
    const bool taken = !server.ok() && server.error().code == Code::kFull;
    if (!taken || !usual || i + 1 >= kPortsToTry) return server;
  }
}

std::string url_of(const std::string& address, uint16_t port, bool encrypted) {
  const bool v6 = address.find(':') != std::string::npos;
  return fmt::format("{}://{}{}{}:{}/", encrypted ? "https" : "http", v6 ? "[" : "", address,
                     v6 ? "]" : "", port);
}

// Sockets and arenas for many connections, and signals that end the waiting below.
void prepare_process(sigset_t& ending) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kFiles) {
    files.rlim_cur = std::min<rlim_t>(files.rlim_max, kFiles);
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ::mallopt(M_ARENA_MAX, 4);  // else each connection's thread has its own
  ::signal(SIGPIPE, SIG_IGN);
  sigemptyset(&ending);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, signal);
  ::pthread_sigmask(SIG_BLOCK, &ending, nullptr);
}

int wait_for_signal(const sigset_t& ending) {
  int signal = 0;
  while (::sigwait(&ending, &signal) != 0) {
  }
  return signal;
}

}  // namespace

int serve(const std::vector<std::string>& arguments) {
  int code = 0;
  const auto settings = parse(kServe, arguments, code);
  if (!settings) return code;
  const auto serving = read_serving(*settings);
  if (!serving.ok()) return fail(serving.error());
  const std::string& address = serving->address;
  serve::SiteOptions site_options;
  site_options.token = serving->token;
  site_options.encrypted = serving->tls.has_value();
  if (!serve::is_loopback(address) && !site_options.encrypted) {
    log_warning(
        "the token goes over the network for others to read; --tls-cert and --tls-key encrypt it");
  }
  auto folders = find_folders(settings->positional);
  if (!folders.ok()) return fail(folders.error());

  sigset_t ending;
  prepare_process(ending);
  FolderReader reader;
  serve::RunStore store(std::move(folders).value(), reader, FLATOUT_VERSION);
  serve::Site site(store, site_options);
  store.look(MonotonicClock::now());  // so that the first who asks finds the runs
  auto server = start_server(
      address, settings->port, [&](const serve::Request& request) { return site.respond(request); },
      serving->tls);
  if (!server.ok()) return fail(server.error());
  store.start();
  const std::string url = url_of(address, (*server)->port(), site_options.encrypted);
  if (settings->json) {
    const nlohmann::ordered_json told{
        {"url", url}, {"address", address}, {"port", (*server)->port()}};
    const Status put = write_text("", told.dump() + "\n");
    if (!put.ok()) log_warning(put.error().message);
    end_json_file(0);  // for who waits for it
  } else {
    fmt::print(stderr, "flatout: serving {}{}\n", url,
               site_options.token.empty() ? "" : "?token=TOKEN");
  }
  const int signal = wait_for_signal(ending);
  // With its recording: whoever watches gets the end of it.
  if (signal == SIGTERM && (*server)->event_streams() > 0) {
    store.look_at_all();
    std::this_thread::sleep_for(kFarewell);
  }
  store.stop();
  return 0;
}

Result<Serving> read_serving(const Settings& settings) {
  Serving out;
  out.address = settings.listen == "localhost" ? "127.0.0.1" : settings.listen;
  if (out.address.starts_with('[') && out.address.ends_with(']')) {  // as in a URL
    out.address = out.address.substr(1, out.address.size() - 2);
  }
  if (!settings.token_file.empty()) {
    FLATOUT_TRY(out.token, read_token(settings.token_file));
  }
  if (!serve::is_loopback(out.address) && out.token.empty()) {
    return Error{
        Code::kBadInput,
        "without a token flatout serve listens on loopback only, not on " +
            escape_terminal(out.address),
        "--token-file FILE; or from the other machine: ssh -L 8610:127.0.0.1:8610 THIS-ONE"};
  }
  if (settings.tls_cert.empty() != settings.tls_key.empty()) {
    return Error{Code::kBadInput, "--tls-cert and --tls-key belong together",
                 "flatout serve --tls-cert c.pem --tls-key k.pem"};
  }
  FLATOUT_TRY(out.tls, read_tls(settings));
  return out;
}

std::unique_ptr<HelperProcess> serve_beside(const std::string& folder, const Settings& settings) {
  if (folder.empty()) {
    log_warning("--serve needs a run folder, and none could be written");
    return nullptr;
  }
  std::vector<std::string> words = {"serve",         folder,   "--listen",
                                    settings.listen, "--port", std::to_string(settings.port)};
  if (!settings.token_file.empty()) {
    words.insert(words.end(), {"--token-file", settings.token_file});
  }
  if (!settings.tls_cert.empty()) {
    words.insert(words.end(), {"--tls-cert", settings.tls_cert, "--tls-key", settings.tls_key});
  }
  auto helper = HelperProcess::start(std::move(words));
  if (helper == nullptr) log_warning("cannot start the server of --serve");
  return helper;
}

}  // namespace flatout::cli
