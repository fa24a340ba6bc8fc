#include "cli/generate_command.h"

#include <ATen/Parallel.h>
#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "cli/painting.h"
#include "cli/values.h"
#include "comm/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "core/file.h"
#include "launch/board.h"
#include "launch/cores.h"
#include "launch/failure.h"
#include "launch/launcher.h"
#include "launch/signals.h"
#include "launch/streams.h"

namespace tessera::cli {
namespace {

// More on one host is a mistake.
constexpr int64_t kMostRanks = 1024;

comm::Rendezvous with_options(comm::Rendezvous place, const MessageOptions& messages) {
  if (messages.timeout) place.timeout = *messages.timeout;
  if (messages.interface) place.interface = *messages.interface;
  place.shared_memory = !messages.no_shared_memory;
  if (messages.interface && place.shared_memory && place.local_world_size == place.world_size) {
    usage_error("--interface",
                "all ranks are on this host and share memory; leave it out, or add --no-shared-memory");
  }
  if (!place.interface.empty()) require_interface(place.interface);
  return place;
}

// One thread where ranks share a host, else what libtorch takes: all cores.
void set_threads(const std::optional<int>& wish, int64_t local_ranks) {
  if (wish || local_ranks > 1) at::set_num_threads(wish.value_or(1));
}

// Only the threads that compute are pinned: those that move messages exist already when this is called, and
// take whatever core is idle.
void pin_rank(const comm::Rendezvous& place) {
  if (place.local_world_size == 1) return;
  launch::pin_to(launch::share_of(launch::allowed_cores(), place.local_rank, place.local_world_size,
                                  at::get_num_threads()));
}

// c10d tells of lost peers on stderr too, with stack frames. TORCH_CPP_LOG_LEVEL brings that back.
void silence_libtorch() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 3;  // fatal ones
}

// The painting on the device of the rank with this number on its host.
Painting on_own_device(Painting painting, int64_t local_rank) {
  at::Device& device = painting.settings.request.device;
  device = use_device(device, local_rank);
  return painting;
}

int run_alone(const Painting& painting) {
  set_threads(painting.arguments.threads, 1);
  comm::World world;
  launch::RankStatus status;
  paint(on_own_device(painting, 0), world, status, launch::interrupted);
  return 0;
}

int run_on_own_ranks(const Painting& painting) {
  if (painting.ranks() > kMostRanks)
    usage_error("--nproc", "{} ranks on one host, at most {}", painting.ranks(), kMostRanks);
  comm::Rendezvous common;
  common.interface = "lo";
  common = with_options(common, painting.arguments.messages);
  const launch::Launched launched = launch::launch_ranks(
      painting.ranks(), common, [&](const comm::Rendezvous& place, launch::Board& board) {
        launch::RankStatus& status = board.rank(place.rank);
        silence_libtorch();
        set_threads(painting.arguments.threads, place.local_world_size);
        // Lives as long as the process: its end would wait for ranks that are gone.
        auto& world = *new comm::World(comm::World::join(place));
        status.joined();
        pin_rank(place);
        paint(on_own_device(painting, place.local_rank), world, status,
              [&board, &place] { return board.must_end(place.rank); });
      });
  if (launched.failure.exit_code == 0) return 0;
  for (const pid_t process : launched.processes) {
    for (const std::string& path : painting.outputs) remove_unfinished_file(path, process);
    for (const auto& file : {painting.arguments.report, painting.arguments.trace}) {
      if (file) remove_unfinished_file(*file, process);
    }
  }
  // A bar may stand on the terminal.
  if (::isatty(STDERR_FILENO) == 1) launch::say("\r\033[K");
  return launch::tell(launched.failure);
}

const GenerateArguments& require_generate(const Command& command) {
  const auto* arguments = std::get_if<GenerateArguments>(&command);
  TESSERA_CHECK(arguments, "not a command line of generate");
  return *arguments;
}

// What rank 0 tells the others: its command line and what it chose for it, or that it failed. Fields end with
// NUL, which no word of a command line holds.
std::string encode(const std::vector<std::string>& fields) {
  std::string text;
  for (const std::string& field : fields) text += field + '\0';
  return text;
}

std::vector<std::string> decode(const std::string& text) {
  std::vector<std::string> fields;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\0', begin), text.size());
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

constexpr size_t kChoices = 3;  // fields before the words

// On all ranks: the painting of rank 0's command line.
Painting agree(const std::vector<std::string>& words, const comm::Group& world) {
  if (world.rank == 0) {
    try {
      const GenerateArguments arguments = require_generate(parse_arguments(words));
      Painting painting = plan_painting(arguments, world.size);
      require_outputs(painting);
      std::vector<std::string> fields = {"go", std::to_string(arguments.request.seed),
                                         std::to_string(static_cast<int>(arguments.request.dtype))};
      fields.insert(fields.end(), words.begin(), words.end());
      comm::broadcast_bytes(encode(fields), 0, world);
      return painting;
    } catch (...) {
      const launch::Failure failure = launch::current_failure();
      comm::broadcast_bytes(encode({"failed", std::to_string(failure.exit_code)}), 0, world);
      throw;
    }
  }
  const std::vector<std::string> fields = decode(comm::broadcast_bytes({}, 0, world));
  TESSERA_CHECK(fields.size() >= 2, "rank 0 sent {} fields", fields.size());
  if (fields[0] != "go") ::_exit(static_cast<int>(parse_integer("rank 0", fields[1])));  // rank 0 says why
  TESSERA_CHECK(fields.size() > kChoices, "rank 0 sent {} fields", fields.size());
  GenerateArguments arguments = require_generate(parse_arguments({fields.begin() + kChoices, fields.end()}));
  arguments.request.seed = parse_seed("--seed", fields[1]);
  arguments.request.dtype = static_cast<at::ScalarType>(parse_integer("--dtype", fields[2]));
  return plan_painting(arguments, world.size);
}

// Options of messages by this rank's own words. When these are wrong, rank 0 will say so to all.
MessageOptions own_message_options(const std::vector<std::string>& words) {
  try {
    return require_generate(parse_arguments(words)).messages;
  } catch (const Error&) {
    return {};
  }
}

}  // namespace

int run_generate(const GenerateArguments& arguments, std::optional<int64_t> world_size) {
  const Painting painting = plan_painting(arguments, world_size);
  require_outputs(painting);
  return painting.ranks() == 1 ? run_alone(painting) : run_on_own_ranks(painting);
}

void run_generate_as_rank(const std::vector<std::string>& words, const comm::Rendezvous& launched) {
  launch::RankStatus status;
  int exit_code = 0;
  launch::end_at_first_interrupt();
  silence_libtorch();
  try {
    comm::Rendezvous place = launched;
    if (place.local_world_size == place.world_size) place.interface = "lo";
    place = with_options(place, own_message_options(words));
    // A launcher may have chosen cores for its ranks already.
    const bool may_pin = launch::all_cores_allowed();
    auto& world = *new comm::World(comm::World::join(place));
    status.joined();
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const Painting painting = agree(words, world.group(all, "world"));
    set_threads(painting.arguments.threads, place.local_world_size);
    if (may_pin) pin_rank(place);
    paint(on_own_device(painting, place.local_rank), world, status, [] { return false; });
    launch::flush_output();
  } catch (...) {
    launch::Failure failure = launch::current_failure();
    failure.message = fmt::format("[rank {}] {}, {}", launched.rank, failure.message, status.place());
    exit_code = launch::tell(failure);
  }
  // Without the cleaning up that would wait for other ranks.
  ::_exit(exit_code);
}

}  // namespace tessera::cli
