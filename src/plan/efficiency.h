// The share of a data sheet's rate that a machine's kernels reach: a number for each kind of work, or a table
// of shares by dtype and size, which `tessera calibrate` measures or fits.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "core/json.h"
#include "plan/hardware/operator.h"

namespace tessera::plan {

// The kinds of work that have a share of their own.
enum class WorkKind { kGemm, kConvolution, kAttention, kVector };
inline constexpr std::array kAllWorkKinds = {WorkKind::kGemm, WorkKind::kConvolution, WorkKind::kAttention,
                                             WorkKind::kVector};
std::string work_kind_name(WorkKind kind);  // "gemm", "convolution", "attention", "vector"

WorkKind work_kind(const Work& work);

// The name under which an efficiency table is found: that of the kind, or "heads" for norms of heads, whose
// short rows take several times as long as other vector operators. If there is no such table, these are
// vector operators.
std::string share_name(const Work& work);

// The sizes that the share of a kind depends on, each above 0. For a product: rows, inner and columns. For a
// convolution: these, and the number of rows that contain an element of its input (GemmWork::overlap), which
// reflects windows, strides and upsampling. For attention: batch x heads, queries, keys and the size of a
// head. For a vector operator: the number of elements that it reads and writes.
std::vector<double> size_of(const Work& work);
size_t size_count(WorkKind kind);

// Shares at measured sizes. Between them, the logarithm of the share is interpolated over the logarithms of
// the sizes by the modified method of Shepard (Franke and Nielson, Int. J. Numer. Methods Eng. 15, 1980):
// each measured size has a plane through it that best fits its neighbours, and the planes of the nearest
// sizes are weighted by the inverse fourth power of their distance. Measured shares are therefore reproduced,
// as are shares that are powers of the sizes. Sizes outside the measured range have the share of the nearest
// measured size. Equal sizes are averaged.
struct ShareTable {
  struct Point {
    std::vector<double> log_size;
    double log_share = 0;
  };
  std::vector<Point> points;
  // The distance between sizes that differ by a factor of e, where it is not 1.
  std::vector<double> scales = {};

  double share(const std::vector<double>& size) const;
};

class Efficiency {
 public:
  // The ratio of the data sheet's time to the actual time for work of this size; 1 if nothing is known.
  double share(const Work& work, const std::string& dtype) const;

  // An upper bound of share() for the kind: the largest known share, and a little more for a table, because
  // planes through its points may rise above them.
  double most(WorkKind kind, const std::string& dtype) const;

  // The geometric mean of everything known about the kind; 1 if nothing is known.
  double mean(WorkKind kind) const;

  bool empty() const { return tables_.empty(); }
  // Sets a single number for the kind and all dtypes, replacing what was there.
  void set(WorkKind kind, double share);
  // Multiplies everything known about the kind, or 1, by a factor.
  void scale(WorkKind kind, double factor);

  // The value of a machine's key `efficiency`: {"gemm": 0.5, "attention": {"bf16": [[32, 4096, 4096, 72,
  // 0.4],
  // ...]}}. Throws Error(kInput) that names the file and the key.
  static Efficiency read(const JsonConfig& config);
  OrderedJson json() const;

 private:
  using ByDtype = std::map<std::string, ShareTable>;  // "" applies to all
  const ShareTable* find(const std::string& name, const std::string& dtype) const;

  std::map<std::string, ByDtype> tables_;  // by share_name()
};

}  // namespace tessera::plan
