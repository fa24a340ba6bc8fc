#include "launch/rank_environment.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "comm/address.h"
#include "core/error.h"

namespace tessera::launch {
namespace {

struct Launcher {
  const char* title;
  const char *rank, *size, *local_rank, *local_size;
  const char *job, *job_part;  // what the launcher calls the job
};
constexpr Launcher kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", nullptr},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMIX_NAMESPACE", nullptr},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", nullptr, "SLURM_JOB_ID", "SLURM_STEP_ID"}};

constexpr int64_t kMostRanks = 1 << 20;

std::optional<int64_t> read_integer(const Environment& get, const char* name, int64_t least, int64_t most) {
  const char* text = name ? get(name) : nullptr;
  if (!text) return std::nullopt;
  int64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto result = std::from_chars(text, end, value);
  if (result.ec != std::errc() || result.ptr != end || value < least || value > most)
    usage_error(name, "the launcher's variable must be an integer from {} to {}, got '{}'", least, most,
                text);
  return value;
}

// Reads the number of ranks on this host from "2(x3),1": three hosts with two ranks each, then one host with
// one.
std::optional<int64_t> slurm_local_size(const Environment& get) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const char* text = get(name);
    const auto node = read_integer(get, "SLURM_NODEID", 0, kMostRanks);
    if (!text) continue;
    int64_t nodes_left = node.value_or(0);
    for (const char* at = text; *at != '\0';) {
      int64_t ranks = 0, nodes = 1;
      const char* const end = text + std::strlen(text);
      at = std::from_chars(at, end, ranks).ptr;
      if (std::strncmp(at, "(x", 2) == 0) {
        at = std::from_chars(at + 2, end, nodes).ptr;
        if (*at == ')') {
          ++at;
        } else {
          ranks = 0;
        }
      }
      if (ranks < 1 || nodes < 1 || (*at != ',' && *at != '\0'))
        usage_error(name, "expected ranks of each host such as 2(x3),1, got '{}'", text);
      if (nodes_left < nodes) return ranks;
      nodes_left -= nodes;
      if (*at == ',') ++at;
    }
  }
  return std::nullopt;
}

// A batch script that was not started by srun also has the variables of a rank, but is not one.
bool is_slurm_batch_script(const Launcher& launcher, const Environment& get) {
  return std::strcmp(launcher.title, "Slurm") == 0 && get("SLURM_JOB_ID") && !get("SLURM_STEP_ID");
}

// srun --mpi=pmi2 sets the variables of MPICH's own launcher except for the local rank, which Slurm's
// variables give.
bool is_pmi_of_slurm(const Launcher& launcher, const Environment& get) {
  return std::strcmp(launcher.title, "MPICH") == 0 && !get(launcher.local_rank) && get("SLURM_STEP_ID") &&
         get("SLURM_PROCID");
}

const Launcher* find_launcher(const Environment& get) {
  for (const Launcher& launcher : kLaunchers) {
    if (is_pmi_of_slurm(launcher, get)) continue;
    const bool rank = get(launcher.rank), size = get(launcher.size);
    if (rank && size && !is_slurm_batch_script(launcher, get)) return &launcher;
    // Outside of srun, Slurm may set either of these without the other.
    if (rank != size && std::strcmp(launcher.title, "Slurm") != 0) {
      usage_error(rank ? launcher.size : launcher.rank,
                  "is not set, but {} is; {} sets both, and a run without a launcher has neither",
                  rank ? launcher.rank : launcher.size, launcher.title);
    }
  }
  return nullptr;
}

// Only the launcher that started the ranks counts, since another one around it may have started each of them
// separately.
std::string job_of(const Launcher& launcher, const Environment& get) {
  std::string job;
  for (const char* name : {launcher.job, launcher.job_part}) {
    const char* const text = name ? get(name) : nullptr;
    if (text && *text != '\0') job += fmt::format("{}={} ", name, text);
  }
  return job;
}

// Reads a name or an address of a host; an IPv6 address may stand in brackets.
std::string read_address(const Environment& get, const std::string& otherwise) {
  constexpr const char* kName = "MASTER_ADDR";
  const char* const text = get(kName);
  if (!text || *text == '\0') return otherwise;
  std::string address = text;
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  if (address.find_first_of("[]/@ ") != std::string::npos)
    usage_error(kName, "'{}' is not the name or the address of a host", text);
  if (comm::is_wildcard(address))
    usage_error(kName, "'{}' stands for every address of a host; name the one at which rank 0 is reached",
                text);
  if (std::count(address.begin(), address.end(), ':') == 1)
    usage_error(kName, "'{}' is not the name or the address of a host; the port stands in MASTER_PORT", text);
  return address;
}

}  // namespace

std::optional<comm::Rendezvous> read_rank_environment(const Environment& get) {
  const Launcher* launcher = find_launcher(get);
  if (!launcher) return std::nullopt;
  const bool slurm = std::strcmp(launcher->title, "Slurm") == 0;

  comm::Rendezvous place;
  // A step of a Slurm job may have fewer ranks than the job.
  const char* size = slurm && get("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : launcher->size;
  place.world_size = read_integer(get, size, 1, kMostRanks).value_or(1);
  place.rank = read_integer(get, launcher->rank, 0, place.world_size - 1).value_or(0);

  place.address = read_address(get, place.address);
  place.port = static_cast<uint16_t>(read_integer(get, "MASTER_PORT", 1, 65535).value_or(place.port));

  // If no variable gives the number, ranks that meet at a loopback address share this host.
  const auto local_size =
      slurm ? slurm_local_size(get) : read_integer(get, launcher->local_size, 1, place.world_size);
  place.job = job_of(*launcher, get);
  if (local_size) place.local_size_variable = slurm ? "SLURM_TASKS_PER_NODE" : launcher->local_size;
  place.local_world_size = local_size.value_or(comm::is_loopback(place.address) ? place.world_size : 1);
  place.local_rank = read_integer(get, launcher->local_rank, 0, place.local_world_size - 1)
                         .value_or(place.rank % place.local_world_size);
  if (place.local_world_size < place.world_size && comm::is_loopback(place.address) && !get("MASTER_ADDR")) {
    usage_error("MASTER_ADDR", "is not set: {} ranks on several hosts need the address of the host of rank 0",
                place.world_size);
  }

  // torchrun's agent hosts a store at that address. The prefix keeps a restarted run from finding the keys of
  // the previous attempt.
  const char* agent = get("TORCHELASTIC_USE_AGENT_STORE");
  place.store_is_elsewhere = agent && std::strcmp(agent, "True") == 0;
  const char* attempt = get("TORCHELASTIC_RESTART_COUNT");
  place.store_prefix = fmt::format("tessera/{}", attempt ? attempt : "0");
  return place;
}

}  // namespace tessera::launch
