#include "plan/calibration/kept_machine.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "core/error.h"
#include "core/file.h"
#include "core/folders.h"
#include "core/host.h"
#include "core/system_call.h"
#include "engine/request.h"
#include "launch/cores.h"

namespace tessera::plan {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCalibration = "calibration";
constexpr const char* kHost = "host";

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Bf16:
      return "avx512_bf16";
    case Isa::kAmx:
      return "amx";
    default:
      return "baseline";
  }
}

// Letters and digits, with a single dash for anything else.
std::string name_part(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte) != 0) {
      name += static_cast<char>(std::tolower(byte));
    } else if (!name.empty() && name.back() != '-') {
      name += '-';
    }
  }
  while (name.ends_with('-')) name.pop_back();
  return name;
}

// Held by one process at a time, until it ends. Does nothing if the file system lacks such locks.
class FolderLock {
 public:
  FolderLock(const fs::path& folder, const std::function<void()>& before_waiting)
      : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_.number() < 0 || ::flock(folder_.number(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
      return;
    before_waiting();
    while (::flock(folder_.number(), LOCK_EX) != 0 && errno == EINTR) {
    }
  }

 private:
  Descriptor folder_;
};

// The reason why a file cannot be used for the host, or the machine in it.
struct Kept {
  std::optional<Machine> machine;
  std::string reason;
};

Kept read_kept(const fs::path& path, const Json& key) {
  std::error_code code;
  if (!fs::exists(path, code)) return {};
  try {
    Machine machine = read_machine(path);
    const Json host = machine.text.value(kCalibration, Json::object()).value(kHost, Json());
    if (host == key) return {std::move(machine), ""};
    return {std::nullopt, fmt::format("{} is of another calibration", path.string())};
  } catch (const Error& error) {
    return {std::nullopt, spell(error.message())};
  } catch (const Json::exception&) {  // the calibration is not an object
    return {std::nullopt, fmt::format("{} is of another calibration", path.string())};
  }
}

// Why nothing can be kept at the path; empty if something can.
std::string why_not_kept(const std::optional<fs::path>& path) {
  if (!path) return "neither XDG_CACHE_HOME nor HOME names a folder";
  std::error_code code;
  fs::create_directories(path->parent_path(), code);
  if (code) return fmt::format("{}: {}", path->parent_path().string(), code.message());
  try {
    require_writable(*path);
  } catch (const Error& error) {
    return spell(error.message());
  }
  return "";
}

}  // namespace

Json host_key(const CalibrationOptions& options) {
  Json dtypes = Json::array();
  for (const at::ScalarType dtype : options.dtypes) dtypes.push_back(engine::dtype_name(dtype));
  return {{"processor", processor_name()},       {"cores", launch::allowed_cores().size()},
          {"threads", options.threads},          {"ranks", options.ranks},
          {"instructions", isa_name(cpu_isa())}, {"dtypes", std::move(dtypes)},
          {"version", TESSERA_VERSION},          {"calibration", kCalibrationVersion}};
}

std::optional<fs::path> kept_machine_path(const Json& key) {
  const auto folder = cache_folder();
  if (!folder) return std::nullopt;
  const auto number = [&](const char* name) { return key.at(name).get<int64_t>(); };
  const std::string name = name_part(fmt::format(
      "{} {} cores {} ranks {} threads {} {}", key.at("processor").get<std::string>(), number("cores"),
      number("ranks"), number("threads"), key.at("instructions").get<std::string>(),
      fmt::join(key.at("dtypes").get<std::vector<std::string>>(), " ")));
  return *folder / "machines" / (name + ".json");
}

Machine machine_of_host(const CalibrationOptions& options, const std::function<OrderedJson()>& measure,
                        const Say& say) {
  const Json key = host_key(options);
  const auto path = kept_machine_path(key);
  if (path) {
    if (Kept kept = read_kept(*path, key); kept.machine) return std::move(*kept.machine);
  }
  const std::string obstacle = why_not_kept(path);
  std::optional<FolderLock> lock;
  Kept kept;
  if (obstacle.empty()) {
    lock.emplace(path->parent_path(), [&] { say("another run is measuring this host; waiting for it"); });
    kept = read_kept(*path, key);
    if (kept.machine) return std::move(*kept.machine);
  }
  const std::string again = kept.reason.empty() ? "" : kept.reason + "; ";
  say(obstacle.empty() ? fmt::format("{}measuring this host once, about {:.0f} s; kept in {}", again,
                                     options.seconds, path->string())
                       : fmt::format("measuring this host, about {:.0f} s; it cannot be kept: {}",
                                     options.seconds, obstacle));
  OrderedJson machine = measure();
  machine[kCalibration][kHost] = key;
  if (!obstacle.empty()) return read_machine(JsonConfig(Json(machine), "this host"));
  try {
    AtomicFile file(*path);
    file.write(machine.dump() + "\n");
    file.commit();
  } catch (const Error& error) {
    say(fmt::format("what was measured is not kept: {}", spell(error.message())));
    return read_machine(JsonConfig(Json(machine), "this host"));
  }
  return read_machine(*path);
}

}  // namespace tessera::plan
