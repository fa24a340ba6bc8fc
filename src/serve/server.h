// A whole server: its folder, its listening sockets and its processes.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "launch/failure.h"
#include "serve/options.h"

namespace tessera::serve {

// How a server reports to its user.
struct ServerVoice {
  // called once, when it answers requests
  std::function<void(const std::vector<std::string>& addresses)> serving;
  std::function<void(const std::string& line)> line;  // what is lost and replaced, and which world is ready
};

// Runs a server (serve/supervisor.h) and returns how it ended: with exit code 0 after a drain. Must be called
// on the only thread of a process that has not computed. Throws Error for anything that plan_world() refuses,
// and Error(kUsage) if it cannot listen, if another server uses the folder, or if everybody could reach it
// without a key and the options do not allow that.
launch::Failure run_server(const ServeOptions& options, const ServerVoice& voice);

}  // namespace tessera::serve
