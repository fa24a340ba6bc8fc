#include "plan/calibration/rank_probes.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <new>
#include <numeric>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/host.h"
#include "engine/observer.h"
#include "launch/cores.h"
#include "launch/launcher.h"
#include "plan/calibration/probes.h"
#include "plan/calibration/stopwatch.h"

namespace tessera::plan {
namespace {

constexpr std::array<int64_t, 6> kBytes = {1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20, 16 << 20};
constexpr size_t kBytesOfOverlap = 4;  // the index of the size used to measure overlap
// More repetitions where a message takes no longer than a look at the other rank.
constexpr int64_t kFewBytes = 256 << 10, kRepetitionsOfFew = 40, kRepetitions = 12;
constexpr int64_t kRoundsOfSharing = 7;
constexpr auto kTimeout = std::chrono::minutes(2);

// Numbers written by forks and read by this process.
class SharedNumbers {
 public:
  explicit SharedNumbers(size_t count) : bytes_(count * sizeof(double)) {
    void* const memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    numbers_ = static_cast<double*>(memory);
  }
  ~SharedNumbers() { ::munmap(numbers_, bytes_); }
  SharedNumbers(const SharedNumbers&) = delete;
  SharedNumbers& operator=(const SharedNumbers&) = delete;
  double* at(size_t index) { return numbers_ + index; }

 private:
  size_t bytes_;
  double* numbers_;
};

// A collective as networks use it, in which no rank sends or receives more than `bytes` in total.
struct CollectiveProbe {
  std::string name;
  std::function<void(const comm::Group&, int64_t bytes)> run;
};

at::Tensor bytes_of(int64_t bytes) {
  return at::zeros({std::max<int64_t>(bytes, 1)}, at::kByte);
}

void exchange_all(const comm::Group& group, int64_t bytes) {
  std::vector<at::Tensor> sends, receives;
  for (int64_t peer = 0; peer < group.size; ++peer) {
    sends.push_back(bytes_of(bytes / (group.size - 1)));
    receives.push_back(bytes_of(bytes / (group.size - 1)));
  }
  comm::all_to_all(sends, receives, group).wait();
}

// Goes from the first rank to the second and back, so that each sends and receives when the other is ready.
void send_and_return(const comm::Group& group, int64_t bytes) {
  at::Tensor x = bytes_of(bytes);
  if (group.rank > 1) return;
  const int64_t peer = 1 - group.rank;
  if (group.rank == 0) comm::send(x, peer, group).wait();
  comm::receive(x, peer, group).wait();
  if (group.rank == 1) comm::send(x, peer, group).wait();
}

const std::vector<CollectiveProbe>& collective_probes() {
  static const std::vector<CollectiveProbe> probes = {
      {"all_to_all", exchange_all},
      {"all_gather",
       [](const comm::Group& group, int64_t bytes) {
         const int64_t own = std::max<int64_t>(bytes / (group.size - 1), 1);
         comm::all_gather(bytes_of(own), 0, group.parts(own * group.size), group);
       }},
      {"reduce_scatter",
       [](const comm::Group& group, int64_t bytes) {
         const int64_t own = std::max<int64_t>(bytes / (group.size - 1) / 4, 1), all = own * group.size;
         comm::reduce_scatter(at::zeros({all}), 0, group.parts(all), group);
       }},
      {"send_receive",
       [](const comm::Group& group, int64_t bytes) {
         at::Tensor received = bytes_of(bytes);
         comm::send_receive(bytes_of(bytes), (group.rank + 1) % group.size, received,
                            (group.rank + group.size - 1) % group.size, group)
             .wait();
       }},
      {"receive", send_and_return},
      {"send", send_and_return},
      {"broadcast",
       [](const comm::Group& group, int64_t bytes) {
         at::Tensor x = bytes_of(bytes / (group.size - 1));
         comm::broadcast(x, 0, group);
       }},
      {"gather", [](const comm::Group& group, int64_t bytes) {
         const int64_t own = std::max<int64_t>(bytes / (group.size - 1), 1);
         comm::gather(bytes_of(own), 0, group.parts(own * group.size), 0, group);
       }}};
  return probes;
}

double wall() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A rank that measures; its results go to `next`, in the same order on every rank.
class MeasuringRank {
 public:
  MeasuringRank(const launch::Worker& worker, int64_t threads, at::ScalarType dtype, int64_t cache_bytes,
                double* next)
      : worker_(worker), threads_(threads), dtype_(dtype), cache_bytes_(cache_bytes), next_(next) {}

