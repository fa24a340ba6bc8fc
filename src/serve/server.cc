#include "serve/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "core/error.h"
#include "core/system_call.h"
#include "serve/access.h"
#include "serve/front.h"
#include "serve/http.h"
#include "serve/supervisor.h"
#include "serve/world_process.h"

namespace tessera::serve {
namespace {

namespace fs = std::filesystem;

// All processes of a server hold the lock of its folder, so that the next server does not start before the
// last of them is gone.
Descriptor take_folder(const fs::path& folder) {
  std::error_code code;
  const bool is_new = fs::create_directories(folder, code);
  if (code) usage_error(field("folder"), "cannot make '{}': {}", folder.string(), code.message());
  if (is_new) ::chmod(folder.c_str(), 0700);  // prompts and results are private
  Descriptor lock(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.number() < 0)
    usage_error(field("folder"), "cannot write to '{}': {}", folder.string(), system_reason(errno));
  // Processes of a server that was killed need a moment to end.
  const Deadline patience = std::chrono::steady_clock::now() + std::chrono::seconds(3);
  while (uninterrupted([&] { return ::flock(lock.number(), LOCK_EX | LOCK_NB); }) != 0) {
    if (std::chrono::steady_clock::now() >= patience)
      usage_error(field("folder"), "another server has '{}'; give this one a folder of its own",
                  folder.string());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return lock;
}

// Whether a numeric address can be reached only from this host.
bool is_of_this_host(const std::string& address) {
  return address.starts_with("unix:") || address.starts_with("127.") || address.starts_with("[::1]:");
}

void remove_socket_file(const std::string& address) {
  constexpr std::string_view kUnix = "unix:";
  if (address.starts_with(kUnix)) ::unlink(address.c_str() + kUnix.size());
}

// The listening sockets, which successive fronts use.
class Listeners {
 public:
  explicit Listeners(const std::vector<std::string>& addresses) {
    for (const std::string& address : addresses) {
      sockets_.emplace_back(listen_on(address));
      addresses_.push_back(address_of(sockets_.back().number()));
    }
  }
  ~Listeners() {
    for (const std::string& address : addresses_) remove_socket_file(address);
  }
  Listeners(const Listeners&) = delete;
  Listeners& operator=(const Listeners&) = delete;

  const std::vector<std::string>& addresses() const { return addresses_; }
  void close() { sockets_.clear(); }
  std::vector<int> release() {
    std::vector<int> numbers;
    for (Descriptor& socket : sockets_) numbers.push_back(socket.release());
    return numbers;
  }

 private:
  std::vector<Descriptor> sockets_;
  std::vector<std::string> addresses_;
};

void require_keys(const ServeOptions& options, const std::vector<std::string>& addresses) {
  if (options.api_keys) read_keys(*options.api_keys);
  if (options.api_keys || options.listen_without_keys) return;
  for (const std::string& address : addresses) {
    if (!is_of_this_host(address))
      usage_error(field("listen"),
                  "{} can be reached from other hosts, and there are no keys; give {}, or {} where all of "
                  "them may use it",
                  address, field("api_keys"), field("listen_without_keys"));
  }
}

}  // namespace

launch::Failure run_server(const ServeOptions& options, const ServerVoice& voice) {
  require_names(options.allow_origin, options.allow_host);
  plan_world(options);  // what no world could do is refused before anybody can ask for it
  const Descriptor lock = take_folder(options.folder);
  Listeners listeners(options.listen);
  require_keys(options, listeners.addresses());
  ServerProcesses processes;
  processes.front = [&](Descriptor control, int64_t restarts) -> launch::Failure {
    return {run_front({.serve = options,
                       .listeners = listeners.release(),
                       .control = control.release(),
                       .restarts = restarts}),
            ""};
  };
  processes.world = [&](int64_t number, Descriptor control, Descriptor port) {
    listeners.close();
    return run_world_process(options, number, std::move(control), std::move(port));
  };
  Supervisor supervisor({.worlds = options.worlds,
                         .drain = std::chrono::milliseconds(std::llround(options.drain * 1000)),
                         .say = voice.line,
                         .on_serving = [&] { voice.serving(listeners.addresses()); }},
                        std::move(processes));
  return supervisor.run();
}

}  // namespace tessera::serve
