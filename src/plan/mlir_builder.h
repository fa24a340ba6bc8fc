// Writes the body of a function in StableHLO's text form (github.com/openxla/stablehlo, docs/spec.md), with a
// name for each value and its type at every use. Shapes are static.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "plan/mlir_location.h"
#include "plan/trace.h"

namespace tessera::plan {

using Sizes64 = std::vector<int64_t>;

// "tensor<2x3xf32>"
std::string mlir_type(const TensorShape& shape);
// "f32"
std::string_view mlir_dtype(at::ScalarType dtype);

struct MlirValue {
  std::string name;  // "%5"
  TensorShape type;
  int64_t line = -1;  // the line that computes it; -1 for an argument

  const Sizes64& sizes() const { return type.sizes; }
  int64_t size(int64_t dim) const { return type.sizes.at(static_cast<size_t>(dim)); }
  int64_t dims() const { return std::ssize(type.sizes); }
};

class MlirBuilder {
 public:
  // The program is run by `partitions` together.
  explicit MlirBuilder(int64_t partitions = 1) : partitions_(partitions) {}

  // The lines from here on are part of this node.
  void begin_node(NodeLocation location);
  // Attributes the lines that `write` writes to another node; later lines belong to the current node again.
  MlirValue in_node(NodeLocation location, const std::function<MlirValue()>& write);
  // The lines that these results need, and the definitions of the locations that they name.
  struct Text {
    std::string lines, locations;
  };
  Text text(const std::vector<MlirValue>& results) const;
  // Returns a builder of a region in this program. Until it is passed to branches(), this builder must write
  // nothing.
  MlirBuilder region() const;
  // In a region: refers to a value of the surrounding program.
  MlirValue outer(const MlirValue& value);
  // Runs the region with the number `index`, int32 []; the results of all regions have the same types.
  std::vector<MlirValue> branches(const MlirValue& index, const std::vector<MlirBuilder>& regions,
                                  const std::vector<std::vector<MlirValue>>& results);
  MlirValue argument(const TensorShape& type);  // the next one: "%arg3"
  int64_t arguments() const { return arguments_; }

  // Writes "%N = stablehlo.NAME WORDS : (types of the operands) -> TYPE".
  MlirValue op(std::string_view name, const std::vector<MlirValue>& operands, const std::string& words,
               TensorShape result);

  // These return x itself if nothing changes.
  MlirValue reshape(const MlirValue& x, Sizes64 sizes);
  MlirValue transpose(const MlirValue& x, const Sizes64& order);
  MlirValue convert(const MlirValue& x, at::ScalarType dtype);
  // The elements [begins, begins + lengths) of each dimension.
  MlirValue slice(const MlirValue& x, const Sizes64& begins, const Sizes64& lengths);
  // Dimension i of x becomes dimension dims[i] of `sizes`, either equal or repeated.
  MlirValue broadcast(const MlirValue& x, const Sizes64& sizes, const Sizes64& dims);
  // Broadcasts as libtorch does, starting from the last dimension.
  MlirValue broadcast(const MlirValue& x, const Sizes64& sizes);

  MlirValue scalar(double value, at::ScalarType dtype);
  MlirValue filled(double value, const TensorShape& type);
  MlirValue constant(const at::Tensor& contents);  // on the CPU
  MlirValue iota(const TensorShape& type, int64_t dim);

  MlirValue unary(std::string_view name, const MlirValue& x) { return op(name, {x}, "", x.type); }
  // Operands have the same dtype, and are broadcast to the same shape.
  MlirValue binary(std::string_view name, const MlirValue& a, const MlirValue& b);
  MlirValue binary(std::string_view name, const MlirValue& a, double b);
  MlirValue compare(std::string_view direction, const MlirValue& a, const MlirValue& b);  // "LT"
  MlirValue select(const MlirValue& which, const MlirValue& a, const MlirValue& b);
  // Sums or maxima over dimensions, which are removed.
  MlirValue reduce(std::string_view name, const MlirValue& x, const Sizes64& dims);
  // The same, but the dimensions stay, with one element each.
  MlirValue reduce_keeping(std::string_view name, const MlirValue& x, const Sizes64& dims);
  MlirValue concat(const std::vector<MlirValue>& parts, int64_t dim);
  // Adds zeros before and after the elements, by dimension.
  MlirValue pad(const MlirValue& x, const Sizes64& low, const Sizes64& high);
  // Sums of products over a dimension of each, with leading batch dimensions; the result has the dimensions
  // of a, then those of b.
  MlirValue dot(const MlirValue& a, const MlirValue& b, int64_t batch_dims, int64_t of_a, int64_t of_b,
                at::ScalarType dtype);
  // The rows x[.., index[i], ..] of a dimension; `offsets` are the other dimensions, `sizes` those of one
  // row.
  MlirValue gather(const MlirValue& x, const MlirValue& index, int64_t dim, const Sizes64& offsets,
                   const Sizes64& sizes, const TensorShape& result);
  // x [B, C, H, W], weight [O, C, rows, columns]; zeros are added at both ends of rows and of columns.
  MlirValue convolution(const MlirValue& x, const MlirValue& weight, int64_t stride,
                        const std::array<std::array<int64_t, 2>, 2>& padding, const TensorShape& result);
  // The number of the partition that runs the program, int32.
  MlirValue partition();
  // The number, or the tensor, for the running partition; all tensors have the same shape.
  MlirValue by_partition(const Sizes64& numbers);
  MlirValue by_partition(const std::vector<at::Tensor>& contents);
  // Like slice() and update(), but the positions are values.
  MlirValue slice_at(const MlirValue& x, const std::vector<MlirValue>& begins, const Sizes64& lengths);
  MlirValue update_at(const MlirValue& x, const MlirValue& part, const std::vector<MlirValue>& begins);
  // A collective among partitions; `attributes` are those besides the channel. Sums take a function of two
  // numbers.
  MlirValue collective(std::string_view name, const MlirValue& x, const std::string& attributes, bool is_sum,
                       const TensorShape& result);

  // x, constrained to a sharding that a partitioner has to apply: "<@mesh, [{}, {"x"}]>".
  MlirValue constrained(const MlirValue& x, const std::string& sharding);

  // x with `part` replacing its elements from `begins` on.
  MlirValue update(const MlirValue& x, const MlirValue& part, const Sizes64& begins);

 private:
  struct Line {
    std::string text;
    std::vector<int64_t> needs;     // other lines
    std::vector<size_t> locations;  // in `locations_`: its own, followed by those of its regions
  };
  // `words` come after "stablehlo.NAME".
  MlirValue line(std::string_view name, const std::vector<MlirValue>& operands, const std::string& words,
                 TensorShape result);
  // The lines that these results need, and the locations that they name.
  std::string lines_of(const std::vector<MlirValue>& results, std::set<size_t>& named) const;

  int64_t partitions_;
  int64_t depth_ = 2;        // of the lines, in levels of indentation
  int64_t next_ = 0;         // of the next name
  std::set<int64_t> outer_;  // lines of the surrounding program that this region needs
  std::vector<Line> lines_;
  // Regions share them with the surrounding program.
  std::shared_ptr<std::vector<NodeLocation>> locations_ =
      std::make_shared<std::vector<NodeLocation>>(1, NodeLocation{.name = "constant"});
  size_t location_ = 0;  // of the lines from here on
  std::optional<MlirValue> partition_;
  int64_t channels_ = 0;
  int64_t arguments_ = 0;
  std::map<std::string, MlirValue> reshaped_;  // by name: the value that it is a reshape of
};

}  // namespace tessera::plan