  static size_t numbers() { return kAllWorkKinds.size() + collective_probes().size() * kBytes.size() + 1; }

  void run(double seconds) {
    set_threads(static_cast<int>(threads_));
    const comm::Rendezvous& place = worker_.rendezvous;
    // Never destroyed, because its destructor would wait for ranks that are gone.
    auto& world = *new comm::World(comm::World::join(place));
    worker_.status().preparing();
    launch::pin_to(launch::share_of(launch::allowed_cores(), place.rank, place.world_size, threads_));
    std::vector<int64_t> all(static_cast<size_t>(world.size()));
    std::iota(all.begin(), all.end(), 0);
    const comm::Group group = world.group(all, "calibration");
    measure_sharing(group, seconds / 2 / static_cast<double>(kAllWorkKinds.size()));
    measure_messages(world, group);
  }

 private:
  void add(double number) { *next_++ = number; }
  void require_going_on() const {
    if (worker_.statuses.must_end()) throw engine::Cancelled();
  }

  // Each rank works alone, and then all work at once, in turns, because the speed of cores also changes from
  // one moment to the next for reasons outside this host. Joint work takes as long as the slowest rank.
  void measure_sharing(const comm::Group& group, double seconds) {
    const std::vector<Probe> probes = make_probes(dtype_, cache_bytes_);
    const double budget = seconds / static_cast<double>(kRoundsOfSharing * (group.size + 1));
    for (size_t i = 0; i < kAllWorkKinds.size(); ++i) {
      const auto run = probes[i].prepare(at::kCPU);
      const auto time = [&] { return typical(times_of(run, budget, clock_for(threads_)), threads_); };
      std::vector<double> shares;
      for (int64_t round = 0; round < kRoundsOfSharing; ++round) {
        double alone = 0;
        for (int64_t rank = 0; rank < group.size; ++rank) {
          require_going_on();
          if (rank == group.rank) alone = time();
          comm::barrier(group);
        }
        const at::Tensor own = at::tensor({alone, time()}, at::kDouble).unsqueeze(0);
        const at::Tensor all = comm::all_gather(own, 0, group.parts(group.size), group);
        shares.push_back((all.select(1, 0).mean() / all.select(1, 1).max()).item<double>());
      }
      std::sort(shares.begin(), shares.end());
      add(shares[shares.size() / 2]);
    }
  }

  void measure_messages(comm::World& world, const comm::Group& group) {
    double under_way = 0;
    std::string_view wanted;
    const comm::ScopedHooks hooks(
        world,
        {.began = {}, .ended = [&](const comm::Collective& collective, std::chrono::nanoseconds all, auto) {
           if (collective.name == wanted) under_way = std::chrono::duration<double>(all).count();
         }});
    double for_overlap = 0;
    for (const CollectiveProbe& probe : collective_probes()) {
      wanted = probe.name;
      for (size_t size = 0; size < kBytes.size(); ++size) {
        std::vector<double> times;
        const int64_t repetitions = kBytes[size] <= kFewBytes ? kRepetitionsOfFew : kRepetitions;
        for (int64_t i = 0; i <= repetitions; ++i) {
          require_going_on();
          probe.run(group, kBytes[size]);
          if (i > 0) times.push_back(under_way);
        }
        add(lower_quartile(std::move(times)));
        if (probe.name == "all_to_all" && size == kBytesOfOverlap) for_overlap = *(next_ - 1);
      }
    }
    add(overlap(group, for_overlap));
  }

  // The share of an exchange's time that is hidden when a rank computes from its beginning to its end.
  double overlap(const comm::Group& group, double message) {
    const auto compute = make_probes(dtype_, cache_bytes_).front().prepare(at::kCPU);
    const auto seconds_of = [&](const std::function<void()>& run) {
      std::vector<double> times;
      for (int64_t i = 0; i <= kRepetitions; ++i) {
        comm::barrier(group);
        require_going_on();
        const double begin = wall();
        run();
        if (i > 0) times.push_back(wall() - begin);
      }
      return lower_quartile(std::move(times));
    };
    const double once = seconds_of(compute);
    const auto times = static_cast<int64_t>(std::clamp(std::ceil(1.5 * message / once), 1.0, 1000.0));
    const auto compute_all = [&] {
      for (int64_t i = 0; i < times; ++i) compute();
    };
    const double alone = seconds_of(compute_all);
    std::vector<at::Tensor> sends, receives;
    for (int64_t peer = 0; peer < group.size; ++peer) {
      sends.push_back(bytes_of(kBytes[kBytesOfOverlap] / (group.size - 1)));
      receives.push_back(bytes_of(kBytes[kBytesOfOverlap] / (group.size - 1)));
    }
    const double both = seconds_of([&] {
      comm::Pending pending = comm::all_to_all(sends, receives, group);
      compute_all();
      pending.wait();
    });
    return std::clamp((message + alone - both) / message, 0.0, 1.0);
  }

