#include "plan/planner/fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "plan/run_costs.h"

namespace tessera::plan {
namespace {

// Where the fit begins if the machine has no value: an eager framework on a GPU, whose host takes some ten
// microseconds for an operation and five times as long for a collective.
constexpr double kLaunch = 40e-6, kCollectiveLaunch = 5 * kLaunch;
constexpr double kGemmShare = 0.6, kAttentionShare = 0.5, kVectorShare = 0.6, kContention = 0.3;

// The units of relative errors of runs, and the weight of a number's distance from its starting value: it is
// a fraction, so that it decides only what no run determines.
constexpr double kRunError = 0.08, kWeightOfBegin = 0.3;

constexpr int kMostRounds = 30;
constexpr double kStep = 1e-2, kGood = 1e-5;
// A run depends on a number if a step of that number changes its time by more than this share.
constexpr double kLeastEffect = 1e-9;

constexpr double kMicro = 1e-6, kBytesPerGb = 1e9;

struct Number {
  std::string name, unit;
  double begin = 0;   // in the coordinate of the fit
  double spread = 1;  // how far from there it is likely to be
  double (*value)(double coordinate);
  void (*apply)(double value, Machine& machine, std::vector<Link>& links);
  // Its value on the fitted machine; null if `value` is absolute.
  double (*absolute)(const Machine& machine, const std::vector<Link>& links);
};

double exponential(double coordinate) {
  return std::exp(coordinate);
}
double logistic(double coordinate) {
  return 1 / (1 + std::exp(-coordinate));
}

double bandwidth_of(const Machine&, const std::vector<Link>& links) {
  return links.empty() ? 0 : links.front().bandwidth.value_or(0) / kBytesPerGb;
}

// Measured times of messages become those of a link with the bandwidth scaled by this factor.
void scale_bandwidth(double factor, Machine&, std::vector<Link>& links) {
  for (Link& link : links) {
    if (link.bandwidth) link.bandwidth = *link.bandwidth * factor;
    for (auto& [name, rows] : link.measured) {
      for (auto& row : rows) row[2] /= factor;
    }
  }
}

// All numbers are relative to the machine's own, except contention and overlap, which are absolute.
std::vector<Number> numbers_of(const Machine& machine, const std::vector<Link>& links, bool has_ranks) {
  std::vector<Number> numbers = {
      {"gemm efficiency", "", 0, 0.5, exponential,
       [](double value, Machine& to, std::vector<Link>&) {
         to.efficiency.scale(WorkKind::kGemm, value);
         to.efficiency.scale(WorkKind::kConvolution, value);
       },
       [](const Machine& of, const std::vector<Link>&) { return of.efficiency.mean(WorkKind::kGemm); }},
      {"attention efficiency", "", 0, 0.5, exponential,
       [](double value, Machine& to, std::vector<Link>&) {
         to.efficiency.scale(WorkKind::kAttention, value);
       },
       [](const Machine& of, const std::vector<Link>&) { return of.efficiency.mean(WorkKind::kAttention); }}};
  if (machine.launch > 0) {
    numbers.push_back({"launch", "us", 0, 1, exponential,
                       [](double value, Machine& to, std::vector<Link>& of) {
                         to.launch *= value;
                         for (Link& link : of) link.launch *= value;
                       },
                       [](const Machine& of, const std::vector<Link>&) { return of.launch / kMicro; }});
  }
  if (!has_ranks) return numbers;
  numbers.push_back({"link bandwidth", "GB/s", 0, 1, exponential, scale_bandwidth, bandwidth_of});
  const double contention = links.empty() ? 0 : links.front().contention;
  numbers.push_back({"all-to-all contention", "", std::log(contention > 0 ? contention : kContention), 1.5,
                     exponential,
                     [](double value, Machine&, std::vector<Link>& of) {
                       for (Link& link : of) link.contention = value;
                     },
                     nullptr});
  numbers.push_back({"overlap", "", 0, 1, logistic,
                     [](double value, Machine&, std::vector<Link>& of) {
                       for (Link& link : of) link.overlap = value;
                     },
                     nullptr});
  return numbers;
}

double time_with(const Costs& costs, const MeasuredRun& run) {
  double seconds = 0;
  for (const MeasuredRun::Piece& piece : run.pieces) {
    if (!piece.schedule.ranks.front().tasks.empty())
      seconds += piece.times * run_costs(piece.schedule, piece.steps, costs, run.name).seconds;
  }
  return seconds;
}

// Adds, for the start of the fit, what the data sheet lacks. Measured shares already include the time of
// launching.
Machine with_defaults(Machine machine, std::vector<Link>& links) {
  if (!machine.efficiency.empty()) return machine;
  machine.efficiency.set(WorkKind::kGemm, kGemmShare);
  machine.efficiency.set(WorkKind::kConvolution, kGemmShare);
  machine.efficiency.set(WorkKind::kAttention, kAttentionShare);
  machine.efficiency.set(WorkKind::kVector, kVectorShare);
  if (machine.launch == 0) {
    machine.launch = kLaunch;
    for (Link& link : links) link.launch = link.launch > 0 ? link.launch : kCollectiveLaunch;
  }
  return machine;
}

class Fitter {
 public:
  Fitter(const Machine& machine, std::vector<Link> links, const std::vector<MeasuredRun>& runs,
         const std::array<double, kAllWorkKinds.size()>& begin_factors)
      : machine_(machine), begin_factors_(begin_factors), links_(std::move(links)), runs_(runs) {
    const bool has_ranks =
        std::any_of(runs.begin(), runs.end(), [](const MeasuredRun& run) { return run.devices > 1; });
    numbers_ = numbers_of(machine, links_, has_ranks);
    for (const Number& number : numbers_) at_.push_back(number.begin);
  }

