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

// What an efficiency table is found by: the name of the kind, and "heads" of norms of heads, whose short rows
// take several times as long as other vector operators. Where there is no such table, they are vector
// operators.
std::string share_name(const Work& work);

// What the share of a kind depends on, each above 0: of a product rows, inner and columns; of a convolution
// these, and in how many rows an element of its input is (GemmWork::overlap), by which windows, strides and
// upsampling differ; of attention batch x heads, queries, keys and the size of a head; of a vector operator
// the elements that it reads and writes.
std::vector<double> size_of(const Work& work);
size_t size_count(WorkKind kind);

// Shares at measured sizes. Between them the logarithm of the share is a function of the logarithms of the
// sizes by the modified method of Shepard (Franke and Nielson, Int. J. Numer. Methods Eng. 15, 1980): through
// each measured size goes the plane that fits those around it best, and the planes of the nearest weigh the
// inverse fourth power of their distance. Measured shares are therefore reproduced, as are shares that are
// powers of the sizes. Sizes beyond the measured ones have the share of the nearest of these. Equal sizes
// have their mean.
struct ShareTable {
  struct Point {
    std::vector<double> log_size;
    double log_share = 0;
  };
  std::vector<Point> points;
  // How far apart sizes that differ by a factor of e are, where it is not 1.
  std::vector<double> scales = {};

  double share(const std::vector<double>& size) const;
};

class Efficiency {
 public:
  // The share of the time by the data sheet that work of this size really gets; 1 where nothing is known.
  double share(const Work& work, const std::string& dtype) const;

  // An upper bound on share() of the kind: the greatest known share, and for a table a little more, because
  // planes through its points may rise above them.
  double most(WorkKind kind, const std::string& dtype) const;

  // The geometric mean of all that is known of the kind; 1 where nothing is.
  double mean(WorkKind kind) const;

  bool empty() const { return tables_.empty(); }
  // One number for the kind and all dtypes, in place of what was there.
  void set(WorkKind kind, double share);
  // Multiplies what is known of the kind, or 1.
  void scale(WorkKind kind, double factor);

  // The value of a machine's key `efficiency`: {"gemm": 0.5, "attention": {"bf16": [[32, 4096, 4096, 72,
  // 0.4],
  // ...]}}. Throws Error(kInput) that names the file and the key.
  static Efficiency read(const JsonConfig& config);
  OrderedJson json() const;

 private:
  using ByDtype = std::map<std::string, ShareTable>;  // "" is for all
  const ShareTable* find(const std::string& name, const std::string& dtype) const;

  std::map<std::string, ByDtype> tables_;  // by share_name()
};

}  // namespace tessera::plan
