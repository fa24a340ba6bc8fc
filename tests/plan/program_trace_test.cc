// What programs cost, against closed forms: products, convolutions, collectives, calls and loops.
#include "plan/program_trace.h"

#include <gtest/gtest.h>

#include <set>

#include "core/error.h"
#include "core/file.h"
#include "plan/views.h"
#include "tests/support/golden.h"

namespace tessera::plan {
namespace {

std::string one_function(const std::string& arguments, const std::string& lines) {
  return "module @m {\n  func.func public @main(" + arguments + ") {\n" + lines + "    return\n  }\n}\n";
}

RankTrace traced_program(const std::string& text, int64_t rank = 0) {
  return trace_program(text, "p.mlir", rank).ranks.front();
}

OperationEvent first_operation(const std::string& text) {
  return std::get<OperationEvent>(traced_program(text).events.at(0).what);
}

TEST(ProgramTrace, CountsProducts) {
  const OperationEvent shortly = first_operation(one_function(
      "%a: tensor<2x5x3x7xf32>, %b: tensor<2x7x11x3xbf16>",
      "    %0 = stablehlo.dot_general %a, %b, batching_dims = [0] x [0], contracting_dims = [3, 2] x [1, 3], "
      "precision = [DEFAULT, DEFAULT] : (tensor<2x5x3x7xf32>, tensor<2x7x11x3xbf16>) -> "
      "tensor<2x5x11xf32>\n"));
  EXPECT_EQ(shortly.inputs[0].sizes, (std::vector<int64_t>{2, 5, 21}));
  EXPECT_EQ(shortly.inputs[1].sizes, (std::vector<int64_t>{2, 21, 11}));
  EXPECT_EQ(shortly.output.sizes, (std::vector<int64_t>{2, 5, 11}));
  EXPECT_EQ(shortly.flops, 2 * 2 * 5 * 21 * 11);
  EXPECT_EQ(shortly.bytes, 4 * 2 * 5 * 21 + 2 * 2 * 21 * 11 + 4 * 2 * 5 * 11);
  const OperationEvent generic = first_operation(
      one_function("%a: tensor<5x7xf32>, %b: tensor<7x11xf32>",
                   "    %0 = \"stablehlo.dot_general\"(%a, %b) <{dot_dimension_numbers = "
                   "#stablehlo.dot<lhs_contracting_dimensions "
                   "= [1], rhs_contracting_dimensions = [0]>}> : (tensor<5x7xf32>, tensor<7x11xf32>) -> "
                   "tensor<5x11xf32>\n"));
  EXPECT_EQ(generic.flops, 2 * 5 * 7 * 11);
  EXPECT_EQ(generic.inputs[0].sizes, (std::vector<int64_t>{5, 7}));
}

// Those of the direct form; a group of features multiplies its own alone.
TEST(ProgramTrace, CountsConvolutions) {
  const OperationEvent event = first_operation(
      one_function("%x: tensor<1x8x8x6xf32>, %w: tensor<3x3x2x12xf32>",
                   "    %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, "
                   "0, 1, f], window = "
                   "{stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, "
                   "feature_group_count = 3 : i64} : "
                   "(tensor<1x8x8x6xf32>, tensor<3x3x2x12xf32>) -> tensor<1x4x4x12xf32>\n"));
  EXPECT_EQ(event.flops, 2 * (4 * 4 * 12) * (3 * 3 * 2));
  EXPECT_TRUE(is_convolution(event.name));
  EXPECT_FALSE(is_convolution("convert"));
}

// By the published rule: one for each number that some functions write, and nothing for others.
TEST(ProgramTrace, CountsElementwiseWork) {
  const std::string type = " : tensor<2x3xf32>\n";
  for (const char* const name : {"add", "subtract", "multiply", "divide"})
    EXPECT_EQ(first_operation(one_function("%x: tensor<2x3xf32>",
                                           "    %0 = stablehlo." + std::string(name) + " %x, %x" + type))
                  .flops,
              6);
  for (const char* const name : {"rsqrt", "negate", "exponential"})
    EXPECT_EQ(first_operation(one_function("%x: tensor<2x3xf32>",
                                           "    %0 = stablehlo." + std::string(name) + " %x" + type))
                  .flops,
              6);
  for (const char* const name : {"tanh", "sqrt", "logistic", "abs"})
    EXPECT_EQ(first_operation(one_function("%x: tensor<2x3xf32>",
                                           "    %0 = stablehlo." + std::string(name) + " %x" + type))
                  .flops,
              0);
}

struct Volume {
  std::string text;  // of the operation, on x of 48 numbers in fp32 on ranks 0 1 2 and 3 4 5
  std::string result;
  int64_t sent;
};

// Of N ranks, with M the part of one: 2 M (N - 1) of a sum, M (N - 1) of the others.
TEST(ProgramTrace, CountsWhatCollectivesSend) {
  const std::string groups = "replica_groups = dense<[[0, 1, 2], [3, 4, 5]]> : tensor<2x3xi64>";
  const std::string sum =
      "({\n^bb0(%a: tensor<f32>, %b: tensor<f32>):\n stablehlo.return %a : tensor<f32>\n})";
  constexpr int64_t kRanks = 3, kBytes = 192;
  const std::vector<Volume> volumes = {
      {"\"stablehlo.all_reduce\"(%x) <{" + groups + "}> " + sum, "48", 2 * kBytes / kRanks * (kRanks - 1)},
      {"\"stablehlo.all_gather\"(%x) <{all_gather_dim = 0 : i64, " + groups + "}>", "144",
       kBytes * (kRanks - 1)},
      {"\"stablehlo.reduce_scatter\"(%x) <{scatter_dimension = 0 : i64, " + groups + "}> " + sum, "16",
       kBytes / kRanks * (kRanks - 1)},
      {"\"stablehlo.all_to_all\"(%x) <{concat_dimension = 0 : i64, " + groups + ", split_count = 3 : i64}>",
       "48", kBytes / kRanks * (kRanks - 1)},
      {"\"stablehlo.collective_permute\"(%x) <{source_target_pairs = dense<[[0, 1], [1, 2], [2, 0], [3, 4], "
       "[4, 5]]> "
       ": tensor<5x2xi64>}>",
       "48", kBytes}};
  for (const Volume& each : volumes) {
    const std::string text =
        one_function("%x: tensor<48xf32>",
                     "    %0 = " + each.text + " : (tensor<48xf32>) -> tensor<" + each.result + "xf32>\n");
    EXPECT_EQ(trace_program(text, "p.mlir", std::nullopt).world_size, 6);
    const std::vector<CollectiveRow> rows = collective_rows(traced_program(text, 1));
    ASSERT_EQ(rows.size(), 1U) << each.text;
    EXPECT_EQ(rows[0].ranks, 3) << each.text;
    EXPECT_EQ(rows[0].sent.run, each.sent) << each.text;
    EXPECT_EQ(rows[0].received.run, each.sent) << each.text;
    EXPECT_EQ(rows[0].bruck.value_or(Sum()).run,
              rows[0].name == "all_to_all" ? kBytes / kRanks * bruck_blocks(kRanks) : 0);
    EXPECT_THROW(trace_program(text, "p.mlir", 6), Error);
    // The last one of an open chain sends nothing.
    const bool is_chain = rows[0].name == "collective_permute";
    EXPECT_EQ(collective_rows(traced_program(text, 5))[0].sent.run, is_chain ? 0 : each.sent);
  }
}

// What a function does counts for each call, and the body of a loop for each of its runs.
TEST(ProgramTrace, FollowsCallsAndLoops) {
  const std::string text =
      "module @m {\n  func.func public @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
      "    %0 = call @twice(%x) : (tensor<2xf32>) -> tensor<2xf32>\n"
      "    %1 = func.call @twice(%0) : (tensor<2xf32>) -> tensor<2xf32>\n    return %1 : tensor<2xf32>\n  }\n"
      "  func.func private @twice(%x: tensor<2xf32>) -> tensor<2xf32> {\n"
      "    %c = stablehlo.constant dense<0> : tensor<i32>\n"
      "    %0:2 = stablehlo.while(%i = %c, %y = %x) : tensor<i32>, tensor<2xf32>\n    cond {\n"
      "      %n = stablehlo.constant dense<5> : tensor<i32>\n"
      "      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
      "      stablehlo.return %1 : tensor<i1>\n    } do {\n      %1 = stablehlo.divide %y, %y : "
      "tensor<2xf32>\n"
      "      %s = stablehlo.constant dense<1> : tensor<i32>\n      %2 = stablehlo.add %i, %s : tensor<i32>\n"
      "      stablehlo.return %2, %1 : tensor<i32>, tensor<2xf32>\n    }\n    return %0#1 : tensor<2xf32>\n  "
      "}\n}\n";
  EXPECT_EQ(all_flops(traced_program(text), {}).run, 2 * 5 * (2 + 1));
  const std::vector<OperationRow> rows = operation_rows(traced_program(text));
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[1].name, "divide");
  EXPECT_EQ(rows[1].role, "twice");
  EXPECT_EQ(rows[1].count.run, 10);
}

// Two partitions that find their numbers and take a branch each; `groups` are of the exchange of numbers.
std::string branches(const std::string& index, const std::string& groups) {
  return one_function(
      "%x: tensor<2xf32>, %i: tensor<i32>",
      "    %0 = stablehlo.iota dim = 0 : tensor<2xi32>\n"
      "    %1 = \"stablehlo.all_to_all\"(%0) <{replica_groups = dense<" +
          groups +
          "> : tensor<1x2xi64>, split_count = 2 : i64}> : (tensor<2xi32>) -> tensor<2xi32>\n"
          "    %2 = stablehlo.slice %1 [0:1] : (tensor<2xi32>) -> tensor<1xi32>\n"
          "    %3 = stablehlo.reshape %2 : (tensor<1xi32>) -> tensor<i32>\n"
          "    %4 = stablehlo.negate %3 : tensor<i32>\n"
          "    %5:1 = \"stablehlo.case\"(" +
          index +
          ") ({\n      %6 = stablehlo.multiply %x, %x : tensor<2xf32>\n"
          "      stablehlo.return %6 : tensor<2xf32>\n    }, {\n"
          "      %6 = stablehlo.add %x, %x : tensor<2xf32>\n      %7 = stablehlo.add %6, %x : tensor<2xf32>\n"
          "      stablehlo.return %7 : tensor<2xf32>\n    }) : (tensor<i32>) -> tensor<2xf32>\n");
}

TEST(ProgramTrace, FollowsTheBranchOfThePartition) {
  const std::string text = branches("%3", "[[0, 1]]");
  for (const auto& [rank, name, count] : {std::tuple(0, "multiply", 1), std::tuple(1, "add", 2)}) {
    const std::vector<OperationRow> rows = operation_rows(traced_program(text, rank));
    const auto found =
        std::find_if(rows.begin(), rows.end(), [&](const OperationRow& row) { return row.name == name; });
    ASSERT_NE(found, rows.end()) << rank;
    EXPECT_EQ(found->count.run, count);
    EXPECT_EQ(rows.size(), 5U);  // besides iota, slice, reshape and negate
  }
}

TEST(ProgramTrace, RefusesBranchesThatSomethingElseChooses) {
  for (const auto& [index, groups] :
       {std::pair("%4", "[[0, 1]]"), std::pair("%i", "[[0, 1]]"), std::pair("%3", "[[1, 0]]")}) {
    try {
      traced_program(branches(index, groups));
      ADD_FAILURE() << index;
    } catch (const Error& error) {
      EXPECT_EQ(
          std::string(error.what()),
          "[p.mlir: line 8] which branch of stablehlo.case runs is not known; those are followed that the "
          "number of the partition chooses, as in programs of ours");
    }
  }
}

TEST(ProgramTrace, RefusesWhatItCannotFollow) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      trace_program(text, "p.mlir", std::nullopt);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string x = "%x: tensor<2xf32>";
  EXPECT_EQ(refusal(one_function(x, "    call @main(%x) : (tensor<2xf32>) -> ()\n")),
            "[p.mlir: line 3] @main calls itself");
  EXPECT_EQ(refusal(one_function(x, "    call @f(%x) : (tensor<2xf32>) -> ()\n")),
            "[p.mlir: line 3] there is no function @f");
  EXPECT_EQ(refusal(one_function(
                x,
                "    %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0] : (tensor<2xf32>, "
                "tensor<2xf32>) -> tensor<f32>\n")),
            "[p.mlir: line 3] the dimensions of a product are not those of its factors");
  EXPECT_EQ(
      refusal(one_function(x, "    %0 = \"stablehlo.all_gather\"(%x) : (tensor<2xf32>) -> tensor<4xf32>\n")),
      "[p.mlir: line 3] all_gather has no replica_groups that can be read");
  EXPECT_EQ(refusal(one_function(
                x, "    %0 = \"stablehlo.collective_broadcast\"(%x) : (tensor<2xf32>) -> tensor<2xf32>\n")),
            "[p.mlir: line 3] what stablehlo.collective_broadcast sends is not known here");
  EXPECT_EQ(refusal(one_function(x, "")), "[p.mlir] a program that does nothing");
}