  Fit run() {
    double loss = loss_of(residuals(at_)), damping = 1e-2;
    for (int round = 0; round < kMostRounds; ++round) {
      const std::vector<double> here = residuals(at_);
      std::vector<std::vector<double>> slopes;  // by number
      for (size_t i = 0; i < at_.size(); ++i) {
        std::vector<double> moved = at_;
        moved[i] += kStep;
        slopes.push_back(residuals(moved));
        for (size_t j = 0; j < here.size(); ++j) slopes[i][j] = (slopes[i][j] - here[j]) / kStep;
      }
      double gained = 0;
      for (; damping < 1e6; damping *= 4) {
        std::vector<double> next = at_;
        const std::vector<double> step = solve(slopes, here, damping);
        for (size_t i = 0; i < next.size(); ++i) next[i] -= step[i];
        const double then = loss_of(residuals(next));
        if (then >= loss) continue;
        gained = loss - then;
        loss = then;
        at_ = std::move(next);
        damping /= 8;
        break;
      }
      if (gained < kGood * loss) break;
    }
    return result();
  }

 private:
  // The machine at a point of the fit; its schedules were made without shares.
  std::pair<Machine, std::vector<Link>> at(const std::vector<double>& point) const {
    std::pair<Machine, std::vector<Link>> made = {machine_, links_};
    for (size_t i = 0; i < numbers_.size(); ++i)
      numbers_[i].apply(numbers_[i].value(point[i]), made.first, made.second);
    return made;
  }

  std::vector<double> residuals(const std::vector<double>& point) const {
    std::vector<double> all;
    for (const MeasuredRun& run : runs_)
      all.push_back(std::log(time_of(point, run) / run.seconds) / kRunError);
    for (size_t i = 0; i < numbers_.size(); ++i)
      all.push_back((point[i] - numbers_[i].begin) / numbers_[i].spread * kWeightOfBegin);
    return all;
  }

