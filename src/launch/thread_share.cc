#include "launch/thread_share.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/host.h"
#include "launch/cores.h"

namespace tessera::launch {
namespace {

namespace fs = std::filesystem;

// Two threads on two cores waited for 0 to 2 % of their time when nothing else ran, and for 27 to 63 % beside
// another such program or a compiler.
constexpr double kMuch = 0.15, kLittle = 0.05;
// Shorter spans are not meaningful, because a thread waits for whole time slices of the scheduler.
constexpr auto kLeastSpan = std::chrono::milliseconds(10);
// More threads are used only if cores are idle at every look for this long, or at this many looks.
constexpr double kCalmSeconds = 0.1;
constexpr int kCalmLooks = 3;

// Calls `visit` with the folder of each thread of this process.
template <typename Visit>
void visit_threads(const Visit& visit) {
  std::error_code code;
  for (fs::directory_iterator thread("/proc/self/task", code), end; !code && thread != end;
       thread.increment(code))
    visit(thread->path());
}

// Returns the number of cores of the host that are idle, not counting this process.
int64_t idle_cores(int64_t cores) {
  double load = 0;
  int64_t running = 0, own = 0;
  char slash = 0;
  std::ifstream loads("/proc/loadavg");
  loads >> load >> load >> load >> running >> slash;
  if (!loads || slash != '/') return 0;
  visit_threads([&](const fs::path& folder) {
    std::string line;
    std::getline(std::ifstream(folder / "stat"), line);
    const size_t name_end = line.rfind(')');  // the name may hold anything
    if (name_end != std::string::npos && line.compare(name_end, 3, ") R") == 0) ++own;
  });
  return cores - std::max<int64_t>(running - own, 0);
}

}  // namespace

int64_t fitting_threads(int64_t now, int64_t most, const CoreUse& use) {
  if (use.waiting > kMuch) {
    const auto served = static_cast<int64_t>(std::floor(static_cast<double>(now) * (1 - use.waiting)));
    return std::clamp<int64_t>(served, 1, std::max<int64_t>(now - 1, 1));
  }
  if (use.waiting > kLittle) return now;
  return std::clamp(use.idle, now, most);
}

ThreadShare::ThreadShare() : most_(at::get_num_threads()), threads_(most_), last_(look()) {}

ThreadShare::~ThreadShare() {
  if (threads_ != most_) set_threads(static_cast<int>(most_));
}

std::optional<ThreadShare::Look> ThreadShare::look() {
  double nanoseconds = 0;
  bool known = false;
  visit_threads([&](const fs::path& folder) {
    double run = 0, waited = 0;
    std::ifstream file(folder / "schedstat");
    if (!(file >> run >> waited)) return;
    known = true;
    nanoseconds += waited;
  });
  if (!known) return std::nullopt;
  return Look{std::chrono::steady_clock::now(), nanoseconds / 1e9};
}

void ThreadShare::fit() {
  if (most_ == 1 || !last_ || std::chrono::steady_clock::now() - last_->time < kLeastSpan) return;
  const std::optional<Look> now = look();
  if (!now) return;
  const double seconds = std::chrono::duration<double>(now->time - last_->time).count();
  CoreUse use{.waiting = std::clamp(
                  (now->waited_seconds - last_->waited_seconds) / (seconds * static_cast<double>(threads_)),
                  0.0, 1.0)};
  last_ = now;
  if (threads_ < most_ && use.waiting <= kLittle)
    use.idle = idle_cores(static_cast<int64_t>(allowed_cores().size()));
  int64_t wanted = fitting_threads(threads_, most_, use);
  calm_ = wanted > threads_ ? calm_ + std::max(seconds / kCalmSeconds, 1.0 / kCalmLooks) : 0;
  if (wanted > threads_ && calm_ < 1) wanted = threads_;
  if (wanted == threads_) return;
  threads_ = set_threads(static_cast<int>(wanted));
}

}  // namespace tessera::launch
