// Precompiled for every source of the library, the tests and the benchmarks. Parsing ATen costs 6-7 s a
// source and 1 s from here.
#pragma once

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