  double time_of(const std::vector<double>& point, const MeasuredRun& run) const {
    const auto [machine, links] = at(point);
    Costs costs = costs_on(machine, links, run.devices);
    costs.keeps_spans = false;
    // The schedules contain the shares of the machine before the fit.
    for (size_t kind = 0; kind < costs.factors.size(); ++kind) costs.factors[kind] *= begin_factors_[kind];
    const double gemm = numbers_[0].value(point[0]), attention = numbers_[1].value(point[1]);
    costs.factors[static_cast<size_t>(WorkKind::kGemm)] /= gemm;
    costs.factors[static_cast<size_t>(WorkKind::kConvolution)] /= gemm;
    costs.factors[static_cast<size_t>(WorkKind::kAttention)] /= attention;
    return time_with(costs, run);
  }

  static double loss_of(const std::vector<double>& residuals) {
    double sum = 0;
    for (const double each : residuals) sum += each * each;
    return sum;
  }

  // The step of Levenberg and Marquardt: (J'J + damping diag(J'J)) step = J'r, by elimination.
  static std::vector<double> solve(const std::vector<std::vector<double>>& slopes,
                                   const std::vector<double>& residuals, double damping) {
    const size_t count = slopes.size();
    std::vector<std::vector<double>> rows(count, std::vector<double>(count + 1, 0));
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = 0; k < residuals.size(); ++k) {
        for (size_t j = 0; j < count; ++j) rows[i][j] += slopes[i][k] * slopes[j][k];
        rows[i][count] += slopes[i][k] * residuals[k];
      }
      rows[i][i] *= 1 + damping;
    }
    // The matrix is positive definite, because every number has a residual of its own.
    for (size_t i = 0; i < count; ++i) {
      for (size_t k = i + 1; k < count; ++k) {
        const double factor = rows[k][i] / rows[i][i];
        for (size_t j = i; j <= count; ++j) rows[k][j] -= factor * rows[i][j];
      }
    }
    std::vector<double> step(count, 0);
    for (size_t i = count; i-- > 0;) {
      double sum = rows[i][count];
      for (size_t j = i + 1; j < count; ++j) sum -= rows[i][j] * step[j];
      step[i] = sum / rows[i][i];
    }
    return step;
  }

  bool is_told(size_t number) const {
    std::vector<double> moved = at_;
    moved[number] += kStep;
    return std::any_of(runs_.begin(), runs_.end(), [&](const MeasuredRun& run) {
      return std::abs(time_of(moved, run) / time_of(at_, run) - 1) > kLeastEffect;
    });
  }

  Fit result() const {
    auto [machine, links] = at(at_);
    Fit fit;
    for (size_t i = 0; i < numbers_.size(); ++i) {
      const Number& number = numbers_[i];
      const double value = number.value(at_[i]);
      if (number.absolute != nullptr)
        fit.numbers.push_back({number.name, number.absolute(machine, links), number.unit, value, is_told(i)});
      else
        fit.numbers.push_back({number.name, value, number.unit, std::nullopt, is_told(i)});
    }
    for (const MeasuredRun& run : runs_) fit.seconds.push_back(time_of(at_, run));
    machine.links = std::move(links);
    fit.machine = std::move(machine);
    return fit;
  }

  const Machine& machine_;
  std::array<double, kAllWorkKinds.size()> begin_factors_;
  std::vector<Link> links_;
  const std::vector<MeasuredRun>& runs_;
  std::vector<Number> numbers_;
  std::vector<double> at_;
};

}  // namespace

Fit fit_machine(const Machine& machine, const std::vector<Link>& links,
                const std::vector<MeasuredRun>& runs) {
  std::vector<Link> begin = links;
  const bool has_shares = !machine.efficiency.empty();
  const Machine filled = with_defaults(machine, begin);
  // By WorkKind: the shares that the schedules, which were made without them, lack.
  const std::array<double, kAllWorkKinds.size()> factors =
      has_shares ? std::array{1.0, 1.0, 1.0, 1.0}
                 : std::array{1 / kGemmShare, 1 / kGemmShare, 1 / kAttentionShare, 1 / kVectorShare};
  return Fitter(filled, std::move(begin), runs, factors).run();
}

}  // namespace tessera::plan
