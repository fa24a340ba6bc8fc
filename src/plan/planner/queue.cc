#include "plan/planner/queue.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <complex>
#include <numbers>

#include "core/error.h"

namespace tessera::plan {
namespace {

using Complex = std::complex<double>;

constexpr double kSmall = 1e-13;

double real_of(int64_t value) {
  return static_cast<double>(value);
}

// The roots of z^c = exp(a (z - 1)) within the unit circle, one for each c-th root of unity but 1: fixed
// points of a map whose slope is below the load a / c.
std::vector<Complex> roots_of(int64_t workers, double offered) {
  std::vector<Complex> roots;
  for (int64_t k = 1; k < workers; ++k) {
    const Complex unit = std::polar(1.0, 2 * std::numbers::pi * real_of(k) / real_of(workers));
    Complex root = 0;
    for (int round = 0; round < 100000; ++round) {
      const Complex next = unit * std::exp(offered / real_of(workers) * (root - 1.0));
      const bool is_there = std::abs(next - root) < kSmall / 100;
      root = next;
      if (is_there) break;
    }
    roots.push_back(root);
  }
  return roots;
}

// The factor by which each number of requests is less likely than the previous one, for large numbers: 1 / t
// with a (t - 1) = c ln t, t > 1.
double decay_of(int64_t workers, double offered) {
  const double load = offered / real_of(workers);
  double low = 1 / load, high = 2 / load;  // beyond the minimum of a (t - 1) - c ln t
  const auto excess = [&](double t) { return load * (t - 1) - std::log(t); };
  while (excess(high) < 0) high *= 2;
  for (int round = 0; round < 200; ++round) {
    const double middle = (low + high) / 2;
    (excess(middle) < 0 ? low : high) = middle;
  }
  return 1 / high;
}

// The probabilities of 0, 1, 2, ... requests at the server. One service time later, their number is that of
// the requests that were not in service plus the arrivals, a Poisson number with mean a; this gives the
// generating function (Crommelin, The Post Office Electrical Engineers' Journal 25, 1932)
//   P(z) = (c - a) (1 - z) exp(a (z - 1)) / (exp(a (z - 1)) - z^c) * prod_k (z - z_k) / (1 - z_k),
// whose coefficients are a Fourier transform of its values on the unit circle.
std::vector<double> requests_at_server(int64_t workers, double offered) {
  const double per_request = -std::log(decay_of(workers, offered));
  int64_t count = 64;
  while (real_of(count) < 2 * real_of(workers) + 12 * std::sqrt(offered) - std::log(kSmall) / per_request)
    count *= 2;
  const std::vector<Complex> roots = roots_of(workers, offered);
  // the others are their conjugates
  const at::Tensor values = at::empty({count / 2 + 1}, at::kComplexDouble);
  auto* const value = reinterpret_cast<Complex*>(values.data_ptr<c10::complex<double>>());
  value[0] = 1;
  for (int64_t i = 1; i <= count / 2; ++i) {
    const Complex z = std::polar(1.0, -2 * std::numbers::pi * real_of(i) / real_of(count));
    const Complex arrivals = std::exp(offered * (z - 1.0));
    // A product of many factors may exceed the range of numbers even if the result does not.
    Complex logarithm = offered * (z - 1.0);
    for (const Complex& root : roots) logarithm += std::log((z - root) / (1.0 - root));
    value[i] = (real_of(workers) - offered) * (1.0 - z) * std::exp(logarithm) /
               (arrivals - std::pow(z, real_of(workers)));
  }
  const at::Tensor shares = at::fft_irfft(values, count).contiguous();
  const double* const share = shares.data_ptr<double>();
  std::vector<double> made(share, share + count);
  for (double& each : made) each = std::max(each, 0.0);
  return made;
}

}  // namespace

DeterministicQueue::DeterministicQueue(int64_t workers, double service, double rate)
    : workers_(workers), service_(service), rate_(rate) {
  TESSERA_CHECK(workers >= 1 && service > 0 && rate > 0 && load() < 1, "{} workers of {} s at {} a second",
                workers, service, rate);
  rate_ = std::min(rate, kMostLoad * real_of(workers) / service);
  const std::vector<double> shares = requests_at_server(workers, rate_ * service);
  double sum = 0, waiting = 0;
  for (size_t n = 0; n < shares.size(); ++n) {
    sum += shares[n];
    if (static_cast<int64_t>(n) >= workers) queue_.push_back(std::min(sum, 1.0));
    waiting += shares[n] * real_of(std::max<int64_t>(static_cast<int64_t>(n) - workers, 0));
  }
  mean_wait_ = waiting / rate_;  // Little's law
}

// Let k D be the first multiple of the service time above the wait x. A request waits no longer than x if, k
// service times after its arrival, all requests before it are done; this is known for all but k c - 1 of
// those that came within k D - x of it. Hence P(W <= x) = sum over j < k c of Q(k c - 1 - j) times the
// Poisson share of j arrivals in k D - x, where Q(m) is the share of at most m waiting (Franx, Operations
// Research Letters 29, 2001).
double DeterministicQueue::share_waiting_at_most(double seconds) const {
  if (seconds < 0) return 0;
  const auto turns = static_cast<int64_t>(seconds / service_) + 1;
  const double mean = rate_ * (real_of(turns) * service_ - seconds);
  const int64_t last = turns * workers_ - 1;
  double sum = 0;
  for (int64_t j = 0; j <= last; ++j) {
    const double logarithm = -mean + (j > 0 ? real_of(j) * std::log(mean) - std::lgamma(real_of(j) + 1) : 0);
    if (real_of(j) > mean && logarithm < std::log(kSmall) - 5) break;
    const auto most = static_cast<size_t>(last - j);
    sum += std::exp(logarithm) * (most < queue_.size() ? queue_[most] : 1);
  }
  return std::min(sum, 1.0);
}

double DeterministicQueue::quantile_seconds(double share) const {
  if (share_waiting_at_most(0) >= share) return service_;
  double low = 0, high = service_;
  while (share_waiting_at_most(high) < share) low = high, high *= 2;
  for (int round = 0; round < 100 && high - low > 1e-9 * service_; ++round) {
    const double middle = (low + high) / 2;
    (share_waiting_at_most(middle) < share ? low : high) = middle;
  }
  return service_ + high;
}

}  // namespace tessera::plan