  const launch::Worker& worker_;
  int64_t threads_;
  at::ScalarType dtype_;
  int64_t cache_bytes_;
  double* next_;
};

// The measurements of this many ranks, at least two: the means over them, in order.
std::vector<double> run_ranks(int64_t ranks, int64_t threads, at::ScalarType dtype, int64_t cache_bytes,
                              double seconds) {
  const size_t count = MeasuringRank::numbers();
  SharedNumbers numbers(count * static_cast<size_t>(ranks));
  const auto run = [&](const launch::Worker& worker) {
    const auto rank = static_cast<size_t>(worker.rendezvous.rank);
    try {
      const c10::InferenceMode inference_mode;
      MeasuringRank(worker, threads, dtype, cache_bytes, numbers.at(rank * count)).run(seconds);
      return 0;
    } catch (...) {
      const launch::Failure own = launch::current_failure();
      worker.status().failed(own);
      return own.exit_code;
    }
  };
  const launch::Failure failure = launch::launch_ranks(ranks, kTimeout, run);
  if (failure.exit_code != 0) throw RanksFailed{failure};
  std::vector<double> means(count);
  for (size_t i = 0; i < count; ++i) {
    for (int64_t rank = 0; rank < ranks; ++rank)
      means[i] += *numbers.at(static_cast<size_t>(rank) * count + i) / static_cast<double>(ranks);
  }
  return means;
}

// 2, 4, ... and all.
std::vector<int64_t> numbers_of_ranks(int64_t most) {
  std::vector<int64_t> numbers;
  for (int64_t ranks = 2; ranks < most; ranks *= 2) numbers.push_back(ranks);
  if (most > 1) numbers.push_back(most);
  return numbers;
}

void add_messages(Link& link, int64_t ranks, const std::vector<double>& figures) {
  size_t next = kAllWorkKinds.size();
  for (const CollectiveProbe& probe : collective_probes()) {
    auto& rows = link.measured[probe.name];
    for (const int64_t bytes : kBytes) {
      const double seconds = figures[next++];
      rows.push_back({static_cast<double>(ranks), static_cast<double>(bytes), seconds});
      if (probe.name != "send_receive" || ranks != 2) continue;
      if (bytes == kBytes.front()) link.latency = seconds;
      if (bytes == kBytes.back()) link.bandwidth = static_cast<double>(bytes) / seconds;
    }
  }
  link.overlap = figures[next];
}

}  // namespace

RankFigures measure_ranks(int64_t ranks, int64_t threads, at::ScalarType dtype, int64_t cache_bytes,
                          double seconds, const Say& say) {
  RankFigures result;
  result.link.kind = "shared-memory";
  for (const WorkKind kind : kAllWorkKinds) result.sharing[kind] = {1};
  const std::vector<int64_t> numbers = numbers_of_ranks(ranks);
  for (const int64_t number : numbers) {
    say(fmt::format("{} ranks of {}", number, ranks));
    const std::vector<double> figures =
        run_ranks(number, threads, dtype, cache_bytes, seconds / static_cast<double>(numbers.size()));
    for (size_t i = 0; i < kAllWorkKinds.size(); ++i) {
      std::vector<double>& shares = result.sharing[kAllWorkKinds[i]];
      // Between measured numbers of ranks, the share is assumed to fall evenly.
      const double share = std::min(figures[i], 1.0), before = shares.back();
      const auto first = static_cast<int64_t>(shares.size());
      for (int64_t k = first + 1; k <= number; ++k)
        shares.push_back(before + (share - before) * static_cast<double>(k - first) /
                                      static_cast<double>(number - first));
    }
    add_messages(result.link, number, figures);
  }
  return result;
}

}  // namespace tessera::plan
