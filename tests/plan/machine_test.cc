#include "plan/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/support/golden.h"

namespace tessera::plan {
namespace {

Json whole() {
  return parse_json(R"({"name": "m", "source": "a test", "tiles": 6, "grid": [2, 3], "sram_kib_per_tile": 512,
    "noc_gb_per_s_per_tile": 64, "hop_latency_us": 0.5, "dram_gb_per_s": 100, "dram_latency_us": 0.1,
    "gemm_tflops_per_tile": {"fp32": 2, "bf16": 8}, "vector_tops_per_tile": {"fp32": 0.5, "bf16": 0.25},
    "links": [{"kind": "pcie", "gb_per_s": 32, "latency_us": 4}, {"kind": "ethernet", "gb_per_s": null, "latency_us": null}]})",
                    "m.json");
}

// Returns the message of the input error with which the machine is refused.
std::string refusal(const Json& json) {
  try {
    read_machine(JsonConfig(json, "m.json"));
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput);
    return error.what();
  }
  return "accepted";
}

TEST(Machine, HasTheUnitsOfItsKeys) {
  const Machine machine = read_machine(JsonConfig(whole(), "m.json"));
  EXPECT_EQ(machine.tiles, 6);
  EXPECT_EQ(machine.grid_rows, 2);
  EXPECT_EQ(machine.grid_columns, 3);
  EXPECT_DOUBLE_EQ(machine.sram_bytes, 524288);
  EXPECT_DOUBLE_EQ(machine.noc_bandwidth, 64e9);
  EXPECT_DOUBLE_EQ(machine.hop_latency, 0.5e-6);
  EXPECT_DOUBLE_EQ(machine.dram_bandwidth, 100e9);
  EXPECT_DOUBLE_EQ(machine.dram_latency, 0.1e-6);
  EXPECT_DOUBLE_EQ(machine.gemm_rate("bf16"), 48e12);
  EXPECT_DOUBLE_EQ(machine.vector_rate("fp32"), 3e12);
  EXPECT_DOUBLE_EQ(find_link(machine, std::nullopt).bandwidth.value(), 32e9);
  EXPECT_DOUBLE_EQ(find_link(machine, "pcie").latency, 4e-6);
  EXPECT_FALSE(find_link(machine, "ethernet").bandwidth);
}

TEST(Machine, EveryKeyIsNeededAndNoOtherIsKnown) {
  const Json all = whole();
  for (const auto& [key, value] : all.items()) {
    Json json = whole();
    json.erase(key);
    const std::string message = refusal(json);
    EXPECT_NE(message.find("[m.json] '" + key + "' must be"), std::string::npos) << message;
    EXPECT_NE(message.find("missing"), std::string::npos) << message;
  }
  Json json = whole();
  json["dram_gb_per_sec"] = 100;
  EXPECT_EQ(refusal(json),
            "[m.json] 'dram_gb_per_sec' is not a key of a machine; did you mean 'dram_gb_per_s'?");
  json = whole();
  json["links"][0]["gbps"] = nullptr;
  EXPECT_NE(refusal(json).find("[m.json: links[0]] 'gbps' is not a key of a link"), std::string::npos);
}

TEST(Machine, NumbersArePositiveAndFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const char* const key :
       {"sram_kib_per_tile", "noc_gb_per_s_per_tile", "hop_latency_us", "dram_gb_per_s", "dram_latency_us"}) {
    for (const Json& value : {Json(0), Json(-1), Json(infinity), Json(std::nan("")), Json("1"), Json()}) {
      Json json = whole();
      json[key] = value;
      EXPECT_NE(refusal(json).find(std::string("[m.json] '") + key + "' must be"), std::string::npos)
          << key << " " << value << " " << refusal(json);
    }
  }
  for (const char* const rate : {"gemm_tflops_per_tile", "vector_tops_per_tile"}) {
    for (const Json& value : {Json(0), Json(-1), Json(infinity), Json()}) {
      Json json = whole();
      json[rate]["bf16"] = value;
      EXPECT_NE(refusal(json).find(std::string("[m.json: ") + rate + "] 'bf16' must be"), std::string::npos)
          << refusal(json);
    }
  }
  for (const char* const key : {"gb_per_s", "latency_us"}) {
    Json json = whole();
    json["links"][0][key] = 0;
    EXPECT_NE(refusal(json).find(std::string("[m.json: links[0]] '") + key + "' must be"), std::string::npos)
        << refusal(json);
  }
}