// A transformer that tools/golden/stablehlo.py lowered with JAX: layers in a scan, of which each has
// what the closed form counts. Sizes are those of the script.
TEST(ProgramTrace, CountsATransformerOfJax) {
  constexpr int64_t kLayers = 3, kBatch = 2, kTokens = 5, kHeads = 2, kDepth = 4, kWidth = 8, kInner = 16;
  constexpr int64_t kRows = kBatch * kTokens, kScores = kBatch * kHeads * kTokens * kTokens;
  constexpr int64_t kProducts =
      2 * kRows * kWidth * (4 * kHeads * kDepth + 2 * kInner) + 4 * kScores * kDepth;
  // Two norms: the square, its mean, epsilon, the root and the product; a softmax: the difference, the
  // exponential and the quotient; two sums; and the counter of the scan.
  constexpr int64_t kElementwise =
      2 * (2 * kRows * kWidth + 3 * kRows) + 3 * kScores + 2 * kRows * kWidth + 1;
  const std::string where = "transformer.mlir";
  for (const std::string file : {"transformer.mlir", "transformer_locations.mlir"}) {
    const std::string text = read_file(golden_folder("stablehlo") / file, 1 << 20);
    const RankTrace trace = trace_program(text, file, std::nullopt).ranks.front();
    int64_t products = 0, elementwise = 0;
    for (const FlopsRow& row : flops_rows(trace)) {
      products += row.products.run;
      elementwise += row.elementwise.run;
    }
    EXPECT_EQ(products, kLayers * kProducts) << file;
    EXPECT_EQ(elementwise, kLayers * kElementwise) << file;
    std::set<std::string> roles;
    for (const OperationRow& row : operation_rows(trace)) {
      if (is_product(row.name)) roles.insert(row.role);
    }
    const std::set<std::string> of_locations = {"attention.bsd,dhe->bhse", "attention.bhse,bhte->bhst",
                                                "attention.bhst,bhte->bhse", "attention.bhse,hed->bsd",
                                                "mlp"};
    EXPECT_EQ(roles, file == where ? std::set<std::string>{"closed_call"} : of_locations) << file;
  }
}

}  // namespace
}  // namespace tessera::plan
