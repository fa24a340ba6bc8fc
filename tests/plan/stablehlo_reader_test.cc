// The reader of programs in StableHLO: forms of operations, and texts that it refuses.
#include "plan/stablehlo_reader.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "plan/mlir_location.h"
#include "plan/stablehlo_costs.h"
#include "plan/stablehlo_regions.h"

namespace tessera::plan {
namespace {

const std::string kWhere = "p.mlir";

// A program of one function with these lines, of which the first is line 3.
std::string main_of(const std::string& lines, const std::string& arguments = "%x: tensor<2x3xf32>") {
  return "module @m {\n  func.func public @main(" + arguments + ") -> tensor<2x3xf32> {\n" + lines +
         "    return %x : tensor<2x3xf32>\n  }\n}\n";
}

std::string refusal(const std::string& text) {
  try {
    read_stablehlo(text, kWhere);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

TEST(StablehloReader, KnowsTypesAndWhatIsRead) {
  const std::string text = main_of(
      "    %0 = stablehlo.add %x, %x : tensor<2x3xf32>\n"
      "    %1 = stablehlo.convert %0 : (tensor<2x3xf32>) -> tensor<2x3xbf16>\n"
      "    %c = stablehlo.constant dense<[[0, 1]]> : tensor<1x2xi64>\n"
      "    %2:2 = stablehlo.optimization_barrier %1, %c : tensor<2x3xbf16>, tensor<1x2xi64>\n"
      "    %3 = stablehlo.compare GT, %x, %0, FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>\n"
      "    %4 = stablehlo.select %3, %x, %0 : tensor<2x3xi1>, tensor<2x3xf32>\n"
      "    %5 = chlo.erf %4 : tensor<2x3xf32> -> tensor<2x3xf32> loc(\"f\"(\"a.py\":3:4 to :9))\n"
      "    %6 = stablehlo.create_token : !stablehlo.token\n"
      "    %7 = stablehlo.transpose %2#0, dims = [1, 0] : (tensor<2x3xbf16>) -> tensor<3x2xbf16>\n");
  const StablehloModule module = read_stablehlo(text, kWhere);
  EXPECT_EQ(module.entry, "main");
  const ProgramFunction& main = module.functions.at("main");
  std::vector<std::string_view> names;
  for (const ProgramOperation& each : main.body.operations) names.push_back(each.name);
  EXPECT_EQ(names,
            (std::vector<std::string_view>{"add", "convert", "constant", "optimization_barrier", "compare",
                                           "select", "chlo.erf", "create_token", "transpose", "return"}));
  const auto written = [&](size_t i) { return main.values[main.body.operations[i].writes[0]]; };
  EXPECT_EQ(written(1), (TensorShape{{2, 3}, at::kBFloat16}));
  EXPECT_EQ(written(4), (TensorShape{{2, 3}, at::kBool}));
  EXPECT_EQ(written(5), (TensorShape{{2, 3}, at::kFloat}));
  EXPECT_EQ(written(7), std::nullopt);
  EXPECT_EQ(written(8), (TensorShape{{3, 2}, at::kBFloat16}));
  EXPECT_EQ(main.body.operations[8].reads, std::vector{main.body.operations[3].writes[0]});
}

// Numbers are combined in regions, which are passed over; the short form has each first value beside its
// tensor.
TEST(StablehloReader, PassesOverRegionsThatCombine) {
  const std::string text = main_of(
      "    %i = stablehlo.iota dim = 1 : tensor<2x3xi32>\n"
      "    %a = stablehlo.constant dense<0xFF800000> : tensor<f32>\n"
      "    %b = stablehlo.constant dense<0> : tensor<i32>\n"
      "    %0 = stablehlo.reduce(%x init: %a) applies stablehlo.maximum across dimensions = [1] : "
      "(tensor<2x3xf32>, tensor<f32>) -> tensor<2xf32>\n"
      "    %1:2 = stablehlo.reduce(%x init: %a), (%i init: %b) across dimensions = [1] : (tensor<2x3xf32>, "
      "tensor<2x3xi32>, tensor<f32>, tensor<i32>) -> (tensor<2xf32>, tensor<2xi32>)\n"
      "     reducer(%p: tensor<f32>, %q: tensor<f32>) (%r: tensor<i32>, %s: tensor<i32>)  {\n"
      "      %2 = foo.bar %p : tensor<f32>\n      stablehlo.return %p, %r : tensor<f32>, tensor<i32>\n    }\n"
      "    %3 = \"stablehlo.all_reduce\"(%x) <{replica_groups = dense<0> : tensor<1x1xi64>}> ({\n"
      "    ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n      stablehlo.return %p : tensor<f32>\n"
      "    }) : (tensor<2x3xf32>) -> tensor<2x3xf32>\n");
  const StablehloModule module = read_stablehlo(text, kWhere);
  EXPECT_EQ(module.functions.at("main").body.operations.size(), 7U);
}

TEST(StablehloReader, ReadsLoops) {
  const auto loop = [](const std::string& compared, const std::string& step) {
    return main_of(
        "    %a = stablehlo.constant dense<2> : tensor<i32>\n    %c = stablehlo.constant dense<9> : "
        "tensor<i32>\n"
        "    %0:2 = stablehlo.while(%i = %a, %y = %x) : tensor<i32>, tensor<2x3xf32>\n    cond {\n"
        "      %1 = stablehlo.compare " +
        compared +
        ", SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>\n      stablehlo.return %1 : tensor<i1>\n"
        "    } do {\n      %1 = stablehlo.add %y, %y : tensor<2x3xf32>\n"
        "      %s = stablehlo.constant dense<" +
        step +
        "> : tensor<i32>\n      %2 = stablehlo.add %i, %s : tensor<i32>\n"
        "      stablehlo.return %2, %1 : tensor<i32>, tensor<2x3xf32>\n    }\n");
  };
  const auto trips = [&](const std::string& compared, const std::string& step) {
    const std::string text = loop(compared, step);
    const StablehloModule module = read_stablehlo(text, kWhere);
    const ProgramFunction& main = module.functions.at("main");
    return trips_of(module, main, main.body.operations[2]);
  };
  EXPECT_EQ(trips("LT, %i, %c", "1"), 7);
  EXPECT_EQ(trips("LT, %i, %c", "3"), 3);
  EXPECT_EQ(trips("LT, %i, %a", "1"), 0);
  for (const auto& [compared, step] :
       {std::pair("GT, %i, %c", "1"), std::pair("LT, %c, %i", "1"), std::pair("LT, %i, %c", "-1")}) {
    try {
      trips(compared, step);
      ADD_FAILURE() << compared;
    } catch (const Error& error) {
      EXPECT_TRUE(std::string(error.what())
                      .starts_with("[p.mlir: line 5] how often stablehlo.while runs is not known"))
          << error.what();
    }
  }
}

TEST(StablehloReader, NamesTheLineOfWhatItRefuses) {
  const std::string good = main_of("    %0 = stablehlo.add %x, %x : tensor<2x3xf32>\n");
  EXPECT_EQ(refusal(good), "accepted");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"    %0 = stablehlo.add %x, %y : tensor<2x3xf32>\n", "%y is read before it is computed"},
      {"    %x = stablehlo.add %x, %x : tensor<2x3xf32>\n", "%x is there twice"},
      {"    %0 = arith.addf %x, %x : tensor<2x3xf32>\n", "'arith.addf' is no operation of StableHLO"},
      {"    %0 = stablehlo.softmax %x : tensor<2x3xf32>\n",
       "'stablehlo.softmax' is no operation of StableHLO"},
      {"    %0 = \"stablehlo.adds\"(%x, %x) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>\n",
       "'stablehlo.adds' is no operation of StableHLO"},
      {"    %0 = stablehlo.add %x, %x : tensor<2x?xf32>\n",
       "a shape that is not known; programs of static shapes are "
       "read here"},
      {"    %0 = stablehlo.add %x, %x : tensor<2x9999999999999999999xf32>\n",
       "a dimension of more than 2^52"},
      {"    %0 = stablehlo.add %x, %x : tensor<4294967296x4294967296xf32>\n",
       "a tensor of more than 2^52 elements"},
      {"    %0 = stablehlo.add %x, %x : tensor<2x3xi4>\n", "'i4' is no type of numbers that is read here"},
      {"    %0 = stablehlo.add %x, %x\n", "add has 1 result, and types of 0"},
      {"    %0 = stablehlo.add %x, %x : ()\n", "add has 1 result, and types of 0"},
      {"    %0:2 = stablehlo.add %x, %x : tensor<2x3xf32>\n", "add has 2 results, and types of 1"},
      {"    %0 = stablehlo.convert %x : (tensor<3x2xf32>) -> tensor<3x2xf32>\n",
       "convert reads values of other types than it says"},
      {"    %0 = \"stablehlo.if\"(%x) ({\n    }) : (tensor<2x3xf32>) -> tensor<2x3xf32>\n",
       "stablehlo.if has regions, and what it runs of them is not known; no views of it"},
      {"    %0 = stablehlo.slice %x [0:1, 0:2 : (tensor<2x3xf32>) -> tensor<1x2xf32>\n",
       "a bracket is not closed"},
      {"    what is this\n", "'what' is no operation of StableHLO"},
      {"    \xff\n", "text that is no UTF-8"}};
  for (const auto& [line, message] : cases)
    EXPECT_EQ(refusal(main_of(line)), "[p.mlir: line 3] " + message) << line;
}

// Cut anywhere, it is refused; nothing is read behind its end.
TEST(StablehloReader, RefusesATextThatIsCut) {
  const std::string text = main_of(
      "    %0 = stablehlo.constant dense<\"0x0011\"> : tensor<4xi8> loc(#loc1)\n"
      "    %1 = stablehlo.reduce(%x init: %x) applies stablehlo.add across dimensions = [1] : "
      "(tensor<2x3xf32>, "
      "tensor<2x3xf32>) -> tensor<2xf32> loc(#loc1)\n");
  EXPECT_EQ(refusal(text), "accepted");
  for (size_t size = 1; size + 1 < text.size(); ++size) {
    const std::string cut(text.data(), size);
    EXPECT_TRUE(refusal(cut).starts_with("[p.mlir: line ")) << cut;
  }
}

TEST(StablehloReader, RefusesDeepNesting) {
  std::string lines;
  constexpr int kDepth = 100000;
  for (int i = 0; i < kDepth; ++i) lines += "\"stablehlo.while\"(%x) ({\n";
  EXPECT_TRUE(refusal(main_of(lines)).ends_with("regions are nested too deeply"));
  EXPECT_TRUE(refusal(main_of("    %0 = stablehlo.add " + std::string(kDepth, '(') + "%x"))
                  .starts_with("[p.mlir: line "));
}

TEST(StablehloReader, FindsTheNamesInLocations) {
  const std::string text =
      "#loc1 = loc(\"linear a.b\"(\"block 3\":17:0))\n#loc2 = loc(fused<\"m\">[unknown, #loc3])\n" +
      main_of("") +
      "#loc3 = loc(callsite(\"f/g\"(\"a.py\":4:2 to :9) at #loc1))\n#loc4 = loc(\"a.py\":4:2)\n"
      "#loc5 = loc(\"view\"(\"program\":5:0))\n#loc6 = loc(#loc6)\n#loc7 = loc(#none)\n";
  const StablehloModule module = read_stablehlo(text, kWhere);
  MlirLocations locations(text, kWhere, module.aliases);
  const auto read = [&](const char* name) { return locations.read(module.aliases.at(name)); };
  EXPECT_EQ(read("loc1").node(), (NodeLocation{.name = "linear", .role = "a.b", .block = 3, .number = 17}));
  EXPECT_EQ(read("loc5").node(), (NodeLocation{.name = "view", .number = 5}));
  for (const char* const of_others : {"loc2", "loc3"}) {
    EXPECT_EQ(read(of_others).name, "f/g");
    EXPECT_EQ(read(of_others).node(), std::nullopt);
  }
  EXPECT_EQ(read("loc4").name, "");
  EXPECT_THROW(read("loc6"), Error);
  EXPECT_THROW(read("loc7"), Error);
}

}  // namespace
}  // namespace tessera::plan