TEST(Machine, RefusesWhatDoesNotFitTogether) {
  Json json = whole();
  json["tiles"] = 7;
  EXPECT_NE(refusal(json).find("'grid' must be [rows, columns] of 7 tiles"), std::string::npos);
  json = whole();
  json["grid"] = {-2, -3};
  EXPECT_NE(refusal(json).find("'grid' must be"), std::string::npos);
  json = whole();
  json["vector_tops_per_tile"].erase("bf16");
  EXPECT_NE(refusal(json).find("'vector_tops_per_tile' must be an object with bf16"), std::string::npos);
  json = whole();
  json["gemm_tflops_per_tile"]["int4"] = 1;
  EXPECT_NE(refusal(json).find("'int4' is not a dtype"), std::string::npos);
  json = whole();
  json["links"] = "pcie";
  EXPECT_NE(refusal(json).find("'links' must be a list"), std::string::npos);
}

// The figures of data sheets, in 10^12 FLOP/s without sparsity and 10^9 bytes/s, the link's in one direction;
// of processors cores x FLOPs a clock x the base clock, and channels x 8 bytes x transfers.
TEST(Machine, ThoseThatShipHaveTheRatesOfTheirDataSheets) {
  struct Sheet {
    const char *name, *dtype;
    double gemm, fp32, dram, link;
  };
  for (const Sheet& sheet :
       {Sheet{"a100", "bf16", 312, 19.5, 2039, 300}, Sheet{"h100", "bf16", 989.4, 66.9, 3350, 450},
        Sheet{"h200", "fp8", 1978.9, 66.9, 4800, 450}, Sheet{"l40", "bf16", 181.05, 90.5, 864, 32},
        Sheet{"l20", "fp16", 119.5, 59.8, 864, 32}, Sheet{"t4", "fp16", 65, 8.1, 320, 16},
        Sheet{"cpu-avx2", "fp32", 64 * 32 * 2.45e-3, 64 * 32 * 2.45e-3, 8 * 8 * 3.2, 12.5},
        Sheet{"cpu-avx512", "fp32", 40 * 64 * 2.3e-3, 40 * 64 * 2.3e-3, 8 * 8 * 3.2, 12.5},
        Sheet{"cpu-amx", "bf16", 56 * 2048 * 2e-3, 56 * 64 * 2e-3, 8 * 8 * 4.8, 12.5}}) {
    const Machine machine = read_machine(golden_folder(fmt::format("../../machines/{}.json", sheet.name)));
    EXPECT_NEAR(machine.gemm_rate(sheet.dtype) / 1e12 / sheet.gemm, 1, 1e-4) << sheet.name;
    EXPECT_NEAR(machine.gemm_rate("fp32") / 1e12 / sheet.fp32, 1, 1e-4) << sheet.name;
    // A fused multiply-add is one operation of a vector.
    EXPECT_NEAR(machine.vector_rate("fp32") / 1e12 / (sheet.fp32 / 2), 1, 1e-4) << sheet.name;
    EXPECT_NEAR(machine.dram_bandwidth / 1e9 / sheet.dram, 1, 1e-9) << sheet.name;
    EXPECT_NEAR(*find_link(machine, std::nullopt).bandwidth / 1e9 / sheet.link, 1, 1e-9) << sheet.name;
  }
  // The published table of one die, of 16 tiles.
  const Machine tx8 = read_machine(golden_folder("../../machines/tx8.json"));
  EXPECT_DOUBLE_EQ(tx8.gemm_rate("bf16"), 128e12);
  EXPECT_DOUBLE_EQ(tx8.vector_rate("bf16"), 1e12);
  EXPECT_DOUBLE_EQ(tx8.sram_bytes, 3 * 1024 * 1024);
  EXPECT_DOUBLE_EQ(tx8.noc_bandwidth, 128e9);
  EXPECT_DOUBLE_EQ(tx8.dram_bandwidth, 100e9);
  EXPECT_NEAR(tx8.dram_latency, 0.1e-6, 1e-18);
  EXPECT_NEAR(tx8.hop_latency, 0.01e-6, 1e-18);
}

TEST(Machine, SaysWhatItLacks) {
  const Machine machine = read_machine(JsonConfig(whole(), "m.json"));
  EXPECT_THROW(require_dtype(machine, "fp8"), Error);
  EXPECT_NO_THROW(require_dtype(machine, "bf16"));
  EXPECT_THROW(find_link(machine, "nvlink"), Error);
}

}  // namespace
}  // namespace tessera::plan
