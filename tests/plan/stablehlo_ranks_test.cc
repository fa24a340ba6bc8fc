// The programs of ranks that work together; tools/parity/stablehlo.py runs such programs.
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "comm/collectives.h"
#include "comm/recording.h"
#include "core/error.h"
#include "plan/graph_recorder.h"
#include "plan/stablehlo.h"

namespace tessera::plan {
namespace {

at::Tensor meta(at::IntArrayRef sizes) {
  return at::empty(sizes, at::dtype(at::kFloat).device(at::kMeta));
}

class RankPrograms : public ::testing::Test {
 protected:
  // What `run` computes on each of two ranks, from an input of so many rows of 3.
  template <typename Run>
  std::vector<Graph> record(const std::vector<int64_t>& rows, const Run& run) {
    std::vector<Graph> graphs;
    for (int64_t rank = 0; rank < std::ssize(rows); ++rank) {
      comm::World world = comm::recording_world(rank, std::ssize(rows));
      const comm::Group group = world.group({0, 1}, "ring");
      const at::Tensor x = meta({rows[static_cast<size_t>(rank)], 3});
      GraphRecorder recorder;
      recorder.add_input("x", x);
      recorder.add_result("y", run(x, group));
      graphs.push_back(recorder.take());
    }
    return graphs;
  }

 private:
  const c10::InferenceMode inference_mode_;
};

at::Tensor gathered(const at::Tensor& x, const comm::Group& group, const std::vector<Range>& parts) {
  return comm::all_gather(x, 0, parts, group);
}

TEST_F(RankPrograms, EqualPartsHaveNoBranches) {
  const std::vector<Graph> graphs = record({2, 2}, [](const at::Tensor& x, const comm::Group& group) {
    return gathered(x, group, {{0, 2}, {2, 2}}) * 2;
  });
  const Program program = stablehlo_program(graphs, 1, {});
  EXPECT_EQ(program.text.find("stablehlo.case"), std::string::npos) << program.text;
  EXPECT_NE(program.text.find("(tensor<1x2x3xf32>) -> tensor<2x2x3xf32>"), std::string::npos) << program.text;
  EXPECT_EQ(program.description["partitions"], OrderedJson({0, 1}));
}

// Ranks 0 and 1 exchange messages, and so do 2 and 3.
TEST_F(RankPrograms, RanksThatExchangeNothingHaveOtherPrograms) {
  std::vector<Graph> graphs;
  for (int64_t rank = 0; rank < 4; ++rank) {
    comm::World world = comm::recording_world(rank, 4);
    const int64_t first = rank / 2 * 2;
    const comm::Group group = world.group({first, first + 1}, "ring");
    const at::Tensor x = meta({2, 3});
    GraphRecorder recorder;
    recorder.add_input(rank < 2 ? "x" : "z", x);
    recorder.add_result("y", gathered(x, group, {{0, 2}, {2, 2}}));
    graphs.push_back(recorder.take());
  }
  const Program program = stablehlo_program(graphs, 3, {});
  EXPECT_EQ(program.description["partitions"], OrderedJson({2, 3}));
  EXPECT_NE(program.text.find("replica_groups = dense<[[0, 1]]>"), std::string::npos) << program.text;
  EXPECT_EQ(program.description["arguments"].size(), 1);
}

TEST_F(RankPrograms, UnequalPartsArePaddedAndCutInBranches) {
  const std::vector<Graph> graphs = record({2, 1}, [](const at::Tensor& x, const comm::Group& group) {
    return gathered(x, group, {{0, 2}, {2, 1}}) * 2;
  });
  const Program program = stablehlo_program(graphs, 1, {});
  const auto has = [&](const std::string& text) { return program.text.find(text) != std::string::npos; };
  EXPECT_TRUE(has("@main(%arg0: tensor<2x3xf32>) -> (tensor<3x3xf32>)")) << program.text;
  // The second rank cuts its own row out of two, and gives a row of zeros behind it.
  EXPECT_TRUE(has("%4 = stablehlo.slice %arg0 [0:1, 0:3] : (tensor<2x3xf32>) -> tensor<1x3xf32>"))
      << program.text;
  EXPECT_TRUE(has("%6 = stablehlo.pad %4, %5, low = [0, 0], high = [1, 0]")) << program.text;
  // Both take two rows of what the first one gave, and one of what the second one did.
  EXPECT_TRUE(has("stablehlo.slice %9 [0:1, 0:2, 0:3]")) << program.text;
  EXPECT_TRUE(has("stablehlo.slice %9 [1:2, 0:1, 0:3]")) << program.text;
  EXPECT_TRUE(has("stablehlo.concatenate %11, %13, dim = 0")) << program.text;
  // That is no part of the collective.
  EXPECT_TRUE(has("tensor<1x3xf32> loc(#loc5)")) << program.text;
  EXPECT_TRUE(has("#loc5 = loc(\"branches\"(\"program\":0:0))")) << program.text;
  EXPECT_TRUE(has("= loc(\"collective.all_gather ring\"(\"program\":1:0))")) << program.text;
  EXPECT_EQ(program.description["arguments"],
            OrderedJson::parse(R"([{"name": "x", "kind": "input", "dtype": "f32", "shape": [1, 3],
                                    "padded_shape": [2, 3]}])"));
  EXPECT_EQ(stablehlo_program(graphs, 0, {}).text, program.text);
}

// A rank that computes more than another has branches, even if all parts are equal.
TEST_F(RankPrograms, ResultsOfBranchesHoldTheLargest) {
  const std::vector<Graph> graphs = record({2, 2}, [](const at::Tensor& x, const comm::Group& group) {
    const at::Tensor all = gathered(x, group, {{0, 2}, {2, 2}});
    return group.rank == 0 ? all.narrow(0, 1, 2) + x : all.narrow(0, 0, 3) * 2;
  });
  const Program program = stablehlo_program(graphs, 0, {});
  EXPECT_NE(program.text.find("-> (tensor<3x3xf32>) {"), std::string::npos) << program.text;
  EXPECT_EQ(
      program.description["results"],
      OrderedJson::parse(R"([{"name": "y", "dtype": "f32", "shape": [2, 3], "padded_shape": [3, 3]}])"));
}

TEST_F(RankPrograms, AnInputThatOnlyOthersHaveIsZero) {
  std::vector<Graph> graphs = record({2, 2}, [](const at::Tensor& x, const comm::Group& group) {
    return gathered(x, group, {{0, 2}, {2, 2}});
  });
  graphs[1].arguments[0].name = "z";
  const Program program = stablehlo_program(graphs, 1, {});
  EXPECT_EQ(
      program.description["arguments"],
      OrderedJson::parse(R"([{"name": "x", "kind": "constant", "value": 0, "dtype": "f32", "shape": [2, 3]},
                                   {"name": "z", "kind": "input", "dtype": "f32", "shape": [2, 3]}])"));
}

TEST_F(RankPrograms, CollectivesThatDoNotFitEachOtherAreRefused) {
  const std::vector<Graph> graphs = record({2, 2}, [](const at::Tensor& x, const comm::Group& group) {
    return group.rank == 0 ? gathered(x, group, {{0, 2}, {2, 2}}) : comm::all_reduce(x, group);
  });
  try {
    stablehlo_program(graphs, 0, {});
    ADD_FAILURE() << "a program of ranks that wait for each other";
  } catch (const Error& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[stablehlo] the ranks do not send each other messages of the same kinds in the same order, for "
        "which there is no program");
  }
}

}  // namespace
}  // namespace tessera::plan
